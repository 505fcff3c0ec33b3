"""The pacer against an engine in virtual time: share, time to first token and gaps come out as asked."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.targets import Targets
from headway.engines.vllm.cadence import StepPacer
from headway.engines.vllm.chunks import ChunkRule
from tests.engines.toy_engine import Costs, Job, ToyEngine, kept, longest_gap

HYBRID = ChunkRule(budget=8192, block=1568, align=True, sub_block=False)
NEWER = ChunkRule(budget=8192, block=1568, align=True, sub_block=True)
DENSE = ChunkRule(budget=8192, block=16)
RULES = pytest.mark.parametrize("rule", [HYBRID, NEWER, DENSE], ids=["hybrid", "newer", "dense"])
MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
PROMPT = 28_623


def victims(count: int = 1, outputs: int = 100_000) -> list[Job]:
    return [Job(f"victim{n}", 0.0, 38, outputs) for n in range(count)]


def intruder(arrives: float = 2.0, prompt: int = PROMPT, name: str = "intruder") -> Job:
    return Job(name, arrives, prompt, 1)


def alone(rule: ChunkRule, costs: Costs, prompt: int) -> float:
    """TTFT of a prompt with nobody decoding, as the engine does it by itself."""
    engine = ToyEngine(StepPacer(Targets(), rule), costs, paced=False)
    job = intruder(0.0, prompt)
    engine.run([job])
    return job.ttft


def meet(engine: ToyEngine, jobs: list[Job], until: float = 200.0) -> None:
    engine.run(jobs, until)


def bound(rule: ChunkRule, costs: Costs, share: float, engine: ToyEngine, alone_s: float, prompt: int = PROMPT) -> float:
    chunks = sum(1 for turns, prefill in engine.trace if turns and prefill)
    return (1.10 + chunks * costs.e / (costs.b * prompt)) * alone_s / (1.0 - share)


@RULES
@MODES
@pytest.mark.parametrize("share", [0.25, 0.4, 0.5, 0.75, 0.9])
def test_share_and_ttft_on_target(rule: ChunkRule, asynchronous: bool, share: float) -> None:
    costs = Costs()
    engine = ToyEngine(StepPacer(Targets(share=share), rule), costs, asynchronous)
    warm = intruder(1.0, 9000, "warm")
    job = intruder(20.0)
    (victim,) = jobs = victims()
    meet(engine, [*jobs, warm, job])
    f = kept(victim, job.arrives, job.times[0], 1.0 / costs.a)
    assert share - 0.02 <= f <= share + 0.08
    assert job.ttft <= bound(rule, costs, share, engine, alone(rule, costs, PROMPT))
    assert longest_gap(victim, job.arrives, job.times[0]) <= 0.25 * 1.1


@RULES
@pytest.mark.parametrize("blocked", [0.3, 0.75, 1.0])
@pytest.mark.parametrize("share", [0.25, 0.4, 0.5, 0.75, 0.9])
def test_ends_of_steps_seen_late_are_not_taken_for_their_time(rule: ChunkRule, blocked: float, share: float) -> None:
    costs = Costs(a=0.0185, e=0.01, b=1.05e-4)
    engine = ToyEngine(StepPacer(Targets(share=share), rule), costs, asynchronous=True, blocked=blocked)
    warm = intruder(1.0, 9000, "warm")
    job = intruder(20.0)
    (victim,) = jobs = victims()
    meet(engine, [*jobs, warm, job])
    f = kept(victim, job.arrives, job.times[0], 1.0 / costs.a)
    assert share - 0.02 <= f <= share + 0.08
    assert job.ttft <= bound(rule, costs, share, engine, alone(rule, costs, PROMPT))
    assert longest_gap(victim, job.arrives, job.times[0]) <= 0.25 * 1.1
    chunks = [prefill for turns, prefill in engine.trace if turns and prefill]
    settled = sorted(chunks[len(chunks) // 2 :])
    due = 1568 if rule is HYBRID else (0.25 - costs.a - costs.e) / costs.b
    assert 0.7 * due <= settled[len(settled) // 2] <= due * 1.02


@MODES
@pytest.mark.parametrize("share", [0.4, 0.5, 0.75, 0.9])
def test_first_intruder_of_a_cold_engine(asynchronous: bool, share: float) -> None:
    costs = Costs()
    engine = ToyEngine(StepPacer(Targets(share=share), HYBRID), costs, asynchronous)
    job = intruder(2.0)
    (victim,) = jobs = victims()
    meet(engine, [*jobs, job])
    f = kept(victim, job.arrives, job.times[0], 1.0 / costs.a)
    assert share - 0.02 <= f <= share + 0.08
    assert job.ttft <= bound(HYBRID, costs, share, engine, alone(HYBRID, costs, PROMPT))


@RULES
@MODES
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_three_victims_and_two_intruders(rule: ChunkRule, asynchronous: bool, share: float) -> None:
    costs = Costs()
    engine = ToyEngine(StepPacer(Targets(share=share), rule), costs, asynchronous)
    three = victims(3)
    two = [intruder(5.0, name="one"), intruder(5.1, name="two")]
    meet(engine, [*three, *two])
    end = max(job.times[0] for job in two)
    for victim in three:
        assert share - 0.02 <= kept(victim, 5.0, end, 1.0 / costs.a) <= share + 0.08
    work = alone(rule, costs, PROMPT)
    assert end - 5.0 <= 2 * bound(rule, costs, share, engine, work, 2 * PROMPT)


@RULES
@MODES
@pytest.mark.parametrize("ahead", [0.02, 0.0])
@pytest.mark.parametrize("share", [0.4, 0.5, 0.75])
def test_an_answer_that_waited_behind_the_prompt_for_its_first_token_is_made_up_for(
    rule: ChunkRule, asynchronous: bool, share: float, ahead: float
) -> None:
    """The prompt comes just before the answer, and has two steps of the whole budget in the engine when that arrives; or with
    it, and takes what is left of the answer's own step."""
    costs = Costs(a=0.0185, e=0.01, b=1.05e-4)
    engine = ToyEngine(StepPacer(Targets(share=share), rule), costs, asynchronous, blocked=0.75 if asynchronous else 0.0)
    earlier, warm, job = Job("earlier", 0.0, 38, 500), intruder(1.0, 9000, "warm"), intruder(30.0)
    victim = Job("victim", 30.0 + ahead, 38, 5000)
    engine.run([earlier, warm, victim, job], 200.0)
    tokens = sum(1 for time in victim.times if time <= job.times[0])
    assert share - 0.02 <= tokens * costs.a / (job.times[0] - victim.arrives) <= share + 0.08
    assert job.ttft <= bound(rule, costs, share, engine, alone(rule, costs, PROMPT))


