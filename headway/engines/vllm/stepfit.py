"""The step-time model from the engine's own steps: t = a of a decode-only step, a + e + b*p of one with p prefill tokens.

Unlike `core.steps.StepLearner`, which times requests from outside, it sees every step, so it can afford to forget.

Invariants
----------
1. At the sizes lately run the prediction is what those steps took (upper decile), whatever the split into e and b is. So
   the chunk settles where a step takes as long as the gap target, also while the engine drifts.
2. b is at least half of the careful guess, which charges everything above a to the tokens: one correction of the chunk
   overshoots at most twofold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import fmean

from headway.core.steps import StepModel, median, quantile

DECODES = 48
"""Decode-only steps remembered."""
MIXED = 16
"""Steps with prefill remembered."""


class StepFit:
    def __init__(self) -> None:
        self._solo: deque[float] = deque(maxlen=DECODES)
        self._between: deque[float] = deque(maxlen=DECODES)
        self._mixed: deque[tuple[int, float]] = deque(maxlen=MIXED)
        self._alone: deque[tuple[int, float]] = deque(maxlen=8)
        self._split: tuple[float, float] | None = None
        self.solo = self._solo.append
        """`solo(seconds)`: a decode-only step, far from any prefill, took so long. A bound method: it is called in every step."""
        self.between = self._between.append
        """`between(seconds)`: the same, between prefills. These are slower: caches are cold, other threads have work."""

    def mixed(self, tokens: int, seconds: float) -> None:
        """A step with `tokens` prefill tokens beside decodes."""
        self._mixed.append((tokens, seconds))
        self._split = None

    def alone(self, tokens: int, seconds: float) -> None:
        """A step of prefill only: believed until there are mixed ones."""
        if not self._mixed:
            self._alone.append((tokens, seconds))
            self._split = None

    @property
    def a(self) -> float | None:
        """Seconds of a decode-only step, between prefills where such were seen."""
        samples = self._between or self._solo
        return median(list(samples)) if samples else None

    def solo_step(self) -> float | None:
        """Mean seconds of a decode-only step far from prefill, pauses left out. None before any."""
        return _mean(self._solo)

    def between_step(self) -> float | None:
        return _mean(self._between)

    def forget_between(self) -> None:
        """An overlap begins: what the last one's steps took was with other answers."""
        self._between.clear()

    def model(self) -> StepModel | None:
        """None before any step with prefill was timed."""
        samples = self._mixed or self._alone
        if not samples:
            return None
        a = self.a or 0.0
        if self._split is None:
            self._split = _split([(tokens, max(seconds - a, 1e-6)) for tokens, seconds in samples])
        e, b = self._split
        return StepModel(a=a, e=e, b=b, h=0.0)


def _mean(samples: Iterable[float]) -> float | None:
    values = list(samples)
    if not values:
        return None
    limit = 3.0 * median(values)
    return fmean(value for value in values if value <= limit)


def _split(points: list[tuple[int, float]]) -> tuple[float, float]:
    """(e, b) for points of (tokens, seconds above a)."""
    largest = max(tokens for tokens, _ in points)
    careful = median([seconds / tokens for tokens, seconds in points if 2 * tokens >= largest])
    slopes = [
        (y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if abs(x2 - x1) >= 0.2 * largest
    ]
    b = min(max(median(slopes), 0.5 * careful), careful) if len(slopes) >= 3 else careful
    e = max(0.0, quantile([seconds - b * tokens for tokens, seconds in points if 2 * tokens >= largest], 0.9))
    return e, b
