"""Markdown tables from the JSON of share_matrix.py, each run judged by its bounds.

    python benchmarks/share_report.py docs/results/h200/*.json

Bounds at an asked share s: share in [s - 0.02, s + 0.08], T(1 - s)/T0 <= 1.1, longest gap <= 1.1 x the target.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

HEAD = "| arm | victims, intruders, tokens | runs | share kept | T, s | T0, s | T(1-s)/T0 | longest gap, s | misses |\n"
RULE = "|---|---|--:|--:|--:|--:|--:|--:|---|\n"


def table(document: dict[str, Any]) -> str:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in document["runs"]:
        key = tuple(run[name] for name in ("arm", "victims", "intruders", "intruder_tokens", "lead_s"))
        groups.setdefault(key, []).append(run)
    title = f"{document['label']} (vLLM {document['engine']['version']}, gap target {document['gap_s']:g} s)"
    lines = [f"### {title}\n\n", HEAD, RULE]
    for (arm, victims, intruders, tokens, lead), runs in groups.items():
        good = [run for run in runs if not run["void"]]
        what = f"{victims}, {intruders}, {tokens:,}" + ("" if lead is None else f", intruder {1e3 * lead:.0f} ms ahead")
        if not good:
            lines.append(f"| {arm} | {what} | 0 of {len(runs)} | void: {runs[0]['void']} |||||| |\n")
            continue
        figures = [spread([run[name] for run in good]) for name in ("share", "ttft_s", "t0_s", "factor", "longest_gap_s")]
        lines.append(f"| {arm} | {what} | {len(good)} | {' | '.join(figures)} | {misses(good, document['gap_s'])} |\n")
    return "".join(lines)


def spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{median(known):.3f}" if max(known) < 1.2 else f"{median(known):.2f}"
    return middle if len(known) == 1 else f"{middle} ({min(known):.3g} .. {max(known):.3g})"


def misses(runs: list[dict[str, Any]], gap: float) -> str:
    """Which bounds the medians miss."""
    asked = runs[0]["asked"]
    if asked is None:
        return ""
    share, factor = median(run["share"] for run in runs), median(run["factor"] for run in runs)
    longest = median(run["longest_gap_s"] for run in runs)
    out = []
    if not asked - 0.02 <= share <= asked + 0.08:
        out.append("share")
    if factor > 1.1:
        out.append("T")
    if longest > 1.1 * gap:
        out.append("gap")
    return ", ".join(out) or "none"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: share_report.py FILE...")
    print("\n".join(table(json.loads(Path(name).read_text())) for name in sys.argv[1:]))
