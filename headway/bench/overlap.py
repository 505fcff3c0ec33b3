"""One overlap experiment: a victim streams, an intruder with a long prompt arrives, and both are followed
to the end.

Two orders. `after`: the intruder is submitted when the victim has received that many tokens. `lead`: the
intruder is submitted that many seconds *before* the victim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headway.bench.client import Request, Stream, Target, stream
from headway.bench.lag import LIMIT_S, LagMeter
from headway.bench.window import View, Window, burst_share, gaps, median, rate, view, window
from headway.core import frontier
from headway.errors import CheckFailed, ServerError

LAG_LIMIT_S = LIMIT_S


@dataclass(frozen=True)
class Solo:
    """The victim alone: tokens/s and the median gap in seconds."""

    rate: float
    gap_s: float
    ttft_s: float


@dataclass
class Overlap:
    """One run. `void` is the reason why its figures must not be used, None for a valid run."""

    victim: Stream
    intruder: Stream
    view: View | None = None
    lag_p99_s: float = 0.0
    lag_max_s: float = 0.0
    window: Window | None = None
    held_s: float = 0.0  # of the longest gap in the window, seconds in which this client itself was held up
    void: str | None = None
    notes: list[str] = field(default_factory=list)

    def share(self, solo: float) -> float | None:
        return self.view.share(solo) if self.view else None

    def frontier_ttft(self, solo: float, alone_s: float) -> float | None:
        share = self.share(solo)
        return None if share is None else frontier.ttft(alone_s, share)


def require(answer: Stream, what: str, target: Target) -> Stream:
    """The stream, or a ServerError that says what failed where."""
    if answer.error:
        raise ServerError(f"{what} at {target.url}: {answer.error}")
    if not answer.events:
        raise ServerError(f"{what} at {target.url}: the answer has no token")
    return answer


async def solo(target: Target, request: Request) -> tuple[Solo, Stream]:
    """The victim alone. Raises ServerError, or CheckFailed for a stream from which no rate can be read."""
    async with LagMeter():
        answer = require(await stream(target, request), "victim alone", target)
    if burst_share(answer.events) > 0.5:
        raise CheckFailed(f"victim alone at {target.url}: the tokens came in one burst, so there is no rate to read")
    speed = rate(answer.events)
    gap = median([g.seconds for g in gaps(answer.events)])
    if speed is None or gap is None or answer.ttft is None:
        raise CheckFailed(f"victim alone at {target.url}: {len(answer.events)} output events are too few")
    return Solo(speed, gap, answer.ttft), answer


async def alone(target: Target, request: Request) -> Stream:
    """The intruder alone (its `ttft` is T0)."""
    async with LagMeter():
        return require(await stream(target, request), "intruder alone", target)


async def overlap(
    target: Target,
    victim: Request,
    intruder: Request,
    base: Solo,
    *,
    after: int | None = 16,
    lead: float | None = None,
    victim_must_outlive: bool = True,
    salted: bool = False,
    timeout: float = 600.0,
    lag_limit: float | None = None,
) -> Overlap:
    """Run both. `salted`: nothing but an engine stands behind `target`, so that cached tokens would mean a
    spoilt run.

    `victim_must_outlive` is False for policies that keep the intruder back until the victim ends.
    """
    go = asyncio.Event()

    def count(tokens: float) -> None:
        if after is not None and tokens >= after:
            go.set()

    async def run_victim() -> Stream:
        if lead is not None:
            go.set()
            await asyncio.sleep(lead)
        try:
            return await stream(target, victim, on_tokens=count, timeout=timeout)
        finally:
            go.set()  # a victim that failed must not leave the intruder waiting

    async def run_intruder() -> Stream:
        await go.wait()
        return await stream(target, intruder, timeout=timeout)

    async with LagMeter() as lag:
        first, second = await asyncio.gather(run_victim(), run_intruder())
    run = Overlap(first, second, lag_p99_s=lag.p99_s, lag_max_s=lag.max_s)
    limit = LAG_LIMIT_S if lag_limit is None else lag_limit
    judge(run, base, victim_must_outlive=victim_must_outlive, salted=salted, lag_limit=limit, held=lag.inside)
    return run


def judge(
    run: Overlap,
    base: Solo,
    *,
    victim_must_outlive: bool = True,
    salted: bool = False,
    lag_limit: float = LIMIT_S,
    held: Callable[[float, float], float] = lambda start, end: 0.0,
) -> None:
    """Fill in the view, or the reason why there is none. Only the first reason is kept: the others follow
    from it. `held(start, end)`: seconds between the two in which this client itself was held up.
    """
    for name, answer in (("victim", run.victim), ("intruder", run.intruder)):
        if answer.error:
            run.void = f"void: the {name} failed: {answer.error}"
            return
    try:
        run.window = window(run.victim, run.intruder)
        run.view = view(run.victim, run.window, base.gap_s)
        inside = [gap for gap in gaps(run.victim.events, run.window) if gap.in_window]
        if inside:
            longest = max(inside, key=lambda gap: gap.seconds)
            run.held_s = held(longest.start, longest.end)
    except CheckFailed as error:
        run.void = f"refused: {error}"
        return
    if burst_share(run.victim.events) > 0.5:
        run.void = "void: more than half of the victim's tokens came within 1 ms: a burst, not a stream"
    elif victim_must_outlive and not run.view.victim_outlived:
        first = (run.intruder.first_output or 0.0) - (run.victim.last_output or 0.0)
        run.void = f"void: the victim ended {first:.2f} s before the intruder's first token; make it longer"
    elif (late := too_late(run.lag_p99_s, run.held_s, run.view.longest_gap_s, lag_limit)) is not None:
        run.void = late
    elif salted and (cached := run.intruder.cached_tokens) and cached > 0.05 * (run.intruder.prompt_tokens or 0):
        run.void = f"void: {cached} of the intruder's prompt tokens were cached before it came"
    if not run.view.victim_outlived and not victim_must_outlive:
        run.notes.append("the intruder was kept back until the victim ended")
    if run.intruder.cached_tokens is None:
        run.notes.append("the server does not say how many tokens were cached")


def too_late(lag_p99_s: float, held_s: float, longest_gap_s: float, limit: float) -> str | None:
    """Why the client's own lateness spoils a run: often late, or held up in the very gap that would be reported."""
    if lag_p99_s > limit:
        return f"void: this client's event loop ran {1e3 * lag_p99_s:.0f} ms late (p99)"
    if held_s > max(limit, 0.1 * longest_gap_s):
        return f"void: of the longest gap, {1e3 * longest_gap_s:.0f} ms, this client itself was held up for {1e3 * held_s:.0f} ms"
    return None


def victim_tokens(base: Solo, alone_s: float, share: float, *, after: int = 16, room: float = 1.6, margin: int = 48) -> int:
    """How long a victim must be to outlive the window of a paced intruder: the frontier's T with room on
    both axes.
    """
    expected = alone_s / max(1 - share, 0.05) * room
    return after + margin + round(expected * base.rate * min(1.0, share + 0.1))
