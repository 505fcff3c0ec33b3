"""What the pictures show, read from a saved document and the events beside it: headway.bench/1 or headway.arms/1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.bench.compare import ARMS_SCHEMA
from headway.bench.differences import interval_of
from headway.bench.pictures.frontier import Point
from headway.bench.pictures.timeline import Panel, Track
from headway.bench.suite import SCHEMA
from headway.bench.tables import number, seconds
from headway.bench.window import median
from headway.errors import UsageError

Document = Mapping[str, Any]
Run = Mapping[str, Any]
MAIN = "overlap-after"  # the run that the timeline shows, where there is one


def load(path: Path) -> tuple[Document, Path]:
    """The document and the folder in which its events lie. `path`: the JSON file, or the folder of `bench arms`."""
    file = path / "arms.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{file} is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") not in (SCHEMA, ARMS_SCHEMA):
        raise UsageError(f"{file} is neither a {SCHEMA} nor a {ARMS_SCHEMA} document")
    if document["schema"] == SCHEMA:
        name = document["server"]["model"] or "server"
        runs = [{**run, "arm": name, "run": i, "events": f"{file.name}.events.jsonl"} for i, run in enumerate(document["runs"])]
        document = {**document, "runs": runs, "arms": [{"name": name, "copy_of": None}]}
    return document, file.parent


def scenarios(document: Document) -> list[str]:
    """Those with a share and a T/T0, which the frontier plot can show."""
    names = dict.fromkeys(run["scenario"] for run in document["runs"] if run["figures"].get("stretch") is not None)
    return [name for name in names if any(run["figures"].get("share") is not None for run in _of(document, name))]


def _of(document: Document, scenario: str, arm: str | None = None) -> list[Run]:
    return [run for run in document["runs"] if run["scenario"] == scenario and arm in (None, run["arm"])]


def points(document: Document, scenario: str) -> list[Point]:
    out = []
    for arm in document["arms"]:
        valid = [
            run["figures"] for run in _of(document, scenario, arm["name"])
            if not run["void"] and run["figures"].get("share") is not None and run["figures"].get("stretch")
        ]  # fmt: skip
        runs = tuple((figures["share"], figures["stretch"]) for figures in valid)
        if runs:
            shares, stretches = [share for share, _ in runs], [stretch for _, stretch in runs]
            middle = median(shares), median(stretches)
            assert middle[0] is not None and middle[1] is not None
            spans = _span(shares), _span(stretches)
            out.append(Point(arm["name"], middle[0], middle[1], *spans, runs if len(runs) > 1 else (), all(map(_waited, valid))))
    return out


def _waited(figures: Mapping[str, Any]) -> bool:
    """The window was cut by the victim's end, well before the intruder's first token."""
    window, late = figures.get("window_s"), figures["intruder_ttft_s"]
    return window is not None and float(window) < 0.95 * float(late)


def _span(values: Sequence[float]) -> tuple[float, float] | None:
    return (interval_of(values) or (min(values), max(values))) if len(values) > 1 else None


def panels(document: Document, folder: Path, scenario: str = MAIN) -> list[Panel]:
    """One an arm: its run with the median time to first token. An A/A arm shows nothing new and is left out."""
    out = []
    for arm in document["arms"]:
        runs = _of(document, scenario, arm["name"])
        valid = sorted((run for run in runs if not run["void"]), key=lambda run: run["figures"].get("intruder_ttft_s") or 0.0)
        if arm["copy_of"] or not runs:
            continue
        run = valid[len(valid) // 2] if valid else runs[0]
        out.append(Panel(str(arm["name"]), _remark(run), tracks(run, events(folder / run["events"], run["run"]))))
    return out


def _remark(run: Run) -> str:
    figures = run["figures"]
    told = [
        f"{title} {show(figures[key])}"
        for title, key, show in (
            ("share kept", "share", number), ("longest gap", "longest_gap_s", seconds),
            ("prompt's first token after", "intruder_ttft_s", seconds),
        )
        if figures.get(key) is not None
    ]  # fmt: skip
    return ("VOID · " if run["void"] else "") + " · ".join(told)


def events(path: Path, run: int) -> dict[int, list[float]]:
    """Seconds of each output by the number of its stream. Raises UsageError when the file is not there."""
    out: dict[int, list[float]] = {}
    try:
        with open(path) as file:
            for line in file:
                event = json.loads(line)
                if event["run"] == run:
                    out.setdefault(event["stream"], []).append(event["at_s"])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: the pictures need the events beside the document") from None
    except (ValueError, KeyError):
        raise UsageError(f"{path}: not a file of events") from None
    return out


def tracks(run: Run, times: Mapping[int, Iterable[float]]) -> tuple[Track, ...]:
    streams = list(enumerate(run["streams"]))
    zero = min((s["submitted_s"] for _, s in streams if s["class"] == "intruder"), default=0.0)
    return tuple(Track(s["class"], s["submitted_s"] - zero, tuple(at - zero for at in times.get(i, ()))) for i, s in streams)
