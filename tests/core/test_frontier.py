"""The frontier's arithmetic, with figures that can be checked by hand."""

from __future__ import annotations

import pytest

from headway.core import frontier
from headway.core.pacing import Pacer
from headway.core.steps import Sample, StepLearner, StepModel, fit
from headway.core.targets import Targets


def test_half_kept_costs_twice_and_nine_tenths_ten_times() -> None:
    assert frontier.ttft(3.0, 0.5) == pytest.approx(6.0)
    assert frontier.ttft(3.0, 0.9) == pytest.approx(30.0)
    assert frontier.ttft(3.0, 0.98) is None
    assert frontier.ttft(3.0, -0.1) == 3.0


def test_excess_is_one_on_the_frontier() -> None:
    assert frontier.excess(3.0, 6.0, 0.5) == pytest.approx(1.0)
    assert frontier.excess(3.0, 6.0, 0.99) is None


def test_the_share_floor_of_eighteen_pieces() -> None:
    # 18 pieces of 85 ms overhead beside 2.8 s of prefill
    assert frontier.share_floor(18, 0.085, 2.8) == pytest.approx(1.53 / 4.33)
    assert frontier.share_floor(0, 0.085, 0.0) == 0.0
    assert frontier.mixed_step_factor(18, 0.02, 2.4) == pytest.approx(1.15)


def test_a_piece_is_the_largest_number_of_blocks_within_the_gap() -> None:
    pacer = Pacer(Targets(gap=0.25), model=StepModel(a=0.015, e=0.028, b=89e-6, h=0.05), block=784, seen=100_000)
    assert pacer.piece() == 2 * 784  # 0.207 s of room, 2,325 tokens
    assert pacer.reachable_gap() == pytest.approx(0.015 + 0.028 + 784 * 89e-6)
    assert pacer.share_floor() == pytest.approx(0.05 / (0.05 + 0.028 + 1568 * 89e-6))


def test_a_gap_out_of_reach_gives_one_block_and_growth_is_twofold() -> None:
    model = StepModel(a=0.015, e=0.028, b=89e-6, h=0.05)
    assert Pacer(Targets(gap=0.05), model=model, block=1568, seen=1568).piece() == 1568
    assert Pacer(Targets(gap=5.0), model=model, block=256, seen=256).piece() == 512


def test_pieces_shrink_with_the_position_where_tokens_cost_more() -> None:
    pacer = Pacer(Targets(gap=0.1), model=StepModel(a=0.01, e=0.0, b=100e-6, h=0.02, c=20e-9), block=64, seen=100_000)
    assert pacer.piece(0) > pacer.piece(10_000) > 0
    model = pacer.model
    assert model is not None
    for at in (0, 3000, 14_000):
        assert model.gap(model.tokens_within(0.1, at), at) == pytest.approx(0.1, abs=1e-3)


def test_the_fit_finds_what_it_was_made_of_and_a_stall_moves_little() -> None:
    samples = [
        Sample(p, at, 0.02 + p * (120e-6 + 15e-9 * (at + p / 2))) for p in (256, 512, 1024) for at in (0, 2048, 6000, 12_000)
    ]
    intercept, b, c = fit(samples)
    assert (intercept, b, c) == (pytest.approx(0.02, rel=0.02), pytest.approx(120e-6, rel=0.02), pytest.approx(15e-9, rel=0.02))
    stalled = [*samples, Sample(512, 2048, 3.0)]
    again = fit(stalled)
    assert again[1] == pytest.approx(120e-6, rel=0.15)


def test_with_one_size_only_all_time_is_charged_to_the_tokens() -> None:
    learner = StepLearner()
    assert learner.model() is None
    for _ in range(4):
        learner.piece(512, 0.1)
    model = learner.model()
    assert model is not None and model.b == pytest.approx(0.1 / 512) and model.h == 0.0
