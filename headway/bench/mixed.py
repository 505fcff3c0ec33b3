"""`mixed`: long prompts arrive over live streams at their own times (open loop, Poisson, seeded)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from headway.bench.client import Stream
from headway.bench.context import Context, Run
from headway.bench.lag import LagMeter
from headway.bench.openloop import Sent, at, backlog, poisson, send_when_due
from headway.bench.population import Kept, kept
from headway.bench.verdict import begin, check_cache, find_stalls, prefill_windows
from headway.bench.window import gaps, median, quantile
from headway.core import frontier
from headway.errors import UsageError

SATURATED = 1.0  # seconds of prefill that arrive a second: at and above it no schedule helps


async def mixed(context: Context, rep: int) -> list[Run]:
    """`streams` clients each ask again when their answer ends; `baseline_s` later long prompts arrive for `duration_s`."""
    s, t0 = context.settings, context.alone_s
    if s.rate is None and t0 is None:
        return [Run("mixed", rep, {}, [], "void: the intruder alone has no valid run, so --load is unknown; give --rate")]
    rate = s.rate if s.rate is not None else s.load / (t0 or 1.0)
    times = poisson(rate, s.duration_s, context.rng)
    if not times:
        raise UsageError(f"mixed: no prompt arrives in --duration {s.duration_s:g} s at {rate:.3g} a second")
    requests = [context.intruder() for _ in times]  # made before the clock starts: it takes ms each
    slots: list[list[Stream]] = [[] for _ in range(s.streams)]
    stopped = asyncio.Event()

    async def live(slot: list[Stream], number: int) -> None:
        await asyncio.sleep(number * s.ramp_s)
        while not stopped.is_set():
            slot.append(await context.send(context.victim()))
            if slot[-1].error:
                return

    async with LagMeter() as lag:
        clients = [asyncio.ensure_future(live(slot, number)) for number, slot in enumerate(slots)]
        begun = time.monotonic()
        await at(begun + s.baseline_s)
        start = time.monotonic()
        sent = await send_when_due(start, times, lambda number, due: context.send(requests[number], due))
        stopped.set()
        await asyncio.gather(*clients)
    streams = [("victim", answer) for slot in slots for answer in slot] + [("intruder", a) for a in sent.answers]
    run = begin("mixed", rep, streams, lag, s)
    check_cache(run, s, s.intruder_in)
    run.windows = prefill_windows(sent.answers)
    if t0 is not None:
        run.saturation = rate * t0
    if run.void is None:
        _read(run, context, slots, sent, begun, start)
    return [run]


def _read(run: Run, context: Context, slots: Sequence[Sequence[Stream]], sent: Sent, begun: float, start: float) -> None:
    s = context.settings
    pace, gap = baseline(slots, begun, start)
    if pace is None or gap is None:
        run.void = f"void: the live streams gave too few tokens in --baseline {s.baseline_s:g} s to know their rate"
        return
    beside = kept(slots, run.windows, pace, gap)
    if beside.seconds <= 0:
        run.void = "refused: no overlap: no live stream decoded while a long prompt was prefilled"
        return
    end = start + s.duration_s
    run.figures = population_figures(beside, pace) | arrivals(sent, context.alone_s, beside.share)
    run.figures |= {
        "victim_ttft_s": quantile([a.ttft for slot in slots for a in slot if a.ttft is not None], 0.5),
        "arrivals": len(sent.answers), "backlog": backlog(sent.answers, end), "saturation": run.saturation,
    }  # fmt: skip
    find_stalls(run, gap, ("victim",))


def baseline(slots: Sequence[Sequence[Stream]], begun: float, end: float) -> tuple[float | None, float | None]:
    """(mean tokens/s of a stream, its median gap) before the first long prompt, without each stream's own prefill."""
    tokens = seconds = 0.0
    lengths: list[float] = []
    for slot in slots:
        for answer in slot:
            events = [event for event in answer.events if begun <= event.at <= end]
            if len(events) >= 2:
                tokens += sum(event.tokens for event in events[1:])
                seconds += events[-1].at - events[0].at
                lengths += [gap.seconds for gap in gaps(events)]
    return (tokens / seconds if seconds > 0 else None), median(lengths)


def population_figures(beside: Kept, pace: float) -> dict[str, float | None]:
    return {
        "victim_tokens_per_s": beside.share * pace if beside.share is not None else None,
        "solo_tokens_per_s": pace, "share": beside.share, "worst_share": beside.worst_share,
        "longest_gap_s": beside.longest_gap_s, "gap_p99_s": beside.gap_p99_s, "gap_p99_outside_s": beside.gap_p99_outside_s,
        "stalled_s": beside.stalled_s, "window_tokens": beside.tokens, "window_s": beside.seconds, "gaps": beside.gaps,
    }  # fmt: skip


def arrivals(sent: Sent, t0: float | None, share: float | None) -> dict[str, float | None]:
    """Times from the moment a request was due."""
    waits = [a.response_s for a in sent.answers if a.response_s is not None]
    middle = median(waits)
    best = frontier.ttft(t0, share) if t0 and share is not None else None
    return {
        "intruder_ttft_s": middle, "intruder_ttft_p95_s": quantile(waits, 0.95), "intruder_ttft_max_s": max(waits, default=None),
        "stretch": middle / t0 if middle and t0 else None, "frontier_ttft_s": best, "late_max_s": max(sent.late_s, default=None),
    }  # fmt: skip