@RULES
@MODES
def test_a_chunk_so_short_that_answers_would_keep_too_much_is_made_longer(rule: ChunkRule, asynchronous: bool) -> None:
    costs = Costs(a=0.06, e=0.0)
    engine = ToyEngine(StepPacer(Targets(share=0.4, gap=0.07), rule), costs, asynchronous)
    warm, job = intruder(1.0, 9000, "warm"), intruder(30.0)
    (victim,) = jobs = victims()
    meet(engine, [*jobs, warm, job])
    assert 0.38 <= kept(victim, job.arrives, job.times[0], 1.0 / costs.a) <= 0.48


@MODES
@pytest.mark.parametrize("end", [0.6, 1.6])
def test_drift_is_followed(asynchronous: bool, end: float) -> None:
    costs = Costs(drift=lambda now: 1.0 + (end - 1.0) * min(max(now - 10.0, 0.0) / 60.0, 1.0), noise=0.03)
    engine = ToyEngine(StepPacer(Targets(share=0.5), DENSE), costs, asynchronous)
    (victim,) = jobs = victims()
    later = [intruder(10.0 + 10.0 * n, name=f"i{n}") for n in range(9)]
    meet(engine, [*jobs, *later])
    for job in later[1:]:
        solo = 1.0 / (costs.a * costs.drift((job.arrives + job.times[0]) / 2) * 1.024)
        assert 0.46 <= kept(victim, job.arrives, job.times[0], solo) <= 0.58
    final = later[-1]
    assert longest_gap(victim, final.arrives, final.times[0]) <= 0.25 * 1.2


@RULES
@MODES
def test_nothing_is_held_while_no_one_decodes(rule: ChunkRule, asynchronous: bool) -> None:
    costs = Costs()
    engine = ToyEngine(StepPacer(Targets(share=0.9), rule), costs, asynchronous)
    job = intruder(0.0)
    engine.run([job])
    assert job.ttft == pytest.approx(alone(rule, costs, PROMPT), rel=0.01)
    assert engine.pacer.tally.held == 0


@RULES
@MODES
def test_a_short_newcomer_does_not_wait_for_the_end_of_a_long_prompt(rule: ChunkRule, asynchronous: bool) -> None:
    costs = Costs()
    engine = ToyEngine(StepPacer(Targets(share=0.5), rule), costs, asynchronous)
    long, short = intruder(5.0, 100_000, "long"), Job("short", 8.0, 900, 50)
    meet(engine, [*victims(), long, short])
    assert short.ttft < 2.0
    assert long.ttft < 2.3 * alone(rule, costs, 100_000)


