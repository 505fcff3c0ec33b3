"""The scheduling of engines other than vLLM, rule by rule (sources: headway/simulator/families.py)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headway.simulator.engine import Engine
from headway.simulator.request import Request
from headway.simulator.virtual import play
from tests.simulator import building
from tests.simulator.building import prompt, request


def engine(family: str, **options: object) -> Engine:
    plain = building.engine(groups=0, block=16, budget=512, **options)  # type: ignore[arg-type]
    return Engine(replace(plain.settings, family=family))


def steps(running: Engine, count: int) -> list[list[tuple[str, int]]]:
    return [[(c.request.id, c.tokens) for c in running.step().chunks] for _ in range(count)]


def test_sglang_a_decode_stands_still_for_the_whole_prompt() -> None:
    running = engine("sglang")
    running.add(request("a", 10, 50))
    assert steps(running, 2) == [[("a", 10)], [("a", 1)]]
    running.add(request("long", 1100, 3, seed=1))
    assert steps(running, 4) == [[("long", 512)], [("long", 512)], [("long", 76)], [("a", 1), ("long", 1)]]


def test_sglang_interval_puts_decode_steps_between() -> None:
    running = engine("sglang", prefill_schedule_interval=3)
    running.add(request("a", 10, 50))
    steps(running, 3)
    running.add(request("long", 1100, 3, seed=1))
    decode = [("a", 1)]
    assert steps(running, 7) == [[("long", 512)], decode, decode, [("long", 512)], decode, decode, [("long", 76)]]


def test_llamacpp_generating_slots_come_first_even_behind_a_prompt() -> None:
    running = engine("llamacpp")
    running.add(request("long", 1100, 3, seed=1))
    running.add(request("a", 10, 50))
    assert steps(running, 1) == [[("long", 512)]]
    assert steps(running, 1) == [[("long", 512)]]  # vLLM's order among prompts: "a" gets no room before the tail
    assert steps(running, 2) == [[("long", 76), ("a", 10)], [("long", 1), ("a", 1)]]
    running.add(request("next", 1500, 3, seed=2))
    assert steps(running, 1) == [[("long", 1), ("a", 1), ("next", 510)]]


@pytest.mark.parametrize("family", ["sglang", "llamacpp"])
def test_leaping_is_stepping_and_everybody_is_served(family: str) -> None:
    for seed in range(40):
        r = random.Random(seed)
        plan = [(r.uniform(0, 3), r.randrange(1, 1500), r.randrange(1, 120), r.randrange(3)) for _ in range(8)]
        interval = r.choice([1, 4])

        def outputs(leap: bool, plan: list = plan, interval: int = interval) -> list:
            people = [
                (at, Request(f"r{i}", tokens=prompt(n, text), max_tokens=answer)) for i, (at, n, answer, text) in enumerate(plan)
            ]
            running = engine(family, prefill_schedule_interval=interval, blocks=1100, seqs=4)
            return [(round(at, 8), o.request.id, o.first, o.finish_reason) for at, o in play(running, people, leap=leap)]

        single, leapt = outputs(False), outputs(True)
        assert [one[1:] for one in leapt] == [one[1:] for one in single]
        assert [one[0] for one in leapt] == pytest.approx([one[0] for one in single], abs=2e-8)
        assert sum(1 for one in single if one[3]) == len(plan)
