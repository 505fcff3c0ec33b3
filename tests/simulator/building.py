"""Short ways to build engines for tests."""

from __future__ import annotations

from headway.simulator.engine import Engine, EngineSettings
from headway.simulator.holdings import CacheLayout
from headway.simulator.request import Request
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.steps import StepModel

STEPS = StepModel(a=0.010, b=1e-4, e=0.005)


def engine(
    version: str = "0.32.0",
    *,
    block: int = 640,
    budget: int = 2048,
    groups: int = 3,
    blocks: int = 2000,
    caching: bool = True,
    drafts: int = 0,
    rate: float = 1.0,
    length: int = 16384,
    seqs: int = 8,
    **scheduler: object,
) -> Engine:
    return Engine(
        EngineSettings(
            version,
            CacheLayout(blocks, block, groups, caching, drafts, length),
            SchedulerSettings(budget, seqs, **scheduler),  # type: ignore[arg-type]
            STEPS,
            rate,
        )
    )


def prompt(count: int, seed: int = 0) -> list[int]:
    """The first `count` tokens of text number `seed`; two lengths of one seed share a prefix."""
    return [(i * 7919 + seed * 104729 + (i * i) % 1009) % 50000 for i in range(count)]


def request(name: str, count: int, max_tokens: int = 1, seed: int = 0, **options: object) -> Request:
    return Request(name, tokens=prompt(count, seed), max_tokens=max_tokens, **options)  # type: ignore[arg-type]


def finish(running: Engine, limit: int = 10_000) -> list[tuple[int, ...]]:
    """Step until nothing is left; the tokens of each request in each step."""
    trace = []
    while running.has_work:
        result = running.step()
        assert result.chunks, "stuck"
        trace.append(tuple(chunk.tokens for chunk in result.chunks))
        assert len(trace) < limit
    return trace


def serve(running: Engine, *requests: Request) -> list[tuple[int, ...]]:
    for one in requests:
        running.add(one)
    return finish(running)
