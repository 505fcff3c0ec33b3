"""Several victims and several intruders at once, and what the worst-off victim kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from headway.bench.client import Request, Stream, Target, stream
from headway.bench.window import Window, burst_share, gaps, rate, view
from headway.errors import CheckFailed, ServerError


@dataclass(frozen=True)
class Crowd:
    """One run. `share` is that of the worst-off victim; `ttft_s` the time from the first intruder's submission to the last
    one's first token; `void` says why the figures must not be used."""

    victims: list[Stream]
    intruders: list[Stream]
    share: float | None = None
    shares: tuple[float, ...] = ()
    longest_gap_s: float | None = None
    stalled_s: float | None = None
    ttft_s: float | None = None
    void: str | None = None


async def solo_rate(target: Target, requests: Sequence[Request]) -> tuple[float, float]:
    """(mean tokens/s, mean TTFT in seconds) of these victims decoding together with no intruder."""
    answers = await asyncio.gather(*(stream(target, request) for request in requests))
    for answer in answers:
        if answer.error:
            raise ServerError(f"victim alone at {target.url}: {answer.error}")
    begin = max(answer.events[0].at for answer in answers)
    end = min(answer.events[-1].at for answer in answers)
    together = [[event for event in answer.events if begin <= event.at <= end] for answer in answers]
    rates = [rate(events) for events in together]
    if any(speed is None for speed in rates) or any(burst_share(events) > 0.5 for events in together):
        raise CheckFailed(f"victims alone at {target.url}: their tokens came in bursts, so there is no rate to read")
    return sum(speed or 0.0 for speed in rates) / len(rates), sum(a.ttft or 0.0 for a in answers) / len(answers)


async def crowd(
    target: Target,
    victims: Sequence[Request],
    intruders: Sequence[Request],
    solo: float,
    *,
    after: int | None = 16,
    lead: float = 0.0,
    must_outlive: bool = True,
) -> Crowd:
    """Run them. The intruders come when every victim has `after` tokens, or, with None, `lead` seconds before the victims.
    `solo`: a victim's tokens/s beside the other victims alone."""
    go = asyncio.Event()
    ready: set[int] = set()

    def counter(index: int) -> object:
        def count(tokens: float) -> None:
            if after is not None and tokens >= after:
                ready.add(index)
                if len(ready) == len(victims):
                    go.set()

        return count

    async def victim(index: int, request: Request) -> Stream:
        if after is None:
            go.set()
            await asyncio.sleep(lead)
        try:
            return await stream(target, request, on_tokens=counter(index))  # type: ignore[arg-type]
        finally:
            go.set()  # a victim that failed must not leave the intruders waiting

    async def intruder(request: Request) -> Stream:
        await go.wait()
        return await stream(target, request)

    answers = await asyncio.gather(
        *(victim(i, request) for i, request in enumerate(victims)), *(intruder(request) for request in intruders)
    )
    return judge(list(answers[: len(victims)]), list(answers[len(victims) :]), solo, must_outlive)


def judge(victims: list[Stream], intruders: list[Stream], solo: float, must_outlive: bool = True) -> Crowd:
    for answer in (*victims, *intruders):
        if answer.error or not answer.events:
            return Crowd(victims, intruders, void=f"void: a request failed: {answer.error or 'empty answer'}")
    start = min(answer.submitted for answer in intruders)
    end = max(answer.events[0].at for answer in intruders)
    ttft = end - start
    start = max(start, *(answer.submitted for answer in victims))
    outlived = all(answer.events[-1].at > end for answer in victims)
    cut = min(end, *(answer.events[-1].at for answer in victims))
    if cut <= start:
        return Crowd(victims, intruders, ttft_s=ttft, void="void: victims and intruders never ran together")
    views = [view(answer, Window(start, cut, outlived), 1.0 / solo) for answer in victims]
    shares = tuple(v.share(solo) for v in views)
    void = None
    if must_outlive and not outlived:
        void = "void: a victim ended before the last intruder's first token; make it longer"
    elif any(burst_share(answer.events) > 0.5 for answer in victims):
        void = "void: more than half of a victim's tokens came within 1 ms: a burst, not a stream"
    return Crowd(
        victims,
        intruders,
        share=min(shares),
        shares=shares,
        longest_gap_s=max(v.longest_gap_s for v in views),
        stalled_s=max(v.stalled_s for v in views),
        ttft_s=ttft,
        void=void,
    )


def longest_gap(answer: Stream) -> float:
    """Seconds of the longest gap of a whole stream."""
    return max((gap.seconds for gap in gaps(answer.events)), default=0.0)
