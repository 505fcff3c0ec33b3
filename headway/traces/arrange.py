"""Calls on one clock, in order of arrival, cut and scaled. Holds the sessions that overlap, not the trace."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from headway.traces.record import Call, TraceError


@dataclass(frozen=True)
class Cut:
    """Which part of a trace, and how fast. Times in seconds of the trace, before `speed`."""

    every: float = 60.0  # seconds between the starts of two sessions, where each has a clock of its own
    max_idle: float | None = None  # a session's pauses are cut to this
    start: float = 0.0
    end: float | None = None
    speed: float = 1.0  # 2: twice as fast
    limit: int | None = None  # calls
    longest: int | None = None  # prompt tokens: calls with more are left out
    seed: int | None = None  # sessions start at random, `every` apart on average: as independent users do


def arrange(calls: Iterable[Call], path: Path, cut: Cut, *, own_clocks: bool) -> Iterator[Call]:
    """`own_clocks`: each session starts at 0 and its calls stand together. Raises TraceError for calls that go back in time."""
    placed = _place(calls, cut) if own_clocks else _ordered(calls, path)
    left = cut.limit
    for call in placed:
        if left == 0 or (cut.end is not None and call.arrival >= cut.end):
            return
        if call.arrival < cut.start or (cut.longest is not None and call.input_tokens > cut.longest):
            continue
        left = None if left is None else left - 1
        yield replace(call, arrival=(call.arrival - cut.start) / cut.speed)


def _ordered(calls: Iterable[Call], path: Path) -> Iterator[Call]:
    latest = 0.0
    for number, call in enumerate(calls, 1):
        if call.arrival < latest:
            what = f"call {number} arrives at {call.arrival:g} s, before the one above it ({latest:g} s): sort the file by time"
            raise TraceError(path, None, what)
        latest = call.arrival
        yield call


def _place(calls: Iterable[Call], cut: Cut) -> Iterator[Call]:
    waiting: list[tuple[float, int, Call]] = []
    order = 0
    chance = None if cut.seed is None or not cut.every else random.Random(cut.seed)
    start = -cut.every if chance is None else 0.0
    for _, session in groupby(calls, key=lambda call: call.session):
        start += cut.every if chance is None else chance.expovariate(1.0 / cut.every)
        while waiting and waiting[0][0] < start:
            yield heapq.heappop(waiting)[2]
        saved, latest = 0.0, 0.0
        for call in session:
            if cut.max_idle is not None:
                saved += max(0.0, call.arrival - latest - cut.max_idle)
                latest = call.arrival
            at = start + call.arrival - saved
            heapq.heappush(waiting, (at, order, replace(call, arrival=at)))
            order += 1
    while waiting:
        yield heapq.heappop(waiting)[2]
