"""`long-prefill-overlap`: one live answer beside one long prefill, with its solo run and its control."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headway.bench import prompts
from headway.bench.client import Request
from headway.bench.context import Context, Run
from headway.bench.lag import LagMeter
from headway.bench.overlap import Overlap, Solo, overlap, solo
from headway.bench.verdict import find_stalls
from headway.bench.window import View, Window, median, quantile, rate, view
from headway.core import frontier

PREFILL_STEP = 2.0  # a gap this many times the solo median had prefill in it
AGREES = (0.5, 2.0)  # inferred tokens a step over the budget


async def long_prefill_overlap(context: Context, rep: int) -> list[Run]:
    """Solo, a control beside a short neighbour, then both orders, with one and the same victim prompt."""
    s, victim = context.settings, context.victim()
    async with LagMeter() as lag:
        base, alone = await solo(context.target, victim)
    context.solo = base
    alone_run = Run("victim-alone", rep, {}, [("victim", alone)], lag_p99_s=lag.p99_s, lag_max_s=lag.max_s)
    alone_run.figures = {
        "victim_tokens_per_s": base.rate, "gap_p50_s": base.gap_s, "victim_ttft_s": base.ttft_s, "victim_wall_s": alone.wall,
        "tokens_a_chunk": alone.tokens / len(alone.events),
    }  # fmt: skip
    runs = [alone_run]

    async def both(name: str, intruder: Request, **order: Any) -> None:
        nonlocal victim
        for _ in range(1 + s.lengthen):
            made = await overlap(
                context.target, victim, intruder, base, salted=name != "overlap-control" and not s.pieces,
                victim_must_outlive=not s.kept_back, timeout=s.timeout_s, lag_limit=s.lag_limit_s, **order,
            )  # fmt: skip
            runs.append(_run(context, name, rep, made, base))
            runs[-1].text = _same_text(alone.text, made.victim.text)
            if made.view is None or made.view.victim_outlived or s.kept_back or not _lengthen(context):
                return
            victim = Request({**victim.body, "max_tokens": context.victim_out}, victim.path)
            intruder = context.intruder() if name != "overlap-control" else intruder
            runs[-1].notes.append(f"the victim is made {context.victim_out} tokens long and the run done again")

    await both("overlap-control", prompts.chat(s.victim_in, s.neighbour_out, context.scale, context.rng), after=s.after)
    await both("overlap-after", context.intruder(), after=s.after)
    await both("overlap-together", context.intruder(), after=None, lead=s.lead_s * (rep % 5) / 4)
    return runs


def _lengthen(context: Context) -> bool:
    """Twice as many tokens for the victim, as far as the server's context goes. False: it cannot grow."""
    longest = (context.server.context or 2**31) - context.settings.victim_in - 64
    grown = min(2 * context.victim_out, longest)
    grows = grown > context.victim_out
    context.victim_out = max(grown, context.victim_out)
    return grows


def _same_text(alone: str, beside: str) -> str:
    """At temperature 0 the same prompt should give the same text, as far as both go."""
    length = min(len(alone), len(beside))
    if length == 0:
        return "unknown"
    return "same" if alone[:length] == beside[:length] else "differs"


def _run(context: Context, name: str, rep: int, made: Overlap, base: Solo) -> Run:
    run = Run(name, rep, {}, [("victim", made.victim), ("intruder", made.intruder)], made.void, made.notes)
    run.lag_p99_s, run.lag_max_s = made.lag_p99_s, made.lag_max_s
    run.figures = {"victim_ttft_s": made.victim.ttft, "intruder_ttft_s": made.intruder.ttft}
    if made.view is None or made.window is None:
        return run
    seen, tag = made.view, made.window
    if name == "overlap-control":
        # The neighbour's prefill is one step; its whole answer is what the control looks at
        tag = replace(tag, end=min(made.intruder.events[-1].at, made.victim.events[-1].at), victim_outlived=True)
        seen = view(made.victim, tag, base.gap_s)
    run.windows = [tag]
    find_stalls(run, base.gap_s, ("victim",))
    share = seen.share(base.rate)
    run.figures |= {
        "victim_tokens_per_s": seen.rate, "share": share, "window_s": seen.window_s, "window_tokens": seen.tokens,
        "longest_gap_s": seen.longest_gap_s, "stalled_s": seen.stalled_s,
        "gap_p50_s": median(seen.gaps_s), "gap_p99_s": quantile(seen.gaps_s, 0.99), "gaps": len(seen.gaps_s),
        "tokens_a_chunk": made.victim.tokens / len(made.victim.events),
        "victim_wall_s": made.victim.wall, "intruder_wall_s": made.intruder.wall,
        "after_tokens_per_s": rate([event for event in made.victim.events if event.at > tag.end]),
    }  # fmt: skip
    if name != "overlap-control":
        _against_the_frontier(run, context, share, made.intruder.ttft)
        _steps(run, context, seen, tag, base)
    return run


def _against_the_frontier(run: Run, context: Context, share: float, ttft: float | None) -> None:
    t0 = context.alone_s
    if t0 is None or ttft is None:
        return
    best = frontier.ttft(t0, share)
    run.figures |= {
        "stretch": ttft / t0, "frontier_ttft_s": best, "frontier_stretch": best / t0 if best else None,
        "excess": frontier.excess(t0, ttft, share),
    }  # fmt: skip


def _steps(run: Run, context: Context, seen: View, tag: Window, base: Solo) -> None:
    """Tokens a step, told twice: by what the longest gap has time for, and by how many gaps the prompt was spread over."""
    intruder = run.streams[1][1]
    size = (intruder.prompt_tokens or context.settings.intruder_in) - (intruder.cached_tokens or 0)
    long = [gap for gap in seen.gaps_s if gap > PREFILL_STEP * base.gap_s]
    by_time = (seen.longest_gap_s - base.gap_s) * context.prefill_rate if context.prefill_rate and long else None
    by_count = size / len(long) if long else None
    run.figures |= {"inferred_tokens_a_step": by_time, "counted_tokens_a_step": by_count}
    budget = context.settings.budget
    if budget is None or run.scenario != "overlap-after":
        return
    wanted = min(budget, size)
    for value, how in ((by_time, "the longest gap has time for"), (by_count, "the prompt over the gaps makes")):
        if value is not None and not AGREES[0] < value / wanted < AGREES[1]:
            run.notes.append(f"CONTRADICTION: {how} {value:.0f} tokens a step; the budget allows {wanted}")
