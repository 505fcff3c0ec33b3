"""A freeze planted in one of very many streams: does the benchmark name the stream, the moment and the length?

    .venv/bin/python benchmarks/planted_freeze.py [--streams 1000] [--rate 10] [--tokens 120] [--seconds 2] [--json FILE]

A cheap server in another process streams to all of them at `--rate` tokens/s, stops one of them for `--seconds`, and says
when. Exit code 1 when another stream is named, or the length is off by more than 2 ms or 2 %. --priority as in
generator_lag.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headway.bench.context import Settings
from headway.bench.suite import Suite
from tests.bench.planted import planted

FIRST = 1000  # the server's number of the first request, told as its prompt tokens


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    frozen, at = random.Random(asked.seed).randrange(asked.streams), asked.tokens // 3
    with planted(asked.tokens, 1 / asked.rate, frozen, at, asked.seconds) as (url, server):
        settings = Settings(
            streams=asked.streams, victim_out=asked.tokens, intruder_in=100, intruder_out=9, cooldown_s=0.0, lag_limit_s=60.0
        )
        suite = Suite(url, settings, ["decode-concurrent"], 1, alone=1)
        asyncio.run(suite.run(None, None, lambda text: print(text, file=sys.stderr), lambda: None))
        assert server.stdout is not None
        said = float(server.stdout.readline().split()[1])
    run = next(run for run in suite.document["runs"] if run["scenario"] == "decode-concurrent")
    if run["void"] or not run["stalls"]:
        raise SystemExit(f"nothing was found: {run['void'] or 'no stall'}")
    worst = run["stalls"][0]
    return {
        "schema": "headway.planted-freeze/1", "streams": asked.streams, "tokens_per_s_a_stream": asked.rate,
        "planted": {"stream": frozen, "gap_s": asked.seconds + 1 / asked.rate, "at_monotonic_s": said},
        "found": {
            "stream": run["streams"][worst["stream"]]["usage"]["prompt_tokens"] - FIRST, "gap_s": worst["seconds"],
            "at_s": worst["at_s"], "next_longest_s": run["stalls"][1]["seconds"] if len(run["stalls"]) > 1 else None,
        },
        "lag_p99_s": run["lag_p99_s"], "lag_max_s": run["lag_max_s"],
        "cores": os.cpu_count(), "load_average": os.getloadavg()[0], "priority": asked.priority,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("streams", 1000), ("tokens", 120), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, default in (("rate", 10.0), ("seconds", 2.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--priority", action="store_true", help="SCHED_FIFO for this and its children (root)")
    asked = parser.parse_args()
    if asked.priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    found = measure(asked)
    planted_gap, gap = found["planted"]["gap_s"], found["found"]["gap_s"]
    print(
        f"planted: stream {found['planted']['stream']} of {asked.streams}, a gap of {planted_gap:.3f} s; "
        f"found: stream {found['found']['stream']}, {gap:.3f} s; lag p99 {1e3 * found['lag_p99_s']:.2f} ms"
    )
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    right = found["found"]["stream"] == found["planted"]["stream"]
    return 0 if right and abs(gap - planted_gap) <= max(0.002, 0.02 * planted_gap) else 1


if __name__ == "__main__":
    sys.exit(main())
