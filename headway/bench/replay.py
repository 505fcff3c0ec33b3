"""`trace`: recorded traffic sent again at its own times, with prompts that share what the recorded ones shared.

The file is read and prompts are made in a thread of their own, shortly before they are due: both take ms, which the event
loop has not got, and only the prompts of the next seconds are held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headway.bench.blocktext import BlockText, Known
from headway.bench.client import Stream
from headway.bench.context import Context, Run, Settings
from headway.bench.lag import LagMeter
from headway.bench.mixed import population_figures
from headway.bench.openloop import at
from headway.bench.overlap import Solo, solo
from headway.bench.population import kept
from headway.bench.verdict import begin, find_stalls, prefill_windows
from headway.bench.window import median, quantile
from headway.errors import UsageError
from headway.traces import Call, Cut, read

AHEAD_S = 2.0  # a prompt is made this long before it is due
MARGIN = 16  # tokens that a prompt may be longer than asked
Made = Callable[[Callable[[], Any]], Awaitable[Any]]  # in the thread that makes prompts


@dataclass
class Sent:
    call: Call
    expected: int  # tokens that an endless prefix cache would have had
    big: bool  # as many uncached ones as make an intruder
    answer: Stream

    @property
    def uncached(self) -> int:
        return self.call.input_tokens - self.expected


@dataclass
class Source:
    """Calls that fit the server's context, each with its cached tokens. Used by one thread only."""

    calls: Iterator[Call]
    longest: int | None
    left_out: int = 0
    known: Known = field(default_factory=Known)

    def next(self) -> tuple[Call, int] | None:
        for call in self.calls:
            if self.longest is None or call.input_tokens + max(1, call.output_tokens) + MARGIN <= self.longest:
                return call, self.known.take(call)
            self.left_out += 1
        return None


def source(settings: Settings, context_length: int | None) -> Source:
    if settings.trace is None:
        raise UsageError("--scenario trace needs --trace PATH")
    s = settings
    cut = Cut(s.trace_every_s, s.trace_idle_s, s.trace_start_s, s.trace_end_s, s.trace_speed, s.trace_limit or None)
    return Source(read(Path(settings.trace), s.trace_format, cut), s.trace_longest or context_length)


@dataclass
class Player:
    context: Context
    texts: BlockText
    source: Source
    start: float = 0.0
    sent: list[Sent] = field(default_factory=list)

    async def play(self) -> None:
        """Raises what the trace's reader raises, after ending the requests under way."""
        ended: dict[tuple[str, str], asyncio.Task[None]] = {}
        with ThreadPoolExecutor(1, "headway-prompts") as maker:
            made: Made = partial(asyncio.get_running_loop().run_in_executor, maker)
            self.start = time.monotonic() + AHEAD_S
            try:
                async with asyncio.TaskGroup() as tasks:
                    while (found := await made(self.source.next)) is not None:
                        call, expected = found
                        await at(self.start + call.arrival - 2 * AHEAD_S)
                        thread = (call.session, call.thread)
                        before = ended.get(thread) if call.session and not self.context.settings.trace_open else None
                        ended[thread] = tasks.create_task(self._one(call, expected, before, made))
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None

    async def _one(self, call: Call, expected: int, before: asyncio.Task[None] | None, made: Made) -> None:
        due = self.start + call.arrival
        await at(due - AHEAD_S)
        request = await made(partial(self.texts.request, call))
        if before is not None:  # an agent does not ask before it has its answer
            await asyncio.wait([before])
        await at(due)
        answer = await self.context.send(request, due)
        self.sent.append(Sent(call, expected, call.input_tokens - expected >= self.context.settings.trace_big, answer))


async def trace(context: Context, rep: int) -> list[Run]:
    """Figures of all streams: what they kept while another call's big prefill ran, TTFT of big and small calls, cached share."""
    player = Player(context, BlockText(context.scale, context.rng), source(context.settings, context.server.context))
    base, _ = await solo(context.target, context.victim())
    async with LagMeter() as lag:
        await player.play()
    if not player.sent:
        raise UsageError(f"{context.settings.trace}: no call is left to send ({player.source.left_out} are too long)")
    return [_read(context, rep, player, base, lag)]


def _read(context: Context, rep: int, player: Player, base: Solo, lag: LagMeter) -> Run:
    s, sent = context.settings, sorted(player.sent, key=lambda one: one.answer.submitted)
    big = [one for one in sent if one.big]
    run = begin("trace", rep, [("intruder" if one.big else "call", one.answer) for one in sent], lag, s)
    run.windows = prefill_windows([one.answer for one in big])
    if player.source.left_out:
        run.notes.append(f"{player.source.left_out} calls are longer than {player.source.longest} tokens and were left out")
    if run.void is not None:
        return run
    beside = kept([[one.answer] for one in sent], run.windows, base.rate, base.gap_s)
    span = sent[-1].call.arrival - sent[0].call.arrival
    if context.prefill_rate and span > 0:
        run.saturation = sum(one.uncached for one in sent) / context.prefill_rate / span
    run.figures = population_figures(beside, base.rate) | _waits(sent) | _sizes(sent)
    run.figures["saturation"] = run.saturation
    if beside.seconds <= 0:
        run.notes.append(f"no stream decoded beside a prefill of {s.trace_big} or more uncached tokens: no share to tell")
    find_stalls(run, base.gap_s, ("call", "intruder"))
    return run


def _waits(sent: list[Sent]) -> dict[str, float | None]:
    """From the moment a call was due. In a session a call also waits for the answer before it: that is its lateness."""
    call = [one.answer.response_s for one in sent if not one.big and one.answer.response_s is not None]
    intruder = [one.answer.response_s for one in sent if one.big and one.answer.response_s is not None]
    late = [one.answer.submitted - one.answer.due for one in sent if one.answer.due is not None]
    return {
        "calls": len(sent), "intruders": sum(one.big for one in sent), "call_ttft_s": median(call),
        "call_ttft_p95_s": quantile(call, 0.95), "intruder_ttft_s": median(intruder),
        "intruder_ttft_p95_s": quantile(intruder, 0.95), "late_p50_s": median(late), "late_max_s": max(late, default=None),
    }  # fmt: skip


def _sizes(sent: list[Sent]) -> dict[str, float | None]:
    """Shares of prompt tokens: cached by the trace's own account and as the server reports; and how well sizes were hit."""
    asked = sum(one.call.input_tokens for one in sent)
    size, cached = 0, 0
    for one in sent:
        if one.answer.prompt_tokens is None or one.answer.cached_tokens is None:
            return {"trace_cached_share": sum(one.expected for one in sent) / asked, "cached_share": None, "size_error": None}
        size, cached = size + one.answer.prompt_tokens, cached + one.answer.cached_tokens
    return {
        "trace_cached_share": sum(one.expected for one in sent) / asked, "cached_share": cached / size,
        "size_error": size / asked - 1,
    }  # fmt: skip
