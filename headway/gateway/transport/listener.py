"""The listening socket, its connections and the tasks of its exchanges."""

from __future__ import annotations

import asyncio
import contextlib
from types import CoroutineType

from headway.gateway.transport.exchange import Exchange
from headway.gateway.transport.inbound import Inbound
from headway.gateway.transport.interface import Handler, Listener

CANCEL_S = 5.0
"""Seconds for which `close` waits for handlers that have been cancelled."""


class HttpListener:
    """`Listener` for HTTP/1.1 and 1.0. Made by `listen`."""

    def __init__(self, handler: Handler, max_body: int, head_timeout_s: float, idle_timeout_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_body = max_body
        self.head_timeout_s = head_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.stopping = False
        self.connections: set[Inbound] = set()
        self._handler = handler
        self._tasks: set[asyncio.Future[None]] = set()
        self._server: asyncio.Server | None = None
        self._drained: asyncio.Event = asyncio.Event()
        self._sweep_every_s = min(1.0, head_timeout_s / 4, idle_timeout_s / 4)
        self._sweeper = self.loop.call_later(self._sweep_every_s, self._sweep)

    async def start(self, host: str, port: int, backlog: int, reuse_port: bool) -> None:
        try:
            self._server = await self.loop.create_server(
                lambda: Inbound(self), host, port, backlog=backlog, reuse_port=reuse_port or None
            )
        except BaseException:
            self._sweeper.cancel()
            raise
        self._port = int(self._server.sockets[0].getsockname()[1])

    # Listener

    @property
    def port(self) -> int:
        return self._port

    @property
    def live(self) -> int:
        return len(self._tasks)

    def stop_accepting(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.stop()

    async def close(self, grace_s: float) -> None:
        self.stop_accepting()
        if self.connections and grace_s > 0:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), grace_s)
        for connection in list(self.connections):
            connection.kill()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_S)
        while self.connections:
            self._drained.clear()
            await self._drained.wait()
        self._sweeper.cancel()
        if self._server is not None:
            await self._server.wait_closed()

    # the connections' side

    def serve(self, exchange: Exchange) -> asyncio.Future[None]:
        handling = self._handler(exchange)
        if isinstance(handling, CoroutineType):  # the usual case, and cheaper than `ensure_future`
            task = self.loop.create_task(handling)
        else:
            task = asyncio.ensure_future(handling, loop=self.loop)
        self._tasks.add(task)
        task.add_done_callback(exchange.handled)
        return task

    def done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)

    def lost(self, connection: Inbound) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._drained.set()

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in [c for c in self.connections if c.deadline <= now]:
            connection.expire()
        self._sweeper = self.loop.call_later(self._sweep_every_s, self._sweep)


async def listen(
    host: str,
    port: int,
    handler: Handler,
    *,
    max_body: int,
    head_timeout_s: float = 30.0,
    idle_timeout_s: float = 75.0,
    backlog: int = 2048,
    reuse_port: bool = False,
) -> Listener:
    """Listen on `host`:`port` (0: any free port) and run `handler` for every request.

    `max_body`: bytes of a request body. `head_timeout_s`: seconds for a request head to come, and between two
    reads of a body. `idle_timeout_s`: seconds between two requests. Raises OSError when the address cannot be
    had.
    """
    listener = HttpListener(handler, max_body, head_timeout_s, idle_timeout_s)
    await listener.start(host, port, backlog, reuse_port)
    return listener
