"""Gaps that are known against gaps that are reported: the embedded engine's step times are a formula, so its gaps are too.

    .venv/bin/python benchmarks/known_gaps.py [--reps 3] [--json FILE] [--priority]

Profile `demo` with three budgets: beside one decode the largest prefill step has (budget - 1) tokens in whole blocks of 256
and lasts a + e + b x tokens; without prefill a step lasts a. Compared are the medians over repetitions of the longest gap in
the window and of the median gap of the victim alone. Exit code 1 when one is off by more than 2 ms and 2 %. --priority as in
generator_lag.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from headway.bench.context import Settings
from headway.bench.suite import Suite
from headway.lab.process import headway
from headway.simulator.profiles import DEMO

BUDGETS = (512, 1024, 2048)
STEPS, BLOCK = DEMO.engine.steps, DEMO.engine.layout.block_size


async def measure(budget: int, reps: int) -> list[dict[str, Any]]:
    arguments = ["engine", "--profile", "demo", "--port", "0", "--max-num-batched-tokens", str(budget)]
    async with headway(arguments) as engine:
        settings = Settings(intruder_in=9000, intruder_out=2, victim_out=150, cooldown_s=0.1, budget=budget)
        suite = Suite(engine.url, settings, ["long-prefill-overlap"], reps, alone=1)
        await suite.run(None, None, lambda text: print(text, file=sys.stderr), lambda: None)
    chunk = (budget - 1) // BLOCK * BLOCK
    known = {"overlap-after": ("longest_gap_s", STEPS.a + STEPS.e + STEPS.b * chunk), "victim-alone": ("gap_p50_s", STEPS.a)}
    out = []
    for scenario, (figure, expected) in known.items():
        found = suite.document["summary"][scenario].get(figure)
        out.append({
            "budget": budget, "scenario": scenario, "figure": figure, "known_s": expected,
            "reported_s": found["median"] if found else None, "runs": found["n"] if found else 0,
        })  # fmt: skip
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--priority", action="store_true", help="SCHED_FIFO for this and its children (root)")
    asked = parser.parse_args()
    if asked.priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    rows = [row for budget in BUDGETS for row in asyncio.run(measure(budget, asked.reps))]
    for row in rows:
        shown = "nothing" if row["reported_s"] is None else f"{1e3 * row['reported_s']:.2f} ms"
        print(f"budget {row['budget']}, {row['scenario']} {row['figure']}: known {1e3 * row['known_s']:.2f} ms, reported {shown}")
    if asked.json:
        document = {"schema": "headway.known-gaps/1", "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
        asked.json.write_text(json.dumps({**document, "priority": asked.priority, "rows": rows}, indent=1) + "\n")
    right = all(
        row["reported_s"] is not None and abs(row["reported_s"] - row["known_s"]) <= max(0.002, 0.02 * row["known_s"])
        for row in rows
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
