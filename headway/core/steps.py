"""The step-time model t = a + e + b*p + c*p*(position + p/2), learned from live traffic.

    a  seconds of a decode-only step
    e  extra seconds of a step that carries prefill beside decodes
    b  seconds a prefill token at the beginning of a prompt
    c  seconds by which a token costs more for each token before it (attention over what is there already)
    h  seconds that a piece lasts beyond its prefill (HTTP, the step under way)
    k  seconds by which it lasts longer for each token id that it carries, cached ones too (JSON, parsed and checked by the
       engine's front end, while answers go on)

Invariants
----------
1. A model is only given once a piece has been timed: `model()` is None before.
2. Estimates are robust (Huber weights on relative errors, the upper decile for what comes on top of them) over a few recent
   samples of each size and position: one stall moves little, drift is followed.
3. All six are >= 0.
4. An engine that became slower or faster as a whole (another power limit, a neighbour on the host) is followed at once: after
   DRIFT pieces in a row that took much longer or shorter than the model says, what was learned before is scaled by what they
   took.
5. k is what answers show: while a piece is in the front end they go on decoding, so the tokens that they got meanwhile, at
   their own rate, are its time there. Where nothing was seen of that, k is 0 and its cost is taken for the prefill's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from headway.core.linear import eliminate

WINDOW = 48
"""Decode gaps that are remembered."""
EACH = 5
"""Timed pieces that are remembered of each size and position."""


DRIFT = 3
"""Pieces in a row after which the engine's speed is taken to have changed."""
DRIFTED = 1.3
"""Factor on a piece's predicted time, or its inverse, from which it counts as one of them."""
BESIDE = 4096
"""Token ids within which two pieces cost the front end the same."""
AFTER = 8
"""Decode gaps that are kept then: the latest."""


@dataclass(slots=True, frozen=True)
class StepModel:
    a: float
    e: float
    b: float
    h: float = 0.0
    c: float = 0.0
    k: float = 0.0

    def front_end(self, ids: int) -> float:
        """Seconds of a piece that carries `ids` token ids beyond its prefill."""
        return self.h + self.k * ids

    def prefill(self, tokens: int, at: int = 0) -> float:
        """Seconds that `tokens` uncached tokens cost the engine behind `at` tokens that it has."""
        return tokens * (self.b + self.c * (at + tokens / 2))

    def gap(self, tokens: int, at: int = 0) -> float:
        """Seconds between two outputs of a live answer with a step of `tokens` prefill tokens in between."""
        return self.a + self.e + self.prefill(tokens, at)

    def piece(self, tokens: int, at: int = 0) -> float:
        """Seconds from sending a piece of `tokens` uncached tokens to its answer."""
        return self.front_end(at + tokens) + self.e + self.prefill(tokens, at)

    def tokens_within(self, gap: float, at: int = 0) -> int:
        """Largest prefill whose gap is at most `gap` seconds: C* = (L - a - e)/b for c = 0. May be 0."""
        room = gap - self.a - self.e
        if room <= 0:
            return 0
        slope = self.b + self.c * at
        if self.c * room <= 1e-9 * slope * slope:
            return int(room / slope)
        return int((sqrt(slope * slope + 2 * self.c * room) - slope) / self.c)


def median(values: list[float]) -> float:
    return quantile(values, 0.5)


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between order statistics. `values` is not empty."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(slots=True, frozen=True)
class Sample:
    """A piece of `tokens` uncached tokens behind `at` cached ones took `seconds`."""

    tokens: int
    at: int
    seconds: float


