"""Must: drift is followed. An engine that becomes slower or faster in the middle of an overlap: the targets hold again after a
few pieces, although nothing outside the overlap shows the change.
"""

from __future__ import annotations

import pytest

from headway.core.steps import StepLearner, StepModel
from headway.core.targets import Targets
from headway.simulator.plant import Job, Plant

MODEL = StepModel(a=0.01, e=0.005, b=80e-6, h=0.0)
PIECES = 6
"""Pieces after which the targets hold again."""


def shares(factor: float, share: float = 0.5, gap: float = 0.15) -> tuple[float, float, float]:
    """(share kept in the half before the change, in the second half after it, longest gap there) of an overlap of 60 s."""
    plant = Plant(MODEL, "pace", Targets(share=share, gap=gap, wait=1000.0, stretch=1000.0), learns=True)
    plant.slows = [(20.0, factor)]
    plant.run([Job("v", 0.0, 20, 20_000, cancel=62.0), Job("i", 2.0, 2_000_000, 1, cancel=58.0)])
    times = plant.jobs["v"].received
    grants = [step for step in plant.steps if step.prefill and step.end > 20.0]
    settled = grants[PIECES].end + 0.5
    solo = 1.0 / MODEL.a
    before = sum(1 for t in times if 5.0 < t <= 20.0) / (15.0 * solo)
    after = sum(1 for t in times if settled < t <= 50.0) / ((50.0 - settled) * solo / factor)
    gaps = [step.end - step.start for step in plant.steps if settled < step.end <= 50.0]
    return before, after, max(gaps)


@pytest.mark.parametrize("factor", [2.0, 1.5, 0.5])
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_targets_hold_again_when_the_engine_changes_its_speed(factor: float, share: float) -> None:
    before, after, gap = shares(factor, share)
    assert share - 0.02 <= before <= share + 0.08
    assert share - 0.03 <= after <= share + 0.10
    assert gap <= 1.25 * 0.15


def test_a_single_stall_moves_nothing() -> None:
    learner = StepLearner()
    for tokens in (256, 512, 1024) * 4:
        learner.piece(tokens, 0.01 + 80e-6 * tokens)
    before = learner.model()
    learner.piece(1024, 2.0)
    after = learner.model()
    assert before is not None and after is not None
    assert after.b == pytest.approx(before.b, rel=0.1)


def test_a_new_size_is_no_drift() -> None:
    """What the model extrapolates wrongly says nothing of the engine's speed."""
    learner = StepLearner()
    for _ in range(5):
        learner.piece(256, 0.1)  # all of it taken for tokens: 390 us each
    for _ in range(5):
        learner.piece(8192, 0.1 + 80e-6 * 8192)
    model = learner.model()
    assert model is not None and model.piece(256) == pytest.approx(0.1, rel=0.3)
