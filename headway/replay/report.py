"""A replay's results as a table, as JSON (`headway.replay/1`) and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCHEMA = "headway.replay/1"

#: Columns of the table and the CSV: heading, keys into a class's summary.
COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests", ("requests",)), ("answered", ("answered",)),
    ("ttft p50 s", ("ttft_s", "p50")), ("ttft p99 s", ("ttft_s", "p99")), ("ttft max s", ("ttft_s", "max")),
    ("itl p50 s", ("itl_s", "p50")), ("itl p99 s", ("itl_s", "p99")), ("longest gap s", ("itl_s", "max")),
    ("stalled s", ("stalled_s",)), ("wait mean s", ("wait_s", "mean")), ("wait max s", ("wait_s", "max")),
    ("good", ("good_share",)), ("goodput req/s", ("goodput_rps",)), ("goodput tok/s", ("goodput_tps",)),
)  # fmt: skip


def rows(results: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """One row a case and class: policy, swept values, class, then COLUMNS."""
    made = []
    for result in results:
        for label, summary in result["classes"].items():
            swept = " ".join(f"{name}={value}" for name, value in result["swept"].items())
            made.append([result["policy"], swept, label, *(_dig(summary, keys) for _, keys in COLUMNS)])
    return made


def headings() -> list[str]:
    return ["policy", "settings", "new tokens", *(heading for heading, _ in COLUMNS)]


def text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_csv(results: Sequence[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(headings())
        writer.writerows(["" if value is None else value for value in row] for row in rows(results))


def _dig(summary: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        summary = summary[key]
    return summary
