"""What the bytes of an answer say about its progress: when its output begins, how many tokens come, what usage it reports.

Invariants
----------
1. Only whole events count; comments, pings and protocol events do not.
2. An event is one token, unless the answer itself says how many there were (continuous usage; multi-token prediction gives
   several at once).
3. What is kept between two reads is bounded by LONGEST_EVENT.
"""

from __future__ import annotations

import re

from headway.gateway.dialects.table import Dialect

LONGEST_EVENT = 256 * 1024
"""Bytes without an event's end after which they are taken for one."""
TAIL = 160
"""Bytes of a plain body kept from one read to the next, so that a number cut in two is still read."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What ends an event; a stream keeps to the first that it uses."""
_COMMENT = re.compile(rb"^:[^\n]*\n?", re.MULTILINE)
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)"\s*:\s*(\d{1,9})\b')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_INDEX = re.compile(rb'"choices"\s*:\s*\[\s*\{\s*"index"\s*:\s*(\d{1,6})')


class Progress:
    """Of one answer."""

    __slots__ = (
        "_buffer",
        "_completed",
        "_dialect",
        "_end",
        "_events",
        "_readable",
        "begun",
        "cached_tokens",
        "input_tokens",
    )

    def __init__(self, dialect: Dialect, events: bool, lines: bool, readable: bool) -> None:
        """`events`: it comes as a stream. `lines`: an event is a line. `readable`: it is not compressed."""
        self.begun = False
        """Output has come."""
        self.cached_tokens: int | None = None
        self.input_tokens: int | None = None
        """As usage reports them; None where it does not (yet)."""
        self._dialect = dialect
        self._events = events
        self._readable = readable
        self._end: bytes | None = b"\n" if lines else None
        self._buffer = b""
        self._completed: dict[int, int] = {}

    def feed(self, data: bytes) -> int:
        """Tokens of output that came with these bytes, as far as can be told."""
        if not self._readable:
            self.begun = True
            return 1
        if not self._events:
            text = self._buffer + data
            self._read_usage(text)
            self._buffer = text[-TAIL:]
            tokens = 0 if self.begun else 1
            self.begun = True
            return tokens
        whole = self._whole(data)
        if not whole:
            return 0
        if b'_tokens"' not in whole:
            return self._count(whole)
        self._read_usage(whole)
        return self._told(whole)

    def _whole(self, data: bytes) -> bytes:
        """The events that are complete now."""
        end = self._end
        if end is not None and not self._buffer and data.endswith(end):
            return data
        text = self._buffer + data
        if end is None:
            end = self._end = next((end for end in _ENDS if end in text), None)
        cut = text.rfind(end) if end is not None else -1
        if end is None or cut < 0:
            if len(text) > LONGEST_EVENT:
                self._buffer = b""
                return text
            self._buffer = text
            return b""
        cut += len(end)
        self._buffer = text[cut:]
        return text[:cut]

    def _count(self, whole: bytes) -> int:
        """Events of output among these."""
        if whole[0] == 58 or b"\n:" in whole or b"\r:" in whole:
            whole = _COMMENT.sub(b"", whole if b"\n" in whole else whole.replace(b"\r", b"\n"))
        output, step = self._dialect.output, self._dialect.step
        if not self.begun and output is not None:
            first = output.search(whole)
            if first is None:
                return 0
            self.begun = True
            begins = whole.rfind(b"data:", 0, first.start())  # the event's own line: what stands before it was no output
            return max(1, len(step.findall(whole, max(0, begins)))) if step is not None else 1
        if step is None:
            tokens = sum(1 for event in whole.split(self._end or b"\n\n") if event.strip())
        else:
            tokens = len(step.findall(whole))
        self.begun = self.begun or tokens > 0
        return tokens

    def _told(self, whole: bytes) -> int:
        """Tokens of events that report usage as they go: what each counts beyond the one before, at least one."""
        tokens = 0
        for event in whole.split(self._end) if self._end else [whole]:
            steps = self._count(event) if event else 0
            found = _COMPLETION.search(event)
            if found is None or not steps:
                tokens += steps
                continue
            index = _INDEX.search(event)
            choice = int(index.group(1)) if index else 0
            total = int(found.group(1))
            tokens += max(steps, total - self._completed.get(choice, 0))
            self._completed[choice] = total
        return tokens

    def _read_usage(self, text: bytes) -> None:
        for found in _CACHED.finditer(text):
            self.cached_tokens = int(found.group(1))
        for found in _PROMPT.finditer(text):
            self.input_tokens = int(found.group(1))
