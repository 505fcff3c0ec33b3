"""One answer as it came, piece by piece: what an experiment measures."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import pairwise

#: (time, prompt tokens or 0) for each piece of an answer, after (time of sending, 0).
Pieces = AsyncGenerator[tuple[float, int], None]


@dataclass
class Stream:
    """Times (seconds, monotonic) at which one answer's pieces came, and the tokens that it had in the end."""

    sent: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def ttft(self) -> float | None:
        return self.times[0] - self.sent if self.times else None

    def rate(self, start: float, end: float) -> float | None:
        """Pieces a second between two times."""
        seen = [t for t in self.times if start <= t <= end]
        return len(seen) / (end - start) if end > start else None

    def fast(self, start: float, end: float, limit: float) -> int:
        """Pieces between two times that came within `limit` seconds of the one before."""
        return sum(start < b <= end and b - a <= limit for a, b in pairwise(self.times))

    def longest_gap(self, start: float, end: float) -> float:
        marks = [start, *[t for t in self.times if start < t < end], end]
        return max(b - a for a, b in pairwise(marks))


async def collect(pieces: Pieces, into: Stream | None = None) -> Stream:
    """The whole of one answer, filled into `into` while it comes."""
    stream = into or Stream(0)
    first = True
    async with contextlib.aclosing(pieces) as open_pieces:
        async for at, tokens in open_pieces:
            if first:
                stream.sent, first = at, False
            elif tokens:
                stream.tokens = tokens
            else:
                stream.times.append(at)
    return stream
