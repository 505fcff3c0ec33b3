"""A picture as a list of shapes in pixels, the origin at the top left. svg.py and raster.py put the same list on a page, so that
a picture in the HTML page and in a PNG cannot differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

INK, FAINT, GRID = "#1b1b1b", "#6b6b6b", "#e3e3e3"
LIVE, LONG, SHADE, ALARM = "#1f4e9c", "#c2560a", "#fbe6d4", "#b3001b"
#: Okabe and Ito's colours, which people with colour vision deficiencies can tell apart; black is kept for text.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
SHAPES = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    color: str = INK
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True)
class Marks:
    """Upright strokes of one height, one for each x."""

    xs: tuple[float, ...]
    y: float
    height: float
    color: str
    width: float = 1.0


@dataclass(frozen=True)
class Curve:
    points: tuple[tuple[float, float], ...]
    color: str = INK
    width: float = 1.5
    fill: str | None = None  # closed and filled, without a stroke


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    shape: str
    color: str
    size: float = 9.0  # across
    faint: bool = False
    hollow: bool = False


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # of the baseline
    text: str
    size: float = 12.0
    color: str = INK
    anchor: str = "start"  # start | middle | end
    bold: bool = False
    upright: bool = False  # turned by 90 degrees, reading upwards


Shape = Line | Box | Marks | Curve | Dot | Text


@dataclass
class Drawing:
    width: float
    height: float
    title: str
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes += shapes


def outline(dot: Dot) -> list[tuple[float, float]]:
    """The corners of a dot that is no circle."""
    half = dot.size / 2
    corners = {
        "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "diamond": [(0.0, -1.15), (1.15, 0.0), (0.0, 1.15), (-1.15, 0.0)],
        "triangle": [(0.0, -1.15), (1.05, 0.8), (-1.05, 0.8)],
    }[dot.shape]
    return [(dot.x + half * x, dot.y + half * y) for x, y in corners]


def steps(low: float, high: float, about: int = 8) -> list[float]:
    """Round numbers from low to high: multiples of 1, 2 or 5 times a power of ten, some `about` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_steps(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... from low to high; more of them where there would be fewer than three."""
    for multiples in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(m / 10 for m in range(10, 100))):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [m * 10.0**p for p in powers for m in multiples if low * 0.999 <= m * 10.0**p <= high * 1.001]
        if len(found) >= 3:
            return found
    return found


def named(value: float) -> str:
    return f"{value:g}"


def shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
