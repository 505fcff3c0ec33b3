"""The overlap window and what a victim's stream looks like inside it. Pure arithmetic on times; seconds and
tokens.

The window opens when the intruder is submitted and closes with its first token, or with the victim if that ends
before. A gap is the
time between two successive output events of one stream; it is in the window when the two overlap, so that
the gap which a chunk leaves open when the window closes is counted whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.bench.client import Event, Stream
from headway.core import steps
from headway.errors import CheckFailed

BURST_S = 0.001


class NoOverlap(CheckFailed):
    """The two requests never ran together, so the run says nothing about an overlap."""


@dataclass(frozen=True)
class Gap:
    start: float
    end: float
    tokens: float  # carried by the event that ended the gap
    in_window: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Window:
    start: float
    end: float
    victim_outlived: bool  # False: the victim ended before the intruder's first token, and cut the window

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def holds(self, at: float) -> bool:
        return self.start < at <= self.end


@dataclass(frozen=True)
class View:
    """One victim in one window. Rates in tokens/s."""

    window_s: float
    tokens: float
    rate: float
    longest_gap_s: float
    stalled_s: float
    gaps_s: list[float]
    victim_outlived: bool

    def share(self, solo_rate: float) -> float:
        return self.rate / solo_rate


def window(victim: Stream, intruder: Stream) -> Window:
    """Raises NoOverlap, with the reason, when there is none."""
    if not victim.events:
        raise NoOverlap(f"no overlap: the victim gave no token ({victim.error or 'empty answer'})")
    if not intruder.events:
        raise NoOverlap(f"no overlap: the intruder gave no token ({intruder.error or 'empty answer'})")
    first, victim_end = intruder.events[0].at, victim.events[-1].at
    start = max(intruder.submitted, victim.submitted)
    if victim_end <= start:
        late = start - victim_end
        raise NoOverlap(f"no overlap: the victim ended {late:.3f} s before the intruder was submitted")
    if first <= start:
        early = start - first
        raise NoOverlap(f"no overlap: the intruder's first token came {early:.3f} s before the victim was submitted")
    return Window(start, min(first, victim_end), victim_end > first)


def gaps(events: Sequence[Event], tag: Window | None = None) -> list[Gap]:
    out = []
    for i in range(1, len(events)):
        a, b = events[i - 1].at, events[i].at
        out.append(Gap(a, b, events[i].tokens, tag is not None and b > tag.start and a < tag.end))
    return out


def rate(events: Sequence[Event]) -> float | None:
    """Tokens/s of a whole stream, the first event (which ends the prefill) being where the clock starts."""
    if len(events) < 2 or events[-1].at <= events[0].at:
        return None
    return sum(event.tokens for event in events[1:]) / (events[-1].at - events[0].at)


def median(values: Sequence[float]) -> float | None:
    return quantile(values, 0.5)


def quantile(values: Sequence[float], q: float) -> float | None:
    """Linear between order statistics; None of nothing."""
    return steps.quantile(list(values), q) if values else None


def stall_threshold(solo_gap_median: float) -> float:
    """A gap longer than this is a stall: max(3 x the solo median, 0.1 s)."""
    return max(3 * solo_gap_median, 0.1)


def view(victim: Stream, tag: Window, solo_gap_median: float) -> View:
    """Stalled seconds are clipped to the window; the longest gap is not."""
    inside = [gap for gap in gaps(victim.events, tag) if gap.in_window]
    limit = stall_threshold(solo_gap_median)
    stalled = sum(min(gap.end, tag.end) - max(gap.start, tag.start) for gap in inside if gap.seconds > limit)
    tokens = sum(event.tokens for event in victim.events if tag.holds(event.at))
    lengths = [gap.seconds for gap in inside]
    return View(
        tag.seconds,
        tokens,
        tokens / tag.seconds if tag.seconds > 0 else 0.0,
        max(lengths, default=0.0),
        stalled,
        lengths,
        tag.victim_outlived,
    )


def burst_share(events: Sequence[Event], within: float = BURST_S) -> float:
    """The largest part of a stream's tokens that arrived within `within` seconds of each other, 0 to 1."""
    total = sum(event.tokens for event in events)
    if len(events) < 2 or total <= 0:
        return 0.0
    best = inside = 0.0
    left = 0
    for event in events:
        inside += event.tokens
        while event.at - events[left].at > within:
            inside -= events[left].tokens
            left += 1
        best = max(best, inside)
    return best / total
