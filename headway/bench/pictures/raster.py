"""A drawing as PNG or PDF, by Matplotlib (the extra `plots`), which here only paints: what is where is decided before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.bench.pictures.drawing import Box, Curve, Dot, Drawing, Line, Marks, Shape, Text, outline
from headway.errors import UsageError

PER_INCH = 100.0  # pixels of a drawing
DPI = 200
POINT = 72.0 / PER_INCH  # points a pixel: Matplotlib's unit of line widths and letters
ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def require() -> Any:
    """Matplotlib's Figure. Raises UsageError where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("PNG and PDF need Matplotlib: pip install 'headway[plots]' (the HTML page and SVG do not)") from None
    return Figure


def _paint(axes: Any, shape: Shape) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle, Polygon, Rectangle

    match shape:
        case Line():
            dash = (0, (5, 4)) if shape.dashed else "-"
            lines = [[(shape.x1, shape.y1), (shape.x2, shape.y2)]]
            axes.add_collection(LineCollection(lines, colors=shape.color, linewidths=shape.width * POINT, linestyles=[dash]))
        case Box():
            axes.add_patch(Rectangle((shape.x, shape.y), shape.width, shape.height, facecolor=shape.fill, linewidth=0))
        case Marks():
            lines = [[(x, shape.y), (x, shape.y + shape.height)] for x in shape.xs]
            axes.add_collection(LineCollection(lines, colors=shape.color, linewidths=shape.width * POINT))
        case Curve():
            if shape.fill:
                axes.add_patch(Polygon(shape.points, facecolor=shape.fill, linewidth=0))
            else:
                axes.add_collection(LineCollection([list(shape.points)], colors=shape.color, linewidths=shape.width * POINT))
        case Dot():
            look: dict[str, Any] = {"facecolor": shape.color, "edgecolor": "#fff", "linewidth": POINT}
            if shape.faint:
                look = {"facecolor": shape.color, "linewidth": 0, "alpha": 0.35}
            elif shape.hollow:
                look = {"facecolor": "#fff", "edgecolor": shape.color, "linewidth": 2 * POINT}
            round_ = shape.shape == "circle"
            patch = Circle((shape.x, shape.y), shape.size / 2, **look) if round_ else Polygon(outline(shape), **look)
            axes.add_patch(patch)
        case Text():
            axes.text(
                shape.x, shape.y, shape.text.replace("$", r"\$"), fontsize=shape.size * POINT, color=shape.color,
                ha=ANCHORS[shape.anchor], va="baseline", fontweight="bold" if shape.bold else "normal",
                rotation=90 if shape.upright else 0, rotation_mode="anchor",
            )  # fmt: skip


def save(drawing: Drawing, path: Path) -> None:
    """Written in the format of the path's ending, .png or .pdf. Raises UsageError."""
    figure = require()(figsize=(drawing.width / PER_INCH, drawing.height / PER_INCH), dpi=DPI, facecolor="#fff")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    for number, shape in enumerate(drawing.shapes):
        before = set(axes.get_children())
        _paint(axes, shape)
        for artist in set(axes.get_children()) - before:
            artist.set_zorder(number)  # in the order of the list, whatever kind it is
    try:
        figure.savefig(path, metadata={"Title": drawing.title})
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
