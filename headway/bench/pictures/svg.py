"""A drawing as SVG, with nothing outside the text itself: no fonts, scripts or links."""

from __future__ import annotations

from html import escape

from headway.bench.pictures.drawing import Box, Curve, Dot, Drawing, Line, Marks, Shape, Text, outline

FONT = "system-ui, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _points(points: list[tuple[float, float]] | tuple[tuple[float, float], ...]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _shape(shape: Shape) -> str:
    match shape:
        case Line():
            dash = ' stroke-dasharray="5 4"' if shape.dashed else ""
            return (
                f'<line x1="{_n(shape.x1)}" y1="{_n(shape.y1)}" x2="{_n(shape.x2)}" y2="{_n(shape.y2)}" '
                f'stroke="{shape.color}" stroke-width="{_n(shape.width)}"{dash}/>'
            )
        case Box():
            return (
                f'<rect x="{_n(shape.x)}" y="{_n(shape.y)}" width="{_n(shape.width)}" height="{_n(shape.height)}" '
                f'fill="{shape.fill}"/>'
            )
        case Marks():
            path = "".join(f"M{_n(x)} {_n(shape.y)}v{_n(shape.height)}" for x in shape.xs)
            return f'<path d="{path}" stroke="{shape.color}" stroke-width="{_n(shape.width)}"/>' if path else ""
        case Curve():
            if shape.fill:
                return f'<polygon points="{_points(shape.points)}" fill="{shape.fill}"/>'
            return (
                f'<polyline points="{_points(shape.points)}" fill="none" stroke="{shape.color}" '
                f'stroke-width="{_n(shape.width)}"/>'
            )
        case Dot():
            look = f'fill="{shape.color}" stroke="#fff"'
            if shape.faint:
                look = f'fill="{shape.color}" fill-opacity="0.35"'
            elif shape.hollow:
                look = f'fill="#fff" stroke="{shape.color}" stroke-width="2"'
            if shape.shape == "circle":
                return f'<circle cx="{_n(shape.x)}" cy="{_n(shape.y)}" r="{_n(shape.size / 2)}" {look}/>'
            return f'<polygon points="{_points(outline(shape))}" {look}/>'
        case Text():
            turn = f' transform="rotate(-90 {_n(shape.x)} {_n(shape.y)})"' if shape.upright else ""
            bold = ' font-weight="600"' if shape.bold else ""
            return (
                f'<text x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" fill="{shape.color}" '
                f'text-anchor="{shape.anchor}"{bold}{turn}>{escape(shape.text)}</text>'
            )


def svg(drawing: Drawing) -> str:
    size = f"{_n(drawing.width)} {_n(drawing.height)}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_n(drawing.width)}" '
        f'height="{_n(drawing.height)}" role="img" font-family="{escape(FONT)}">',
        f"<title>{escape(drawing.title)}</title>",
        f'<rect width="{_n(drawing.width)}" height="{_n(drawing.height)}" fill="#fff"/>',
        *(text for shape in drawing.shapes if (text := _shape(shape))), "</svg>", "",
    ])  # fmt: skip
