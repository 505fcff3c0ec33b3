"""The least engine that the controller can be tried on: one server of steps, t = a + e + b*p, and nothing else.

No cache, no memory, no HTTP, and times that the controller knows exactly: what goes wrong here is the controller's own doing. A
schedule takes about a millisecond, so a million of them can be run (benchmarks/schedules.py). The embedded engine (engine.py) is
the one with vLLM's rules.

Invariants
----------
1. The controller is asked after each event and at each moment that its `wake` names, as the gateway does.
2. The plant keeps its own books of what was granted, received and waited, and never reads the controller's to do so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headway.core.capability import Capability
from headway.core.controller import Controller, QueueFull
from headway.core.steps import StepModel
from headway.core.targets import Targets
from headway.core.work import Decision, Expire, Piece, Work

INFINITY = float("inf")
MOST_EVENTS = 200_000
"""Of one schedule; more is a controller that wants to be woken without end."""


@dataclass(slots=True)
class Job:
    """One request of a schedule: times in seconds, sizes in tokens."""

    id: str
    at: float
    prompt: int
    outputs: int
    client: str = ""
    klass: str = "interactive"
    cancel: float = INFINITY
    """Seconds after its arrival at which its client leaves."""
    left: int = 0
    first_grant: float | None = None
    first_output: float | None = None
    ended: float | None = None
    refused: bool = False
    bound: bool = False
    """A bound of its own overruled the share."""
    received: list[float] = field(default_factory=list)
    granted: int = 0
    """Tokens of the grant in the engine; 0: none."""
    pieces: int = 0


@dataclass(slots=True)
class Step:
    """One step of the engine."""

    start: float
    end: float
    live: tuple[str, ...]
    prefill: int
    contended: bool
    """Prefill waited or ran when it began."""


class Plant:
    def __init__(
        self, model: StepModel, policy: str, targets: Targets, *, block: int = 256, chunk: int = 8192, learns: bool = False
    ) -> None:
        """`learns`: the controller learns the model from what it sees; else it knows it."""
        self.model, self.chunk, self.learns = model, chunk, learns
        self.controller = Controller(policy, targets)
        self.controller.engine(0.0, Capability(block=block, caching=True))
        if not learns:
            self.controller.learner = Known(model)  # type: ignore[assignment]
        for blocks in (1, 2, 4, 1, 2, 4):
            self.controller.timed(0.0, blocks * block, model.piece(blocks * block))
        self.controller.timed(0.0, chunk, model.piece(chunk))
        self.slows: list[tuple[float, float]] = []
        """(time, factor): every step from then on takes so much longer than the model says."""
        self.now = 0.0
        self.jobs: dict[str, Job] = {}
        self.steps: list[Step] = []
        self.idle_with_work = False
        """The engine stood still although something ready waited and no protected answer was live."""
        self._prefills: deque[Job] = deque()
        self._whole: set[str] = set()
        self._sent: dict[str, float] = {}
        self._decoding: dict[str, Job] = {}

    def run(self, jobs: list[Job]) -> None:
        """To the end of all of them."""
        coming = deque(sorted(jobs, key=lambda job: job.at))
        leaving = sorted((job.at + job.cancel, job.id) for job in jobs if job.cancel < INFINITY)
        leaves = deque(leaving)
        step: Step | None = None
        for _ in range(MOST_EVENTS):
            if step is None and (self._prefills or self._decoding):
                step = self._begin()
            wake = self.controller.wake(self.now)
            at = min(
                step.end if step else INFINITY,
                coming[0].at if coming else INFINITY,
                leaves[0][0] if leaves else INFINITY,
                INFINITY if wake is None else wake,
            )
            if at == INFINITY:
                assert not self.controller.entries, "requests are left and nothing will ever happen"
                return
            self._check_idle(step, at)
            self.now = max(self.now, at)
            if step is not None and step.end <= at:
                self._end(step)
                step = None
            elif coming and coming[0].at <= at:
                self._arrive(coming.popleft())
            elif leaves and leaves[0][0] <= at:
                self._cancel(leaves.popleft()[1])
            self._turn()
        raise AssertionError("no end")

    # -- the engine -------------------------------------------------------------------------------

    def _begin(self) -> Step:
        left, chunks = self.chunk, 0
        for job in self._prefills:
            take = min(job.granted, left)
            left -= take
            chunks += take
        mixed = self.model.e if chunks and self._decoding else 0.0
        slow = next((factor for at, factor in reversed(self.slows) if at <= self.now), 1.0)
        seconds = (self.model.a + mixed + self.model.b * chunks) * slow
        contended = bool(self._prefills) or self.controller.waiting > 0
        return Step(self.now, self.now + seconds, tuple(self._decoding), chunks, contended)

    def _end(self, step: Step) -> None:
        self.steps.append(step)
        for id in step.live:
            job = self._decoding.get(id)
            if job is not None:
                job.received.append(self.now)
                self.controller.output(self.now, id)
                if len(job.received) >= job.outputs:
                    self._leave(job)
        left = step.prefill
        while self._prefills and left >= self._prefills[0].granted > 0:
            job = self._prefills.popleft()
            left -= job.granted
            self._prefilled(job)
        if self._prefills and left > 0:
            self._prefills[0].granted -= left

    def _prefilled(self, job: Job) -> None:
        if job.id in self._whole:
            job.granted = 0
            job.first_output = self.now
            job.received.append(self.now)
            self._decoding[job.id] = job
            self.controller.first_output(self.now, job.id)
            if job.outputs <= 1:
                self._leave(job)
            return
        job.granted = 0
        self.controller.prefilled(self.now, job.id, job.left, self.now - self._sent[job.id] if self.learns else None)

    # -- the gateway ------------------------------------------------------------------------------

    def _arrive(self, job: Job) -> None:
        job.left = job.prompt
        self.jobs[job.id] = job
        try:
            entry = self.controller.arrive(self.now, Work(job.id, job.prompt, client=job.client, klass=job.klass))
        except QueueFull:
            job.refused, job.ended = True, self.now
            return
        if not entry.ready:
            self.controller.measured(self.now, job.id, job.prompt, paceable=True)

    def _turn(self) -> None:
        for decision in self.controller.decide(self.now):
            self._take(decision)

    def _take(self, decision: Decision) -> None:
        job = self.jobs[decision.id]
        if isinstance(decision, Expire):
            self._leave(job)
            return
        if job.first_grant is None:
            job.first_grant = self.now
        job.bound |= decision.yielded
        if isinstance(decision, Piece):
            job.granted = min(decision.tokens, job.left - 1)
            job.left -= job.granted
            job.pieces += 1
        else:
            job.granted, job.left = job.left, 0
            self._whole.add(job.id)
        self._sent[job.id] = self.now
        self._prefills.append(job)

    def _leave(self, job: Job) -> None:
        job.ended = self.now
        self._decoding.pop(job.id, None)
        self.controller.leave(self.now, job.id)

    def _cancel(self, id: str) -> None:
        job = self.jobs[id]
        if job.ended is None:
            if job in self._prefills:
                self._prefills.remove(job)
            self._leave(job)

    def _check_idle(self, step: Step | None, at: float) -> None:
        if step is None and at > self.now and self.controller.waiting:
            self.idle_with_work = True


class Known:
    """Stands for a StepLearner: the model is the plant's own."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self.samples = 0

    def model(self) -> StepModel:
        return self._model

    def piece(self, tokens: int, seconds: float, at: int = 0) -> None: ...

    def gap(self, tokens: int, seconds: float, at: int = 0) -> None: ...

    def solo(self, seconds: float) -> None: ...

    def last(self, overhead: float, tokens: int = 0) -> None: ...

    def beside(self, ids: int, seconds: float) -> None: ...

    def last_overhead(self, tokens: int = 0) -> float:
        return 0.0
