"""Fits the simulator's step model to measured times: Gauss-Newton on relative errors with Huber weights and exact derivatives.

Invariants
----------
1. All figures stay positive: the fit moves their logarithms.
2. It is pure arithmetic on its input: the same data give the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

from headway.core.linear import solve


@dataclass(frozen=True, slots=True)
class Point:
    """A predicted and a measured time (seconds) and the derivative of the predicted one by each figure."""

    predicted: float
    measured: float
    by: tuple[float, ...]


Predict = Callable[[dict[str, float]], Sequence[Point]]
"""Figures in, one point for each measured time out; `by` in the order of the figures."""

STEP = 0.7
"""Largest move of a figure's logarithm in one round."""
PRIOR = 1e-3
"""Pull towards where a round begins, relative to the data's own: keeps figures apart that the data do not tell apart."""


def fit(start: dict[str, float], predict: Predict, rounds: int = 8) -> dict[str, float]:
    """The figures at which the relative errors are least."""
    figures = dict(start)
    names = list(figures)
    best, least = dict(figures), float("inf")
    damping = PRIOR
    for _ in range(rounds):
        points = predict(figures)
        errors = [log(point.predicted / point.measured) for point in points]
        spread = max(1.5 * median(abs(error) for error in errors), 0.01)
        cost = sum(_huber(error, 0.03) for error in errors) / len(errors)
        if cost < least:
            best, least, damping = dict(figures), cost, max(damping / 3, PRIOR)
        else:
            figures, damping = dict(best), damping * 10
            points = predict(figures)
            errors = [log(point.predicted / point.measured) for point in points]
        rows = [[by * figures[name] / point.predicted for by, name in zip(point.by, names, strict=True)] for point in points]
        weights = [min(1.0, spread / max(abs(error), 1e-12)) for error in errors]
        move = _move(rows, errors, weights, damping)
        for name, by in zip(names, move, strict=True):
            figures[name] *= exp(max(-STEP, min(STEP, by)))
    return best


def _huber(error: float, width: float) -> float:
    size = abs(error)
    return size * size / 2 if size <= width else width * (size - width / 2)


def _move(rows: list[list[float]], errors: list[float], weights: list[float], damping: float) -> list[float]:
    count = range(len(rows[0]))
    table = [[sum(w * row[i] * row[j] for row, w in zip(rows, weights, strict=True)) for j in count] for i in count]
    right = [-sum(w * row[i] * error for row, error, w in zip(rows, errors, weights, strict=True)) for i in count]
    ridge = damping * max(max(table[i][i] for i in count), 1e-12)
    for i in count:
        table[i][i] += ridge
    return solve(table, right) or [0.0 for _ in count]
