"""Two saved measurements side by side: bench documents, arm documents, or single arms of those (`FILE.json#ARM`).

A difference is called only when its interval leaves out zero and, where a document has an A/A pair, when it is also larger
than what the same configuration differs by from itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.bench.differences import Difference, interval
from headway.bench.suite import SCHEMA
from headway.bench.tables import number
from headway.bench.window import median
from headway.errors import UsageError

ARMS_SCHEMA = "headway.arms/1"
COMPARE_SCHEMA = "headway.compare/1"
FIGURES = (
    "victim_tokens_per_s", "share", "longest_gap_s", "stalled_s", "victim_ttft_s", "intruder_ttft_s", "t0_s",
    "newcomer_ttft_s", "total_tokens_per_s", "turn2_ttft_s", "worst_share", "call_ttft_s",
)  # fmt: skip
HEADERS = ("scenario, figure", "A", "B", "B - A", "95 % interval", "A/A floor", "called")


@dataclass(frozen=True)
class Side:
    """Runs by name ("" for a bench document, else the arm) and what the A/A pair, if any, says of each figure."""

    name: str
    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    floors: Mapping[tuple[str, str], float]


def load(told: str | Path) -> Side:
    """`told`: FILE or FILE#ARM. Raises UsageError."""
    name, _, arm = str(told).partition("#")
    path = Path(name)
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in (SCHEMA, ARMS_SCHEMA):
        raise UsageError(f"{path} is neither a {SCHEMA} nor a {ARMS_SCHEMA} document")
    if schema == SCHEMA:
        if arm:
            raise UsageError(f"{told}: a {SCHEMA} document has no arms")
        return side(document, str(told))
    if arm and arm not in (known := [entry["name"] for entry in document["arms"]]):
        raise UsageError(f"{told}: no such arm; there are {', '.join(known)}")
    return side(document, str(told), arm)


def side(document: Mapping[str, Any], name: str = "", arm: str = "") -> Side:
    if document.get("schema") != ARMS_SCHEMA:
        return Side(name, {"": document["runs"]}, {})
    floors = {(entry["scenario"], entry["figure"]): entry["floor"] for entry in document["floors"]}
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for run in document["runs"]:
        if run["arm"] != document["aa"] or run["arm"] == arm:
            runs.setdefault(run["arm"], []).append(run)
    return Side(name, {"": runs.get(arm, [])} if arm else runs, floors)


def _values(runs: Iterable[Mapping[str, Any]], scenario: str, figure: str) -> list[float]:
    valid = [run["figures"] for run in runs if run["scenario"] == scenario and not run["void"]]
    return [figures[figure] for figures in valid if figures.get(figure) is not None]


def compare(a: Side, b: Side) -> list[Difference]:
    """Every figure that both have; arms by their names. The two did not run beside each other, so nothing is paired."""
    out = []
    for name, runs in a.runs.items():
        for scenario in dict.fromkeys(run["scenario"] for run in runs):
            for figure in FIGURES:
                left, right = _values(runs, scenario, figure), _values(b.runs.get(name, ()), scenario, figure)
                middle_a, middle_b = median(left), median(right)
                if middle_a is None or middle_b is None:
                    continue
                low, high = interval(left, right) or (None, None)
                floors = [floor for one in (a, b) if (floor := one.floors.get((scenario, figure))) is not None]
                title = f"{name}: {scenario}, {figure}" if name else f"{scenario}, {figure}"
                out.append(Difference(title, middle_a, middle_b, low, high, max(floors, default=None)))
    return out


def row(one: Difference) -> list[str]:
    span = "-" if one.low is None else f"{number(one.low, 3)} .. {number(one.high, 3)}"
    return [one.name, number(one.a, 3), number(one.b, 3), f"{one.size:+.3f}", span, number(one.floor, 3), one.called]


def as_json(a: Side, b: Side, found: Sequence[Difference]) -> dict[str, Any]:
    entries = [{**asdict(one), "difference": one.size, "called": one.called} for one in found]
    for entry in entries:
        del entry["needs_floor"]
    return {"schema": COMPARE_SCHEMA, "a": a.name, "b": b.name, "differences": entries}
