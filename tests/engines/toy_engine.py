"""An engine in virtual time, for the pacer: vLLM's order of handing out a step's budget, and t = a + e + b*p.

Decodes first, then prompts under way, then those that wait; chunks rounded down to blocks where the rule says so. With
`asynchronous`, a step is scheduled while the one before it runs, as in vLLM. With `blocked`, handing over a chunk then takes
that part of the chunk's own time, and the end of the step before it is seen only after that: as measured on an H200, where
launching waits while more than about 1,000 kernels are queued.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headway.engines.vllm.cadence import StepPacer
from headway.engines.vllm.step import Began, Decision, Work


@dataclass(eq=False)
class Job:
    id: str
    arrives: float
    prompt: int
    outputs: int
    done: int = 0
    """Prompt tokens scheduled."""
    pending: int = 0
    """Outputs scheduled."""
    times: list[float] = field(default_factory=list)
    begun: float | None = None
    """End of the step with its first prefill."""

    @property
    def left(self) -> int:
        return self.prompt - self.done

    @property
    def ttft(self) -> float:
        return self.times[0] - self.arrives


@dataclass
class Costs:
    a: float = 0.015
    e: float = 0.004
    b: float = 1e-4
    drift: Callable[[float], float] = lambda now: 1.0
    noise: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def seconds(self, now: float, turns: int, prefill: int) -> float:
        mixed = self.e if turns and prefill else 0.0
        plain = self.a + mixed + self.b * prefill
        return plain * self.drift(now) * (1.0 + self.noise * abs(self.random.gauss(0.0, 1.0)))


class ToyEngine:
    def __init__(
        self, pacer: StepPacer, costs: Costs, asynchronous: bool = False, paced: bool = True, blocked: float = 0.0
    ) -> None:
        self.pacer = pacer
        self.blocked = blocked
        self.costs = costs
        self.depth = 2 if asynchronous else 1
        self.paced = paced
        self.now = 0.0
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.flight: deque[tuple[int, list[Job], list[tuple[Job, int]], dict[Job, bool]]] = deque()
        self.free_at = 0.0
        self.trace: list[tuple[int, int]] = []
        """(turns, prefill tokens) of each step."""
        self.watching = False
        """Ends of steps are reported: from the first step with prefill work to the end of the last."""
        self._prefilling = False
        self._key = 0

    def run(self, jobs: list[Job], until: float = 1e9, last: Job | None = None) -> None:
        """Until all have ended, or until that time, or until `last` has its first token."""
        coming = deque(sorted(jobs, key=lambda job: job.arrives))
        steps = 0
        while (coming or self.waiting or self.running or self.flight) and self.now < until:
            if last is not None and last.times:
                return
            steps += 1
            assert steps < 500_000, "no end"
            while coming and coming[0].arrives <= self.now:
                self.waiting.append(coming.popleft())
            if (self.waiting or self.running) and len(self.flight) < self.depth:
                moved = self._schedule()
                if len(self.flight) < self.depth and moved:
                    continue
            if self.flight:
                self._complete(coming)
            elif coming and not (self.waiting or self.running):
                self.now = max(self.now, coming[0].arrives)
            else:
                self.now += 1e-4

    def _schedule(self) -> bool:
        live = [job for job in self.running if not job.left]
        under_way = [job for job in self.running if job.left]
        work = bool(under_way or self.waiting)
        decision = Decision()
        if work and self.paced:
            head = self.waiting[0] if self.waiting else None
            tokens = head.left if head else 0
            waited = self.now - head.arrives if head else 0.0
            prompt = Work(len(under_way), under_way[0].left if under_way else tokens, head.id if head else None, tokens, waited)
            decision = self.pacer.decide(self.now, [job.id for job in live], prompt)
        turns = [job for job in live if job.pending < job.outputs]
        budget = self.pacer.rule.budget - len(turns)
        if decision.budget is not None:
            budget = min(budget, decision.budget)
        chunks: list[tuple[Job, int]] = []
        if not (decision.hold and live):
            if decision.shorts_first:
                under_way.sort(key=lambda job: job.left > (decision.budget or 0))
            for job in ([] if decision.door else under_way) + list(self.waiting):
                tokens = self._chunk(job, budget)
                if tokens <= 0:
                    if job in self.waiting:
                        break
                    continue
                chunks.append((job, tokens))
                budget -= tokens
        begins: dict[Job, bool] = {}
        for job, tokens in chunks:
            if job in self.waiting:
                self.waiting.remove(job)
                self.running.append(job)
            job.done += tokens
            if not job.left:
                job.pending = 1
                begins[job] = tokens == job.prompt
        for job in turns:
            job.pending += 1
        prefill = sum(tokens for _, tokens in chunks)
        moved = bool(turns or chunks)
        if moved:
            self._key += 1
            self.flight.append((self._key, turns, chunks, begins))
            if len(self.flight) == 1:
                self.free_at = self.now + self.costs.seconds(self.now, len(turns), prefill)
            self.trace.append((len(turns), prefill))
        if self.paced:
            left = self._prefilling = bool(self.waiting or any(job.left for job in self.running))
            if work:
                self.watching = True
                self.pacer.came_of(self.now, decision, prompt, prefill)
                if moved:
                    names = [job.id for job in turns]
                    began = {j.id: Began(self.now - j.arrives, j.prompt) if whole else None for j, whole in begins.items()}
                    self.pacer.scheduled(self.now, self._key, names, prefill, began)
                if not left:
                    self.pacer.close(self.now)
            elif moved:
                self.pacer.decode_step(self.now)
        return moved

    def _chunk(self, job: Job, limit: int) -> int:
        rule = self.pacer.rule
        tokens = min(job.left, limit)
        last = job.prompt - job.prompt % rule.block
        if rule.align and job.done + tokens < last:
            end = (job.done + tokens) // rule.block * rule.block
            if end <= job.done and rule.sub_block:
                end = min(job.done + tokens, (job.done // rule.block + 1) * rule.block)
            tokens = max(end - job.done, 0)
        elif rule.align and job.done < last < job.done + tokens:
            tokens = last - job.done
        return tokens

    def _complete(self, coming: deque[Job]) -> None:
        key, turns, chunks, begins = self.flight.popleft()
        ended = self.now = max(self.now, self.free_at)
        if self.flight:
            _, next_turns, next_chunks, _ = self.flight[0]
            seconds = self.costs.seconds(ended, len(next_turns), sum(tokens for _, tokens in next_chunks))
            self.free_at = ended + seconds
            if next_chunks:
                self.now += self.blocked * seconds
        for job, _ in chunks:
            if job.begun is None:
                job.begun = self.now
        for job in (*turns, *begins):
            job.times.append(self.now)
            if len(job.times) >= job.outputs:
                self.running.remove(job)
        if self.watching:
            self.pacer.completed(self.now, key, bool(self.running))
            self.watching = self._prefilling or self.pacer.in_flight


def kept(victim: Job, start: float, end: float, solo: float) -> float:
    """Share of its solo rate (tokens a second) that the victim kept from `start` to `end`, cut at its own life."""
    start, end = max(start, victim.times[0]), min(end, victim.times[-1])
    return sum(1 for time in victim.times if start < time <= end) / (solo * (end - start))


def longest_gap(victim: Job, start: float, end: float) -> float:
    gaps = [b - a for a, b in zip(victim.times, victim.times[1:], strict=False) if a < end and b > start]
    return max(gaps)