class StepLearner:
    """Learns a StepModel from decode gaps, timed pieces and the gaps that victims had during them."""

    def __init__(self) -> None:
        self._solo: deque[float] = deque(maxlen=WINDOW)
        # By size and position: a run of equal pieces must not push out the samples that give the slopes.
        self._pieces: dict[tuple[int, int], deque[Sample]] = {}
        self._gaps: deque[Sample] = deque(maxlen=WINDOW // 3)
        self._last: deque[float] = deque(maxlen=8)
        self._beside: dict[int, deque[tuple[int, float]]] = {}
        """(ids, seconds) of pieces in which answers decoded, by number of ids."""
        self._off: list[tuple[Sample, float]] = []
        """Latest pieces, all slower or all faster than the model says, and by how much."""
        self._steady: StepModel | None = None
        """The model before the first of them."""
        self._model: StepModel | None = None

    def solo(self, seconds: float, times: int = 1) -> None:
        """A live answer's time per token while no prefill ran, seen so many times."""
        self._solo.extend([seconds] * min(times, WINDOW))

    def piece(self, tokens: int, seconds: float, at: int = 0) -> None:
        """`tokens` uncached tokens behind `at` cached ones were answered `seconds` after they were sent, with no other
        prefill beside them."""
        if tokens > 0 and seconds > 0:
            place = self._pieces.setdefault((tokens.bit_length(), (at // 1024).bit_length()), deque(maxlen=EACH))
            new = Sample(tokens, at, seconds)
            self._watch(new)
            place.append(new)
            self._model = None

    def _watch(self, new: Sample) -> None:
        """Notice that the engine's speed has changed. Only a piece of a size and position that the model speaks for can tell."""
        known = [sample for place in self._pieces.values() for sample in place]
        if len(known) <= DRIFT or not min(s.tokens for s in known) <= new.tokens <= max(s.tokens for s in known):
            return
        if new.at > 1024 + 2 * max(s.at for s in known):
            return
        model = self._steady if self._off else self.model()
        if model is None:
            return
        factor = new.seconds / max(model.piece(new.tokens, new.at), 1e-9)
        if not self._off:
            self._steady = model
        if 1.0 / DRIFTED < factor < DRIFTED or any((factor > 1.0) != (before > 1.0) for _, before in self._off):
            self._off.clear()
        if not 1.0 / DRIFTED < factor < DRIFTED:
            self._off.append((new, factor))
        if len(self._off) < DRIFT:
            return
        recent = [sample for sample, _ in self._off]
        change = median([factor for _, factor in self._off])
        self._off.clear()
        for place in self._pieces.values():
            _scale(place, change, recent)
        _scale(self._gaps, change, list(self._gaps)[-DRIFT:])
        self._solo = deque(list(self._solo)[-AFTER:], maxlen=WINDOW)

    def gap(self, tokens: int, seconds: float, at: int = 0) -> None:
        """The longest gap of any live answer during such a piece."""
        self._gaps.append(Sample(tokens, at, seconds))
        self._model = None

    def beside(self, ids: int, seconds: float) -> None:
        """During a piece of `ids` token ids answers decoded for `seconds`."""
        self._beside.setdefault(ids // BESIDE, deque(maxlen=EACH)).append((ids, seconds))
        self._model = None

    def last(self, overhead: float, tokens: int = 0) -> None:
        """Seconds that the last request, of a paced prompt of `tokens` tokens, took beyond its own prefill."""
        self._last.append(overhead - self._slope() * tokens)

    def last_overhead(self, tokens: int = 0) -> float:
        """Seconds of it that are to be expected: the median of `last`, corrected for the prompt's length; before any, as much as
        a piece that long, of which text to be tokenised costs the front end about as much."""
        slope = self._slope() * tokens
        return max(0.0, slope + (median(list(self._last)) if self._last else 0.0))

    def _slope(self) -> float:
        """k: the median slope between pieces of different lengths; 0 where they do not differ enough to tell."""
        places = [(median([i for i, _ in p]), median([s for _, s in p])) for _, p in sorted(self._beside.items())]
        if len(places) < 3:
            return 0.0
        slopes = [(t - s) / (j - i) for n, (i, s) in enumerate(places) for j, t in places[n + 1 :] if j - i >= BESIDE]
        return max(0.0, median(slopes)) if slopes else 0.0

    @property
    def samples(self) -> int:
        return sum(len(place) for place in self._pieces.values())

    def model(self) -> StepModel | None:
        if self._model is None and self._pieces:
            self._model = self._fit()
        return self._model

    def _fit(self) -> StepModel:
        a = median(list(self._solo)) if self._solo else 0.0
        k = self._slope()
        samples = [sample for place in self._pieces.values() for sample in place]
        intercept, b, c = fit([Sample(s.tokens, s.at, max(s.seconds / 4, s.seconds - k * (s.at + s.tokens))) for s in samples])
        bare = StepModel(a=a, e=0.0, b=b, h=0.0, c=c)
        over = [gap.seconds - bare.gap(gap.tokens, gap.at) for gap in self._gaps]
        e = max(0.0, quantile(over, 0.9)) if over else 0.0
        return StepModel(a=a, e=e, b=b, h=max(0.0, intercept - e), c=c, k=k)


def _scale(samples: deque[Sample], factor: float, but: Sequence[Sample]) -> None:
    """Multiply the times of all but some."""
    for n, s in enumerate(samples):
        if not any(s is other for other in but):
            samples[n] = Sample(s.tokens, s.at, s.seconds * factor)


def fit(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """(intercept, b, c) of seconds = intercept + b*p + c*p*(at + p/2), all >= 0. With too little variety to tell the terms
    apart, the time is charged to the tokens, which errs on the careful side: pieces come out smaller."""
    careful = median([s.seconds / s.tokens for s in samples])
    for terms in ((True, True), (True, False), (False, False)):
        solution = _huber(samples, *terms)
        if solution is None:
            continue
        intercept, b, c = solution
        if intercept >= 0 and c >= 0 and 0.1 * careful <= b + c * max(s.at + s.tokens / 2 for s in samples) and b > 0:
            return intercept, b, c
    return 0.0, careful, 0.0


def _huber(samples: Sequence[Sample], with_intercept: bool, with_position: bool) -> tuple[float, float, float] | None:
    """Least squares of the relative error with Huber weights; None where the terms cannot be told apart."""
    sizes = [s.tokens for s in samples]
    ats = [s.at for s in samples]
    if with_intercept and (len(samples) < 3 or max(sizes) < 1.3 * min(sizes)):
        return None
    if with_position and (len(samples) < 5 or max(ats) < 2 * max(sizes)):
        return None
    rows = []
    for s in samples:
        row = [1.0 / s.seconds if with_intercept else 0.0, s.tokens / s.seconds]
        row.append(s.tokens * (s.at + s.tokens / 2) / s.seconds if with_position else 0.0)
        rows.append(row)
    used = [i for i, on in enumerate((with_intercept, True, with_position)) if on]
    weights = [1.0] * len(rows)
    solution = [0.0, 0.0, 0.0]
    for _ in range(4):
        solved = _solve(rows, weights, used)
        if solved is None:
            return None
        solution = solved
        errors = [abs(1.0 - sum(x * y for x, y in zip(row, solution, strict=True))) for row in rows]
        spread = max(1.5 * median(errors), 1e-6)
        weights = [1.0 if error <= spread else spread / error for error in errors]
    return solution[0], solution[1], solution[2]


def _solve(rows: list[list[float]], weights: list[float], used: list[int]) -> list[float] | None:
    """Weighted normal equations for a right-hand side of ones, with scaled columns."""
    scale = {i: max(abs(row[i]) for row in rows) or 1.0 for i in used}
    table = [
        [sum(w * row[i] / scale[i] * row[j] / scale[j] for row, w in zip(rows, weights, strict=True)) for j in used]
        + [sum(w * row[i] / scale[i] for row, w in zip(rows, weights, strict=True))]
        for i in used
    ]
    solved = eliminate(table)
    if solved is None:
        return None
    solution = [0.0, 0.0, 0.0]
    for x, i in zip(solved, used, strict=True):
        solution[i] = x / scale[i]
    return solution
