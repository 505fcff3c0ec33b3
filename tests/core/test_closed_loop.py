"""The controller over the embedded engine in virtual time: does the asked share come out, and at the frontier's price?"""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.core.outcome import Outcome
from headway.core.targets import Targets
from headway.simulator.profiles import PROFILES, Profile
from headway.simulator.replay import Arrival, Replay, Story, prompt

LONG = {"demo": 14_000, "h200-qwen3.6-27b": 28_623, "2x3090-qwen3.6-27b": 28_623}
GAP = {"demo": 0.1, "h200-qwen3.6-27b": 0.25, "2x3090-qwen3.6-27b": 1.4}
OVERHEAD = {"demo": 0.01, "h200-qwen3.6-27b": 0.04, "2x3090-qwen3.6-27b": 0.05}


def warm(profile: Profile) -> list[tuple[int, float]]:
    """What a probe would have timed: pieces of one, two and four blocks."""
    steps, block = profile.engine.steps, profile.engine.layout.block_size
    sizes = [block * n for n in (1, 2, 4, 1, 2, 4)]
    return [(p, OVERHEAD[profile.name] + steps.a + steps.b * p) for p in sizes]


def replay(name: str, policy: str, share: float, arrivals: list[Arrival], **targets: float) -> dict[str, Story]:
    profile = PROFILES[name]
    wanted = Targets(share=share, gap=targets.pop("gap", GAP[name]), **targets)  # type: ignore[arg-type]
    run = Replay(profile.engine, policy, wanted, overhead=OVERHEAD[name], warm=warm(profile))
    stories = run.run(arrivals)
    assert not run.controller.entries, "a request was left behind"
    return stories


def victim(id: str, at: float, tokens: int, seed: int = 1) -> Arrival:
    return Arrival(at, id, prompt(seed, 38), tokens)


def rate(times: list[float], start: float, end: float) -> float:
    return sum(1 for t in times if start < t <= end) / (end - start)


def solo_rate(name: str, victims: int = 1) -> float:
    stories = replay(name, "passthrough", 0.5, [victim(f"v{i}", 0, 100, seed=i + 1) for i in range(victims)])
    times = stories["v0"].outputs
    return (len(times) - 1) / (times[-1] - times[0])


def alone(name: str, tokens: int) -> float:
    ttft = replay(name, "passthrough", 0.5, [Arrival(0, "i", prompt(9, tokens), 4)])["i"].ttft
    assert ttft is not None
    return ttft


def overlap(name: str, policy: str, share: float, victims: int = 1, **targets: float) -> tuple[float, float, float, Story]:
    """(share kept by the worst-off victim, T, longest gap, the intruder)."""
    solo = solo_rate(name, victims)
    begin = 40 / solo
    length = int(solo * 60 * alone(name, LONG[name])) + 200
    people = [victim(f"v{i}", 0, length, seed=i + 1) for i in range(victims)]
    stories = replay(name, policy, share, [*people, Arrival(begin, "i", prompt(9, LONG[name]), 4)], **targets)
    ttft = stories["i"].ttft
    assert ttft is not None
    end = begin + ttft
    kept, longest = 1.0, 0.0
    for person in people:
        times = stories[person.id].outputs
        assert times[-1] > end, "the victim ended inside the window"
        kept = min(kept, rate(times, begin, end) / solo)
        inside = [t for t in times if begin - 1 / solo <= t <= end]
        longest = max(longest, *(b - a for a, b in pairwise(inside)))
    return kept, ttft, longest, stories["i"]


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_pace_keeps_the_asked_share_at_the_frontiers_price(name: str, share: float) -> None:
    kept, ttft, longest, intruder = overlap(name, "pace", share)
    profile = PROFILES[name]
    mixed = intruder.pieces * profile.engine.steps.e / (profile.engine.steps.b * LONG[name])
    assert share - 0.02 <= kept <= share + 0.08
    assert ttft <= (1.1 + mixed) * alone(name, LONG[name]) / (1 - share)
    assert longest <= 1.15 * GAP[name]
    assert intruder.outcome is Outcome.PACED


@pytest.mark.parametrize("name", LONG)
def test_passthrough_starves_the_victim(name: str) -> None:
    kept, ttft, _, _ = overlap(name, "passthrough", 0.5)
    assert kept < 0.2
    assert ttft < 1.3 * alone(name, LONG[name])


