"""The regimes that `headway bench` measures. Each scenario is one function: a context and a repetition in, runs out.

`decode-concurrent` and `long-prefill-overlap` are the two that published numbers mix up: short prompts decoding
together, and a live decode beside a long prefill.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headway.bench import prompts
from headway.bench.client import Request, Stream, Target, stream
from headway.bench.lag import LagMeter
from headway.bench.overlap import LAG_LIMIT_S, Overlap, Solo, overlap, solo
from headway.bench.window import Window, burst_share, gaps, median, quantile, rate, view
from headway.core import frontier


@dataclass(frozen=True)
class Settings:
    """Defaults: the shape of the report that named the problem."""

    victim_in: int = 38
    victim_out: int = 512
    intruder_in: int = 28623
    intruder_out: int = 58
    after: int = 16
    streams: int = 4
    burst: int = 3
    turn_in: int = 500
    budget: int | None = None  # the server's token budget a step, if the user knows it
    timeout_s: float = 600.0
    kept_back: bool = False  # the server keeps the intruder back until the victim ends, which then cannot outlive it
    pieces: bool = False  # a gateway sends the intruder in pieces, each of which finds the ones before it in the cache


@dataclass
class Run:
    """One run: its figures (None: could not be read) and its streams by class."""

    scenario: str
    rep: int
    figures: dict[str, float | None]
    streams: list[tuple[str, Stream]]
    void: str | None = None
    notes: list[str] = field(default_factory=list)
    lag_p99_s: float = 0.0


@dataclass
class Context:
    http: aiohttp.ClientSession
    target: Target
    scale: prompts.Scale
    rng: random.Random
    settings: Settings
    t0: list[float] = field(default_factory=list)  # the intruder alone, seconds, so far
    prefill_rate: float | None = None  # tokens/s of the intruder alone
    solo: Solo | None = None  # the latest

    def victim(self, out: int | None = None) -> Request:
        s = self.settings
        return prompts.chat(s.victim_in, out or s.victim_out, self.scale, self.rng)

    def intruder(self) -> Request:
        return prompts.chat(self.settings.intruder_in, self.settings.intruder_out, self.scale, self.rng)

    async def send(self, request: Request) -> Stream:
        return await stream(self.http, self.target, request, timeout=self.settings.timeout_s)


Scenario = Callable[[Context, int], Awaitable[list[Run]]]


def _failed(scenario: str, rep: int, streams: list[tuple[str, Stream]], lag: LagMeter) -> Run:
    """A run whose figures are still to be read; void already when a stream failed or the client was late."""
    run = Run(scenario, rep, {}, streams, lag_p99_s=lag.p99_s)
    for name, answer in streams:
        if answer.error or not answer.events:
            run.void = f"void: the {name} failed: {answer.error or 'no token'}"
            return run
    if lag.p99_s > LAG_LIMIT_S:
        run.void = f"void: this client's event loop ran {1e3 * lag.p99_s:.0f} ms late (p99)"
    elif any(len(a.events) > 8 and burst_share(a.events) > 0.5 for _, a in streams):
        run.void = "void: more than half of a stream's tokens came within 1 ms: a burst, not a stream"
    return run


async def intruder_alone(context: Context, rep: int) -> list[Run]:
    async with LagMeter() as lag:
        answer = await context.send(context.intruder())
    run = _failed("intruder-alone", rep, [("intruder", answer)], lag)
    if run.void is None and answer.ttft:
        cached, size = answer.cached_tokens, answer.prompt_tokens or context.settings.intruder_in
        if cached and cached > 0.05 * size and not context.settings.pieces:
            run.void = f"void: {cached} of {size} prompt tokens were cached: the salt did not defeat the prefix cache"
        else:
            context.t0.append(answer.ttft)
            context.prefill_rate = size / answer.ttft
        run.figures = {"t0_s": answer.ttft, "wall_s": answer.wall, "prompt_tokens": size, "cached_tokens": cached}
    return [run]


async def decode_concurrent(context: Context, rep: int) -> list[Run]:
    async with LagMeter() as lag:
        count = context.settings.streams
        answers = await asyncio.gather(*(context.send(context.victim()) for _ in range(count)))
    run = _failed("decode-concurrent", rep, [("victim", answer) for answer in answers], lag)
    if run.void is None:
        begin, end = min(a.events[0].at for a in answers), max(a.events[-1].at for a in answers)
        lengths = [gap.seconds for a in answers for gap in gaps(a.events)]
        each = [speed for a in answers if (speed := rate(a.events))]
        run.figures = {
            "victim_tokens_per_s": median(each),
            "total_tokens_per_s": sum(a.tokens for a in answers) / (end - begin) if end > begin else None,
            "gap_p50_s": median(lengths), "gap_p99_s": quantile(lengths, 0.99),
            "longest_gap_s": max(lengths, default=None), "victim_ttft_s": max(a.ttft or 0 for a in answers),
        }  # fmt: skip
    return [run]


async def long_prefill_overlap(context: Context, rep: int) -> list[Run]:
    """Solo, a control beside a short neighbour, then both orders, with one and the same victim prompt."""
    s, victim = context.settings, context.victim()
    base, alone_stream = await solo(context.http, context.target, victim)
    context.solo = base
    alone_run = Run("victim-alone", rep, {}, [("victim", alone_stream)])
    alone_run.figures = {"victim_tokens_per_s": base.rate, "gap_p50_s": base.gap_s, "victim_ttft_s": base.ttft_s}
    runs = [alone_run]

    async def both(name: str, intruder: Request, **order: Any) -> Overlap:
        made = await overlap(
            context.http, context.target, victim, intruder, base, salted=name != "overlap-control" and not s.pieces,
            victim_must_outlive=not s.kept_back, timeout=s.timeout_s, **order,
        )  # fmt: skip
        runs.append(_overlap_run(context, name, rep, made, base))
        return made

    short = prompts.chat(s.victim_in, 32, context.scale, context.rng)
    control = await both("overlap-control", short, after=s.after)
    late = await both("overlap-after", context.intruder(), after=s.after)
    await both("overlap-together", context.intruder(), after=None, lead=0.05 * (rep % 5) / 4)
    runs[2].notes.append(_text_verdict(alone_stream.text, control.victim.text, late.victim.text))
    return runs


def _text_verdict(alone: str, control: str, late: str) -> str:
    """At temperature 0 the same prompt should give the same text; other batch shapes may honestly change it."""
    if alone == late:
        return "text: the same as alone"
    if alone == control:
        return "text: DIFFERS beside the long prefill and not beside a short neighbour: suspect corruption"
    return "text: differs beside a short neighbour too, so batch shapes change it here; nothing can be said"


def _overlap_run(context: Context, name: str, rep: int, made: Overlap, base: Solo) -> Run:
    run = Run(name, rep, {}, [("victim", made.victim), ("intruder", made.intruder)], made.void, made.notes)
    run.lag_p99_s = made.lag_p99_s
    run.figures = {"victim_ttft_s": made.victim.ttft, "intruder_ttft_s": made.intruder.ttft}
    if made.view is None:
        return run
    view_of, t0, late = made.view, median(context.t0), made.intruder.ttft
    if name == "overlap-control":
        # The neighbour's prefill is one step; its whole answer is what the control looks at
        neighbour = Window(made.intruder.submitted, made.intruder.events[-1].at, True)
        view_of = view(made.victim, neighbour, base.gap_s)
    share = view_of.share(base.rate)
    run.figures |= {
        "victim_tokens_per_s": view_of.rate, "share": share, "window_s": view_of.window_s,
        "window_tokens": view_of.tokens,
        "longest_gap_s": view_of.longest_gap_s, "stalled_s": view_of.stalled_s,
        "gap_p50_s": median(view_of.gaps_s), "gap_p99_s": quantile(view_of.gaps_s, 0.99),
        "victim_wall_s": made.victim.wall, "intruder_wall_s": made.intruder.wall,
    }  # fmt: skip
    if name == "overlap-control" or t0 is None or late is None:
        return run
    best = frontier.ttft(t0, share)
    inferred = None
    if context.prefill_rate and view_of.gaps_s:
        inferred = max(0.0, (max(view_of.gaps_s) - base.gap_s) * context.prefill_rate)
    run.figures |= {
        "stretch": late / t0, "frontier_ttft_s": best, "excess": frontier.excess(t0, late, share),
        "inferred_tokens_a_step": inferred,
    }  # fmt: skip
    budget = context.settings.budget
    if name == "overlap-after" and budget and inferred and not 0.5 < inferred / budget < 2:
        run.notes.append(f"CONTRADICTION: the longest gap means {inferred:.0f} tokens a step; the budget is {budget}")
    return run


async def serialized(context: Context, rep: int) -> list[Run]:
    """The baseline that waiting gives: the intruder is sent when the victim has ended."""
    async with LagMeter() as lag:
        first = await context.send(context.victim())
        second = await context.send(context.intruder())
    run = _failed("serialized", rep, [("victim", first), ("intruder", second)], lag)
    if run.void is None and second.ttft is not None:
        waited = second.submitted - (first.events[min(context.settings.after, len(first.events)) - 1].at)
        run.figures = {"victim_tokens_per_s": rate(first.events), "intruder_ttft_s": waited + second.ttft}
    return [run]


async def newcomer(context: Context, rep: int) -> list[Run]:
    """A short request arrives when a quarter of the long prefill is done."""
    wait = 0.25 * (median(context.t0) or 1.0)

    async def late() -> Stream:
        await asyncio.sleep(wait)
        return await context.send(context.victim(32))

    async with LagMeter() as lag:
        long, short = await asyncio.gather(context.send(context.intruder()), late())
    run = _failed("newcomer", rep, [("intruder", long), ("newcomer", short)], lag)
    if run.void is None and long.first_output is not None and short.ttft is not None:
        if long.first_output <= short.submitted:
            run.void = "refused: no overlap: the long prefill was over before the newcomer came"
        run.figures = {"newcomer_ttft_s": short.ttft, "intruder_ttft_s": long.ttft}
    return [run]


async def burst(context: Context, rep: int) -> list[Run]:
    """Several long prompts at once."""
    async with LagMeter() as lag:
        count = context.settings.burst
        answers = await asyncio.gather(*(context.send(context.intruder()) for _ in range(count)))
    run = _failed("burst", rep, [("intruder", answer) for answer in answers], lag)
    if run.void is None:
        times = [answer.ttft for answer in answers if answer.ttft is not None]
        run.figures = {"first_ttft_s": min(times), "intruder_ttft_s": median(times), "last_ttft_s": max(times)}
    return [run]


async def multi_turn(context: Context, rep: int) -> list[Run]:
    """An agent's next turn: the long prefix is cached, the suffix is not."""
    first = context.intruder()
    async with LagMeter() as lag:
        one = await context.send(first)
        next_turn = prompts.turn(first, one.text, context.settings.turn_in, 16, context.scale, context.rng)
        two = await context.send(next_turn)
    run = _failed("multi-turn", rep, [("turn 1", one), ("turn 2", two)], lag)
    if run.void is None:
        run.figures = {"turn1_ttft_s": one.ttft, "turn2_ttft_s": two.ttft, "turn2_cached_tokens": two.cached_tokens}
    return [run]


SCENARIOS: dict[str, Scenario] = {
    "decode-concurrent": decode_concurrent, "long-prefill-overlap": long_prefill_overlap, "serialized": serialized,
    "newcomer": newcomer, "burst": burst, "multi-turn": multi_turn,
}  # fmt: skip
DEFAULT = ("decode-concurrent", "long-prefill-overlap", "serialized", "newcomer")
