"""One request and its response on a client's connection.

Rules
-----
1. `over` becomes true exactly once, by `eof`, `abort` or `leave`; after it nothing is written.
2. The request may still be arriving when the response ends: `complete` and `over` are independent.
3. Body bytes are kept only while someone can still ask for them, and never above the listener's bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.gateway.transport.framing import Framing, response_bytes
from headway.gateway.transport.interface import BodyTooLarge, RequestHead, ResponseHead

if TYPE_CHECKING:
    from headway.gateway.transport.inbound import Inbound

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """`Downstream` over an `Inbound` connection."""

    __slots__ = (
        "_connection",
        "_head",
        "_remaining",
        "_size",
        "_waiter",
        "awaits_continue",
        "complete",
        "framing",
        "http11",
        "keep_alive",
        "on_writable",
        "over",
        "peer",
        "pieces",
        "request",
        "task",
        "too_large",
    )

    def __init__(
        self,
        connection: Inbound,
        request: RequestHead,
        *,
        http11: bool,
        keep_alive: bool,
        awaits_continue: bool,
        too_large: bool,
    ) -> None:
        self.request = request
        self.peer = connection.peer
        self.on_writable: Callable[[], None] | None = None
        self.http11 = http11
        self.keep_alive = keep_alive
        self.awaits_continue = awaits_continue  # the client holds its body back until it is told to go on
        self.too_large = too_large
        self.complete = False  # the whole request has come
        self.over = False
        self.framing: Framing | None = None  # of the response, once its head is given
        self.pieces: list[bytes] = []
        self.task: asyncio.Future[None] | None = None
        self._connection = connection
        self._head: bytes | None = None  # held back to leave with the first body bytes
        self._remaining = 0
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None

    # the request body, as it comes

    def receive(self, piece: bytes) -> None:
        self.awaits_continue = False
        self._size += len(piece)
        if self._size > self._connection.max_body:
            self.too_large = True
            self.pieces.clear()
            self._wake()
        elif not self.over:
            self.pieces.append(piece)

    def received(self) -> None:
        self.complete = True
        self.awaits_continue = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Downstream

    async def body(self) -> bytes:
        if not self.complete and not self.too_large:
            if self.awaits_continue and self.framing is None:
                self._connection.write(CONTINUE)
            self.awaits_continue = False
            self._connection.expect_body()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.too_large:
            raise BodyTooLarge(self._connection.max_body)
        if len(self.pieces) > 1:
            self.pieces = [b"".join(self.pieces)]
        return self.pieces[0] if self.pieces else b""

    @property
    def started(self) -> bool:
        return self.framing is not None

    def head(self, head: ResponseHead) -> None:
        if self.over:
            return
        if self.framing is not None:
            raise RuntimeError("the response head has already been given")
        keep_alive = (
            self.keep_alive
            and not self._connection.ending
            and not self.too_large
            # A client that was not told to continue may send its body or the next request: nobody can say
            # which.
            and not self.awaits_continue
        )
        self._head, self.framing, self._remaining, self.keep_alive = response_bytes(
            head, bodyless=self.request.method == b"HEAD", http11=self.http11, keep_alive=keep_alive
        )
        self._connection.defer(self.flush)

    def flush(self) -> None:
        if self._head is not None and not self.over:
            raw, self._head = self._head, None
            self._connection.write(raw)

    def data(self, data: bytes) -> None:
        if self.over:
            return
        framing = self.framing
        if framing is Framing.CHUNKED:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif framing is Framing.LENGTH:
            self._remaining -= len(data)
            if self._remaining < 0:
                self._connection.log.error("%s: response longer than its Content-Length, aborted", self.peer)
                self.abort()
                return
        elif framing is Framing.NONE:
            return
        elif framing is None:
            raise RuntimeError("body bytes before the response head")
        if self._head is not None:
            data, self._head = self._head + data, None
        self._connection.write(data)

    def eof(self) -> None:
        if self.over:
            return
        if self.framing is None:
            raise RuntimeError("end of a response that has no head")
        if self.framing is Framing.LENGTH and self._remaining:
            self._connection.log.error("%s: response shorter than its Content-Length, aborted", self.peer)
            self.abort()
            return
        tail = b"0\r\n\r\n" if self.framing is Framing.CHUNKED else b""
        if self._head is not None:
            tail, self._head = self._head + tail, None
        if tail:
            self._connection.write(tail)
        self._end()
        self._connection.ended(self)

    def abort(self) -> None:
        if not self.over:
            self.flush()
            self._end()
            self._connection.aborted(self)

    @property
    def writable(self) -> bool:
        return self._connection.writable

    # the connection's side

    def leave(self) -> None:
        """The client has left, or what it sends is not HTTP: the handler is cancelled in this tick."""
        if not self.over:
            self._end()
            if self.task is not None:
                self.task.cancel()

    def _end(self) -> None:
        self.over = True
        self.on_writable = None
        self.pieces = []

    def handled(self, task: asyncio.Future[None]) -> None:
        """Done-callback of the handler's task."""
        log = self._connection.log
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s: handler failed, exchange aborted", self.peer, exc_info=error)
        elif not self.over and not task.cancelled():
            log.error("%s: handler returned without ending the exchange, aborted", self.peer)
        self.abort()
        self.task = None
        self._connection.done(task)
