"""One HTTP/1.1 request on a connection of its own, its answer handed over piece by piece in the very call in which it arrived.

No task is woken for a piece: with a thousand streams that is what makes a client late. A connection a request, because a
server that drops idle connections would look like a failed arm.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from functools import cache
from typing import Protocol
from urllib.parse import urlsplit

import httptools


class Sink(Protocol):
    def head(self, status: int, headers: dict[str, str]) -> None:
        """Names in lower case."""

    def body(self, data: bytes, now: float) -> None:
        """`now`: monotonic, taken before the bytes were looked at."""


class Broken(ConnectionError):
    """The answer did not arrive whole."""


class _Exchange(asyncio.Protocol):
    def __init__(self, sink: Sink) -> None:
        self._sink, self._parser = sink, httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._now = 0.0
        self._to_eof = False  # neither a length nor chunks: the body ends with the connection
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(Broken(f"the answer is not HTTP/1.1: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._end(Broken(str(error) or type(error).__name__))
        else:
            self._end(None if self._to_eof else Broken("the server closed it before the end of the answer"))

    # -- the parser's callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and its like come before the real head
            return
        self._to_eof = not {"content-length", "transfer-encoding"} & self._headers.keys()
        self._sink.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        self._sink.body(data, self._now)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._end(None)
        self._headers = {}

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def post(url: str, headers: dict[str, str], payload: bytes, sink: Sink) -> None:
    """Raises OSError when no connection comes about, Broken when the answer does not end as it should."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    lines = [
        f"POST {parts.path or '/'}{'?' + parts.query if parts.query else ''} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}", f"Content-Length: {len(payload)}", "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]  # fmt: skip
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    made = await asyncio.get_running_loop().create_connection(
        lambda: _Exchange(sink), parts.hostname or "", parts.port or (443 if secure else 80), ssl=_tls() if secure else None
    )
    transport, exchange = made
    try:
        transport.write(head + payload)
        await exchange.done
    finally:
        transport.abort()
