"""The regimes that `headway bench` measures. Each scenario is one function: a context and a repetition in, runs out.

`decode-concurrent` and `long-prefill-overlap` are the two that published numbers mix up: short prompts decoding
together, and a live decode beside a long prefill.
"""

from __future__ import annotations

import asyncio

from headway.bench import prompts
from headway.bench.beside import long_prefill_overlap
from headway.bench.client import Stream
from headway.bench.context import Context, Run, Scenario, Settings
from headway.bench.lag import LagMeter
from headway.bench.mixed import mixed
from headway.bench.replay import trace
from headway.bench.verdict import begin, check_cache, find_stalls, prefill_windows
from headway.bench.window import gaps, median, quantile, rate

__all__ = ["DEFAULT", "SCENARIOS", "Context", "Run", "Settings", "intruder_alone"]


async def intruder_alone(context: Context, rep: int) -> list[Run]:
    async with LagMeter() as lag:
        answer = await context.send(context.intruder())
    run = begin("intruder-alone", rep, [("intruder", answer)], lag, context.settings)
    size = answer.prompt_tokens or context.settings.intruder_in
    check_cache(run, context.settings, size)
    if run.void is None and answer.ttft:
        context.t0.append(answer.ttft)
        context.prefill_rate = size / answer.ttft
    if answer.events:
        run.figures = {
            "t0_s": answer.ttft, "wall_s": answer.wall, "prompt_tokens": size, "cached_tokens": answer.cached_tokens,
            "intruder_tokens_per_s": rate(answer.events),
        }  # fmt: skip
    return [run]


async def decode_concurrent(context: Context, rep: int) -> list[Run]:
    settings = context.settings

    async def one(number: int) -> Stream:
        await asyncio.sleep(number * settings.ramp_s)
        return await context.send(context.victim())

    async with LagMeter() as lag:
        answers = await asyncio.gather(*(one(number) for number in range(settings.streams)))
    run = begin("decode-concurrent", rep, [("victim", answer) for answer in answers], lag, settings)
    if run.void is not None:
        return [run]
    start, end = max(a.events[0].at for a in answers), min(a.events[-1].at for a in answers)
    if start >= end:
        run.void = "refused: no overlap: the streams never all decoded together; make --victim-out larger"
        return [run]
    lengths = [gap.seconds for a in answers for gap in gaps(a.events)]
    each = [speed for a in answers if (speed := rate(a.events))]
    together = sum(event.tokens for a in answers for event in a.events if start < event.at <= end)
    run.figures = {
        "victim_tokens_per_s": median(each), "slowest_tokens_per_s": min(each, default=None),
        "total_tokens_per_s": together / (end - start),
        "tokens_a_chunk": sum(a.tokens for a in answers) / sum(len(a.events) for a in answers),
        "gap_p50_s": median(lengths), "gap_p99_s": quantile(lengths, 0.99), "gaps": len(lengths),
        "longest_gap_s": max(lengths, default=None), "victim_ttft_s": max(a.ttft or 0 for a in answers),
        "stalled_s": find_stalls(run, None, ("victim",)),
    }  # fmt: skip
    return [run]


async def serialized(context: Context, rep: int) -> list[Run]:
    """The baseline that waiting gives: the intruder is sent when the victim has ended."""
    async with LagMeter() as lag:
        first = await context.send(context.victim())
        second = await context.send(context.intruder())
    run = begin("serialized", rep, [("victim", first), ("intruder", second)], lag, context.settings)
    check_cache(run, context.settings, context.settings.intruder_in)
    if run.void is None and second.ttft is not None:
        waited = second.submitted - (first.events[min(context.settings.after, len(first.events)) - 1].at)
        run.figures = {
            "victim_tokens_per_s": rate(first.events), "victim_ttft_s": first.ttft, "victim_wall_s": first.wall,
            "longest_gap_s": max((gap.seconds for gap in gaps(first.events)), default=None),
            "stalled_s": find_stalls(run, None, ("victim",)), "intruder_ttft_s": waited + second.ttft,
        }  # fmt: skip
    return [run]


