"""The engine's front end reads a list of token ids for each piece, longer each time: what a prompt of 100,000 tokens in pieces
then costs whom. Virtual time; figures of the front end as the H200 profile has them.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.core.pacing import FRONT_END, Pacer
from headway.core.steps import StepLearner, StepModel
from headway.core.targets import Targets
from headway.simulator.profiles import PROFILES
from headway.simulator.replay import Arrival, Replay, prompt
from tests.core.test_closed_loop import rate, solo_rate, victim, warm

RIG = "h200-qwen3.6-27b"
TOKENS = 100_000
GAP = 0.25


def run(share: float, gap: float = GAP) -> tuple[Replay, float, float, float]:
    """(the replay, share kept, T/(T0/(1 - share)), longest gap) of a prompt beside one live answer."""
    profile = PROFILES[RIG]

    def replay(policy: str) -> Replay:
        targets = Targets(share=share, gap=gap, wait=1e6, stretch=1e6)
        return Replay(profile.engine, policy, targets, overhead=0.02, front_end=profile.front_end, warm=warm(profile))

    alone = replay("passthrough").run([Arrival(0, "i", prompt(9, TOKENS), 4)])["i"].ttft
    assert alone is not None
    solo, begin = solo_rate(RIG), 1.0
    paced = replay("pace")
    length = round(solo * alone * 2.5 / (1 - share))
    stories = paced.run([victim("v", 0, length), Arrival(begin, "i", prompt(9, TOKENS), 4)])
    ttft = stories["i"].ttft
    assert ttft is not None
    end = begin + ttft
    times = stories["v"].outputs
    assert times[-1] > end, "the victim ended inside the window"
    longest = max(b - a for a, b in pairwise(t for t in times if begin - 1 / solo <= t <= end))
    return paced, rate(times, begin, end) / solo, ttft * (1 - share) / alone, longest


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_share_time_and_gap_of_a_long_prompt(share: float) -> None:
    paced, kept, factor, longest = run(share)
    steps, story = PROFILES[RIG].engine.steps, paced.stories["i"]
    mixed = story.pieces * steps.e / (steps.b * TOKENS)
    assert share - 0.02 <= kept <= share + 0.08
    assert factor <= 1.10 + mixed
    assert longest <= 1.1 * GAP


def test_gap_target_wins_and_what_it_costs_is_known() -> None:
    paced, _, _, _ = run(0.75)
    pacer, front_end = paced.controller.pacer, PROFILES[RIG].front_end
    assert pacer.model is not None
    assert pacer.model.k == pytest.approx(front_end.id_token_s, rel=0.15)
    assert pacer.model.c == pytest.approx(PROFILES[RIG].engine.steps.b_slope, rel=0.3), "the front end is not taken for attention"
    ids = paced.front_end_busy - paced.stories["i"].pieces * front_end.request_s
    assert pacer.front_end(TOKENS) * pacer.model.prefill(TOKENS) == pytest.approx(ids, rel=0.2)
    assert pacer.front_end(TOKENS) > FRONT_END


def test_pieces_of_whole_chunks_grow_with_the_prompt() -> None:
    """A piece of many steps makes no longer gap than one of one: there the front end decides."""
    model = StepModel(a=0.015, e=0.02, b=80e-6, h=0.05, k=1e-6)
    pacer = Pacer(Targets(gap=0.25), model, block=256, chunk=2048, seen=1 << 20)
    sizes = [pacer.piece(at) for at in (0, 10_000, 50_000, 100_000)]
    assert sizes[0] <= sizes[1] < sizes[2] < sizes[3]
    at, spent = 0, 0.0
    while at < TOKENS:
        at += pacer.piece(at)
        spent += model.k * at
    assert spent <= 1.05 * FRONT_END * model.prefill(at)


def test_without_answers_nothing_is_known_of_the_front_end() -> None:
    learner = StepLearner()
    for n in range(1, 40):
        learner.piece(1568, 0.1 + 80e-6 * 1568 + 2.5e-6 * 1568 * n, 1568 * (n - 1))
    model = learner.model()
    assert model is not None and model.k == 0.0
    assert model.piece(1568, 30 * 1568) == pytest.approx(0.1 + 80e-6 * 1568 + 2.5e-6 * 1568 * 31, rel=0.05)


def test_one_odd_piece_moves_it_little() -> None:
    learner = StepLearner()
    for n in range(1, 40):
        ids = 1568 * n
        seen = 0.05 + 2.5e-6 * ids
        learner.beside(ids, 0.0 if n % 10 == 0 else seen)
        learner.piece(1568, seen + 80e-6 * 1568, ids - 1568)
    model = learner.model()
    assert model is not None and model.k == pytest.approx(2.5e-6, rel=0.1)


def test_last_request_is_expected_to_take_as_long_as_its_length_says() -> None:
    learner = StepLearner()
    for n in range(1, 40):
        learner.beside(1568 * n, 0.05 + 2.5e-6 * 1568 * n)
    assert learner.last_overhead(100_000) == pytest.approx(0.25, rel=0.05)
    for _ in range(3):
        learner.last(0.1 + 2.5e-6 * 20_000, 20_000)
    assert learner.last_overhead(100_000) == pytest.approx(0.35, rel=0.05)