@RULES
@MODES
def test_a_newcomer_is_let_in_at_its_bound(rule: ChunkRule, asynchronous: bool) -> None:
    costs = Costs()
    engine = ToyEngine(StepPacer(Targets(share=0.95, wait=3.0), rule), costs, asynchronous)
    crowd = [intruder(5.0 + n / 10, 60_000, f"i{n}") for n in range(6)]
    meet(engine, [*victims(), *crowd], until=60.0)
    assert engine.pacer.tally.yields > 0
    for job in crowd:
        assert job.begun is not None and job.begun - job.arrives < 3.0 + 4.0


@MODES
def test_share_of_one_still_lets_prompts_end(asynchronous: bool) -> None:
    engine = ToyEngine(StepPacer(Targets(share=1.0, stretch=9.0), HYBRID), Costs(), asynchronous)
    job = intruder(2.0)
    meet(engine, [*victims(), job])
    assert job.ttft < 11 * alone(HYBRID, Costs(), PROMPT)


def test_share_of_zero_holds_nothing() -> None:
    engine = ToyEngine(StepPacer(Targets(share=0.0), HYBRID), Costs())
    job = intruder(2.0)
    meet(engine, [*victims(), job])
    assert engine.pacer.tally.held == 0 and job.times


@RULES
@MODES
def test_a_stalled_step_is_forgotten(rule: ChunkRule, asynchronous: bool) -> None:
    """Even when it was the only one ever timed, so that chunks become as small as they can."""
    pacer = StepPacer(Targets(share=0.5), rule)
    pacer.fit.mixed(1568, 20.0)
    engine = ToyEngine(pacer, Costs(), asynchronous)
    job = intruder(2.0)
    meet(engine, [*victims(), job])
    assert max(prefill for turns, prefill in engine.trace if turns) >= 1568
    assert job.ttft < 2.6 * alone(rule, Costs(), PROMPT)


def test_trace_of_one_decode_and_a_long_prompt() -> None:
    engine = ToyEngine(StepPacer(Targets(share=0.5), HYBRID), Costs(a=0.02, e=0.0, b=1e-4))
    meet(engine, [*victims(), intruder(2.0, 4 * 1568)])
    steps = "".join("C" if prefill else "d" for turns, prefill in engine.trace[100:] if turns)
    runs = [len(run) for run in steps.strip("d").split("C")[1:-1]]
    # A chunk of 157 ms beside steps of 20 ms: at a share of one half, about as long in decode-only steps.
    assert all(6 <= run <= 9 for run in runs[1:]), steps


jobs_strategy = st.lists(st.tuples(st.floats(0.0, 8.0), st.integers(1, 20_000), st.integers(1, 120)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    jobs=jobs_strategy,
    rule=st.sampled_from([HYBRID, NEWER, DENSE, ChunkRule(budget=512, block=16), ChunkRule(budget=2048, block=1568, align=True)]),
    asynchronous=st.booleans(),
    share=st.floats(0.0, 1.0),
    gap=st.floats(0.005, 2.0),
    wait=st.floats(0.0, 20.0),
)
def test_every_request_ends(
    jobs: list[tuple[float, int, int]], rule: ChunkRule, asynchronous: bool, share: float, gap: float, wait: float
) -> None:
    engine = ToyEngine(StepPacer(Targets(share=share, gap=gap, wait=wait), rule), Costs(noise=0.1), asynchronous)
    made = [Job(f"j{n}", arrives, prompt, outputs) for n, (arrives, prompt, outputs) in enumerate(jobs)]
    engine.run(made)
    assert all(len(job.times) == job.outputs for job in made)
    debt = engine.pacer.debt
    assert not debt.prefilling
    assert not engine.pacer.overlap


@settings(max_examples=60, deadline=None)
@given(
    share=st.floats(0.25, 0.9),
    count=st.integers(1, 6),
    a=st.floats(0.005, 0.06),
    b=st.floats(2e-5, 8e-4),
    e=st.floats(0.0, 0.01),
    asynchronous=st.booleans(),
    rule=st.sampled_from([NEWER, DENSE]),
)
def test_share_holds_on_any_engine(
    share: float, count: int, a: float, b: float, e: float, asynchronous: bool, rule: ChunkRule
) -> None:
    costs = Costs(a=a, e=e, b=b)
    engine = ToyEngine(StepPacer(Targets(share=share), rule), costs, asynchronous)
    all_victims = victims(count)
    job = intruder(60.0, 40_000)
    engine.run([*all_victims, intruder(10.0, 9000, "warm"), job], until=60.0 + 60.0 + 40 * 40_000 * b, last=job)
    assert job.times
    f = min(kept(victim, job.arrives, job.times[0], 1.0 / a) for victim in all_victims)
    floor = a / (a + e + b * rule.unit)
    # Four turns are what a short window can be off by, in an engine with a step of lookahead.
    slack = 4 * a / job.ttft
    assert share - 0.02 <= f <= max(share, floor) + 0.08 + slack
    assert math.isfinite(job.ttft)
