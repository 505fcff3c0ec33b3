"""A day in seconds: runs an engine against arrivals in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from headway.simulator.engine import Engine, Output
from headway.simulator.request import Request


def play(engine: Engine, arrivals: Iterable[tuple[float, Request]]) -> Iterator[tuple[float, Output]]:
    """Outputs with the time (seconds) at which they come, until every request has ended.

    `arrivals` are (seconds, request) in any order; each request's `arrival` is set from them. A caller may
    abort requests between two outputs. RuntimeError if the engine can give no request a token any more.
    """
    queue = [(at, number, request) for number, (at, request) in enumerate(arrivals)]
    heapq.heapify(queue)
    now = 0.0
    while queue or engine.has_work:
        if not engine.has_work:
            now = max(now, queue[0][0])
        while queue and queue[0][0] <= now:
            at, _, request = heapq.heappop(queue)
            request.arrival = at
            engine.add(request)
        step = engine.begin()
        if step.stuck:
            if not queue:
                raise RuntimeError("no request can be scheduled")
            now = max(now, queue[0][0])
            continue
        now += step.duration
        for output in engine.end(step):
            yield now, output
