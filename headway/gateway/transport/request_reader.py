"""Requests out of a client's bytes, read strictly: what two parsers read differently can be smuggled."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import httptools

from headway.gateway.transport.exchange import Exchange
from headway.gateway.transport.framing import MAX_HEAD
from headway.gateway.transport.interface import RequestHead

if TYPE_CHECKING:
    from headway.gateway.transport.inbound import Inbound


_READ_HERE = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})


class Refused(Exception):
    """A request that is not served: the status and the message to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestReader:
    """Makes an `Exchange` of each request head and fills it with the body."""

    def __init__(self, connection: Inbound) -> None:
        self.queue: deque[Exchange] = deque()  # announced, not yet served
        self.incoming: Exchange | None = None  # the one whose request was read last, or is being read
        self.in_head = False
        self._connection = connection
        self._parser: Any = httptools.HttpRequestParser(self)
        self._replaying = False
        self._mute = 0  # bytes since the parser last made something of them
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def close(self) -> None:
        """Let go of what refers back to this object."""
        self._parser = self.incoming = None
        self.queue.clear()

    def feed(self, data: bytes) -> None:
        """Parse what has come. Raises Refused, after which nothing can be parsed any more."""
        self._mute += len(data)
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._replay()
        except httptools.HttpParserCallbackError as error:
            if error.__context__ is not None:
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise Refused(400, f"not a valid HTTP request: {error}") from None
        if self._mute > MAX_HEAD:
            if self.in_head:
                raise Refused(431, f"request head above {MAX_HEAD} bytes")
            raise Refused(400, f"chunk extension or trailer above {MAX_HEAD} bytes")

    def _replay(self) -> None:
        """Go on behind a head with an `Upgrade` field, which the parser takes for the end of HTTP: a new
        parser is given the same framing without that field."""
        incoming = self.incoming
        assert incoming is not None
        framing = b""
        for name, value in incoming.request.headers:
            if name.lower() in (b"content-length", b"transfer-encoding"):
                framing += b"%b: %b\r\n" % (name, value)
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)

    # parser callbacks

    def on_message_begin(self) -> None:
        if not self._replaying:
            self.in_head = True
            self._url = b""
            self._headers = []
            self._connection.head_begun()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # otherwise a trailer field
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        read, self._mute = self._mute, 0
        if self._replaying:
            return
        parser = self._parser
        version = parser.get_http_version()
        http11 = version == "1.1"
        if not http11 and version != "1.0":
            raise Refused(505, f"HTTP/{version} is not served")
        hosts = 0
        awaits_continue = too_large = False
        for name, value in self._headers:
            key = name.lower()
            if key not in _READ_HERE:
                continue
            if key == b"host":
                hosts += 1
            elif key == b"content-length":
                too_large = int(value) > self._connection.max_body
            elif key == b"transfer-encoding":
                # The parser allows other codings before `chunked`, and HTTP/1.0: peers before us may not.
                if not http11 or value.strip().lower() != b"chunked":
                    raise Refused(400, "Transfer-Encoding other than chunked in HTTP/1.1")
            else:
                awaits_continue = http11 and value.strip().lower() == b"100-continue"
        if read > MAX_HEAD and self._head_size() > MAX_HEAD:  # what was read may be more than the head
            raise Refused(431, f"request head above {MAX_HEAD} bytes")
        if hosts > 1 or (http11 and not hosts):
            raise Refused(400, "exactly one Host field is needed")
        method = parser.get_method()
        if method == b"CONNECT":
            raise Refused(501, "CONNECT is not served")
        exchange = Exchange(
            self._connection,
            RequestHead(method, _origin_form(self._url), self._headers),
            http11=http11,
            keep_alive=parser.should_keep_alive(),
            awaits_continue=awaits_continue,
            too_large=too_large,
        )
        self.in_head = False
        self.incoming = exchange
        self.queue.append(exchange)

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def on_body(self, piece: bytes) -> None:
        self._mute = 0
        if self.incoming is not None:
            self.incoming.receive(piece)

    def on_message_complete(self) -> None:
        self._mute = 0
        if self._replaying:
            self._replaying = False
        elif self._parser.should_upgrade():
            return  # `_replay` follows
        if self.incoming is not None:
            self.incoming.received()


def _origin_form(url: bytes) -> bytes:
    """Path and query of a request target in absolute form; any other target as it is."""
    if url.startswith(b"/") or b"://" not in url:
        return url
    rest = url.split(b"://", 1)[1]
    cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    path = rest[cut:]
    return path if path.startswith(b"/") else b"/" + path
