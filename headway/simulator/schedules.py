"""Random schedules through the controller and the plant, and what must hold of each.

1. *Bounded*: every request has its first grant within its `wait`, and one step.
2. *Share*: where no bound had to overrule it, every protected answer received share x solo rate x time while prefill waited or
   ran, less what one piece and one step may owe it.
3. *Gap*: likewise, no gap of a live answer is above the target, or above that of one block where one block takes longer.
4. *Work conserving*: the engine never stands still while a ready request waits.
5. *Every request ends.*
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headway.core.steps import StepModel
from headway.core.targets import Targets
from headway.simulator.plant import Job, Plant

BLOCK = 256
POLICIES = ("auto", "pace", "hold")


@dataclass(slots=True)
class Trial:
    """One schedule, all of it from `seed`."""

    seed: int
    policy: str
    targets: Targets
    model: StepModel
    jobs: list[Job]
    chunk: int


@dataclass(slots=True)
class Result:
    faults: list[str] = field(default_factory=list)
    requests: int = 0
    pieces: int = 0
    yielded: bool = False
    contended: float = 0.0
    """Seconds in which prefill waited or ran beside live answers."""


def trial(seed: int) -> Trial:
    """Some answers, then some newcomers, small and large, of a few clients; some leave early."""
    rng = random.Random(seed)
    a = rng.choice((0.02, 0.05, 0.1))
    model = StepModel(a=a, e=rng.choice((0.0, 0.2, 1.0)) * a, b=a / rng.choice((64, 256, 1024)), h=0.0)
    gap = a * rng.choice((2, 4, 8))
    wait = rng.choice((10, 30, 1000)) * a
    targets = Targets(
        share=rng.choice((0.0, 0.25, 0.5, 0.75, 0.9)), gap=gap, wait=wait, stretch=rng.choice((3.0, 20.0, 1000.0)), queue=64
    )
    jobs = [Job(f"v{n}", 0.0, 20, rng.randint(5, 60)) for n in range(rng.randint(0, 2))]
    for n in range(rng.randint(1, 4)):
        prompt = int(rng.choice((1, 4, 16)) * BLOCK * rng.uniform(0.3, 1.5))
        job = Job(f"n{n}", rng.uniform(0, 30) * a, prompt, rng.randint(1, 4), rng.choice("ab"))
        if rng.random() < 0.1:
            job.cancel = rng.uniform(0, 20) * a
        jobs.append(job)
    return Trial(seed, rng.choice(POLICIES), targets, model, jobs, rng.choice((512, 2048, 8192)))


def run(trial: Trial) -> Result:
    plant = Plant(trial.model, trial.policy, trial.targets, block=BLOCK, chunk=trial.chunk)
    plant.controller.debt.told = 1.0 / trial.model.a
    result = Result()
    try:
        plant.run(trial.jobs)
    except (AssertionError, KeyError, ValueError, RuntimeError) as error:
        result.faults.append(f"{type(error).__name__}: {error}")
        return result
    jobs = plant.jobs.values()
    result.requests = len(jobs)
    result.pieces = sum(job.pieces for job in jobs)
    result.yielded = any(job.bound for job in jobs)
    longest = max((step.end - step.start for step in plant.steps), default=0.0)
    for job in jobs:
        if job.ended is None:
            result.faults.append(f"{job.id} never ended")
        granted = job.first_grant if job.first_grant is not None else job.ended
        if granted is not None and granted - job.at > trial.targets.wait + longest + 1e-6:
            result.faults.append(
                f"{job.id} waited {granted - job.at:.4f} s, its bound is {trial.targets.wait:.4f} s and one step"
            )
    if plant.idle_with_work:
        result.faults.append("the engine stood still while a request waited")
    if not result.yielded:
        _shares(trial, plant, result)
        _gaps(trial, plant, result)
    return result


def _shares(trial: Trial, plant: Plant, result: Result) -> None:
    share, rate = trial.targets.share, 1.0 / trial.model.a
    piece = plant.controller.pacer.piece()
    # At worst: a grant was given when nothing was, and it, a step and a tiny prefill come before the next output.
    # It takes as many steps as the engine makes of it.
    tokens = 2 * piece
    steps = -(-tokens // trial.chunk)
    slack = share * rate * (steps * trial.model.gap(0) + trial.model.b * tokens + 2 * trial.model.gap(0)) + 2
    for job in plant.jobs.values():
        if job.first_output is None:
            continue
        owed = 0.0
        for step in plant.steps:
            if job.id not in step.live:
                continue
            if step.contended:
                owed += share * rate * (step.end - step.start) - 1
                owed = max(owed, -share * rate * plant.controller.debt.credit - 1)
                result.contended += step.end - step.start
            else:
                owed = min(owed, max(0.0, owed - 1))  # it receives all: debt is paid back, no credit
            if owed > slack:
                result.faults.append(f"{job.id} is owed {owed:.2f} tokens at {step.end:.4f}, {slack:.2f} are allowed")
                return


def _gaps(trial: Trial, plant: Plant, result: Result) -> None:
    allowed = max(trial.targets.gap, trial.model.gap(BLOCK))
    # Small requests that cost no more than a step of decodes are never held; two may fall into one step.
    allowed = max(allowed, trial.model.gap(2 * int(max(64, trial.model.a / trial.model.b)))) + trial.model.a
    for step in plant.steps:
        if step.live and step.prefill and step.end - step.start > allowed + 1e-9:
            result.faults.append(f"a gap of {step.end - step.start:.4f} s at {step.end:.4f}, {allowed:.4f} s are allowed")
            return
