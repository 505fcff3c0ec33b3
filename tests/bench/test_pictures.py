"""The pictures: what is drawn where, the same shapes in every format, and text that cannot break out of the page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headway.bench.pictures import raster
from headway.bench.pictures.drawing import ALARM, LIVE, LONG, SHADE, Box, Curve, Dot, Drawing, Line, Marks, Text, log_steps, steps
from headway.bench.pictures.frontier import Point, frontier_plot
from headway.bench.pictures.page import page
from headway.bench.pictures.report import drawings, html, save
from headway.bench.pictures.source import load
from headway.bench.pictures.svg import svg
from headway.bench.pictures.timeline import Panel, Track, timeline
from headway.core import frontier
from headway.errors import UsageError
from tests.bench.test_bench_command import command

VICTIM = Track("victim", -0.5, (-0.4, -0.3, -0.2, -0.1, 0.0, 0.9, 1.0, 1.1))
INTRUDER = Track("intruder", 0.0, (1.0, 1.1))
PANEL = Panel("8192", "share 0.1", (VICTIM, INTRUDER))


def of(drawing: Drawing, kind: type, **like: Any) -> list[Any]:
    found = [shape for shape in drawing.shapes if isinstance(shape, kind)]
    return [shape for shape in found if all(getattr(shape, key) == value for key, value in like.items())]


def test_each_token_is_a_tick_and_the_prefill_is_shaded() -> None:
    drawing = timeline([PANEL])
    live, long = of(drawing, Marks, color=LIVE)[1], of(drawing, Marks, color=LONG)[1]  # [0] is the legend's
    assert len(long.xs) == 1  # the second one lies behind the picture's end
    shown = [time for time in VICTIM.tokens if time >= -0.18]
    assert len(live.xs) == len([time for time in shown if time <= 1.05])
    shade = of(drawing, Box, fill=SHADE)[1]
    assert shade.x + shade.width == pytest.approx(long.xs[0])
    per_second = shade.width / 1.0
    gap = of(drawing, Line, color=ALARM)[1]
    assert gap.x2 - gap.x1 == pytest.approx(0.9 * per_second)
    assert "900 ms" in [text.text for text in of(drawing, Text)]


def test_every_arm_has_the_same_scale() -> None:
    slow = Panel("hold", "", (VICTIM, Track("intruder", 0.0, (4.0, 4.1))))
    first, second = of(timeline([PANEL, slow]), Box, fill=SHADE)[1:]
    assert second.width == pytest.approx(4 * first.width)


def test_a_point_on_the_frontier_is_drawn_on_the_curve() -> None:
    points = [Point("on", 0.5, 2.0), Point("above", 0.5, 3.0), Point("held", 1.0, 4.0, waited=True)]
    drawing = frontier_plot(points)
    curve = of(drawing, Curve)[1]
    on, above, held = (of(drawing, Dot, size=10)[i] for i in range(3))
    nearest = min(curve.points, key=lambda point: abs(point[0] - on.x))
    assert nearest[1] == pytest.approx(on.y, abs=2.5) and above.y < on.y - 20
    assert held.hollow and not on.hollow
    assert frontier.ttft(1.0, 0.5) == 2.0
    names = [text.text for text in of(drawing, Text)]
    assert {"on", "above", "held"} <= set(names) and any("hollow" in name for name in names)


def test_intervals_and_single_repetitions_are_shown() -> None:
    runs = ((0.1, 1.2), (0.12, 1.3))
    drawing = frontier_plot([Point("a", 0.11, 1.25, (0.1, 0.12), (1.2, 1.3), runs)])
    assert len(of(drawing, Dot, faint=True)) == 2
    assert len(of(drawing, Line, width=1.4)) == 2


def test_axes_have_round_numbers() -> None:
    assert steps(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert steps(-0.3, 1.2, 8) == [-0.2, 0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    assert log_steps(0.85, 30) == [1, 2, 5, 10, 20]
    assert len(log_steps(0.9, 1.3)) >= 3


def test_svg_is_well_formed_and_text_stays_text() -> None:
    drawing = timeline([Panel("<script>&", "\"'", (VICTIM, INTRUDER))])
    text = svg(drawing)
    root = ElementTree.fromstring(text)
    assert "<script" not in text and "&lt;script&gt;&amp;" in text
    assert len(root.findall(".//{*}path")) == len([shape for shape in of(drawing, Marks) if shape.xs])


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    text = page("<b>", ["<i>"], [(["a"], [["<script>"]])], [timeline([PANEL])], ["</ul>"], "foot")
    assert "<script" not in text and "&lt;b&gt;" in text and "&lt;/ul&gt;" in text
    assert not re.search(r"(?:src|href)=", text) and "url(" not in text


@pytest.mark.parametrize("ending", [".png", ".pdf"])
def test_every_shape_can_be_painted(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, drawing in (
        ("t", timeline([PANEL])),
        ("f", frontier_plot([Point(str(i), 0.1 * i, 2.0, (0.1, 0.2), (1, 3), ((0.1, 1.1),), i == 3) for i in range(6)])),
    ):
        file = tmp_path / (name + ending)
        save(drawing, file)
        assert file.read_bytes()[:4] in (b"\x89PNG", b"%PDF") and file.stat().st_size > 5000


def test_a_picture_shows_what_it_says(tmp_path: Path) -> None:
    """A filled box fills its pixels and nothing else: the painter's coordinates are the drawing's."""
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    drawing = Drawing(100, 50, "box")
    drawing.add(Box(20, 10, 30, 20, "#ff0000"))
    raster.save(drawing, tmp_path / "box.png")
    image = imread(tmp_path / "box.png")
    red = (image[:, :, 0] > 0.9) & (image[:, :, 1] < 0.1)
    rows, columns = red.any(axis=1).nonzero()[0], red.any(axis=0).nonzero()[0]
    scale = image.shape[1] / 100
    found = [columns[0] / scale, (columns[-1] + 1) / scale, rows[0] / scale, (rows[-1] + 1) / scale]
    assert found == pytest.approx([20, 50, 10, 30], abs=0.6)


def test_without_matplotlib_one_line_says_which_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install 'headway\[plots\]'"):
        save(timeline([PANEL]), tmp_path / "a.png")
    save(timeline([PANEL]), tmp_path / "a.svg")
    with pytest.raises(UsageError, match=r"a picture ends in \.svg, \.png or \.pdf"):
        save(timeline([PANEL]), tmp_path / "a.jpg")


def _bench_document(folder: Path) -> Path:
    """A headway.bench/1 document with one overlap run, and its events."""
    file = folder / "a.json"
    figures = {"share": 0.1, "stretch": 1.2, "intruder_ttft_s": 1.0, "window_s": 1.0, "longest_gap_s": 0.9}
    streams = [{"class": "victim", "submitted_s": 0.0}, {"class": "intruder", "submitted_s": 0.5}]
    run = {"scenario": "overlap-after", "rep": 0, "void": None, "notes": [], "figures": figures, "streams": streams}
    document = {
        "schema": "headway.bench/1", "headway": "0", "server": {"model": "m", "version": "1", "url": "http://h"},
        "settings": {"reps": 1}, "runs": [run], "summary": {}, "validity": {}, "error": None,
    }  # fmt: skip
    file.write_text(json.dumps(document))
    events = [(0, 0.1 * i) for i in range(1, 6)] + [(0, 1.4), (0, 1.6), (1, 1.5), (1, 1.6)]
    lines = [json.dumps({"run": 0, "stream": stream, "at_s": at, "tokens": 1}) for stream, at in events]
    Path(f"{file}.events.jsonl").write_text("\n".join(lines) + "\n")
    return file


def test_a_saved_measurement_has_its_pictures(tmp_path: Path) -> None:
    document, folder = load(_bench_document(tmp_path))
    made = drawings(document, folder)
    assert list(made) == ["timeline", "frontier"]
    assert len(of(made["timeline"], Marks, color=LONG)[1].xs) == 2 - 1  # the last one lies outside
    text = html(document, list(made.values()))
    assert text.count("<svg") == 2


def test_the_report_command(tmp_path: Path) -> None:
    file = _bench_document(tmp_path)
    page_, picture = tmp_path / "a.html", tmp_path / "t.svg"
    code, _, err = command("report", str(file), "--html", str(page_), "--timeline", str(picture))
    assert code == 0, err
    assert page_.read_text().startswith("<!doctype html>") and picture.read_text().startswith("<svg")
    for arguments, words in (
        ((), "say what to write"),
        (("--timeline", "/nowhere/t.svg"), "there is no folder /nowhere"),
        (("--frontier", str(tmp_path / "f.gif")), "a picture ends in"),
    ):
        code, _, err = command("report", str(file), *arguments)
        assert code == 2 and words in err
    Path(f"{file}.events.jsonl").unlink()
    code, _, err = command("report", str(file), "--html", str(page_))
    assert code == 2 and "the pictures need the events beside the document" in err
    (tmp_path / "b.json").write_text('{"schema": "x"}')
    code, _, err = command("report", str(tmp_path / "b.json"), "--html", str(page_))
    assert code == 2 and "is neither a headway.bench/1 nor a headway.arms/1 document" in err
