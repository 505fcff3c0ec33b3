"""The demonstration: one overlap experiment under every policy, through the real gateway over real HTTP."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import aiohttp

from headway import __version__
from headway.bench import prompts
from headway.bench.client import Request, Target, session
from headway.bench.overlap import Overlap, Solo, alone, overlap, solo, victim_tokens
from headway.bench.server import find, version
from headway.core import frontier
from headway.lab.gateway import gateway, learned, simulated_engine
from headway.lab.install import install
from headway.lab.model import model
from headway.lab.vllm import off_core_0, serve_vllm

POLICIES = ("passthrough", "serialize", "hold", "pace")
KEEPS_BACK = (
    "serialize",
    "hold",
)  # the intruder waits for the victim's end: there the victim cannot outlive it
LEARNS = ("hold", "pace")  # these send pieces, and their size comes from what the engine's steps take
SOLO_TOKENS = 160
VICTIM_PROMPT = 38
AFTER = 16
VLLM_ARGUMENTS = ("--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--enable-prefix-caching")


@dataclass(frozen=True)
class Options:
    engine: str = "simulated"
    share: float = 0.5
    gap: float = 0.1
    intruder_tokens: int = 14000
    seed: int | None = None


@dataclass(frozen=True)
class Arm:
    victim_tokens_per_s: float | None
    share: float | None
    longest_gap_s: float | None
    intruder_ttft_s: float | None
    frontier_ttft_s: float | None
    void: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    options: Options
    engine_version: str
    alone: Solo
    intruder_alone_s: float
    intruder_alone_direct_s: float
    intruder_alone_pace_s: float
    arms: dict[str, Arm]

    def document(self) -> dict[str, Any]:
        """Schema headway.demo/1. Times in seconds, rates in tokens/s."""
        arms: dict[str, Any] = {"alone": {"victim_tokens_per_s": self.alone.rate, "median_gap_s": self.alone.gap_s}}
        for name, arm in self.arms.items():
            arms[name] = {key: getattr(arm, key) for key in Arm.__dataclass_fields__}
        return {
            "schema": "headway.demo/1",
            "headway": __version__,
            "engine": {"kind": self.options.engine, "version": self.engine_version},
            "target": {"share": self.options.share, "gap_s": self.options.gap},
            "intruder_tokens": self.options.intruder_tokens,
            "intruder_alone": {
                "ttft_s": self.intruder_alone_s,
                "ttft_direct_s": self.intruder_alone_direct_s,
                "ttft_pace_s": self.intruder_alone_pace_s,
            },
            "arms": arms,
        }


@asynccontextmanager
async def engine(kind: str) -> AsyncIterator[str]:
    """The engine's base URL. The client leaves core 0 to a real engine."""
    if kind == "simulated":
        async with simulated_engine() as served:
            yield served.url
        return
    python = install()
    print("starting vLLM: some 40 s", file=sys.stderr)
    async with serve_vllm(python, model("next-tiny", python), VLLM_ARGUMENTS) as url:
        with off_core_0():
            yield url


@dataclass
class _Run:
    http: aiohttp.ClientSession
    options: Options
    scale: prompts.Scale
    rng: random.Random

    def victim(self, out: int) -> Request:
        return prompts.chat(VICTIM_PROMPT, out, self.scale, self.rng)

    def intruder(self) -> Request:
        return prompts.chat(self.options.intruder_tokens, 16, self.scale, self.rng)

    async def solo(self, at: Target) -> Solo:
        return (await solo(at, self.victim(SOLO_TOKENS)))[0]

    async def t0(self, at: Target) -> float:
        answer = await alone(at, self.intruder())
        assert answer.ttft is not None
        return answer.ttft

    async def arm(self, at: Target, policy: str, base: Solo, t0: float) -> Arm:
        # Only pace needs a victim that outlives a stretched prefill; elsewhere a long one would only take
        # time
        share = self.options.share if policy == "pace" else 0.3
        length = victim_tokens(base, t0, share, after=AFTER, room=1.6 if policy == "pace" else 1.2)
        for attempt in (1, 2):
            run = await overlap(
                at, self.victim(length * attempt), self.intruder(), base,
                after=AFTER, victim_must_outlive=policy not in KEEPS_BACK, salted=policy == "passthrough",
            )  # fmt: skip
            if run.view is None or run.view.victim_outlived or policy in KEEPS_BACK:
                break
        return _arm(run, base, t0)


def _arm(run: Overlap, base: Solo, t0: float) -> Arm:
    if run.view is None:
        return Arm(None, None, None, run.intruder.ttft, None, run.void, run.notes)
    share = run.view.share(base.rate)
    return Arm(
        run.view.rate, share, run.view.longest_gap_s, run.intruder.ttft,
        frontier.ttft(t0, share), run.void, run.notes,
    )  # fmt: skip


async def demo(options: Options, say: Callable[[str], None]) -> Outcome:
    """Run it all. Raises ServerError when the engine or a gateway does not start or fails alone."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(session())
        say(f"starting the {options.engine} engine")
        url = await stack.enter_async_context(engine(options.engine))
        direct = await find(http, url)
        rng = random.Random(options.seed)
        run = _Run(http, options, await prompts.calibrate(http, direct, rng), rng)
        at: dict[str, Target] = {}
        for policy in reversed(POLICIES):  # those that learn the engine first, one by one, while nobody uses it
            say(f"starting a gateway: {policy}")
            served = await stack.enter_async_context(
                gateway(url, policy, share=options.share, gap=options.gap, probe=policy in LEARNS)
            )
            at[policy] = replace(direct, url=served.url)
            if policy in LEARNS and not await learned(http, served):
                say("the gateway has not learned the engine's step times yet; it learns from requests")
        plain = at["passthrough"]
        say("victim alone, intruder alone")
        first, t0s = await run.solo(plain), [await run.t0(plain)]
        t0_direct, t0_pace = await run.t0(direct), await run.t0(at["pace"])
        t0s.append(await run.t0(plain))
        t0, arms = mean(t0s), {}
        base = first
        for policy in POLICIES:
            if policy == "pace":
                base = await run.solo(plain)  # close to the arm that is judged by it: a CPU's speed drifts
            say(f"both, {policy}")
            arms[policy] = await run.arm(at[policy], policy, base, t0)
        return Outcome(options, await version(http, url) or __version__, first, t0, t0_direct, t0_pace, arms)
