"""The transport interface: what the relay and the dialects know of HTTP, and nothing more.

Rules
-----
1. No socket, event loop, ASGI or client-library type passes this interface. A second transport
   replaces the first by implementing `Listener` and `Dialer`.
2. A body is bytes with the transfer coding removed and the content coding untouched. What the
   upstream sent is what the client receives, in the order it was sent.
3. An exchange ends exactly once, by `Downstream.eof` or `Downstream.abort`, or by the client leaving.
4. Nothing buffers without bound: `Downstream.writable` false means that the relay must `Call.pause`
   until the `on_writable` callback.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Headers = Sequence[tuple[bytes, bytes]]
"""Header fields in the order and the letter case in which they came."""


@dataclass(slots=True, frozen=True)
class RequestHead:
    method: bytes
    target: bytes
    """Request target as sent: path and query, never decoded."""
    headers: Headers
    _index: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def get(self, name: bytes) -> bytes | None:
        """First value of the field `name` (given in lower case), or None."""
        index = self._index
        if not index:  # filled once: a request's fields are asked for a dozen times
            for key, value in reversed(self.headers):
                index[key.lower()] = value
        return index.get(name)


@dataclass(slots=True, frozen=True)
class ResponseHead:
    status: int
    reason: bytes
    headers: Headers

    def get(self, name: bytes) -> bytes | None:
        """First value of the field `name` (given in lower case), or None."""
        return find(self.headers, name)


def find(headers: Headers, name: bytes) -> bytes | None:
    for key, value in headers:
        if key.lower() == name:
            return value
    return None


class LostReason(enum.StrEnum):
    """Why an upstream call ended without a complete response."""

    CONNECT = "connect"  # no connection could be made
    CLOSED = "closed"  # the connection ended before the response was complete
    PROTOCOL = "protocol"  # what came was not HTTP/1.1
    TIMEOUT = "timeout"  # connecting took too long


class UpstreamLost(Exception):
    """An upstream call that ended without a complete response."""

    def __init__(self, reason: LostReason, detail: str, answered: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.answered = answered
        """Any byte of the response had come."""


class BodyTooLarge(Exception):
    """The client's body is above the listener's limit (bytes)."""


class Downstream(Protocol):
    """The client's side of one exchange. Given to the handler once the request head has come."""

    request: RequestHead
    peer: str

    async def body(self) -> bytes:
        """The whole request body. Raises BodyTooLarge above the listener's bound."""

    @property
    def started(self) -> bool:
        """Whether the response head has been sent."""

    def head(self, head: ResponseHead) -> None:
        """Send the response head. Framing: as the head says (Content-Length, or chunked if it has
        Transfer-Encoding: chunked); with neither, the body ends with the connection."""

    def data(self, data: bytes) -> None:
        """Send body bytes (never empty), at once."""

    def eof(self) -> None:
        """The response is complete."""

    def abort(self) -> None:
        """Close the connection so that the client sees an incomplete response."""

    @property
    def writable(self) -> bool:
        """False while more is buffered for this client than the high-water mark."""

    on_writable: Callable[[], None] | None
    """Called when `writable` becomes true again."""


class Sink(Protocol):
    """Receives one upstream response: `head`, `data`*, then exactly one of `eof` and `lost`.
    After `Call.abort` nothing more is called."""

    def head(self, head: ResponseHead) -> None: ...

    def data(self, data: bytes) -> None: ...

    def eof(self) -> None: ...

    def lost(self, error: UpstreamLost) -> None: ...


class Call(Protocol):
    """One request on its way to an upstream."""

    def abort(self) -> None:
        """Close the upstream connection at once (the engine then aborts the request). Idempotent;
        does nothing after the response has ended."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Dialer(Protocol):
    """Connections to one upstream origin."""

    def send(self, head: RequestHead, body: bytes, sink: Sink) -> Call:
        """Send a request. `head.headers` are sent as given, with Content-Length set to len(body)
        where there is a body and Transfer-Encoding removed; Host is the caller's to set."""

    async def close(self) -> None: ...


Handler = Callable[[Downstream], Awaitable[None]]
"""One exchange. Run in a task of its own, which is cancelled the moment the client leaves. A handler
that returns or raises without having ended the exchange makes the listener abort it."""


class Listener(Protocol):
    """A listening socket that runs a handler for each request."""

    @property
    def port(self) -> int: ...

    @property
    def live(self) -> int:
        """Exchanges under way."""

    def stop_accepting(self) -> None:
        """Close the listening socket; keep-alive connections end after their exchange."""

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` seconds for the exchanges under way, then abort the rest."""
