"""Overlap experiments against a server that plants its gaps."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from headway.bench import prompts
from headway.bench.client import Request, Stream, Target, session, stream
from headway.bench.lag import LagMeter
from headway.bench.overlap import Overlap, Solo, overlap, solo, victim_tokens
from headway.bench.window import gaps
from headway.errors import CheckFailed, ServerError
from tests.bench.stub import Plan, Stub, count, serve, size_plan

BASE = Solo(rate=50.0, gap_s=0.02, ttft_s=0.02)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy test machine must not void these runs: what is planted and what is reported share one loop."""
    monkeypatch.setattr("headway.bench.overlap.LAG_LIMIT_S", 10.0)


def close(reported: float, planted: float, lag: float = 0.0) -> bool:
    """`lag`: what the machine took from the one loop that both sides share here, and is known to have taken."""
    return abs(reported - planted) <= max(0.002, 0.02 * planted) + lag


def experiment(stub: Stub, **options: object) -> Overlap:
    async def run() -> Overlap:
        async with serve(stub), session() as http:
            target, rng = Target(stub.url, "m"), random.Random(1)
            scale = await prompts.calibrate(http, target, rng)
            victim = prompts.chat(38, 400, scale, rng)
            intruder = prompts.chat(2000, 4, scale, rng)
            return await overlap(target, victim, intruder, BASE, **options)  # type: ignore[arg-type]

    return asyncio.run(run())


def test_planted_gaps_are_reported() -> None:
    victim: Plan = [0.02] * 20 + [0.15, 0.40, 0.15] + [0.02] * 30
    stub = Stub(plan=size_plan(victim, [0.75] + [0.01] * 3), continuous=True)
    run = experiment(stub, after=18, salted=True)
    assert run.void is None and run.view is not None
    written = next(times for times, body in zip(stub.written, stub.bodies, strict=True) if count(body) < 400)
    real = [b - a for a, b in itertools.pairwise(written)]
    reported = [gap.seconds for gap in gaps(run.victim.events)]
    assert len(reported) == len(real) == 52
    assert all(close(a, b, run.lag_max_s) for a, b in zip(reported, real, strict=True))
    assert close(run.view.longest_gap_s, max(real), run.lag_max_s)
    assert run.view.longest_gap_s >= 0.395
    assert run.view.stalled_s == pytest.approx(0.7, rel=0.1)
    window_tokens = run.view.rate * run.view.window_s
    assert window_tokens == pytest.approx(run.view.tokens)
    assert run.intruder.ttft == pytest.approx(0.75, rel=0.1)


def test_the_intruder_is_sent_after_the_victims_tokens() -> None:
    stub = Stub(plan=size_plan([0.01] * 50, [0.15, 0.01]), continuous=True)
    run = experiment(stub, after=10)
    before = [event for event in run.victim.events if event.at < run.intruder.submitted]
    assert 10 <= len(before) <= 13


def test_the_reports_order_sends_the_intruder_first() -> None:
    run = experiment(Stub(plan=size_plan([0.01] * 60, [0.2, 0.01]), continuous=True), lead=0.03)
    assert run.victim.submitted - run.intruder.submitted == pytest.approx(0.03, abs=0.02)
    assert run.void is None


def test_a_victim_that_ends_first_makes_the_run_void() -> None:
    stub = Stub(plan=size_plan([0.01] * 20, [0.4, 0.01]), continuous=True)
    run = experiment(stub, after=5)
    assert run.void is not None and "the victim ended 0." in run.void and "make it longer" in run.void
    assert run.view is not None and not run.view.victim_outlived


def test_a_policy_may_keep_the_intruder_back() -> None:
    stub = Stub(plan=size_plan([0.01] * 20, [0.4, 0.01]), continuous=True)
    run = experiment(stub, after=5, victim_must_outlive=False)
    assert run.void is None
    assert "kept back" in run.notes[0]


def test_a_run_without_overlap_is_refused() -> None:
    # The victim is over before it has the tokens at which the intruder would have come
    run = experiment(Stub(plan=size_plan([0.02] * 5, [0.2, 0.01]), continuous=True), after=16)
    assert run.void is not None and run.void.startswith("refused: no overlap: the victim ended")


