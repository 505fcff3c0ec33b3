"""Sums over stretches are the sums over their single outputs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.targets import Targets
from headway.replay.tally import Limits, Spread, Tally
from headway.simulator.profiles import configure, profile_named
from headway.simulator.replay import Arrival, Replay, Story, prompt


@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=80), st.sampled_from([0.01, 0.5, 0.9, 1.0]))
def test_quantiles_are_within_their_bins(values: list[float], q: float) -> None:
    spread = Spread()
    for value in values:
        spread.add(value)
    ordered = sorted(values)
    exact = ordered[max(0, -(-int(q * len(values) * 1000) // 1000) - 1)]
    assert spread.quantile(q) == pytest.approx(exact, rel=0.021)
    assert spread.longest == ordered[-1]
    assert spread.curve()[-1][1] == 0.0


arrivals = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 3000), st.integers(1, 300), st.one_of(st.none(), st.floats(0, 9))),
    min_size=1,
    max_size=8,
)


def run(plan: list, policy: str, leap: bool, **options: object) -> tuple[Replay, list[Story]]:
    ended: list[Story] = []
    profile = configure(profile_named("h200-qwen3.6-27b"), block_size=256, num_gpu_blocks=3000, **options)  # type: ignore[arg-type]
    replay = Replay(profile.engine, policy, Targets(share=0.5, gap=0.1), warm=[(512, 0.07)], leap=leap, on_end=ended.append)
    people = [
        Arrival(at, f"r{i}", prompt(i, tokens), answer, cancel_at=None if stays is None else at + stays, label="all")
        for i, (at, tokens, answer, stays) in enumerate(sorted(plan, key=lambda one: one[0]))
    ]
    replay.run(people)
    return replay, ended


@settings(max_examples=60, deadline=None)
@given(arrivals, st.sampled_from(["passthrough", "pace"]), st.booleans())
def test_a_tally_adds_up_what_the_clients_saw(plan: list, policy: str, drafts: bool) -> None:
    replay, ended = run(plan, policy, leap=True, **({"mtp": 2, "tokens_per_step": 2.3} if drafts else {}))
    assert len(ended) == len(plan)
    assert not replay.stories and not replay.controller.entries and not replay.engine.has_work
    tally = Tally(Limits(ttft=1.0, gap=0.2, stall=0.05))
    for story in ended:
        tally.add(story)
    gaps = [b - a for story in ended for a, b in pairwise(story.outputs)]
    assert tally.requests == len(plan)
    assert tally.gap.count == len(gaps)
    assert tally.gap.total == pytest.approx(sum(gaps), abs=1e-6)
    assert tally.gap.longest == pytest.approx(max(gaps, default=0.0), abs=1e-4)
    assert tally.stalled_s == pytest.approx(sum(gap for gap in gaps if gap > 0.05), rel=0.02, abs=1e-6)
    answered = [story for story in ended if story.ttft is not None]
    good = [s for s in answered if s.ttft <= 1.0 and max((b - a for a, b in pairwise(s.outputs)), default=0.0) <= 0.2]  # type: ignore[operator]
    assert tally.good == len(good)


@settings(max_examples=60, deadline=None)
@given(arrivals, st.sampled_from(["passthrough", "serialize"]))
def test_leaping_replays_as_stepping(plan: list, policy: str) -> None:
    """Where decisions do not rest on learned step times. Of a stretch the controller sees the sums, so what it learns can part,
    and with it the pieces of `pace` and the moments of `hold`: docs/replay.md says so."""
    _, stepped = run(plan, policy, leap=False)
    _, leapt = run(plan, policy, leap=True)
    before = {story.arrival.id: story for story in stepped}
    after = {story.arrival.id: story for story in leapt}
    assert before.keys() == after.keys()
    for name, story in before.items():
        assert after[name].outcome is story.outcome
        assert len(after[name].outputs) == pytest.approx(len(story.outputs), abs=1 if story.arrival.cancel_at is None else 3)
        assert after[name].outputs[:1] == pytest.approx(story.outputs[:1], abs=0.05)


def test_calls_of_a_thread_wait_for_each_other() -> None:
    profile = profile_named("demo")
    calls = [Arrival(float(i), f"r{i}", prompt(i, 50), 400, thread="t") for i in range(3)]
    stories = Replay(profile.engine, "passthrough", Targets(), overhead=0.0).run(calls)
    ends = [stories[f"r{i}"].ended for i in range(3)]
    assert [stories[f"r{i}"].sent for i in range(3)] == pytest.approx([0.0, ends[0], ends[1]])
