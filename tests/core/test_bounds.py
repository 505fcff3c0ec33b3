"""Must: `wait` and `stretch` mean what the design says: a newcomer's time to its first piece, and (TTFT - W)/W. Each bites here,
and the share yields only then.
"""

from __future__ import annotations

import pytest

from headway.core.bounds import queue_seconds
from headway.core.steps import StepModel
from headway.core.targets import Targets
from headway.core.work import Work
from headway.simulator.plant import Job, Plant
from tests.core.test_turns import controller, live

MODEL = StepModel(a=0.01, e=0.0, b=80e-6, h=0.0)
W = 2.0
PROMPT = int(W / MODEL.b)


def overlap(policy: str, prompt: int = PROMPT, newcomers: int = 1, **targets: float) -> Plant:
    """Newcomers beside a live answer."""
    plant = Plant(MODEL, policy, Targets(gap=0.1, **targets))  # type: ignore[arg-type]
    plant.controller.debt.told = 1.0 / MODEL.a
    jobs = [Job(f"n{n}", 1.0, prompt, 1) for n in range(newcomers)]
    plant.run([Job("v", 0.0, 20, 100_000, cancel=300.0), *jobs])
    return plant


def waited(plant: Plant, id: str = "n0") -> float:
    job = plant.jobs[id]
    assert job.first_grant is not None
    return job.first_grant - job.at


def stretched(plant: Plant, id: str = "n0") -> float:
    job = plant.jobs[id]
    assert job.first_output is not None
    return (job.first_output - job.at - W) / W


def test_stretch_bounds_what_the_share_would_take() -> None:
    """Share 0.9 alone makes it ten times as long."""
    free = overlap("pace", share=0.9, stretch=100.0)
    assert stretched(free) > 8.0 and not free.jobs["n0"].bound
    bound = overlap("pace", share=0.9, stretch=3.0)
    assert bound.jobs["n0"].bound
    assert 2.5 < stretched(bound) <= 3.0 + 0.25


def test_stretch_counts_the_queue() -> None:
    """Four prompts of the same length, one after the other: the last one's bound is reached while it waits."""
    plant = overlap("pace", newcomers=4, share=0.5, stretch=5.0, wait=100.0)
    assert max(stretched(plant, f"n{n}") for n in range(4)) <= 5.0 + 1.0


def test_wait_bounds_the_first_piece_of_those_behind() -> None:
    free = overlap("pace", newcomers=3, share=0.5, stretch=1000.0, wait=1000.0)
    assert max(waited(free, f"n{n}") for n in range(3)) > 6.0
    bound = overlap("pace", newcomers=3, share=0.5, stretch=1000.0, wait=2.0)
    assert max(waited(bound, f"n{n}") for n in range(3)) <= 2.0 + 0.2
    assert any(job.bound for job in bound.jobs.values())


def test_hold_waits_as_long_as_it_may_and_goes_on_as_pace() -> None:
    plant = overlap("hold", share=0.5, wait=6.0, stretch=1.0)
    assert waited(plant) == pytest.approx(6.0, abs=0.2)
    first, output = plant.jobs["n0"].first_grant, plant.jobs["n0"].first_output
    assert first is not None and output is not None
    # From there on the share holds, as stretch 1 allows at share 0.5: not a burst.
    assert 1.7 * W <= output - first <= 2.3 * W


def test_without_a_bound_in_reach_the_share_never_yields() -> None:
    plant = overlap("pace", newcomers=3, share=0.5, stretch=1000.0, wait=1000.0)
    assert not any(job.bound for job in plant.jobs.values())


def test_the_predicted_wait_is_the_work_ahead_over_what_the_share_leaves() -> None:
    made = controller(wait=1000.0)
    now = live(made, 10.0)
    made.arrive(now, Work("long", 20_000))
    made.measured(now, "long", 20_000, paceable=True)
    assert queue_seconds(made) == pytest.approx(20_000 * 80e-6 / 0.5, rel=0.25)
    made.leave(now, "long")
    assert queue_seconds(made) == 0.0
