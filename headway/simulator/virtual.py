"""A day in seconds: runs an engine against arrivals in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headway.simulator.engine import Engine, Output
from headway.simulator.leap import TIE, Stretch
from headway.simulator.request import Request


def play(engine: Engine, arrivals: Iterable[tuple[float, Request]], *, leap: bool = True) -> Iterator[tuple[float, Output]]:
    """Outputs with the time (seconds) at which they come, until every request has ended.

    `arrivals` are (seconds, request) in any order; each request's `arrival` is set from them. Without `leap` every step is made
    on its own, and a caller may abort requests between two outputs. RuntimeError if the engine can give no request a token
    any more.
    """
    for begin, made in run(engine, sorted(arrivals, key=lambda pair: pair[0]), leap=leap):
        if isinstance(made, Stretch):
            yield from _spelled_out(begin, made)
        else:
            for output in made:
                yield begin, output


def run(
    engine: Engine, arrivals: Iterable[tuple[float, Request]], *, leap: bool = True
) -> Iterator[tuple[float, Stretch | tuple[Output, ...]]]:
    """The same by what the engine made: (begin, stretch) of decode-only steps, or (end, outputs) of one step. `arrivals` are in
    order of time and are asked for one at a time.
    """
    coming = iter(arrivals)
    following = next(coming, None)
    now = 0.0
    while following is not None or engine.has_work:
        if not engine.has_work and following is not None:
            now = max(now, following[0])
        while following is not None and following[0] <= now + TIE:
            following[1].arrival = following[0]
            engine.add(following[1])
            following = next(coming, None)
        if leap:
            stretch = engine.leap(following[0] - now if following is not None else float("inf"))
            if stretch is not None:
                yield now, stretch
                now += stretch.duration
                continue
        step = engine.begin()
        if step.stuck:
            if following is None:
                raise RuntimeError("no request can be scheduled")
            now = max(now, following[0])
            continue
        now += step.duration
        yield now, engine.end(step)


def _spelled_out(begin: float, stretch: Stretch) -> Iterator[tuple[float, Output]]:
    rows = [(row, stretch.outputs(row)) for row in stretch.rows]
    for step in range(1, stretch.steps + 1):
        at = begin + stretch.timing.seconds(step)
        for row, outputs in rows:
            _, first, tokens = next(outputs)
            yield at, Output(row.request, first, tokens, row.finish_reason if step == stretch.steps else None)
