"""Tables: rich on a terminal, aligned text elsewhere, Markdown for a page. And numbers the way people read
them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def seconds(value: float | None) -> str:
    """Under a second in ms, else in s with two digits behind the point."""
    if value is None:
        return "-"
    return f"{1e3 * value:.0f} ms" if value < 0.9995 else f"{value:.2f} s"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def plain(headers: Sequence[str], rows: Rows) -> str:
    widths = [max(len(line[i]) for line in [headers, *rows]) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]).rstrip()

    return "\n".join([line(headers), line(["-" * w for w in widths]), *map(line, rows)])


def markdown(headers: Sequence[str], rows: Rows) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join([" --- ", *[" ---: "] * (len(headers) - 1)]) + "|"
    return "\n".join([line(headers), rule, *map(line, rows)])


def show(headers: Sequence[str], rows: Rows, title: str = "") -> None:
    """On stdout."""
    if not sys.stdout.isatty():
        if title:
            print(title)
        print(plain(headers, rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for i, header in enumerate(headers):
        table.add_column(header, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
