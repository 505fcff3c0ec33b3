"""Share kept and price paid, for a list of asked shares, on an engine that already runs.

python benchmarks/share_matrix.py URL --label NAME --out FILE [--way gateway|class|direct] [--shares 0.4,0.5,0.75,0.9]

`gateway`: each share through a `headway serve --policy pace` of its own. `class`: straight to an engine that runs the
scheduler class with HEADWAY_TARGETS=FILE (--targets), rewritten for each share. `direct`: straight to the engine,
once per repetition. Solo rate and T0 are measured in each repetition, on the engine itself. What must come out, at
each asked share s: share in [s - 0.02, s + 0.08], T <= (1.1 + n*e/(b*P))*T0/(1 - s), longest gap <= 1.1 x the gap
target. Writes JSON with every event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from headway.bench import prompts
from headway.bench.client import Target, session, stream
from headway.bench.crowd import Crowd, crowd, solo_rate
from headway.bench.record import compact
from headway.bench.server import find, version
from headway.errors import HeadwayError
from headway.lab.gateway import gateway, learned, status, undisturbed

VICTIM_PROMPT = 38


class Matrix:
    def __init__(self, http: aiohttp.ClientSession, target: Target, args: argparse.Namespace, scale: prompts.Scale) -> None:
        self.http, self.target, self.args, self.scale = http, target, args, scale
        self.rng = random.Random(time.time_ns())
        self.t0: dict[int, list[float]] = {}
        self.document: dict[str, Any] = {
            "schema": "headway.share-matrix/1",
            "label": args.label,
            "way": args.way,
            "gap_s": args.gap,
            "command": " ".join(sys.argv[1:]),
            "runs": [],
        }

    async def alone(self, tokens: int) -> float:
        """T0, seconds: the intruder alone, straight to the engine."""
        answer = await stream(self.target, prompts.chat(tokens, 4, self.scale, self.rng))
        if answer.ttft is None:
            raise HeadwayError(f"the intruder alone failed: {answer.error}")
        self.t0.setdefault(tokens, []).append(answer.ttft)
        return answer.ttft

    async def run(
        self, arm: str, target: Target, share: float | None, rep: int, *, victims: int = 1, intruders: int = 1,
        tokens: int = 0, lead: float | None = None, must_outlive: bool = True, most: int = 0, alone: bool = True,
    ) -> None:  # fmt: skip
        tokens = tokens or self.args.intruder_tokens
        ask = [prompts.chat(VICTIM_PROMPT, 160, self.scale, self.rng) for _ in range(victims)]
        solo, solo_ttft = await solo_rate(self.target, ask)
        if alone or tokens not in self.t0:
            await self.alone(tokens)
        t0 = self.t0[tokens][-1] * intruders
        expected = 1.3 * t0 / (1 - share) if share is not None else 1.5 * t0
        length = most or 64 + round(1.3 * (share if share is not None else 0.3) * solo * expected)
        page: dict[str, Any] | None = None
        for _ in range(2):
            if arm in self.served:
                await undisturbed(self.http, self.served[arm])
            people = [prompts.chat(VICTIM_PROMPT, length, self.scale, self.rng) for _ in range(victims)]
            crowds = [prompts.chat(tokens, 16, self.scale, self.rng) for _ in range(intruders)]
            made = await crowd(
                target, people, crowds, solo,
                after=None if lead is not None else 16, lead=lead or 0.0, must_outlive=must_outlive,
            )  # fmt: skip
            if made.void is None or most:
                break
            length *= 2
        if arm in self.served:
            page = await status(self.http, self.served[arm])
        self.keep(arm, share, rep, made, solo, solo_ttft, t0, tokens, lead, page)

    served: dict[str, Any]

    def keep(
        self, arm: str, share: float | None, rep: int, made: Crowd, solo: float, solo_ttft: float, t0: float, tokens: int,
        lead: float | None, page: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        origin = min(a.submitted for a in (*made.victims, *made.intruders))
        row: dict[str, Any] = {
            "arm": arm, "asked": share, "rep": rep, "victims": len(made.victims), "intruders": len(made.intruders),
            "intruder_tokens": tokens, "lead_s": lead, "void": made.void, "solo_tokens_per_s": solo, "solo_ttft_s": solo_ttft,
            "t0_s": t0, "share": made.share, "shares": made.shares, "longest_gap_s": made.longest_gap_s,
            "stalled_s": made.stalled_s, "ttft_s": made.ttft_s,
            "factor": made.ttft_s / t0 * (1 - share) if made.ttft_s and share is not None else None,
            "victim_ttft_s": max((a.ttft or 0.0) for a in made.victims),
            "model": (page or {}).get("model"),
            "streams": [compact(a, origin) for a in (*made.victims, *made.intruders)],
        }  # fmt: skip
        self.document["runs"].append(row)
        self.args.out.write_text(json.dumps(self.document, separators=(",", ":")) + "\n")
        ok = f"{made.share:.3f}" if made.share is not None else "-"
        print(
            f"{arm:14} asked {share} rep {rep} {len(made.victims)}v{len(made.intruders)}i {tokens}: share {ok}"
            f" T {made.ttft_s or 0:.2f} T0 {t0:.2f}"
            f" T(1-s)/T0 {row['factor'] or 0:.2f} gap {1e3 * (made.longest_gap_s or 0):.0f} ms"
            f" victim's TTFT {1e3 * row['victim_ttft_s']:.0f} ms solo {solo:.1f} {made.void or ''}",
            flush=True,
        )


async def measure(args: argparse.Namespace) -> None:
    async with session() as http, AsyncExitStack() as stack:
        target = await find(http, args.url)
        scale = await prompts.calibrate(http, target, random.Random(1))
        m = Matrix(http, target, args, scale)
        m.document["engine"] = {"version": await version(http, target.url), "label": args.label}
        m.served = {}
        if args.way == "gateway":
            for share in args.shares:
                name = f"pace {share:g}"
                served = await stack.enter_async_context(gateway(args.url, "pace", share=share, gap=args.gap))
                await learned(http, served, 60.0)
                m.served[name] = served
            m.served["hold"] = await stack.enter_async_context(gateway(args.url, "hold", gap=args.gap, wait=30, probe=False))

        def at(share: float) -> tuple[str, Target]:
            if args.way == "gateway":
                return f"pace {share:g}", replace(target, url=m.served[f"pace {share:g}"].url)
            args.targets.write_text(json.dumps({"share": share, "gap": args.gap, "wait": 60}))
            return f"class {share:g}", target

        for _ in range(2):
            await m.alone(args.intruder_tokens)  # warm-up: the first shapes pay for kernels
        m.t0.clear()
        for rep in range(args.reps):
            if args.way == "direct" or (rep == 0 and args.control):
                await m.run("passthrough", target, None, rep)
            for share in args.shares if args.way != "direct" else ():
                arm, where = at(share)
                if args.way == "class":
                    await asyncio.sleep(1.5)  # the class looks at its targets once a second
                await m.run(arm, where, share, rep)
        if args.way != "direct":
            for share in args.crowd:
                await m.run(at(share)[0], at(share)[1], share, 0, victims=3, intruders=2)
            for share in args.order:
                await m.run(at(share)[0], at(share)[1], share, 0, lead=0.02)
            if args.way == "gateway" and args.hold:
                await m.run("hold", replace(target, url=m.served["hold"].url), None, 0, must_outlive=False, most=512)
            for share in args.long_shares:
                arm, where = at(share)
                await m.run(arm, where, share, 0, tokens=args.long, alone=False)
    summary(m.document["runs"])


def summary(runs: list[dict[str, Any]]) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        if not run["void"]:
            groups.setdefault((run["arm"], run["victims"], run["intruders"], run["intruder_tokens"], run["lead_s"]), []).append(
                run
            )
    print("\nmedians")
    for (arm, victims, intruders, tokens, lead), rows in groups.items():
        kept, ttft, alone = (median(row[name] for row in rows) for name in ("share", "ttft_s", "t0_s"))
        gap = median(row["longest_gap_s"] for row in rows)
        shape = f"{arm:14} {victims}v{intruders}i {tokens:6} lead {lead}: {len(rows)} runs"
        print(f"{shape} share {kept:.3f} T {ttft:.2f} T0 {alone:.2f} gap {gap:.3f}")


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--label", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--way", choices=("gateway", "class", "direct"), default="gateway")
    parser.add_argument("--targets", type=Path, default=Path("targets.json"))
    parser.add_argument("--shares", type=numbers, default=[0.4, 0.5, 0.75, 0.9])
    parser.add_argument("--gap", type=float, default=0.25)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--intruder-tokens", type=int, default=28_623)
    parser.add_argument("--control", action=argparse.BooleanOptionalAction, default=True, help="one passthrough run")
    parser.add_argument("--hold", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--crowd", type=numbers, default=[0.5], help="shares of 3 victims and 2 intruders")
    parser.add_argument("--order", type=numbers, default=[0.5], help="shares of the order: intruder first")
    parser.add_argument("--long", type=int, default=100_000)
    parser.add_argument("--long-shares", type=numbers, default=[0.5, 0.75])
    try:
        asyncio.run(measure(parser.parse_args()))
    except HeadwayError as error:
        print(f"share_matrix: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