def test_three_victims_each_keep_the_share() -> None:
    kept, ttft, _, _ = overlap("demo", "pace", 0.5, victims=3)
    assert 0.48 <= kept <= 0.58
    assert ttft <= 1.2 * alone("demo", LONG["demo"]) / 0.5


def test_hold_keeps_it_whole_and_then_goes_on_as_pace() -> None:
    kept, ttft, longest, intruder = overlap("demo", "hold", 0.5, wait=1.0)
    assert intruder.waited == pytest.approx(1.0, abs=0.05)
    assert 0.5 < kept < 0.9
    assert ttft < 1.0 + 1.2 * alone("demo", LONG["demo"]) / 0.5
    assert longest <= 0.13


def test_two_intruders_share_one_budget() -> None:
    solo = solo_rate("demo")
    t0 = alone("demo", 14_000)
    people = [victim("v", 0, int(solo * 30 * t0))]
    two = [Arrival(0.5, "i", prompt(9, 14_000), 4), Arrival(0.5, "j", prompt(10, 14_000), 4)]
    stories = replay("demo", "pace", 0.5, [*people, *two])
    end = max(stories["i"].ttft or 0, stories["j"].ttft or 0) + 0.5
    assert 0.48 <= rate(stories["v"].outputs, 0.5, end) / solo <= 0.58
    assert end - 0.5 <= 1.2 * 2 * t0 / 0.5


def test_twenty_newcomers_of_a_thousand_tokens_share_one_budget() -> None:
    solo = solo_rate("demo")
    t0 = alone("demo", 20_000)
    crowd = [Arrival(0.5, f"n{i:02}", prompt(20 + i, 1000), 2) for i in range(20)]
    stories = replay("demo", "pace", 0.5, [victim("v", 0, int(solo * 20 * t0)), *crowd])
    end = 0.5 + max(stories[f"n{i:02}"].ttft or 0 for i in range(20))
    times = [t for t in stories["v"].outputs if 0.5 - 1 / solo <= t <= end]
    assert rate(stories["v"].outputs, 0.5, end) / solo >= 0.48
    assert max(b - a for a, b in pairwise(times)) <= 0.2
    assert end - 0.5 <= 1.3 * t0 / 0.5


def test_an_intruder_ahead_of_the_victim_costs_it_one_piece() -> None:
    profile = PROFILES["demo"]
    stories = replay("demo", "pace", 0.5, [Arrival(0, "i", prompt(9, 14_000), 4), victim("v", 0.03, 2000)])
    ttft = stories["v"].ttft
    assert ttft is not None
    largest = Replay(profile.engine, "pace", Targets(gap=0.1), warm=warm(profile)).controller.pacer.alone_piece()
    assert ttft <= profile.engine.steps.b * largest * 1.2 + 0.05


def test_alone_an_intruder_pays_little() -> None:
    for name, tokens in LONG.items():
        paced = replay(name, "pace", 0.5, [Arrival(0, "i", prompt(9, tokens), 4)])["i"]
        assert paced.outcome is Outcome.PACED and paced.ttft is not None
        assert paced.ttft <= 1.15 * alone(name, tokens)


def test_a_short_newcomer_passes_between_the_pieces_of_a_long_one() -> None:
    solo = solo_rate("demo")
    stories = replay(
        "demo",
        "pace",
        0.5,
        [victim("v", 0, int(solo * 40)), Arrival(0.5, "i", prompt(9, 50_000), 4), Arrival(1.0, "n", prompt(10, 500), 4)],
    )
    short, long = stories["n"].ttft, stories["i"].ttft
    assert short is not None and long is not None
    assert short < 0.5 < long


def test_the_wait_bound_bites_at_a_share_of_one() -> None:
    solo = solo_rate("demo")
    stories = replay(
        "demo", "pace", 1.0, [victim("v", 0, int(solo * 60)), Arrival(0.5, "i", prompt(9, 3000), 4)], wait=2.0, stretch=3.0
    )
    assert stories["i"].waited == pytest.approx(2.0, abs=0.05)
    assert stories["i"].ttft is not None and stories["i"].ttft < 8.0
