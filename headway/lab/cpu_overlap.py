"""Victim and intruder on a real vLLM on this CPU, through the real gateway.

Parts. `overlap`: the intruder arrives while the victim streams. `order`: the intruder is sent 0 to 50 ms before the
victim. `tools`: the intruder is a conversation of 20 messages with tools. `nodetails`: `overlap` on an engine that
does not report cached tokens. `turn2`: the second turn of a long conversation. Within a repetition everything is
interleaved (solo, the intruder alone directly and through each gateway, then the arms): the speed of a CPU drifts.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp

from headway.bench import prompts
from headway.bench.client import Request, Target, session
from headway.bench.overlap import Overlap, Solo, alone, overlap, solo, victim_tokens
from headway.bench.record import compact
from headway.bench.server import find, version
from headway.lab.gateway import gateway, learned, status
from headway.lab.process import Served
from headway.lab.vllm import off_core_0, serve_vllm

PARTS = ("overlap", "order", "tools", "turn2", "nodetails")
SHARES = (0.5, 0.75)
GAP_S = 0.1
AFTER = 16
SOLO_TOKENS = 160
VICTIM_PROMPT = 38
ENGINE_ARGUMENTS = (
    "--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--enable-prefix-caching",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
)  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    python: Path
    model: Path
    parts: tuple[str, ...] = PARTS
    reps: int = 5
    intruder_tokens: int = 14000
    turn_tokens: int = 500
    seed: int = 1
    log: Path | None = None


@dataclass
class Bench:
    """One engine, the gateways in front of it and the client."""

    http: aiohttp.ClientSession
    plan: Plan
    direct: Target
    gateways: dict[str, Served]
    scale: prompts.Scale
    rng: random.Random
    say: Say
    runs: list[dict[str, Any]] = field(default_factory=list)

    def at(self, arm: str) -> Target:
        return self.direct if arm == "direct" else replace(self.direct, url=self.gateways[arm].url)

    def intruder(self, part: str) -> Request:
        make = prompts.agent if part == "tools" else prompts.chat
        return make(self.plan.intruder_tokens, 16, self.scale, self.rng)

    async def solo(self) -> Solo:
        victim = prompts.chat(VICTIM_PROMPT, SOLO_TOKENS, self.scale, self.rng)
        return (await solo(self.at("passthrough"), victim))[0]

    async def ttft(self, arm: str, request: Request) -> tuple[float, str, int | None]:
        """Seconds to the first token, the text, and the cached tokens."""
        answer = await alone(self.at(arm), request)
        assert answer.ttft is not None
        return answer.ttft, answer.text, answer.cached_tokens

    async def one_piece(self) -> tuple[int | None, float | None]:
        """The piece that the gateway takes when nobody decodes: its tokens, and their TTFT on the engine itself."""
        page = await status(self.http, self.gateways[pace_arm(SHARES[0])]) or {}
        tokens = (page.get("model") or {}).get("alone_piece_tokens")
        if not isinstance(tokens, int) or tokens <= 0:
            return None, None
        size = min(tokens, self.plan.intruder_tokens)
        return tokens, (await self.ttft("direct", prompts.chat(size, 2, self.scale, self.rng)))[0]


def pace_arm(share: float) -> str:
    return f"pace {share:g}"


ARMS = ("passthrough", *map(pace_arm, SHARES))


@asynccontextmanager
async def bench(plan: Plan, http: aiohttp.ClientSession, say: Say, *, details: bool = True) -> AsyncIterator[Bench]:
    """The engine and one gateway an arm; the pacing ones have learned the engine, one after the other, before use."""
    say(f"starting vLLM{'' if details else ' without --enable-prompt-tokens-details'}: some 40 s")
    async with AsyncExitStack() as stack:
        engine = serve_vllm(plan.python, plan.model, ENGINE_ARGUMENTS, details=details, log_path=plan.log)
        url = await stack.enter_async_context(engine)
        stack.enter_context(off_core_0())
        direct = await find(http, url)
        rng = random.Random(plan.seed)
        scale = await prompts.calibrate(http, direct, rng)
        gateways = {}
        for share in SHARES:
            served = await stack.enter_async_context(gateway(url, "pace", share=share, gap=GAP_S))
            gateways[pace_arm(share)] = served
            if not await learned(http, served, 30.0):
                say(f"the gateway of {pace_arm(share)} has not learned the engine within 30 s; going on")
        gateways["passthrough"] = await stack.enter_async_context(gateway(url, "passthrough", probe=False))
        made = Bench(http, plan, direct, gateways, scale, rng, say)
        for arm in ("direct", *ARMS):  # warm-up: first requests pay for allocations and imports
            await made.ttft(arm, prompts.chat(3000, 4, scale, rng))
        yield made


async def overlap_rep(b: Bench, part: str, rep: int) -> None:
    """One repetition of every arm of this part, appended to `b.runs`."""
    solos = [await b.solo()]
    t0 = {arm: (await b.ttft(arm, b.intruder(part)))[0] for arm in ("direct", *ARMS)}
    piece_tokens, piece_s = await b.one_piece() if part == "order" else (None, None)
    lead = 0.05 * (rep % 5) / 4 if part == "order" else None
    made: list[tuple[str, Overlap]] = []
    for arm in ARMS:
        made.append((arm, await _arm(b, part, arm, solos[-1], t0[arm], lead)))
        solos.append(await b.solo())
    for i, (arm, run) in enumerate(made):
        rate = mean((solos[i].rate, solos[i + 1].rate))  # before and after the arm
        share = run.share(rate)
        b.runs.append({
            "part": part, "rep": rep, "arm": arm, "void": run.void, "notes": run.notes, "lead_s": lead,
            "solo_tokens_per_s": rate, "solo_ttft_s": mean((solos[i].ttft_s, solos[i + 1].ttft_s)),
            "t0_s": t0[arm], "t0_direct_s": t0["direct"], "piece_tokens": piece_tokens, "piece_s": piece_s,
            "share": share, "victim_tokens_per_s": run.view.rate if run.view else None,
            "longest_gap_s": run.view.longest_gap_s if run.view else None,
            "stalled_s": run.view.stalled_s if run.view else None,
            "window_s": run.view.window_s if run.view else None,
            "victim_ttft_s": run.victim.ttft, "intruder_ttft_s": run.intruder.ttft,
            "frontier_ttft_s": run.frontier_ttft(rate, t0[arm]),
            "lag_p99_s": run.lag_p99_s, "lag_max_s": run.lag_max_s,
            "victim": compact(run.victim, run.victim.submitted),
            "intruder": compact(run.intruder, run.victim.submitted),
        })  # fmt: skip
        b.say(f"  {part} {rep + 1}/{b.plan.reps} {arm}: {_brief(b.runs[-1])}")


async def _arm(b: Bench, part: str, arm: str, base: Solo, t0: float, lead: float | None) -> Overlap:
    share = 0.3 if arm == "passthrough" else float(arm.split()[1])
    length = victim_tokens(base, t0, share, after=AFTER)
    for attempt in (1, 2):
        victim = prompts.chat(VICTIM_PROMPT, length * attempt, b.scale, b.rng)
        run = await overlap(
            b.at(arm), victim, b.intruder(part), base,
            after=None if lead is not None else AFTER, lead=lead, salted=arm == "passthrough",
        )  # fmt: skip
        if run.view is None or run.view.victim_outlived:
            break
    return run


def _brief(run: dict[str, Any]) -> str:
    if run["void"]:
        return str(run["void"])
    return (
        f"share {run['share']:.3f}, longest gap {1e3 * run['longest_gap_s']:.0f} ms, "
        f"intruder {run['intruder_ttft_s']:.2f} s (T0 {run['t0_s']:.2f}), victim's TTFT {1e3 * run['victim_ttft_s']:.0f} ms"
    )


async def turn_rep(b: Bench, part: str, rep: int) -> None:
    """Turn 1, then turn 2 with the answer and some new tokens; directly and through the pacing gateway."""
    arms = ["direct", pace_arm(SHARES[0])]
    if rep % 2:
        arms.reverse()
    for arm in arms:
        first = prompts.chat(b.plan.intruder_tokens, 16, b.scale, b.rng)
        one, text, _ = await b.ttft(arm, first)
        second = prompts.turn(first, text, b.plan.turn_tokens, 16, b.scale, b.rng)
        two, _, cached = await b.ttft(arm, second)
        b.runs.append({
            "part": part, "rep": rep, "arm": arm, "void": None,
            "turn1_ttft_s": one, "turn2_ttft_s": two, "turn2_cached_tokens": cached,
        })  # fmt: skip
        b.say(f"  {part} {rep + 1}/{b.plan.reps} {arm}: turn 1 {one:.2f} s, turn 2 {two:.3f} s ({cached} cached)")


async def cpu_overlap(plan: Plan, say: Say, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the parts. `keep` gets the document after each repetition, so that an interruption loses one at most."""
    document: dict[str, Any] = {
        "schema": "headway.cpu-overlap/1",
        "engine": {"kind": "vllm", "version": None, "model": plan.model.name, "arguments": list(ENGINE_ARGUMENTS)},
        "intruder_tokens": plan.intruder_tokens, "victim_tokens": VICTIM_PROMPT, "gap_s": GAP_S, "shares": list(SHARES),
        "reps": plan.reps, "seed": plan.seed, "runs": [],
    }  # fmt: skip
    async with session() as http:
        for details in (True, False):
            parts: Sequence[str] = [p for p in plan.parts if (p == "nodetails") != details]
            if not parts:
                continue
            async with bench(plan, http, say, details=details) as b:
                b.runs = document["runs"]
                document["engine"]["version"] = await version(http, b.direct.url)
                for part in parts:
                    for rep in range(plan.reps):
                        await (turn_rep if part == "turn2" else overlap_rep)(b, part, rep)
                        keep(document)
    return document