def test_a_burst_is_void() -> None:
    victim: Plan = [0.02] * 12 + [0.4] + [0.0] * 100 + [0.02] * 3
    run = experiment(Stub(plan=size_plan(victim, [0.3, 0.01]), continuous=True), after=10)
    assert run.void is not None and "a burst, not a stream" in run.void


def test_a_cached_intruder_is_void() -> None:
    stub = Stub(plan=size_plan([0.01] * 50, [0.15, 0.01]), continuous=True, cached=1500)
    run = experiment(stub, salted=True)
    assert run.void is not None and "1500 of the intruder's prompt tokens were cached" in run.void


def test_a_failing_intruder_does_not_hang_the_run() -> None:
    stub = Stub(plan=size_plan([0.01] * 50, [0.15, 0.01]), garbage_after=1)
    run = experiment(stub)
    assert run.void is not None and "failed: an event is not a JSON object" in run.void


def test_a_freeze_of_two_seconds_in_one_of_many_streams_is_found() -> None:
    frozen = 57

    def plan(body: dict[str, object]) -> Plan:
        steps = [0.05 * (0.5 + (count(body) % 7) / 7)] + [0.1] * 6  # type: ignore[arg-type]
        if body["user"] == str(frozen):
            steps[4] = 2.1
        return steps

    async def run() -> list[Stream]:
        async with serve(Stub(plan=plan)) as stub:
            target = Target(stub.url, "m")
            body = {"messages": [{"role": "user", "content": "x"}]}
            return await asyncio.gather(*(stream(target, Request({**body, "user": str(i)})) for i in range(120)))

    answers = asyncio.run(run())
    assert not [answer.error for answer in answers if answer.error]
    longest = [max(gap.seconds for gap in gaps(answer.events)) for answer in answers]
    assert longest.index(max(longest)) == frozen
    assert 2.0 < max(longest) < 2.4
    assert sorted(longest)[-2] < 1.2


def test_the_loops_own_lag_is_measured() -> None:
    import time

    async def run() -> LagMeter:
        async with LagMeter() as lag:
            for _ in range(20):
                await asyncio.sleep(0.002)
            time.sleep(0.08)  # noqa: ASYNC251
            await asyncio.sleep(0.02)
        return lag

    assert 0.05 < asyncio.run(run()).max_s < 0.4


def test_a_late_client_makes_the_run_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.bench.overlap.LAG_LIMIT_S", 0.0)
    run = experiment(Stub(plan=size_plan([0.02] * 40, [0.2, 0.01]), continuous=True), after=5)
    assert run.void is not None and "this client's event loop ran" in run.void


def test_the_solo_rate_is_that_of_the_stream() -> None:
    async def run() -> tuple[Solo, Stream]:
        async with serve(Stub(plan=lambda body: [0.1] + [0.02] * 40)) as stub:
            return await solo(Target(stub.url, "m"), Request({"messages": [], "max_tokens": 41}))

    seen, answer = asyncio.run(run())
    assert seen.rate == pytest.approx(40 / (answer.events[-1].at - answer.events[0].at))
    assert 40 < seen.rate <= 50.5
    assert seen.gap_s == pytest.approx(0.02, abs=0.004)


@pytest.mark.parametrize(
    ("stub", "error", "words"),
    [
        (Stub(plan=lambda body: [0.01] * 4, streams=False), ServerError, "victim alone at http.*did not stream"),
        (Stub(plan=lambda body: [0.01] + [0.0] * 40), CheckFailed, "one burst"),
        (Stub(plan=lambda body: [0.01]), CheckFailed, "1 output events are too few"),
    ],
)
def test_a_solo_run_without_a_rate_is_an_error(stub: Stub, error: type[Exception], words: str) -> None:
    async def run() -> None:
        async with serve(stub):
            await solo(Target(stub.url, "m"), Request({"messages": [], "max_tokens": 50}))

    with pytest.raises(error, match=words):
        asyncio.run(run())


def test_the_victim_is_long_enough_for_the_frontier() -> None:
    length = victim_tokens(BASE, alone_s=2.0, share=0.75)
    assert length > 16 + 0.75 * BASE.rate * 2.0 / 0.25  # what it receives up to the frontier's TTFT
