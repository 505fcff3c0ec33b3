"""What a client sees while its request is held or paced: something every few seconds, so that nobody's timeout fires.

Invariants
----------
1. A request that was sent on at once is never touched. Of a held one, bytes of ours stand before the first byte of the upstream's
   body and nowhere else.
2. Beats follow the wall clock, not progress: what stalls the engine cannot stall them.
3. The first beat commits the status to 200. What the upstream, or the gateway, has to say after that is said in the dialect's
   form of an error inside a 200, and the answer then ends: it never looks like a complete one.
4. A client that does not read is not written to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.gateway.config import Config
from headway.gateway.dialects.errors import LateError, json_late
from headway.gateway.dialects.table import Dialect
from headway.gateway.metrics import Metrics
from headway.gateway.transport.interface import Downstream, Headers, RequestHead, ResponseHead

LARGEST_ERROR = 64 * 1024
"""Bytes kept of an error body that has to become an event."""
COMMENT = b": headway\n\n"
"""A comment and an empty line: what the SSE standard tells readers to ignore."""
COMMENT_LINE = b": headway\n"
"""For openai-go, which before 2026-03 (its pull request 621) takes the empty line for the end of an empty event."""
SPACE = b"\n"
"""JSON allows whitespace before a value."""
REFUSALS = (b"off", b"0", b"none")
"""Values of `X-Headway-Keepalive` by which a client asks for none."""

_STREAM_HEAD = [
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"Cache-Control", b"no-cache"),
    (b"X-Accel-Buffering", b"no"),  # nginx passes events on one by one
    (b"Transfer-Encoding", b"chunked"),
]
_JSON_HEAD = [(b"Content-Type", b"application/json"), (b"Transfer-Encoding", b"chunked")]


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """An event loop, or what a test has in its place."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


@dataclass(slots=True, frozen=True)
class Form:
    """How one client is kept waiting."""

    kind: bytes
    """Content type that the answer must have."""
    head: Headers
    beat: bytes
    late: LateError


def form_for(dialect: Dialect, stream: bool | None, request: RequestHead, padding: bool, cors: Headers | None) -> Form | None:
    """How this client can be kept waiting, or None where it cannot.

    `stream`: whether it asked for a stream (None: nobody knows). `padding`: whitespace before JSON bodies is allowed. `cors`: the
    fields by which the upstream lets a browser of this origin read its answers; None where they are needed and not known.
    """
    if stream is None or cors is None or request.method != b"POST" or request.get(b"x-headway-keepalive") in REFUSALS:
        return None
    own = [*cors]
    request_id = request.get(b"x-request-id")
    if request_id:
        own.append((b"X-Request-Id", request_id))
    if not stream:
        return Form(b"application/json", [*_JSON_HEAD, *own], SPACE, json_late) if padding and dialect.held else None
    if dialect.late is None:
        return None
    beat = dialect.beat or (COMMENT_LINE if request.get(b"x-stainless-lang") == b"go" else COMMENT)
    return Form(b"text/event-stream", [*_STREAM_HEAD, *own], beat, dialect.late)


def cors_fields(headers: Headers) -> list[tuple[bytes, bytes]]:
    """What of a response head tells a browser that it may be read."""
    return [field for field in headers if field[0].lower().startswith(b"access-control-") or field[0].lower() == b"vary"]


class HeldAnswer:
    """`Downstream` of a held request. Must be closed."""

    def __init__(self, down: Downstream, form: Form, clock: Clock, period: float, metrics: Metrics) -> None:
        self.request = down.request
        self.peer = down.peer
        self._down = down
        self._form = form
        self._clock = clock
        self._period = period
        self._metrics = metrics
        self._early = False
        self._begun = False  # a byte of the upstream's body has been passed on
        self._status = 0
        self._refusal: bytearray | None = None  # body of an answer that is not what the early head said
        self._timer: Timer | None = clock.call_later(period, self._beat)

    def close(self) -> None:
        """No more beats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        if not self._down.started:
            self._down.head(ResponseHead(200, b"OK", self._form.head))
            self._early = True
        if self._down.writable:
            self._down.data(self._form.beat)
            self._metrics.keepalives.inc()
        self._timer = self._clock.call_later(self._period, self._beat)

    # Downstream

    async def body(self) -> bytes:
        return await self._down.body()

    @property
    def started(self) -> bool:
        """Whether an error can no longer be told: an early head alone still lets one be told."""
        return self._begun if self._early else self._down.started

    def head(self, head: ResponseHead) -> None:
        fits = head.status == 200 and _is(head, b"content-type", self._form.kind) and head.get(b"content-encoding") is None
        if not self._early:
            self._down.head(head)
            if not fits or head.get(b"content-length") is not None:
                self.close()  # nothing of ours may stand in this body
        elif fits:
            self._refusal = None
        else:
            self._status, self._refusal = head.status, bytearray()

    def data(self, data: bytes) -> None:
        if self._refusal is not None:
            self._refusal += data[: LARGEST_ERROR - len(self._refusal)]
            return
        if not self._begun:
            self._begun = True
            self.close()
        self._down.data(data)

    def eof(self) -> None:
        self.close()
        if self._refusal is not None:
            self._metrics.late_errors.inc()
            status = self._status if self._status >= 400 else 502
            self._down.data(self._form.late(status, bytes(self._refusal)))
        self._down.eof()

    def abort(self) -> None:
        self.close()
        self._down.abort()

    @property
    def writable(self) -> bool:
        return self._down.writable

    @property
    def on_writable(self) -> Callable[[], None] | None:
        return self._down.on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._down.on_writable = callback


def _is(head: ResponseHead, name: bytes, value: bytes) -> bool:
    return (head.get(name) or b"").lower().startswith(value)


class Keeper:
    """Gives each request that has to wait its keep-alives, where its client can take them."""

    def __init__(self, config: Config, clock: Clock, metrics: Metrics) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._cors = CorsMemory()

    def hold(self, down: Downstream, dialect: Dialect, stream: bool | None) -> HeldAnswer | None:
        if self._config.keepalive <= 0:
            return None
        cors = self._cors.fields(down.request.get(b"origin"))
        form = form_for(dialect, stream, down.request, self._config.keepalive_json, cors)
        return HeldAnswer(down, form, self._clock, self._config.keepalive, self._metrics) if form is not None else None

    def answered(self, request: RequestHead, headers: Headers) -> None:
        """An upstream answered this request with a 200 and these header fields."""
        self._cors.learn(request.get(b"origin"), headers)


class CorsMemory:
    """What upstreams let browsers read, by origin: an early head without it would be an answer that a page cannot see."""

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._known: dict[bytes, Sequence[tuple[bytes, bytes]]] = {}

    def learn(self, origin: bytes | None, headers: Headers) -> None:
        if origin is not None:
            self._known.pop(origin, None)
            self._known[origin] = cors_fields(headers)
            if len(self._known) > self._capacity:
                del self._known[next(iter(self._known))]

    def fields(self, origin: bytes | None) -> Headers | None:
        """For a request with this `Origin` (None: not a browser's): fields to add, or None where they are not known."""
        return () if origin is None else self._known.get(origin)
