"""Measure the overlap suite on a real vLLM on this CPU and write docs/results/cpu-overlap.{json,md}.

    python benchmarks/cpu_overlap.py [--reps 5] [--only overlap --only turn2] [--out docs/results]

Some 15 minutes at five repetitions. Exit code 1 when a bound does not hold. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, UsageError
from headway.lab.cpu_overlap import PARTS, Plan, cpu_overlap
from headway.lab.cpu_overlap_report import bounds, report
from headway.lab.install import install, to_stderr
from headway.lab.model import model
from headway.lab.process import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--name", default="cpu-overlap", help="of the two files")
    parser.add_argument("--intruder-tokens", type=int, default=14000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="vLLM's log")
    args = parser.parse_args()
    if args.reps < 1:
        raise UsageError(f"--reps {args.reps} must be at least 1")
    args.out.mkdir(parents=True, exist_ok=True)
    python = install()
    parts = tuple(part for part in PARTS if not args.only or part in args.only)
    plan = Plan(
        python, model("next-tiny", python), parts, args.reps, args.intruder_tokens, seed=args.seed, log=args.log
    )  # fmt: skip

    def keep(document: dict[str, Any]) -> None:
        document["machine"] = {"cpus": os.cpu_count(), "processor": _processor(), "python": platform.python_version()}
        (args.out / f"{args.name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
        (args.out / f"{args.name}.md").write_text(report(document))

    document = run(cpu_overlap(plan, to_stderr, keep))
    print(report(document))
    return 0 if all(bound.holds for bound in bounds(document)) else 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadwayError as error:
        print(f"cpu_overlap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
