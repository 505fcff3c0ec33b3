"""The timeline: each stream a row, each token a tick, the long prompt's prefill shaded. One panel an arm, one scale for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.bench.pictures.drawing import (
    ALARM,
    FAINT,
    GRID,
    INK,
    LIVE,
    LONG,
    SHADE,
    Box,
    Drawing,
    Line,
    Marks,
    Text,
    named,
    shortened,
    steps,
)
from headway.bench.tables import seconds

WIDTH, LEFT, RIGHT = 1000.0, 118.0, 24.0
TOP, BOTTOM, HEAD, ROW, BETWEEN = 44.0, 46.0, 22.0, 20.0, 12.0
LABELS = {"victim": "live answer", "intruder": "long prompt", "newcomer": "newcomer"}
BEFORE, BEHIND = 0.18, 0.05  # of the longest prefill, shown before it and behind it
MOST_ROWS = 8  # of one kind in a panel

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Track:
    """One stream; seconds since the first long prompt of its panel was submitted."""

    kind: str
    submitted: float
    tokens: tuple[float, ...]

    @property
    def long(self) -> bool:
        return self.kind == "intruder"


@dataclass(frozen=True)
class Panel:
    title: str
    remark: str
    tracks: tuple[Track, ...]

    @property
    def prefills(self) -> list[tuple[float, float]]:
        return [(track.submitted, track.tokens[0]) for track in self.tracks if track.long and track.tokens]

    @property
    def end(self) -> float:
        return max((end for _, end in self.prefills), default=0.0)

    def longest_gap(self) -> tuple[Track, float, float] | None:
        """The longest gap of a live answer that touches a prefill: its track, beginning and end."""
        found = [
            (track, a, b)
            for track in self.tracks if not track.long
            for a, b in pairwise(track.tokens)
            if any(b > start and a < end for start, end in self.prefills)
        ]  # fmt: skip
        return max(found, key=lambda gap: gap[2] - gap[1], default=None)


def _rows(panel: Panel) -> list[Track]:
    live = [track for track in panel.tracks if not track.long][:MOST_ROWS]
    return [*live, *[track for track in panel.tracks if track.long][:MOST_ROWS]]


def timeline(panels: Sequence[Panel], title: str = "Each row a stream, each tick a token") -> Drawing:
    """Raises ValueError without a panel."""
    if not panels:
        raise ValueError("nothing to draw")
    longest = max(panel.end for panel in panels) or 1.0
    first = min((time for panel in panels for track in panel.tracks for time in track.tokens[:1]), default=0.0)
    low, high = max(-BEFORE * longest, min(first, 0.0) - 0.02 * longest), longest * (1 + BEHIND)
    height = TOP + sum(HEAD + ROW * len(_rows(panel)) + BETWEEN for panel in panels) + BOTTOM
    drawing = Drawing(WIDTH, height, title)
    plot = WIDTH - LEFT - RIGHT

    def x(time: float) -> float:
        return LEFT + plot * (min(max(time, low), high) - low) / (high - low)

    _legend(drawing)
    bottom = height - BOTTOM
    for tick in steps(low, high, 10):
        drawing.add(Line(x(tick), TOP, x(tick), bottom, GRID), Text(x(tick), bottom + 17, named(tick), 11, FAINT, "middle"))
    drawing.add(Text(LEFT + plot / 2, bottom + 36, "seconds since the long prompt was sent", 12, INK, "middle"))
    y = TOP
    for panel in panels:
        y = _panel(drawing, panel, y, x, (low, high))
    return drawing


def _legend(drawing: Drawing) -> None:
    drawing.add(
        Marks((LEFT, LEFT + 4, LEFT + 8, LEFT + 12), 14, 12, LIVE, 1.2), Text(LEFT + 20, 24, "token of a live answer", 11)
    )
    at = LEFT + 172
    drawing.add(
        Marks((at, at + 4, at + 8, at + 12), 14, 12, LONG, 1.2), Text(at + 20, 24, "token of the long prompt's answer", 11)
    )
    at += 236
    drawing.add(Box(at, 14, 22, 12, SHADE), Text(at + 28, 24, "waiting and prefill, up to the first token", 11))
    at += 268
    drawing.add(Line(at, 20, at + 22, 20, ALARM, 2), Text(at + 28, 24, "longest gap", 11))


def _panel(drawing: Drawing, panel: Panel, y: float, x: Scale, span: tuple[float, float]) -> float:
    """Draws one arm at y; returns where the next one begins."""
    rows = _rows(panel)
    drawing.add(Text(8, y + 15, shortened(panel.title, 44), 12.5, INK, bold=True))
    drawing.add(Text(WIDTH - RIGHT, y + 15, panel.remark, 11, FAINT, "end"))
    y += HEAD
    for start, end in panel.prefills:
        drawing.add(Box(x(start), y, x(end) - x(start), ROW * len(rows), SHADE))
    gap = panel.longest_gap()
    for track in rows:
        color = LONG if track.long else LIVE
        label = LABELS.get(track.kind, track.kind)
        drawing.add(Text(LEFT - 8, y + ROW - 6, label, 11, color, "end"))
        inside = tuple(x(time) for time in track.tokens if span[0] <= time <= span[1])
        drawing.add(Line(x(span[0]), y + ROW - 2.5, x(span[1]), y + ROW - 2.5, GRID), Marks(inside, y + 5, 12, color))
        if gap is not None and gap[0] is track:
            _gap(drawing, gap[1], gap[2], y, x)
        y += ROW
    return y + BETWEEN


def _gap(drawing: Drawing, start: float, end: float, y: float, x: Scale) -> None:
    left, right = x(start), x(end)
    drawing.add(Line(left, y + 12, right, y + 12, ALARM, 2))
    text = seconds(end - start)
    if right - left > 7 * len(text) + 8:
        drawing.add(Text((left + right) / 2, y + 9.5, text, 10, ALARM, "middle"))
