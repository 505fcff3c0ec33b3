"""The frontier plot: what a live answer keeps against what the long prompt pays for it, with the curve that no schedule on one
engine can go below: T/T0 = 1/(1 - f) (docs/physics.md). Where the long prompt waited until the live answer had ended, the answer
kept everything for its whole life and the curve bounds nothing: such an arm is drawn hollow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.bench.pictures.drawing import (
    FAINT,
    GRID,
    INK,
    PALETTE,
    SHAPES,
    Curve,
    Dot,
    Drawing,
    Line,
    Text,
    log_steps,
    named,
    shortened,
)
from headway.core import frontier

LEFT, TOP, PLOT_W, PLOT_H, BOTTOM = 66.0, 26.0, 520.0, 380.0, 58.0
LETTER = 6.7  # pixels of a letter in the legend, about
WAITED = "hollow: waited for the answer's end"
LOWEST = 0.85
BEYOND = "#f1f1f1"

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Point:
    """One arm: medians with their intervals (None: one repetition), and every repetition as (share, T/T0)."""

    name: str
    share: float
    stretch: float
    shares: tuple[float, float] | None = None
    stretches: tuple[float, float] | None = None
    runs: tuple[tuple[float, float], ...] = ()
    waited: bool = False  # until the live answer had ended


def frontier_plot(points: Sequence[Point], title: str = "Share kept against the price in time to first token") -> Drawing:
    """Raises ValueError without a point."""
    if not points:
        raise ValueError("nothing to draw")
    seen = [s for p in points for s in (p.stretch, *(p.stretches or ()), *(run[1] for run in p.runs))]
    high = max(4.0, 1.25 * max(seen))
    low = min(LOWEST, 0.9 * min(seen))
    longest = max(len(line) for line in ("frontier, 1/(1 − share)", WAITED, *(shortened(p.name, 40) for p in points)))
    drawing = Drawing(LEFT + PLOT_W + 52 + LETTER * longest, TOP + max(PLOT_H, 20.0 * (len(points) + 2)) + BOTTOM, title)

    def x(share: float) -> float:
        return LEFT + PLOT_W * min(max(share, 0.0), 1.04) / 1.04

    def y(stretch: float) -> float:
        return TOP + PLOT_H * (1 - (math.log(stretch) - math.log(low)) / (math.log(high) - math.log(low)))

    curve = _curve(high)
    edge = [(x(f), y(t)) for f, t in curve]
    drawing.add(Curve((*edge, (x(1.04), TOP), (x(1.04), TOP + PLOT_H), (x(0), TOP + PLOT_H)), fill=BEYOND))
    for tick in log_steps(low, high):
        drawing.add(Line(x(0), y(tick), x(1.04), y(tick), GRID), Text(LEFT - 8, y(tick) + 4, f"{named(tick)}×", 11, FAINT, "end"))
    for tenth in range(0, 11, 2):
        at = x(tenth / 10)
        drawing.add(Line(at, TOP, at, TOP + PLOT_H, GRID), Text(at, TOP + PLOT_H + 17, f"{tenth * 10} %", 11, FAINT, "middle"))
    drawing.add(
        Line(x(0), TOP, x(0), TOP + PLOT_H, FAINT), Line(x(0), TOP + PLOT_H, x(1.04), TOP + PLOT_H, FAINT), Curve(tuple(edge)),
        Text(x(0.985), TOP + PLOT_H - 10, "beyond the frontier", 11, FAINT, "end"),
        Text(LEFT + PLOT_W / 2, TOP + PLOT_H + 42, "share of its own speed that the live answer keeps", 12.5, INK, "middle"),
        Text(18, TOP + PLOT_H / 2, "time to first token of the long prompt, T/T0", 12.5, INK, "middle", upright=True),
    )  # fmt: skip
    for number, point in enumerate(points):
        _point(drawing, point, number, x, y)
    _legend(drawing, points)
    return drawing


def _curve(high: float) -> list[tuple[float, float]]:
    """(share, T/T0) from 0 to where it leaves the picture."""
    last = min(1 - 1 / high, 0.9799)
    found = [(f := last * i / 120, frontier.ttft(1.0, f)) for i in range(121)]
    return [(f, t) for f, t in found if t is not None]


def _look(number: int) -> tuple[str, str]:
    return SHAPES[(number + number // len(PALETTE)) % len(SHAPES)], PALETTE[number % len(PALETTE)]


def _point(drawing: Drawing, point: Point, number: int, x: Scale, y: Scale) -> None:
    shape, color = _look(number)
    drawing.add(*(Dot(x(share), y(stretch), "circle", color, 5, faint=True) for share, stretch in point.runs))
    if point.shares:
        drawing.add(Line(x(point.shares[0]), y(point.stretch), x(point.shares[1]), y(point.stretch), color, 1.4))
    if point.stretches:
        drawing.add(Line(x(point.share), y(point.stretches[0]), x(point.share), y(point.stretches[1]), color, 1.4))
    drawing.add(Dot(x(point.share), y(point.stretch), shape, color, 10, hollow=point.waited))


def _legend(drawing: Drawing, points: Sequence[Point]) -> None:
    at, y = LEFT + PLOT_W + 26, TOP + 10
    drawing.add(Line(at - 7, y - 4, at + 7, y - 4, INK, 1.5), Text(at + 14, y, "frontier, 1/(1 − share)", 11.5))
    for number, point in enumerate(points):
        y += 20
        shape, color = _look(number)
        drawing.add(Dot(at, y - 4, shape, color, 10, hollow=point.waited), Text(at + 14, y, shortened(point.name, 40), 11.5))
    if any(point.waited for point in points):
        drawing.add(Text(at - 7, y + 24, WAITED, 11, FAINT))
