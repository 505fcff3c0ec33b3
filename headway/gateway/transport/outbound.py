"""One connection to an upstream, and the response that it carries.

The parser's callbacks only collect; the sink is called after each read, so that it may abort, pause or send
another request from inside a callback, and so that what came in one read goes on in one piece.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import httptools

from headway.gateway.transport import flow
from headway.gateway.transport.framing import MAX_HEAD, until_close
from headway.gateway.transport.interface import LostReason, ResponseHead

if TYPE_CHECKING:
    from headway.gateway.transport.dialer import HttpCall, HttpDialer


class Outbound(asyncio.Protocol):
    """Client side of one connection. The `on_*` methods are called by the parser."""

    def __init__(self, dialer: HttpDialer, first: HttpCall) -> None:
        self._dialer = dialer
        self._first: HttpCall | None = first
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._clear()
        self.call: HttpCall | None = None
        self.reused = False
        self.idle_since = 0.0

    def _clear(self) -> None:
        self.answered = False  # any byte has come since the request
        self._head: ResponseHead | None = None
        self._told = False  # the sink has had the head
        self._complete = False
        self._excess = False  # more came than one response
        self._keep_alive = False
        self._interim = False
        self._pieces: list[bytes] = []
        self._mute = 0
        self._reason = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False

    # connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop does not subclass it
        self._transport = transport
        first, self._first = self._first, None
        if first is None or first.over:
            transport.abort()
            return
        flow.tune(transport)
        self._dialer.opened(self)
        first.connecting = None  # from here on the call is ended through its connection
        self.start(first)
        if first.paused:  # uvloop starts reading after this method, whatever it asked for
            asyncio.get_running_loop().call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self.call is not None and self.call.paused:
            self.pause()

    def start(self, call: HttpCall) -> None:
        """Send `call`'s request."""
        assert self._transport is not None
        self.call = call
        call.connection = self
        if call.paused:
            self.pause()
        if len(call.body) > flow.HIGH_WATER:
            self._transport.write(call.request)
            self._transport.write(call.body)
        else:
            self._transport.write(call.request + call.body)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def pause(self) -> None:
        flow.read(self._transport, False)

    def resume(self) -> None:
        flow.read(self._transport, True)

    def close(self) -> None:
        """Close at once; nothing more is told to anyone."""
        self.call = None
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        if self.call is not None and self._head is not None and not self._complete and until_close(self._head):
            self._keep_alive = False
            self._complete = True
            self._tell()

    def drop(self) -> None:
        """Connecting failed or was cancelled. If that came between `connection_made` and the end of
        connecting, uvloop never calls `connection_lost`."""
        if self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._parser = None  # it refers back to this object
        call, self.call = self.call, None
        self._dialer.closed(self)
        if call is None:
            return
        if self.reused and not self.answered and self._dialer.retry(call):
            return
        where = "in the middle of" if self.answered else "before"
        how = "reset" if isinstance(exc, ConnectionResetError) else "closed"
        call.lost(LostReason.CLOSED, f"connection {how} by {self._dialer.origin} {where} the response", self.answered)

    def data_received(self, data: bytes) -> None:
        if self.call is None:
            self.close()  # an answer to nothing
            return
        self.answered = True
        self._mute += len(data)
        try:
            self._parser.feed_data(data)
            if self._mute > MAX_HEAD:
                self._fail(f"more than {MAX_HEAD} bytes without a body byte")
                return
        except httptools.HttpParserUpgrade:
            self._fail("switched protocols")
            return
        except httptools.HttpParserError as error:
            if not self._complete:
                self._fail(str(error))
                return
            self._excess = True
        self._tell()

    def _fail(self, detail: str) -> None:
        """What came before the fault in the same read still goes to the sink."""
        call = self.call
        self._complete = False
        self._tell()
        if call is not None and self.call is call:
            self.close()
            call.lost(LostReason.PROTOCOL, f"not HTTP/1.1 from {self._dialer.origin}: {detail}", answered=True)

    def _tell(self) -> None:
        """Pass on what the last read brought. The sink may end the call in any of these."""
        call = self.call
        if call is None or self._head is None:
            return
        try:
            if not self._told:
                self._told = True
                call.sink.head(self._head)
            if self._pieces and self.call is call:
                pieces = self._pieces
                self._pieces = []
                call.sink.data(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if self._complete and self.call is call:
                self._release(call)
                call.finish()
        except BaseException:
            # A sink that fails has no use for the rest, and this connection is in an unknown state.
            call.abort()
            if self.call is call:
                self.close()
            raise

    def _release(self, call: HttpCall) -> None:
        self.call = None
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # Bytes of the request still unsent: the upstream answered without reading all of it.
        if not self._keep_alive or self._excess or transport.get_write_buffer_size():
            transport.abort()
            return
        if call.paused:
            self.resume()
        if call.head_only:
            # The parser has no notion of HEAD and may be waiting for a body.
            self._parser = httptools.HttpResponseParser(self)
        self._clear()
        self._dialer.idle(self)

    # parser

    def on_message_begin(self) -> None:
        if self._complete:
            self._excess = True
        self._in_head = True
        self._reason = b""
        self._headers = []

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise a trailer field
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._mute = 0
        self._in_head = False
        if self._complete:
            return
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim:
            return
        self._head = ResponseHead(status, self._reason, self._headers)
        self._keep_alive = self._parser.should_keep_alive()
        if self.call is not None and self.call.head_only:
            self._complete = True

    def on_body(self, piece: bytes) -> None:
        self._mute = 0
        if not self._complete:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._mute = 0
        if not self._interim:
            self._complete = True
