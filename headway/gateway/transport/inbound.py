"""A client's connection: bytes in, exchanges out, one at a time.

Rules
-----
1. At most one exchange is served. Requests pipelined behind it wait: those of the same read in `_queue`,
   later bytes unparsed in `_held`. Reading stops only above HELD_BYTES, because a connection that is not read
   cannot tell that its client has left.
2. The end of the client's bytes is the client leaving, half-closed or not.
3. A request that cannot be parsed without doubt is refused and the connection ends: what follows it may be a
   request that someone else smuggled.
4. One deadline a connection, checked by the listener's sweep: no timer is created per request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from headway.gateway.transport import flow
from headway.gateway.transport.exchange import Exchange
from headway.gateway.transport.framing import MAX_HEAD, Framing
from headway.gateway.transport.interface import RequestHead

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
    """A whole response, in the shape in which OpenAI clients expect an error."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    return (
        b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, _REASONS[status], len(body), body)
    )


class Refused(Exception):
    """A request head that parses but is not served."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Inbound(asyncio.Protocol):
    """Server side of one connection. The `on_*` methods are called by the parser."""

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
        self._parser: Any = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None  # the one being served
        self._incoming: Exchange | None = None  # the one whose request was parsed last
        self._queue: deque[Exchange] = deque()
        self._held = bytearray()
        self._refusal: tuple[int, str] | None = None  # to be sent when the exchanges before it are over
        self._lingering = False
        self._in_head = False
        self._replaying = False
        self._mute = 0  # bytes since the parser last made something of them
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

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
        self._parser = self._incoming = None  # both refer back to this object

    def eof_received(self) -> None:
        if self._current is not None:
            self.kill()

    def _leave(self) -> None:
        self.closing = True
        self._queue.clear()
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
        if current is not None and (current.complete or current is not self._incoming):
            if current.keep_alive:
                self._hold(data)
            return
        self._feed(data)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > HELD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        self._mute += len(data)
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._replay()
            if self._mute > MAX_HEAD:
                if self._in_head:
                    raise Refused(431, f"request head above {MAX_HEAD} bytes")
                raise Refused(400, f"chunk extension or trailer above {MAX_HEAD} bytes")
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, Refused):
                raise
            self._refuse(cause.status, str(cause))
        except httptools.HttpParserError as error:
            self._refuse(400, f"not a valid HTTP request: {error}")
        except Refused as error:
            self._refuse(error.status, str(error))
        self._advance()

    def _replay(self) -> None:
        """Go on behind a head with an `Upgrade` field, which the parser takes for the end of HTTP: a new
        parser is given the same framing without that field."""
        incoming = self._incoming
        assert incoming is not None
        framing = b""
        for name, value in incoming.request.headers:
            if name.lower() in (b"content-length", b"transfer-encoding"):
                framing += b"%b: %b\r\n" % (name, value)
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)

    def _refuse(self, status: int, message: str) -> None:
        self._refusal = (status, message)
        self._held.clear()
        incoming = self._incoming
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
            self._queue.pop()

    # parser

    def on_message_begin(self) -> None:
        if not self._replaying:
            self._in_head = True
            self._url = b""
            self._headers = []
            if self._current is None:
                self.deadline = self._loop.time() + self._listener.head_timeout_s

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise a trailer field
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._mute = 0
        if self._replaying:
            return
        parser = self._parser
        version = parser.get_http_version()
        http11 = version == "1.1"
        if not http11 and version != "1.0":
            raise Refused(505, f"HTTP/{version} is not served")
        size = len(self._url)
        hosts = 0
        awaits_continue = too_large = False
        for name, value in self._headers:
            size += len(name) + len(value) + 4
            key = name.lower()
            if key == b"host":
                hosts += 1
            elif key == b"content-length":
                too_large = int(value) > self.max_body
            elif key == b"transfer-encoding":
                # The parser allows other codings before `chunked`, and HTTP/1.0: peers before us may not.
                if not http11 or value.strip().lower() != b"chunked":
                    raise Refused(400, "Transfer-Encoding other than chunked in HTTP/1.1")
            elif key == b"expect":
                awaits_continue = http11 and value.strip().lower() == b"100-continue"
        if size > MAX_HEAD:
            raise Refused(431, f"request head above {MAX_HEAD} bytes")
        if hosts > 1 or (http11 and not hosts):
            raise Refused(400, "exactly one Host field is needed")
        method = parser.get_method()
        if method == b"CONNECT":
            raise Refused(501, "CONNECT is not served")
        exchange = Exchange(
            self,
            RequestHead(method, _origin_form(self._url), self._headers),
            http11=http11,
            keep_alive=parser.should_keep_alive(),
            awaits_continue=awaits_continue,
            too_large=too_large,
        )
        self._in_head = False
        self._incoming = exchange
        self._queue.append(exchange)

    def on_body(self, piece: bytes) -> None:
        self._mute = 0
        if self._incoming is not None:
            self._incoming.receive(piece)

    def on_message_complete(self) -> None:
        self._mute = 0
        if self._replaying:
            self._replaying = False
        elif self._parser.should_upgrade():
            return  # `_replay` follows
        if self._incoming is not None:
            self._incoming.received()

    # one exchange at a time

    def _advance(self) -> None:
        """Go on, if no exchange is under way, with whatever is next."""
        current = self._current
        if current is None and self._queue and not self.closing:
            current = self._current = self._queue.popleft()
            current.task = self._listener.serve(current)
        incoming = self._incoming
        if current is not None:
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
        elif self._held:
            held, self._held = bytes(self._held), bytearray()
            if self._transport is not None:
                self._transport.resume_reading()
            self._feed(held)
        elif self._listener.stopping:
            self._shut()
        elif not self._in_head:
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
        if self._transport is not None:
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
            self._transport.resume_reading()
            self._transport.write_eof()

    def _shut(self, *, incomplete: bool = False) -> None:
        """Close once what was written has left. `incomplete`: only a reset would tell the client."""
        self.closing = True
        self._queue.clear()
        if self._transport is None:
            return
        if incomplete:
            flow.reset(self._transport)
        else:
            self._transport.close()
            self.deadline = self._loop.time() + self._listener.idle_timeout_s

    def stop(self) -> None:
        """Close now if idle, else after the exchange under way."""
        if self._current is None and not self._queue and not self.closing and not self._in_head:
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
        current, incoming = self._current, self._incoming
        late = self._in_head
        if current is not None:
            late = current is incoming and not current.complete and current.framing is None
        if late and not self.closing:
            self._current = None
            if current is not None:
                current.leave()
            self._in_head = False
            self._incoming = None
            self._refusal = (408, "the rest of the request did not come in time")
            self._advance()
        else:
            self.kill()


def _origin_form(url: bytes) -> bytes:
    """Path and query of a request target in absolute form; any other target as it is."""
    if url.startswith(b"/") or b"://" not in url:
        return url
    rest = url.split(b"://", 1)[1]
    cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    path = rest[cut:]
    return path if path.startswith(b"/") else b"/" + path
