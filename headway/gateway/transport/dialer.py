"""Connections to one upstream: a pool of idle ones, and calls that use them.

Rules
-----
1. The most recently used idle connection is taken first, and none that has been idle for longer than the
   pool's bound, which is below the time after which engines close theirs.
2. A request is sent a second time in one case only: it went out on a reused connection, which then ended at
   once without a byte of answer. That is an upstream that closed an idle connection while the request was on
   its way.
3. The sink is never called from inside `send`, and never after `abort`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from headway.gateway.transport.framing import request_bytes
from headway.gateway.transport.interface import Dialer, LostReason, RequestHead, Sink, UpstreamLost
from headway.gateway.transport.outbound import Outbound

RACE_S = 1.0
"""Seconds from sending within which the end of a reused connection counts as the race of rule 2. Later, the
upstream has had the request, and an engine that died of it must not get it again."""


class HttpCall:
    """`Call` of an `HttpDialer`."""

    __slots__ = (
        "body",
        "connecting",
        "connection",
        "dialer",
        "head_only",
        "over",
        "paused",
        "request",
        "retried",
        "sent_at",
        "sink",
    )

    def __init__(self, dialer: HttpDialer, request: bytes, body: bytes, sink: Sink, head_only: bool) -> None:
        self.dialer = dialer
        self.request = request
        self.body = body
        self.sink = sink
        self.head_only = head_only
        self.over = False
        self.paused = False
        self.retried = False
        self.sent_at = 0.0
        self.connection: Outbound | None = None
        self.connecting: asyncio.Task[None] | None = None

    # Call

    def abort(self) -> None:
        if self.over:
            return
        self.over = True
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def pause(self) -> None:
        if not self.over and not self.paused:
            self.paused = True
            if self.connection is not None:
                self.connection.pause()

    def resume(self) -> None:
        if not self.over and self.paused:
            self.paused = False
            if self.connection is not None:
                self.connection.resume()

    # the dialer's side

    def finish(self) -> None:
        self.over = True
        self.connection = None
        self.sink.eof()

    def lost(self, reason: LostReason, detail: str, answered: bool = False) -> None:
        if not self.over:
            self.over = True
            self.connection = None
            self.sink.lost(UpstreamLost(reason, detail, answered))


class HttpDialer:
    """`Dialer` for HTTP/1.1. Made by `dial`."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        max_idle: int,
        max_idle_s: float,
    ) -> None:
        self.origin = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._max_idle = max_idle
        self._max_idle_s = max_idle_s
        self._idle: list[Outbound] = []  # the longest idle first
        self._open: set[Outbound] = set()
        self._connecting: dict[asyncio.Task[None], HttpCall] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._drained = asyncio.Event()
        self._closed_detail = f"the connections to {self.origin} have been closed"

    # Dialer

    def send(self, head: RequestHead, body: bytes, sink: Sink) -> HttpCall:
        call = HttpCall(self, request_bytes(head, body), body, sink, head.method == b"HEAD")
        loop = asyncio.get_running_loop()
        if self._closed:
            loop.call_soon(call.lost, LostReason.CLOSED, self._closed_detail)
            return call
        now = loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < self._max_idle_s and connection.usable:
                connection.reused = True
                call.sent_at = now
                connection.start(call)
                return call
            connection.close()
        self._connect(call)
        return call

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task, connecting in list(self._connecting.items()):
            if connecting.connecting is not None:
                task.cancel()
            connecting.lost(LostReason.CLOSED, self._closed_detail)
        if self._connecting:
            await asyncio.wait(self._connecting)
        self._idle.clear()
        for connection in list(self._open):
            call = connection.call
            connection.close()
            if call is not None:
                call.lost(LostReason.CLOSED, self._closed_detail)
        while self._open:
            self._drained.clear()
            await self._drained.wait()

    # connecting

    def _connect(self, call: HttpCall) -> None:
        call.connecting = task = asyncio.get_running_loop().create_task(self._open_connection(call))
        self._connecting[task] = call
        task.add_done_callback(self._connecting.pop)

    async def _open_connection(self, call: HttpCall) -> None:
        connection = Outbound(self, call)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await asyncio.get_running_loop().create_connection(lambda: connection, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            failure = (
                LostReason.TIMEOUT,
                f"no connection to {self.origin} within {self._connect_timeout_s:g} s",
            )
        except OSError as error:
            failure = LostReason.CONNECT, _connect_detail(error, self.origin)
        except BaseException:
            connection.drop()
            raise
        else:
            return
        connection.drop()
        call.lost(*failure)

    # the connections' side

    def opened(self, connection: Outbound) -> None:
        self._open.add(connection)
        if self._closed:
            connection.close()

    def closed(self, connection: Outbound) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._open:
            self._drained.set()

    def idle(self, connection: Outbound) -> None:
        if self._closed or len(self._idle) >= self._max_idle:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._max_idle_s, self._sweep)

    def retry(self, call: HttpCall) -> bool:
        """Whether the request is sent once more, on a new connection."""
        if call.retried or self._closed or asyncio.get_running_loop().time() - call.sent_at > RACE_S:
            return False
        call.retried = True
        call.connection = None
        self._connect(call)
        return True

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._max_idle_s
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.pop(0).close()
        self._sweeper = None
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].idle_since + self._max_idle_s, self._sweep)


def _connect_detail(error: OSError, origin: str) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused by {origin}"
    if isinstance(error, socket.gaierror):
        return f"no address for {origin}: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return f"TLS with {origin} failed: {error}"
    return f"no connection to {origin}: {error}"


def dial(
    host: str,
    port: int,
    *,
    tls: bool = False,
    connect_timeout_s: float = 5.0,
    max_idle: int = 512,
    max_idle_s: float = 4.0,
) -> Dialer:
    """Connections to the upstream at `host`:`port`, opened as needed; how many is for the caller to bound.

    `connect_timeout_s`: seconds for name, connection and TLS together. `max_idle`, `max_idle_s`: how many
    idle connections are kept, and for how long; uvicorn, and so vLLM and SGLang, closes its own after 5
    seconds.
    """
    context = ssl.create_default_context() if tls else None
    return HttpDialer(host, port, context, connect_timeout_s, max_idle, max_idle_s)
