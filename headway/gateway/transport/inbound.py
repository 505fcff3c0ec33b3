"""A client's connection: bytes in, exchanges out, one at a time.

Rules
-----
1. At most one exchange is served. Requests pipelined behind it wait: those of the same read in the reader's
   queue, later bytes unparsed in `_held`. Reading stops only above HELD_BYTES, because a connection that is
   not read cannot tell that its client has left.
2. The end of the client's bytes is the client leaving, half-closed or not.
3. A request that cannot be parsed without doubt is refused and the connection ends: what follows it may be a
   request that someone else smuggled.
4. One deadline a connection, checked by the listener's sweep: no timer is created per request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from headway.gateway.transport import flow
from headway.gateway.transport.exchange import Exchange
from headway.gateway.transport.framing import Framing
from headway.gateway.transport.request_reader import Refused, RequestReader

if TYPE_CHECKING:
    from headway.gateway.transport.listener import HttpListener

HELD_BYTES = 64 * 1024
"""Unparsed bytes kept while an exchange is under way."""
LINGER_S = 2.0
"""Seconds for which a connection about to close still reads, or flushes: closing with bytes unread resets the
connection, and the reset can overtake the response that explains it."""
NEVER: Final = float("inf")

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    505: b"HTTP Version Not Supported",
}


def error_response(status: int, message: str) -> bytes:
    """A whole response. The path may not be known, so its body has the shape in which clients of OpenAI's API expect an error and
    that in which Anthropic's do."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": status}
    body = json.dumps({"type": "error", "error": error}).encode()
    return b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        status,
        _REASONS[status],
        len(body),
        body,
    )


class Inbound(asyncio.Protocol):
    """Server side of one connection."""

    log = logging.getLogger("headway.gateway")

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._loop = listener.loop
        self.max_body = listener.max_body
        self.peer = ""
        self.writable = True
        self.closing = False
        self.deadline = NEVER
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(self)
        self._current: Exchange | None = None  # the one being served
        self._held = bytearray()
        self._refusal: tuple[int, str] | None = None  # to be sent when the exchanges before it are over
        self._lingering = False

    # connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop does not subclass it
        self._transport = transport
        flow.tune(transport)
        address = transport.get_extra_info("peername")
        if address:
            host, port = address[:2]
            self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._listener.connections.add(self)
        self.deadline = self._loop.time() + self._listener.head_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._listener.lost(self)
        self._transport = None
        self._reader.close()

    def eof_received(self) -> None:
        if self._current is not None:
            self.kill()

    def _leave(self) -> None:
        self.closing = True
        self._reader.queue.clear()
        if self._current is not None:
            current, self._current = self._current, None
            current.leave()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    # bytes in

    def data_received(self, data: bytes) -> None:
        current = self._current
        if self._lingering or (self.closing and current is None):
            return
        if current is not None and (current.complete or current is not self._reader.incoming):
            if current.keep_alive:
                self._hold(data)
            return
        self._feed(data)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > HELD_BYTES:
            flow.read(self._transport, False)

    def _feed(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except Refused as error:
            self._refuse(error.status, str(error))
        self._advance()

    def _refuse(self, status: int, message: str) -> None:
        self._refusal = (status, message)
        self._held.clear()
        incoming = self._reader.incoming
        if incoming is None or incoming.complete:
            return
        # The fault lies inside the body of a request that has already been announced.
        if incoming is self._current:
            self._current = None
            incoming.leave()
            if incoming.framing is not None:
                self._shut(incomplete=incoming.framing is Framing.CLOSE)
        elif incoming.over:
            self._shut()
        else:
            self._reader.queue.pop()

    def head_begun(self) -> None:
        if self._current is None:
            self.deadline = self._loop.time() + self._listener.head_timeout_s

    # one exchange at a time

    def _advance(self) -> None:
        """Go on, if no exchange is under way, with whatever is next."""
        current = self._current
        if current is None and self._reader.queue and not self.closing:
            current = self._current = self._reader.queue.popleft()
            current.task = self._listener.serve(current)
        incoming = self._reader.incoming
        if self._held and not self.closing and (current is None or (current is incoming and not current.complete)):
            held, self._held = bytes(self._held), bytearray()
            flow.read(self._transport, True)
            self._feed(held)
        elif current is not None:
            if current.complete or current.awaits_continue or current is not incoming:
                self.deadline = NEVER
            else:
                self.expect_body()
        elif self.closing:
            pass
        elif self._refusal is not None:
            self.write(error_response(*self._refusal))
            self._linger()
        elif incoming is not None and not incoming.complete:
            # Its response is over; the rest of its body is read and dropped.
            if incoming.too_large:
                self._linger()
            else:
                self.expect_body()
        elif self._listener.stopping:
            self._shut()
        elif not self._reader.in_head:
            self.deadline = self._loop.time() + self._listener.idle_timeout_s
        elif self.deadline == NEVER:
            self.deadline = self._loop.time() + self._listener.head_timeout_s

    def ended(self, exchange: Exchange) -> None:
        self._current = None
        if exchange.keep_alive:
            self._advance()
        elif exchange.complete:
            self._shut()
        else:
            self._linger()

    def aborted(self, exchange: Exchange) -> None:
        self._current = None
        self._shut(incomplete=exchange.framing is Framing.CLOSE)

    # bytes out, and the end

    def write(self, data: bytes) -> None:
        # Between a failed write and `connection_lost`, uvloop raises for the next one.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def defer(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def expect_body(self) -> None:
        self.deadline = self._loop.time() + self._listener.head_timeout_s

    def _linger(self) -> None:
        """Say no more, drop what comes, close when the client does or after LINGER_S."""
        self.closing = self._lingering = True
        self.deadline = self._loop.time() + LINGER_S
        if self._transport is not None and not self._transport.is_closing():
            flow.read(self._transport, True)
            self._transport.write_eof()

    def _shut(self, *, incomplete: bool = False) -> None:
        """Close once what was written has left. `incomplete`: only a reset would tell the client."""
        self.closing = True
        self._reader.queue.clear()
        if self._transport is None:
            return
        if incomplete:
            flow.reset(self._transport)
        else:
            self._transport.close()
            self.deadline = self._loop.time() + self._listener.idle_timeout_s

    def stop(self) -> None:
        """Close now if idle, else after the exchange under way."""
        if self._current is None and not self._reader.queue and not self.closing and not self._reader.in_head:
            self._shut()

    def kill(self) -> None:
        """Close now, whatever is under way."""
        current = self._current
        self._leave()
        if self._transport is None:
            return
        if current is not None and current.framing is Framing.CLOSE:
            flow.reset(self._transport)
        else:
            self._transport.abort()

    def done(self, task: asyncio.Future[None]) -> None:
        self._listener.done(task)

    @property
    def ending(self) -> bool:
        """Whether no further request will be served."""
        return self.closing or self._listener.stopping

    def expire(self) -> None:
        """The deadline has passed."""
        current, incoming = self._current, self._reader.incoming
        late = self._reader.in_head
        if current is not None:
            late = current is incoming and not current.complete and current.framing is None
        if late and not self.closing:
            self._current = None
            if current is not None:
                current.leave()
            self._reader.in_head = False
            self._reader.incoming = None
            self._refusal = (408, "the rest of the request did not come in time")
            self._advance()
        else:
            self.kill()
