"""Pictures and HTML page of a saved measurement, whichever of the two kinds of document it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.bench import report as single
from headway.bench.arms import report as several
from headway.bench.compare import ARMS_SCHEMA
from headway.bench.pictures import raster, source
from headway.bench.pictures.drawing import Drawing
from headway.bench.pictures.frontier import frontier_plot
from headway.bench.pictures.page import Table
from headway.bench.pictures.page import page as html_page
from headway.bench.pictures.svg import svg
from headway.bench.pictures.timeline import timeline
from headway.errors import UsageError

TIMELINE, FRONTIER = "timeline", "frontier"
VECTOR, PAINTED = ".svg", (".png", ".pdf")


def drawings(document: source.Document, folder: Path) -> dict[str, Drawing]:
    """By name: the timeline and one frontier plot a scenario, the first one named `frontier`; without what has no data."""
    out: dict[str, Drawing] = {}
    plotted = source.scenarios(document)
    shown = source.MAIN if source.MAIN in plotted else next(iter(plotted), source.MAIN)
    if panels := source.panels(document, folder, shown):
        out[TIMELINE] = timeline(panels, f"Timeline, {shown}: each row a stream, each tick a token")
    for scenario in sorted(plotted, key=lambda name: name != source.MAIN):
        if points := source.points(document, scenario):
            name = FRONTIER if FRONTIER not in out else f"{FRONTIER}-{scenario}"
            out[name] = frontier_plot(points, f"Frontier, {scenario}: share kept against the price in time to first token")
    return out


def save(drawing: Drawing, path: Path) -> None:
    """In the format of the path's ending. Raises UsageError."""
    if path.suffix == VECTOR:
        try:
            path.write_text(svg(drawing))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
    elif path.suffix in PAINTED:
        raster.save(drawing, path)
    else:
        raise UsageError(f"{path}: a picture ends in {VECTOR}, {' or '.join(PAINTED)}")


def markdown(document: source.Document, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Ready to paste. `pictures`: (title, path)."""
    if document["schema"] == ARMS_SCHEMA:
        return several.page(document, pictures)
    return single.page(dict(document)) + "".join(f"\n![{text}]({path})\n" for text, path in pictures)


def html(document: source.Document, pictures: Sequence[Drawing]) -> str:
    """One page that holds everything."""
    foot = f"headway {document['headway']}, {document['schema']}"
    if document["schema"] != ARMS_SCHEMA:
        server = document["server"]
        lead = [
            f"{server['url']}, version {server['version'] or 'unknown'}; {document['settings']['reps']} repetitions, medians."
        ]
        table: Table = (single.HEADERS, single.rows(dict(document)))
        title = f"Decode beside prefill: {server['model']}"
        return html_page(title, lead, [table], pictures, single.remarks(dict(document)), foot)
    tables: list[Table] = []
    for scenario in several.scenarios(document):
        tables.append((several.headers(document, scenario), several.rows(document, scenario)))
        if rows := several.difference_rows(document, scenario):
            tables.append((several.difference_headers(document, scenario), rows))
    tables.append((("arm", "how"), [[arm["name"], several.how(arm).replace("`", "")] for arm in document["arms"]]))
    return html_page(
        document["title"] or several.TITLE, several.explanation(document), tables, pictures, several.remarks(document), foot
    )
