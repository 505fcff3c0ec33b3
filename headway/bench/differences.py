"""Bootstrap intervals over repetitions, and when a difference is called. Pure.

A value belongs to a repetition (a dict from repetition to value). The interval of a difference of medians is the middle 95 %
of it over resampled repetitions; two sets that share their repetitions ran beside each other and are resampled together, so
that what drifted for both is not counted as noise. Percentile bootstrap: B. Efron, R. Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13. With few repetitions it is too narrow; that is what the A/A floor is for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.bench.window import median, quantile

AT_LEAST = 3  # repetitions, for any interval
DRAWS = 2000

Values = Mapping[int, float]
Interval = tuple[float, float]


def _middle(found: list[float]) -> Interval:
    low, high = quantile(found, 0.025), quantile(found, 0.975)
    assert low is not None and high is not None
    return low, high


def _median(values: Sequence[float]) -> float:
    middle = median(values)
    assert middle is not None
    return middle


def interval_of(values: Sequence[float], draws: int = DRAWS, seed: int = 0) -> Interval | None:
    """95 % interval of the median itself. None under three values."""
    if len(values) < AT_LEAST:
        return None
    rng = random.Random(seed)
    return _middle([_median(rng.choices(values, k=len(values))) for _ in range(draws)])


def interval(a: Sequence[float], b: Sequence[float], draws: int = DRAWS, seed: int = 0) -> Interval | None:
    """95 % interval of median(b) - median(a) for sets that did not run beside each other. None under three of either."""
    if min(len(a), len(b)) < AT_LEAST:
        return None
    rng = random.Random(seed)
    return _middle([_median(rng.choices(b, k=len(b))) - _median(rng.choices(a, k=len(a))) for _ in range(draws)])


def paired_interval(a: Values, b: Values, draws: int = DRAWS, seed: int = 0) -> Interval | None:
    """The same for sets that ran beside each other, repetition by repetition; those that only one has are left out."""
    reps = sorted(set(a) & set(b))
    if len(reps) < AT_LEAST:
        return interval(list(a.values()), list(b.values()), draws, seed)
    rng = random.Random(seed)
    found = []
    for _ in range(draws):
        drawn = rng.choices(reps, k=len(reps))
        found.append(_median([b[rep] for rep in drawn]) - _median([a[rep] for rep in drawn]))
    return _middle(found)


def floor(a: Values, again: Values) -> float | None:
    """The most by which the same configuration may differ from itself: the far end of the interval of the A/A pair. What another
    arm's own repetitions scatter by is in the interval of its difference. None under three repetitions."""
    ends = paired_interval(a, again)
    return None if ends is None else max(map(abs, ends))


@dataclass(frozen=True)
class Difference:
    """median(b) - median(a). `floor` None: there is no A/A pair to judge by."""

    name: str
    a: float
    b: float
    low: float | None  # None: too few repetitions for an interval
    high: float | None
    floor: float | None = None
    needs_floor: bool = False

    @property
    def size(self) -> float:
        return self.b - self.a

    @property
    def called(self) -> str:
        if self.low is None or self.high is None:
            return "too few runs"
        if self.low <= 0 <= self.high:
            return "no difference seen"
        if self.needs_floor and self.floor is None:
            return "no A/A floor"
        if self.floor is not None and abs(self.size) <= self.floor:
            return "within the A/A noise"
        return "higher" if self.low > 0 else "lower"


def difference(name: str, a: Values, b: Values, noise: float | None) -> Difference | None:
    """Of two arms that ran beside each other; None where one of them has no value."""
    if not a or not b:
        return None
    first, second = _median(list(a.values())), _median(list(b.values()))
    low, high = paired_interval(a, b) or (None, None)
    return Difference(name, first, second, low, high, noise, needs_floor=True)
