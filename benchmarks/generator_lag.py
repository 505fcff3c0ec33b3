"""How late the load generator's event loop runs under load: many live streams from the embedded engine in another process.

    .venv/bin/python benchmarks/generator_lag.py [--streams 64] [--tokens 512] [--reps 3] [--json FILE] [--priority]

The engine is the profile `h200-qwen3.6-27b`: with 64 streams each of them gets some 54 tokens/s. Two processes and the
parent share whatever cores there are (this is meant for two). Exit code 1 when the median p99 is above
--limit. On a machine that others use too, --priority (root) runs all of it before them, as if they were not there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from headway.bench.context import Settings
from headway.bench.suite import Suite
from headway.bench.window import median
from headway.lab.gateway import simulated_engine

PROFILE = "h200-qwen3.6-27b"


async def measure(streams: int, tokens: int, reps: int) -> Suite:
    async with simulated_engine(PROFILE) as engine:
        settings = Settings(streams=streams, victim_out=tokens, intruder_in=2000, intruder_out=2, lag_limit_s=1.0, cooldown_s=0.1)
        suite = Suite(engine.url, settings, ["decode-concurrent"], reps, alone=1)
        await suite.run(None, None, lambda text: print(text, file=sys.stderr), lambda: None)
        return suite


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--limit", type=float, default=0.005, help="seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--priority", action="store_true", help="SCHED_FIFO for this and its children")
    asked = parser.parse_args()
    if asked.priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    suite = asyncio.run(measure(asked.streams, asked.tokens, asked.reps))
    runs = [run for run in suite.document["runs"] if run["scenario"] == "decode-concurrent"]
    found = {
        "schema": "headway.generator-lag/1", "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0], "priority": asked.priority,
        "streams": asked.streams, "tokens": asked.tokens,
        "runs": [
            {"tokens_per_s_a_stream": run["figures"].get("victim_tokens_per_s"), "lag_p99_s": run["lag_p99_s"],
             "lag_max_s": run["lag_max_s"], "void": run["void"]}
            for run in runs
        ],
    }  # fmt: skip
    for run in found["runs"]:
        print(
            f"{asked.streams} streams at {run['tokens_per_s_a_stream'] or 0:.1f} tokens/s: "
            f"lag p99 {1e3 * run['lag_p99_s']:.2f} ms, longest {1e3 * run['lag_max_s']:.1f} ms {run['void'] or ''}"
        )
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    worst = median([run["lag_p99_s"] for run in found["runs"]]) or 0.0
    return 0 if worst <= asked.limit and not any(run["void"] for run in found["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
