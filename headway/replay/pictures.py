"""Tails of TTFT and of gaps, one curve a policy: the part of all answers (or gaps) that is longer than x. Both axes are
logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.bench.pictures.drawing import FAINT, GRID, PALETTE, Curve, Drawing, Line, Text, log_steps, named, shortened
from headway.bench.pictures.page import page
from headway.replay.report import headings, rows, text

LEFT, TOP, PLOT_W, PLOT_H, BOTTOM = 66.0, 26.0, 520.0, 300.0, 52.0
_LEGEND = 300.0
_MEASURES = (("ttft_s", "time to first token, s", "answers"), ("gap_s", "gap between two outputs, s", "gaps"))
#: Parts below this are not drawn.
_LEAST = 1e-6
_MOST_CURVES = len(PALETTE)


def drawings(results: Sequence[dict[str, Any]]) -> list[Drawing]:
    """One drawing a class and measure; with more cases than colours, the first of them."""
    labels = list(dict.fromkeys(label for result in results for label in result["curves"]))
    return [
        drawn
        for label in labels
        for key, what, of in _MEASURES
        if (drawn := _tails([(_name(r), r["curves"][label][key]) for r in results if label in r["curves"]], what, of, label))
    ]


def write_html(results: Sequence[dict[str, Any]], lead: Sequence[str], path: Path) -> None:
    table = (headings(), [[text(cell) for cell in row] for row in rows(results)])
    remarks = [] if len(results) <= _MOST_CURVES else [f"The plots show the first {_MOST_CURVES} of {len(results)} cases."]
    path.write_text(page("Replay", lead, [table], drawings(results), remarks, "headway replay"), encoding="utf-8")


def _name(result: dict[str, Any]) -> str:
    return " ".join([result["policy"], *(f"{name}={value}" for name, value in result["swept"].items())])


def _tails(curves: list[tuple[str, list[tuple[float, float]]]], what: str, of: str, label: str) -> Drawing | None:
    curves = [(name, [(x, max(y, 0.0)) for x, y in points if x > 0]) for name, points in curves[:_MOST_CURVES]]
    xs = [x for _, points in curves for x, _ in points]
    ys = [y for _, points in curves for _, y in points if y > _LEAST]
    if not xs or not ys:
        return None
    low, high = min(xs), max(max(xs), min(xs) * 1.5)
    bottom = max(min(ys), _LEAST) / 1.5
    named_class = "all requests" if label == "all" else f"{label} new prompt tokens"
    drawing = Drawing(LEFT + PLOT_W + _LEGEND, TOP + PLOT_H + BOTTOM, f"{named_class}: {what}")

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low) / math.log(high / low)
        down = math.log(max(y, bottom)) / math.log(bottom)
        return LEFT + PLOT_W * across, TOP + PLOT_H * down

    for tick in log_steps(low, high):
        at = place(tick, 1.0)[0]
        label_at = TOP + PLOT_H + 18
        drawing.add(Line(at, TOP, at, TOP + PLOT_H, GRID), Text(at, label_at, named(tick), 11, FAINT, "middle"))
    for power in range(math.ceil(math.log10(bottom)), 1):
        at = place(low, 10.0**power)[1]
        drawing.add(Line(LEFT, at, LEFT + PLOT_W, at, GRID), Text(LEFT - 6, at + 4, named(10.0**power), 11, FAINT, "end"))
    for number, (name, points) in enumerate(curves):
        color = PALETTE[number]
        drawing.add(Curve(tuple(place(max(x, low), y) for x, y in points), color, 2.0))
        at = TOP + 14 + 18 * number
        drawing.add(Line(LEFT + PLOT_W + 14, at - 4, LEFT + PLOT_W + 34, at - 4, color, 2.0))
        drawing.add(Text(LEFT + PLOT_W + 40, at, shortened(name, 38)))
    drawing.add(Text(LEFT + PLOT_W / 2, TOP + PLOT_H + 40, what, anchor="middle"))
    drawing.add(Text(16, TOP + PLOT_H / 2, f"part of {of} that is longer", anchor="middle", upright=True))
    return drawing
