"""A leap over decode-only steps gives what the steps themselves give: times, chunks, counters, cache and its eviction order."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.simulator.engine import Engine, EngineSettings
from headway.simulator.holdings import CacheLayout
from headway.simulator.leap import Stretch, floor_sum
from headway.simulator.request import Request
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.steps import StepModel
from headway.simulator.virtual import play, run
from tests.simulator import building
from tests.simulator.building import prompt

BLOCK = 8
LENGTH = 24 * BLOCK


@st.composite
def engine_settings(draw: st.DrawFn) -> EngineSettings:
    drafts = draw(st.sampled_from([0, 0, 1, 3]))
    groups = draw(st.sampled_from([0, 1, 3]))
    least = LENGTH // BLOCK + groups * (2 + drafts) + 1
    version = draw(st.sampled_from(["0.19.1", "0.25.1", "0.27.1", "0.30.0", "0.32.0", "0.33.0"]))
    smallest = BLOCK + 8 if version < "0.27" else 8
    return EngineSettings(
        version,
        CacheLayout(least + draw(st.integers(0, 80)), BLOCK, groups, draw(st.booleans()), drafts, LENGTH),
        SchedulerSettings(
            max_num_batched_tokens=draw(st.integers(smallest, 6 * BLOCK)),
            max_num_seqs=draw(st.integers(1, 8)),
            long_prefill_token_threshold=draw(st.sampled_from([0, 0, BLOCK, 3 * BLOCK])),
            policy=draw(st.sampled_from(["fcfs", "priority"])),
            prefill_schedule_interval=draw(st.sampled_from([1, 1, 3, 7])),
        ),
        StepModel(
            a=0.01,
            b=draw(st.sampled_from([1e-4, 1.37e-4])),
            b_slope=draw(st.sampled_from([0.0, 3e-7])),
            e=draw(st.sampled_from([0.0, 0.005])),
            a_ctx=draw(st.sampled_from([0.0, 1e-6, 2.3e-4])),
            a_seq=draw(st.sampled_from([0.0, 3e-4])),
        ),
        draw(st.one_of(st.just(1.0), st.floats(1.0, 1 + drafts))) if drafts else 1.0,
    )


arrivals = st.lists(
    st.tuples(
        # Seconds: in the middle of a step, and at times that step times of 0.01 s add up to.
        st.one_of(st.floats(0, 3), st.integers(0, 60).map(lambda n: n / 20)),
        st.integers(1, LENGTH - 1),  # prompt tokens
        st.integers(1, 100),  # answer tokens
        st.integers(0, 2),  # text
        st.integers(-1, 1),  # priority
    ),
    min_size=1,
    max_size=9,
)


def requests(plan: list) -> list[tuple[float, Request]]:
    made = (
        (at, Request(f"r{i}", tokens=prompt(count, seed), max_tokens=answer, priority=priority))
        for i, (at, count, answer, seed, priority) in enumerate(plan)
    )
    return sorted(made, key=lambda pair: pair[0])


def cache_state(engine: Engine) -> Any:
    """Who holds which block, what is found under which key, and in which order blocks would be evicted."""
    pool = engine.cache.pool
    held = {
        name: ([b.number for b in one.full], [[b and b.number for b in states.blocks] for states in one.states])
        for name, one in engine.cache._held.items()
    }
    return (
        held,
        {(g, key): list(blocks) for g, keys in pool._by_key.items() for key, blocks in keys.items()},
        [(b.number, b.key) for b in pool._free.values()],
    )


def queue_state(engine: Engine) -> Any:
    scheduler = engine.scheduler
    return (
        [(r.id, r.computed, r.outputs, r.in_prefill) for r in scheduler.running],
        [(r.id, r.outputs, r.preemptions) for r in scheduler.waiting],
        scheduler.capacity_bound,
        scheduler._steps_since_prefill,
    )


def watched(engine: Engine, note: Callable[[list], None]) -> None:
    """Tell `note` the (id, first token, tokens) of every chunk that the engine schedules on its own."""
    schedule = engine.scheduler.schedule

    def wrapped(throttle: bool = False) -> Any:
        step = schedule(throttle)
        if step.chunks:
            note([(c.request.id, c.start, c.tokens) for c in step.chunks])
        return step

    engine.scheduler.schedule = wrapped  # type: ignore[method-assign]


def chunks_of(stretch: Stretch, each: int) -> list[list]:
    rows = [[first for _, first, _ in stretch.outputs(row)] for row in stretch.rows]
    made = []
    for step in range(stretch.steps):
        starts = [row.request.prompt_tokens - 1 + firsts[step] for row, firsts in zip(stretch.rows, rows, strict=True)]
        made.append([(row.request.id, start, each) for row, start in zip(stretch.rows, starts, strict=True)])
    return made


def compare(with_settings: EngineSettings, plan: list) -> int:
    """Steps made by leaping. Fails where leaping and stepping part."""
    each = 1 + with_settings.layout.draft_tokens
    leaping = Engine(with_settings)
    made: list[list] = []
    watched(leaping, made.append)
    states: dict[int, list[Any]] = {}
    leapt = 0
    for _, result in run(leaping, requests(plan)):
        if isinstance(result, Stretch):
            made += chunks_of(result, each)
            leapt += result.steps
        states.setdefault(len(made), []).append((cache_state(leaping), queue_state(leaping)))

    stepping = Engine(with_settings)
    single: list[list] = []
    watched(stepping, single.append)
    for _ in run(stepping, requests(plan), leap=False):
        if expected := states.get(len(single)):
            # A step that only preempts has no chunks, so that two states may have one number.
            assert (cache_state(stepping), queue_state(stepping)) == expected.pop(0), len(single)
    assert not any(states.values())
    assert made == single
    assert leaping.counters == stepping.counters

    before = list(play(Engine(with_settings), requests(plan), leap=False))
    after = list(play(Engine(with_settings), requests(plan)))
    assert [(o.request.id, o.first, o.tokens, o.finish_reason) for _, o in after] == [
        (o.request.id, o.first, o.tokens, o.finish_reason) for _, o in before
    ]
    assert [t for t, _ in after] == pytest.approx([t for t, _ in before], abs=1e-9, rel=0)
    return leapt


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(engine_settings(), arrivals)
def test_leaping_is_stepping(with_settings: EngineSettings, plan: list) -> None:
    compare(with_settings, plan)


@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 90), st.integers(0, 90))
@example(0, 1, 0, 0)
def test_floor_sum(n: int, m: int, a: int, b: int) -> None:
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


def test_a_lone_answer_is_two_steps_of_work() -> None:
    """One step for the prompt, one leap for the answer, whatever its length."""
    engine = building.engine(groups=3, block=640)
    made = list(run(engine, [(0.0, building.request("a", 1000, max_tokens=5000))]))
    assert [type(what) for _, what in made][-1] is Stretch
    assert len(made) <= 3
    assert engine.counters.steps == 5001  # two chunks: 640 and 360
    assert made[-1][1].duration == pytest.approx(4999 * 0.010)


def test_an_arrival_in_the_middle_waits_for_the_step_under_way() -> None:
    engine = building.engine()
    first, second = building.request("a", 10, max_tokens=500), building.request("b", 10, max_tokens=1, seed=1)
    times = [at for at, output in play(engine, [(0.0, first), (1.234, second)]) if output.request is second]
    prefill = 0.010 + 0.001
    step = 0.010
    begun = prefill + 123 * step  # the step that is under way at 1.234 s ends here
    assert times == pytest.approx([begun + 0.010 + 0.005 + 10e-4])


@pytest.mark.parametrize("drafts,rate", [(0, 1.0), (3, 2.7)])
def test_a_full_cache_preempts_as_stepping_does(drafts: int, rate: float) -> None:
    """Two answers outgrow the cache together."""
    with_settings = EngineSettings(
        "0.32.0",
        CacheLayout(26, BLOCK, 0, True, drafts, LENGTH),
        SchedulerSettings(64, 8),
        StepModel(a=0.01, b=1e-4, a_ctx=1e-5),
        rate,
    )
    plan = [(0.0, 60, 120, 0, 0), (0.0, 61, 120, 1, 0), (0.3, 50, 90, 2, 0)]
    assert compare(with_settings, plan) > 20
    engine = Engine(with_settings)
    list(play(engine, requests(plan)))
    assert engine.counters.preemptions > 0


def test_leaps_go_on_behind_the_interval_and_a_full_running_list() -> None:
    """0.33's interval holds a long prompt beside an answer; max_num_seqs keeps another one out."""
    with_settings = EngineSettings(
        "0.33.0",
        CacheLayout(400, BLOCK, 0, True, 0, LENGTH),
        SchedulerSettings(16, 2, prefill_schedule_interval=12),
        StepModel(a=0.01, b=1e-4),
    )
    plan = [(0.0, 4, 150, 0, 0), (0.2, 160, 4, 1, 0), (0.25, 30, 4, 2, 0)]
    assert compare(with_settings, plan) > 100


def test_rate_is_the_nearest_fraction() -> None:
    assert building.engine(drafts=3, rate=2.9137).rate == Fraction(2.9137).limit_denominator(1000)
