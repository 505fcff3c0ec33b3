"""What a policy did to each class of requests, added up as they end. Memory does not grow with the trace.

Times go into histograms with bins 2 % wide, so quantiles are good to 1 %; sums, counts and maxima are exact. A *gap* is the time
between two outputs of one answer as its client sees them; a *stall* a gap longer than `stall` seconds, and its whole length
counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from headway.simulator.leap import Row, Stretch
from headway.simulator.replay import Story

_WIDTH = log(1.02)
#: Seconds: what is shorter is counted as this.
_LEAST = 1e-5


class Spread:
    """A distribution of seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.longest = 0.0
        self._bins: Counter[int] = Counter()

    def add(self, seconds: float, times: int = 1) -> None:
        self.count += times
        self.total += seconds * times
        self.longest = max(self.longest, seconds)
        self._bins[int(log(max(seconds, _LEAST) / _LEAST) / _WIDTH)] += times

    def quantile(self, q: float) -> float | None:
        """Seconds; None where nothing was seen."""
        if not self.count:
            return None
        left = q * self.count
        for number in sorted(self._bins):
            left -= self._bins[number]
            if left <= 0:
                return 0.0 if self.longest <= 0 else min(_LEAST * exp((number + 0.5) * _WIDTH), self.longest)
        return self.longest

    def curve(self, points: int = 60) -> list[tuple[float, float]]:
        """(seconds, part of all that is longer), for a plot of the tail."""
        drawn, above = [], self.count
        bins = sorted(self._bins)
        stride = max(1, len(bins) // points)
        for at, number in enumerate(bins):
            above -= self._bins[number]
            if at % stride == 0 or at == len(bins) - 1:
                drawn.append((_LEAST * exp((number + 1) * _WIDTH), above / self.count))
        return drawn

    def summary(self) -> dict[str, float | None]:
        return {
            "p50": self.quantile(0.5), "p90": self.quantile(0.9), "p99": self.quantile(0.99),
            "max": self.longest if self.count else None, "mean": self.total / self.count if self.count else None,
        }  # fmt: skip


@dataclass(slots=True)
class Limits:
    """What counts: a request is good when its TTFT and its longest gap stay within these. Seconds."""

    ttft: float = 30.0
    gap: float = 1.0
    stall: float = 0.1


@dataclass(slots=True)
class Tally:
    """One class under one policy."""

    limits: Limits
    requests: int = 0
    answered: int = 0
    good: int = 0
    good_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    pieces: int = 0
    stalled_s: float = 0.0
    stalls: int = 0
    ttft: Spread = field(default_factory=Spread)
    wait: Spread = field(default_factory=Spread)
    gap: Spread = field(default_factory=Spread)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, story: Story) -> None:
        """A request that has ended, however it did."""
        self.requests += 1
        self.outcomes[str(story.outcome)] += 1
        self.pieces += story.pieces
        self.wait.add(story.waited)
        if story.ttft is None:
            return
        self.answered += 1
        self.ttft.add(story.ttft)
        self.prompt_tokens += story.arrival.tokens
        self.cached_tokens += story.cached
        tokens, longest = self._gaps(story)
        self.output_tokens += tokens
        if story.ttft <= self.limits.ttft and longest <= self.limits.gap:
            self.good += 1
            self.good_tokens += tokens

    def _gaps(self, story: Story) -> tuple[int, float]:
        """(tokens, longest gap) of an answer."""
        tokens, longest, last = 0, 0.0, story.first_output or 0.0
        end = float("inf") if story.ended is None else story.ended + 1e-9
        for part in story.parts:
            if len(part) == 2:
                at, count = part
                if at > end:
                    break
                tokens += count
                longest = max(longest, self._gap(at - last, 1) if at > last else 0.0)
                last = at
            else:
                begin, stretch, row = part
                count, steps = _until(begin, stretch, row, end)
                if not steps:
                    break
                tokens += count
                first, last_at = begin + stretch.timing.seconds(1), begin + stretch.timing.seconds(steps)
                longest = max(longest, self._gap(first - last, 1))
                if steps > 1:
                    longest = max(longest, self._evenly(stretch, steps, first, last_at))
                last = last_at
        return tokens, longest

    def _evenly(self, stretch: Stretch, steps: int, first: float, last: float) -> float:
        """The gaps of a stretch grow in a straight line: as many groups as keep each within a bin or so."""
        seconds = stretch.timing.seconds
        mean = (last - first) / (steps - 1)
        ends = seconds(steps) - seconds(steps - 1)
        groups = min(steps - 1, 1 + int(abs(ends - mean) / (0.01 * mean)))
        longest, done = 0.0, 1
        for group in range(groups):
            until = 1 + (steps - 1) * (group + 1) // groups
            if until > done:
                longest = max(longest, self._gap((seconds(until) - seconds(done)) / (until - done), until - done))
                done = until
        return longest

    def _gap(self, seconds: float, times: int) -> float:
        self.gap.add(seconds, times)
        if seconds > self.limits.stall:
            self.stalled_s += seconds * times
            self.stalls += times
        return seconds

    def summary(self, span: float) -> dict[str, Any]:
        """`span`: seconds of the replay, for the rates."""
        return {
            "requests": self.requests, "answered": self.answered, "outcomes": dict(sorted(self.outcomes.items())),
            "ttft_s": self.ttft.summary(), "itl_s": self.gap.summary(), "wait_s": self.wait.summary(),
            "stalled_s": self.stalled_s, "stalls": self.stalls, "pieces": self.pieces,
            "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens, "output_tokens": self.output_tokens,
            "good": self.good, "good_share": self.good / self.requests if self.requests else None,
            "goodput_rps": self.good / span if span > 0 else None,
            "goodput_tps": self.good_tokens / span if span > 0 else None,
        }  # fmt: skip


def _until(begin: float, stretch: Stretch, row: Row, end: float) -> tuple[int, int]:
    """(tokens, steps) of a row up to `end`: an answer that its client left is counted to there."""
    if begin + stretch.duration <= end:
        return row.tokens, stretch.steps
    steps = stretch.timing.steps_begun(end - begin) if end > begin else 0
    while steps and begin + stretch.timing.seconds(steps) > end:
        steps -= 1
    return (stretch.gained(row, steps) if steps else 0), steps
