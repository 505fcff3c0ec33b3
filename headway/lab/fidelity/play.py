"""Requests with their arrival times through the embedded engine, and by what each time would change with the step model.

A first token comes when the steps since the engine was last idle have been run, so its time is the sum of their durations. As
the duration of a step is linear in the model's figures, the derivative of that time by each of them is the sum of what it is
multiplied with: exact as long as the order of steps stays the same, and enough for a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.simulator.engine import Engine, EngineSettings
from headway.simulator.request import Request
from headway.simulator.step import Chunk
from headway.simulator.steps import StepModel

FIGURES = ("a", "a_ctx", "a_seq", "p", "p_ctx", "b", "b_slope", "e", "e_token")
"""Fields of the simulator's step model, in the order of `multiplicands`."""

Vector = tuple[float, ...]
NOTHING: Vector = (0.0,) * len(FIGURES)


@dataclass(frozen=True, slots=True)
class Job:
    """Seconds and tokens."""

    at: float
    prompt: int
    output: int


@dataclass(slots=True)
class Served:
    """When the first and the last token came, seconds, and the derivatives of both by FIGURES."""

    job: Job
    first: float = 0.0
    last: float = 0.0
    by_first: Vector = NOTHING
    by_last: Vector = NOTHING
    times: list[float] = field(default_factory=list)
    """Of every output."""

    @property
    def ttft(self) -> float:
        return self.first - self.job.at

    @property
    def tpot(self) -> float:
        """Seconds a token after the first; 0 for an answer of one token."""
        return (self.last - self.first) / (self.job.output - 1) if self.job.output > 1 else 0.0


def multiplicands(chunks: Sequence[Chunk]) -> Vector:
    """What each of FIGURES is multiplied with in the duration of a step."""
    prefill = [(c.start, c.tokens) for c in chunks if c.prefill and c.tokens > 1]
    contexts = [c.start for c in chunks if not (c.prefill and c.tokens > 1)]
    tokens = sum(n for _, n in prefill)
    mixed = bool(prefill) and bool(contexts)
    positions = sum(n * (start + (n - 1) / 2) for start, n in prefill)
    return (
        1.0, float(sum(contexts)), float(max(len(chunks) - 1, 0)), float(bool(prefill)),
        float(sum(start for start, _ in prefill)), float(tokens), positions, float(mixed), float(tokens) if mixed else 0.0,
    )  # fmt: skip


def with_figures(settings: EngineSettings, figures: dict[str, float]) -> EngineSettings:
    return replace(settings, steps=replace(settings.steps, **figures))


def figures_of(steps: StepModel) -> dict[str, float]:
    return {name: getattr(steps, name) for name in FIGURES}


def play(settings: EngineSettings, jobs: Sequence[Job], *, front_s: float = 0.0, until: int | None = None) -> list[Served]:
    """Serve `jobs`, in order of arrival, each of which the scheduler sees `front_s` seconds after its arrival. `until`: stop when
    the first so many of them have ended; the others are then left out."""
    engine = Engine(settings)
    served = [Served(job) for job in jobs]
    wanted = len(jobs) if until is None else min(until, len(jobs))
    now, coming, ended, work = 0.0, 0, 0, NOTHING
    while ended < wanted:
        if not engine.has_work:
            now, work = max(now, jobs[coming].at + front_s), NOTHING
        while coming < len(jobs) and jobs[coming].at + front_s <= now:
            job = jobs[coming]
            engine.add(Request(str(coming), prompt_tokens=job.prompt, max_tokens=job.output, arrival=job.at))
            coming += 1
        step = engine.begin()
        if step.stuck:
            raise ValueError("the engine is stuck: its settings do not let these requests run")
        now += step.duration
        work = tuple(x + y for x, y in zip(work, multiplicands(step.chunks), strict=True))
        for output in engine.end(step):
            index = int(output.request.id)
            one = served[index]
            one.times.append(now)
            if output.first == 0:
                one.first, one.by_first = now, work
            if output.finish_reason is not None:
                one.last, one.by_last = now, work
                ended += index < wanted
    return served[:wanted]
