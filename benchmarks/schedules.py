"""A million random schedules through the controller: what must hold of each is in headway/simulator/schedules.py.

    python benchmarks/schedules.py --count 1000000 --processes 2 --json FILE

Seeds are first .. first + count - 1, so any fault can be run again by its seed alone (`--first SEED --count 1`). Exit status 1
when one was found. A schedule takes some 2 ms of CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from headway.simulator.schedules import run, trial

BATCH = 500
KEPT = 20
"""Faults that are reported in full."""
SCHEMA = "headway.schedules/1"


def batch(first: int, count: int) -> dict[str, Any]:
    """Sums over seeds first .. first + count - 1."""
    sums: dict[str, Any] = {"schedules": 0, "requests": 0, "pieces": 0, "yielded": 0, "contended_s": 0.0, "faults": []}
    for seed in range(first, first + count):
        result = run(trial(seed))
        sums["schedules"] += 1
        sums["requests"] += result.requests
        sums["pieces"] += result.pieces
        sums["yielded"] += result.yielded
        sums["contended_s"] += result.contended
        sums["faults"] += [{"seed": seed, "fault": fault} for fault in result.faults]
    return sums


def batches(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, BATCH):
        yield start, min(BATCH, first + count - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    begun, total = time.time(), batch(0, 0)
    with ProcessPoolExecutor(options.processes) as pool:
        for sums in pool.map(batch, *zip(*batches(options.first, options.count), strict=True)):
            for name, value in sums.items():
                total[name] += value
            done = total["schedules"]
            if sys.stderr.isatty() or done % (BATCH * 20) == 0:
                print(f"{done} of {options.count}, {len(total['faults'])} faults", file=sys.stderr, flush=True)
    seconds = time.time() - begun
    print(
        f"{total['schedules']} schedules, {total['requests']} requests, {total['pieces']} pieces; in {total['yielded']} a bound"
        f" overruled the share; {len(total['faults'])} faults; {seconds:.0f} s"
    )
    for fault in total["faults"][:KEPT]:
        print(f"seed {fault['seed']}: {fault['fault']}")
    if options.json:
        report = {
            "schema": SCHEMA,
            "first": options.first,
            "seconds": round(seconds, 1),
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            **total,
            "contended_s": round(total["contended_s"], 1),
            "faults": total["faults"][:KEPT],
            "fault_count": len(total["faults"]),
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 1 if total["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
