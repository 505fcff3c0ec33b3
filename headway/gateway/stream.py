"""The way back: an upstream's response to the client, byte for byte, watched for output.

Invariants
----------
1. What comes goes on in the same tick; nothing is held back, joined or split.
2. Output counts from the first *output* event (dialects/table.py); later, one event is one token.
3. A client that reads slowly pauses the upstream connection; nothing is buffered without bound.
"""

from __future__ import annotations

import asyncio
import re

from headway.gateway.desk import Permit
from headway.gateway.dialects.table import Dialect
from headway.gateway.metrics import Metrics
from headway.gateway.transport.framing import mirrored
from headway.gateway.transport.interface import Call, Downstream, LostReason, ResponseHead, UpstreamLost

STREAMS = (b"text/event-stream", b"application/x-ndjson", b"application/stream+json")
"""Content types of answers that come as they are made: an event ends with an empty line, or is a line."""
TAIL = 160
"""Bytes kept from one chunk to the next, so that an event cut in two is still recognised."""
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d+)')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d+)')


class ResponseRelay:
    """Sink of one upstream response."""

    def __init__(self, down: Downstream, permit: Permit, dialect: Dialect, metrics: Metrics) -> None:
        self.down = down
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call: Call | None = None
        self.status: int | None = None
        self.cached_tokens: int | None = None
        """As usage in the answer reports them; None where it does not (yet)."""
        self.first_output: float | None = None
        self._permit = permit
        self._dialect = dialect
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._events = False
        self._end = b"\n\n"
        self._live = False
        self._readable = False
        self._tail = b""
        self._last = 0.0
        self._prefill_ran = False
        self._input_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, those that were cached included."""
        if self._input_tokens is None or not self._dialect.cached_apart:
            return self._input_tokens
        return self._input_tokens + (self.cached_tokens or 0)

    def head(self, head: ResponseHead) -> None:
        self.status = head.status
        kind = (head.get(b"content-type") or b"").lower()
        self._events = kind.startswith(STREAMS)
        self._end = b"\n" if not kind.startswith(b"text/event-stream") else b"\n\n"
        self._readable = (head.get(b"content-encoding") or b"identity").lower() == b"identity"
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
        if self._live:
            if self._events:
                self._output(data)
        elif self._is_output(data):
            self._begin()
        if self._readable:
            self._tail = data[-TAIL:] if len(data) >= TAIL else (self._tail + data)[-TAIL:]
            if b'_tokens"' in data:
                self._read_usage(data)
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

    def _is_output(self, data: bytes) -> bool:
        pattern = self._dialect.output
        if not self._events or pattern is None or not self._readable:
            return True
        return pattern.search(self._tail + data) is not None

    def _begin(self) -> None:
        self._live = True
        self._last = self.first_output = self._loop.time()
        self._permit.output(1)
        self._prefill_ran = self._permit.prefilling

    def _output(self, data: bytes) -> None:
        count = data.count(self._end) or data.count(b"\r\n\r\n")
        if not count and self._readable:
            return
        now = self._loop.time()
        prefilling = self._permit.prefilling
        histogram = self._metrics.itl_prefill if prefilling or self._prefill_ran else self._metrics.itl_solo
        histogram.observe(now - self._last)
        self._prefill_ran = prefilling
        self._last = now
        self._permit.output(count or 1)

    def _read_usage(self, data: bytes) -> None:
        text = self._tail + data if len(data) < TAIL else data
        for found in _CACHED.finditer(text):
            self.cached_tokens = int(found.group(1))
        for found in _PROMPT.finditer(text):
            self._input_tokens = int(found.group(1))
