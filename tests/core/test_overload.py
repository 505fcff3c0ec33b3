"""Must: where the bounds of newcomers and the share cannot both hold, the share yields before all reach their bounds: what came
in a burst is read nearly as fast as the engine can, short requests are not left to their bound, and once the burst is read the
share holds again.
"""

from __future__ import annotations

from collections import Counter

import pytest

from headway.core.pacing import ALONE_GAPS
from headway.core.steps import StepModel
from headway.core.targets import Targets
from headway.core.work import Decision, Why
from headway.simulator.plant import Job, Plant

MODEL = StepModel(a=0.01, e=0.01, b=80e-6, h=0.0)
TARGETS = Targets(share=0.5, gap=0.25, wait=30.0, queue=1000)


def played(jobs: list[Job], policy: str = "pace", targets: Targets = TARGETS) -> tuple[Plant, Counter[Why]]:
    plant = Plant(MODEL, policy, targets, block=256, chunk=8192)
    plant.controller.debt.told = 1.0 / MODEL.a
    whys: Counter[Why] = Counter()
    take = plant._take

    def taken(decision: Decision) -> None:
        whys[decision.why] += 1  # type: ignore[union-attr]
        take(decision)

    plant._take = taken  # type: ignore[method-assign]
    plant.run(jobs)
    return plant, whys


def burst(count: int, tokens: int, at: float = 1.0) -> list[Job]:
    return [Job(f"n{n}", at + n / 1000, tokens, 2, client=f"c{n % 5}") for n in range(count)]


def victim(outputs: int = 20_000) -> Job:
    return Job("victim", 0.0, 20, outputs)


@pytest.mark.parametrize("policy", ["pace", "auto", "hold"])
@pytest.mark.parametrize("tokens", [2_000, 6_000])
def test_a_burst_beyond_the_share_is_read_nearly_as_fast_as_it_can_be(policy: str, tokens: int) -> None:
    alone = 25.0  # seconds of prefill, one after the other
    count = int(alone / (MODEL.b * tokens))
    plant, whys = played([victim(), *burst(count, tokens)], policy)
    assert whys[Why.BACKLOG] > count / 4
    waits = sorted(job.first_grant - job.at for job in plant.jobs.values() if job.id != "victim" and job.first_grant is not None)
    assert len(waits) == count
    assert waits[-1] < TARGETS.wait + 1.0
    # At half the rate the median would come at 25 s, and the later half at their bound.
    assert waits[count // 2] < 0.75 * alone
    done = max(job.first_output or 0.0 for job in plant.jobs.values())
    assert done < 1.6 * alone
    yielded = [step for step in plant.steps if step.live and step.prefill and step.end < 10.0]
    assert max(step.end - step.start for step in yielded) < (ALONE_GAPS + 0.5) * TARGETS.gap


def test_what_the_share_can_carry_is_no_overload() -> None:
    """Twenty of 1,000 tokens at once are an intruder: they draw from the share, and all are in time."""
    plant, whys = played([victim(3000), *burst(20, 1_000)])
    assert whys[Why.BACKLOG] == whys[Why.BOUND] == 0
    during = [step for step in plant.steps if step.contended]
    tokens, seconds = sum("victim" in step.live for step in during), sum(step.end - step.start for step in during)
    assert tokens / seconds > 0.45 / MODEL.a


def test_the_share_holds_again_behind_a_burst_and_nothing_is_paid_back() -> None:
    plant, _ = played([victim(), *burst(150, 2_000), Job("short", 60.0, 2_000, 2), Job("late", 65.0, 30_000, 2)])
    short, late = plant.jobs["short"], plant.jobs["late"]
    assert short.first_output is not None and short.first_output - short.at < 1.0
    assert late.first_output is not None and late.first_output - late.at < 2.3 * MODEL.prefill(30_000)
    after = [step for step in plant.steps if step.start > 65.0 and step.contended]
    tokens, seconds = sum("victim" in step.live for step in after), sum(step.end - step.start for step in after)
    assert tokens / seconds > 0.4 / MODEL.a


def test_two_long_prompts_are_no_overload() -> None:
    """Each needs a piece within `wait`, not all of it."""
    _, whys = played([victim(), *burst(2, 200_000)], targets=Targets(share=0.5, gap=0.25, wait=30.0, stretch=20.0))
    assert whys[Why.BACKLOG] == 0


def test_a_share_of_everything_waits_for_the_bound() -> None:
    _, whys = played([victim(6000), *burst(150, 2_000)], targets=Targets(share=1.0, gap=0.25, wait=10.0, queue=1000))
    assert whys[Why.BACKLOG] == 0 and whys[Why.BOUND] > 0
