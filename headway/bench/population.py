"""Many streams and the prefills that run beside them: what all of them kept, and what the worst-off one did."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from headway.bench.client import Stream
from headway.bench.window import Window, gaps, quantile, stall_threshold


@dataclass(frozen=True)
class Kept:
    """Of streams while a prefill ran. Shares are of the solo rate; None where nothing could be measured."""

    share: float | None  # of all together
    worst_share: float | None  # of the slot that kept least
    tokens: float
    seconds: float  # decoding time beside prefills, summed over streams
    longest_gap_s: float | None
    gap_p99_s: float | None
    gap_p99_outside_s: float | None
    stalled_s: float
    gaps: int


def decoding(answer: Stream) -> tuple[float, float]:
    """First to last output."""
    return answer.events[0].at, answer.events[-1].at


class Windows:
    """Windows that do not touch each other, in order of time."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._starts, self._ends = [tag.start for tag in windows], [tag.end for tag in windows]

    def holds(self, at: float) -> bool:
        """After the start of one and not after its end."""
        i = bisect_left(self._starts, at) - 1
        return i >= 0 and at <= self._ends[i]

    def inside(self, start: float, end: float) -> float:
        """Seconds of [start, end] that lie in windows."""
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        return sum(min(end, self._ends[i]) - max(start, self._starts[i]) for i in range(first, last))


def kept(slots: Sequence[Sequence[Stream]], windows: Sequence[Window], solo_rate: float, solo_gap_s: float) -> Kept:
    """`slots`: the streams that one after another made up one live client."""
    limit, times = stall_threshold(solo_gap_s), Windows(windows)
    tokens = seconds = stalled = 0.0
    shares, beside, apart = [], list[float](), list[float]()
    for slot in slots:
        slot_tokens = slot_seconds = 0.0
        for answer in slot:
            if len(answer.events) < 2:
                continue
            start, end = decoding(answer)
            slot_seconds += times.inside(start, end)
            slot_tokens += sum(event.tokens for event in answer.events[1:] if times.holds(event.at))
            for gap in gaps(answer.events):
                overlap = times.inside(gap.start, gap.end)
                (beside if overlap > 0 else apart).append(gap.seconds)
                if gap.seconds > limit:
                    stalled += overlap
        tokens, seconds = tokens + slot_tokens, seconds + slot_seconds
        if slot_seconds > 0:
            shares.append(slot_tokens / slot_seconds / solo_rate)
    return Kept(
        share=tokens / seconds / solo_rate if seconds > 0 else None, worst_share=min(shares, default=None),
        tokens=tokens, seconds=seconds, longest_gap_s=max(beside, default=None), gap_p99_s=quantile(beside, 0.99),
        gap_p99_outside_s=quantile(apart, 0.99), stalled_s=stalled, gaps=len(beside),
    )  # fmt: skip
