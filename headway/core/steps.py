"""The step-time model t = a + e + b*p, learned from live traffic.

    a  seconds of a decode-only step            e  extra seconds of a step that carries prefill beside decodes
    b  seconds a prefill token                  h  seconds that a piece lasts beyond its prefill (HTTP, ids, the step under way)

Invariants
----------
1. A model is only given once a piece has been timed: `model()` is None before.
2. Estimates are medians or upper quartiles over the last `WINDOW` samples: one stall moves nothing, drift is followed.
3. All four are >= 0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW = 48


@dataclass(slots=True, frozen=True)
class StepModel:
    a: float
    e: float
    b: float
    h: float

    def gap(self, tokens: int) -> float:
        """Seconds between two outputs of a live answer with a step of `tokens` prefill tokens in between."""
        return self.a + self.e + self.b * tokens

    def prefill(self, tokens: int) -> float:
        """Seconds that `tokens` uncached tokens cost the engine."""
        return self.b * tokens

    def piece(self, tokens: int) -> float:
        """Seconds from sending a piece of `tokens` uncached tokens to its answer."""
        return self.h + self.e + self.b * tokens

    def tokens_within(self, gap: float) -> int:
        """Largest prefill whose gap is at most `gap` seconds: C* = (L - a - e)/b. May be 0."""
        return max(0, int((gap - self.a - self.e) / self.b))


def median(values: list[float]) -> float:
    return quantile(values, 0.5)


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between order statistics. `values` is not empty."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class StepLearner:
    """Learns a StepModel from decode gaps, timed pieces and the gaps that victims had during them."""

    def __init__(self) -> None:
        self._solo: deque[float] = deque(maxlen=WINDOW)
        # A few recent samples of each size: a run of equal pieces must not push out the sizes that give the slope.
        self._pieces: dict[int, deque[tuple[int, float]]] = {}
        self._gaps: deque[tuple[int, float]] = deque(maxlen=WINDOW // 3)
        self._last: deque[float] = deque(maxlen=8)
        self._model: StepModel | None = None

    def solo(self, seconds: float) -> None:
        """A live answer's time per token while no prefill ran."""
        self._solo.append(seconds)

    def piece(self, tokens: int, seconds: float) -> None:
        """`tokens` uncached tokens were answered `seconds` after they were sent, with no other prefill beside them."""
        if tokens > 0 and seconds > 0:
            self._pieces.setdefault(tokens.bit_length(), deque(maxlen=12)).append((tokens, seconds))
            self._model = None

    def gap(self, tokens: int, seconds: float) -> None:
        """The longest gap of any live answer during a piece of `tokens` tokens."""
        self._gaps.append((tokens, seconds))
        self._model = None

    def last(self, overhead: float) -> None:
        """Seconds that the last request of a paced prompt took beyond its own prefill."""
        self._last.append(max(0.0, overhead))

    @property
    def last_overhead(self) -> float:
        """Median of `last`, seconds; 0 before any."""
        return median(list(self._last)) if self._last else 0.0

    @property
    def samples(self) -> int:
        return sum(len(size) for size in self._pieces.values())

    def model(self) -> StepModel | None:
        if self._model is None and self._pieces:
            self._model = self._fit()
        return self._model

    def _fit(self) -> StepModel:
        a = median(list(self._solo)) if self._solo else 0.0
        b, intercept = _line([point for size in self._pieces.values() for point in size])
        e = max(0.0, quantile([seconds - a - b * tokens for tokens, seconds in self._gaps], 0.75)) if self._gaps else 0.0
        return StepModel(a=a, e=e, b=b, h=max(0.0, intercept - e))


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Slope and intercept (both > 0 or >= 0) through (tokens, seconds): Theil-Sen over pairs whose sizes differ
    enough to carry information; with one size only, all of the time is charged to the tokens, which errs on the
    careful side (pieces come out smaller)."""
    largest = max(tokens for tokens, _ in points)
    slopes = [
        (y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if abs(x2 - x1) >= 0.2 * largest
    ]
    careful = median([seconds / tokens for tokens, seconds in points])
    slope = median(slopes) if len(slopes) >= 2 else careful
    if not 0.2 * careful <= slope <= careful:
        slope = careful
    return slope, max(0.0, median([seconds - slope * tokens for tokens, seconds in points]))
