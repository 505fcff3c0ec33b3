"""The way back: an upstream's response to the client, byte for byte, watched for output.

Invariants
----------
1. What comes goes on in the same tick; nothing is held back, joined or split.
2. Output counts from the first *output* event (dialects/table.py); how many tokens came is for dialects/progress.py to say.
3. A client that reads slowly pauses the upstream connection; nothing is buffered without bound.
"""

from __future__ import annotations

import asyncio

from headway.gateway.desk import Permit
from headway.gateway.dialects.progress import Progress
from headway.gateway.dialects.table import Dialect
from headway.gateway.metrics import Metrics
from headway.gateway.transport.framing import mirrored
from headway.gateway.transport.interface import Call, Downstream, Headers, LostReason, ResponseHead, UpstreamLost

STREAMS = (b"text/event-stream", b"application/x-ndjson", b"application/stream+json")
"""Content types of answers that come as they are made: an event ends with an empty line, or is a line."""


class ResponseRelay:
    """Sink of one upstream response."""

    def __init__(self, down: Downstream, permit: Permit, dialect: Dialect, metrics: Metrics) -> None:
        self.down = down
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call: Call | None = None
        self.status: int | None = None
        self.headers: Headers = ()
        self.first_output: float | None = None
        self._permit = permit
        self._dialect = dialect
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._progress = Progress(dialect, events=False, lines=False, readable=False)
        self._events = False
        self._last = 0.0
        self._prefill_ran = False

    @property
    def cached_tokens(self) -> int | None:
        """As usage in the answer reports them; None where it does not (yet)."""
        return self._progress.cached_tokens

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, those that were cached included."""
        told = self._progress.input_tokens
        return told if told is None or not self._dialect.cached_apart else told + (self.cached_tokens or 0)

    def head(self, head: ResponseHead) -> None:
        self.status = head.status
        self.headers = head.headers
        kind = (head.get(b"content-type") or b"").lower()
        self._events = kind.startswith(STREAMS)
        lines = not kind.startswith(b"text/event-stream")
        readable = (head.get(b"content-encoding") or b"identity").lower() == b"identity"
        self._progress = Progress(self._dialect, self._events, lines, readable)
        self._permit.streams(self._events)
        try:
            self.down.head(mirrored(head))
        except ValueError as error:
            self.lost(UpstreamLost(LostReason.PROTOCOL, f"a response head that cannot be passed on: {error}", answered=True))
            if self.call is not None:
                self.call.abort()

    def data(self, data: bytes) -> None:
        down = self.down
        down.data(data)
        tokens = self._progress.feed(data)
        if tokens:
            if self.first_output is None:
                self._begin()
            elif self._events:
                self._output(tokens)
        if not down.writable and self.call is not None:
            self.call.pause()

    def eof(self) -> None:
        self.down.eof()
        if not self.done.done():
            self.done.set_result(None)

    def lost(self, error: UpstreamLost) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def on_writable(self) -> None:
        if self.call is not None:
            self.call.resume()

    # -- watching -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._last = self.first_output = self._loop.time()
        self._permit.output(1)
        self._prefill_ran = self._permit.prefilling

    def _output(self, tokens: int) -> None:
        now = self._loop.time()
        prefilling = self._permit.prefilling
        histogram = self._metrics.itl_prefill if prefilling or self._prefill_ran else self._metrics.itl_solo
        histogram.observe(now - self._last)
        self._prefill_ran = prefilling
        self._last = now
        self._permit.output(tokens)