async def newcomer(context: Context, rep: int) -> list[Run]:
    """A short request arrives when a quarter of the long prefill is done."""
    settings = context.settings
    wait = settings.newcomer_at * (context.alone_s or 1.0)
    short_request = context.victim(settings.newcomer_out)

    async def late() -> Stream:
        await asyncio.sleep(wait)
        return await context.send(short_request)

    async with LagMeter() as lag:
        long, short = await asyncio.gather(context.send(context.intruder()), late())
    run = begin("newcomer", rep, [("intruder", long), ("newcomer", short)], lag, settings)
    check_cache(run, settings, settings.intruder_in)
    run.windows = prefill_windows([long])
    if long.first_output is not None and short.ttft is not None:
        if run.void is None and long.first_output <= short.submitted:
            run.void = "refused: no overlap: the long prefill was over before the newcomer came"
        stretch = long.ttft / context.alone_s if long.ttft and context.alone_s else None
        run.figures = {
            "newcomer_ttft_s": short.ttft, "newcomer_wall_s": short.wall,
            "longest_gap_s": max((gap.seconds for gap in gaps(short.events)), default=None),
            "intruder_ttft_s": long.ttft, "stretch": stretch,
        }  # fmt: skip
    return [run]


async def burst(context: Context, rep: int) -> list[Run]:
    """Several long prompts at once."""
    settings, requests = context.settings, [context.intruder() for _ in range(context.settings.burst)]
    async with LagMeter() as lag:
        answers = await asyncio.gather(*(context.send(request) for request in requests))
    run = begin("burst", rep, [("intruder", answer) for answer in answers], lag, settings)
    check_cache(run, settings, settings.intruder_in)
    run.windows = prefill_windows(answers)
    if run.void is None:
        times = sorted(answer.ttft for answer in answers if answer.ttft is not None)
        t0 = context.alone_s
        run.figures = {
            "first_ttft_s": times[0], "intruder_ttft_s": median(times), "last_ttft_s": times[-1],
            "last_stretch": times[-1] / (len(times) * t0) if t0 else None,  # 1: as fast as one after the other
            "longest_gap_s": max((gap.seconds for a in answers for gap in gaps(a.events)), default=None),
            "stalled_s": find_stalls(run, context.solo.gap_s if context.solo else None, ("intruder",)),
        }  # fmt: skip
    return [run]


async def multi_turn(context: Context, rep: int) -> list[Run]:
    """An agent's next turn: the long prefix is cached, the suffix is not."""
    settings, first = context.settings, context.intruder()
    async with LagMeter() as lag:
        one = await context.send(first)
        next_turn = prompts.turn(first, one.text, settings.turn_in, settings.turn_out, context.scale, context.rng)
        two = await context.send(next_turn)
    run = begin("multi-turn", rep, [("turn 1", one), ("turn 2", two)], lag, settings)
    check_cache(run, settings, settings.intruder_in, ("turn 1",))
    if run.void is None:
        cached, size = two.cached_tokens, two.prompt_tokens
        run.figures = {
            "turn1_ttft_s": one.ttft, "turn2_ttft_s": two.ttft, "turn2_cached_tokens": cached,
            "turn2_uncached_tokens": size - cached if size is not None and cached is not None else None,
        }  # fmt: skip
        if cached == 0:
            run.notes.append("turn 2 found nothing of turn 1 in the prefix cache")
    return [run]


SCENARIOS: dict[str, Scenario] = {
    "decode-concurrent": decode_concurrent, "long-prefill-overlap": long_prefill_overlap, "serialized": serialized,
    "newcomer": newcomer, "burst": burst, "multi-turn": multi_turn, "mixed": mixed, "trace": trace,
}  # fmt: skip
DEFAULT = ("decode-concurrent", "long-prefill-overlap", "serialized", "newcomer")
