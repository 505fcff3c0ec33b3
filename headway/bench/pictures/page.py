"""One HTML page that holds everything: tables, remarks and the pictures as SVG. It loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headway.bench.pictures.drawing import Drawing
from headway.bench.pictures.svg import svg

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 1040px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: 1rem 0; white-space: nowrap }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #e3e3e3; text-align: right }
th:first-child, td:first-child { text-align: left } th { border-bottom: 2px solid #bbb; font-weight: 600 }
svg { max-width: 100%; height: auto; margin: .5rem 0 }
li { margin: .2rem 0 } figcaption, footer { color: #6b6b6b; font-size: 13px }
figure { margin: 1rem 0 }
"""


def _table(table: Table) -> str:
    headers, rows = table
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headers)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def page(
    title: str, lead: Sequence[str], tables: Sequence[Table], pictures: Sequence[Drawing], remarks: Sequence[str], foot: str
) -> str:
    parts = [
        "<!doctype html>", f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">', f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>", *(f"<p>{escape(text)}</p>" for text in lead),
        *(f"<figure>{svg(one)}<figcaption>{escape(one.title)}</figcaption></figure>" for one in pictures),
        *(_table(table) for table in tables),
    ]  # fmt: skip
    if remarks:
        parts += ["<h2>Remarks</h2>", "<ul>", *(f"<li>{escape(text)}</li>" for text in remarks), "</ul>"]
    return "\n".join([*parts, f"<footer>{escape(foot)}</footer>", "</body></html>", ""])
