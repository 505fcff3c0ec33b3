"""The scheduling of engines other than vLLM, rule by rule (sources: headway/simulator/families.py)."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from headway.simulator.engine import Engine, SettingsError
from headway.simulator.request import Request
from headway.simulator.virtual import play
from tests.simulator import building
from tests.simulator.building import prompt, request


def engine(family: str, prefill_decode_interval: int = 0, **options: object) -> Engine:
    plain = building.engine(groups=0, block=16, budget=512, **options).settings  # type: ignore[arg-type]
    scheduler = replace(plain.scheduler, prefill_decode_interval=prefill_decode_interval)
    return Engine(replace(plain, family=family, scheduler=scheduler))


def steps(running: Engine, count: int) -> list[list[tuple[str, int]]]:
    return [[(c.request.id, c.tokens) for c in running.step().chunks] for _ in range(count)]


def test_sglang_a_decode_stands_still_for_the_whole_prompt() -> None:
    running = engine("sglang")
    running.add(request("a", 10, 50))
    assert steps(running, 2) == [[("a", 10)], [("a", 1)]]
    running.add(request("long", 1100, 3, seed=1))
    assert steps(running, 4) == [[("long", 512)], [("long", 512)], [("long", 76)], [("a", 1), ("long", 1)]]


def test_sglang_interval_is_the_number_of_decode_rounds() -> None:
    """As SGLang's own unit test has it: an interval of 2 defers two rounds, the third is prefill again (sglang#35017)."""
    running = engine("sglang", prefill_decode_interval=2)
    running.add(request("a", 10, 50))
    steps(running, 3)
    running.add(request("long", 1100, 3, seed=1))
    decode = [("a", 1)]
    assert steps(running, 7) == [[("long", 512)], decode, decode, [("long", 512)], decode, decode, [("long", 76)]]


def test_sglang_interval_waits_for_nobody_when_nobody_decodes() -> None:
    running = engine("sglang", prefill_decode_interval=4)
    running.add(request("long", 1100, 3))
    assert steps(running, 4) == [[("long", 512)], [("long", 512)], [("long", 76)], [("long", 1)]]


@pytest.mark.parametrize(
    "family,option",
    [("sglang", "prefill_schedule_interval"), ("vllm", "prefill_decode_interval"), ("llamacpp", "prefill_decode_interval")],
)
def test_another_engines_interval_is_refused(family: str, option: str) -> None:
    with pytest.raises(SettingsError, match=f"{family} has no {option}"):
        engine(family, **{option: 3})


def test_llamacpp_generating_slots_come_first_even_behind_a_prompt() -> None:
    running = engine("llamacpp")
    running.add(request("long", 1100, 3, seed=1))
    running.add(request("a", 10, 50))
    assert steps(running, 1) == [[("long", 512)]]
    assert steps(running, 1) == [[("long", 512)]]  # vLLM's order among prompts: "a" gets no room before the tail
    assert steps(running, 2) == [[("long", 76), ("a", 10)], [("long", 1), ("a", 1)]]
    running.add(request("next", 1500, 3, seed=2))
    assert steps(running, 1) == [[("long", 1), ("a", 1), ("next", 510)]]


def test_llamacpp_slots_are_filled_by_number() -> None:
    """Whoever sits in the first slot goes first, though it came later (pre_decode goes over the slots)."""
    running = engine("llamacpp", seqs=2)
    running.add(request("first", 300, 1))
    running.add(request("second", 1500, 3, seed=1))
    assert steps(running, 1) == [[("first", 300), ("second", 212)]]  # "first" ends: slot 0 is idle
    running.add(request("third", 1000, 2, seed=2))
    assert steps(running, 2) == [[("third", 512)], [("third", 488), ("second", 24)]]
    assert steps(running, 1) == [[("third", 1), ("second", 511)]]


def test_llamacpp_a_request_waits_for_a_slot() -> None:
    running = engine("llamacpp", seqs=1)
    running.add(request("a", 10, 3))
    running.add(request("b", 10, 3, seed=1))
    assert steps(running, 4) == [[("a", 10)], [("a", 1)], [("a", 1)], [("b", 10)]]


def test_llamacpp_continues_in_the_slot_that_holds_its_beginning() -> None:
    """Token by token, answer included; what another slot held is not shared."""
    running = engine("llamacpp", seqs=2)
    text = prompt(900, 7)

    def cached(name: str, tokens: array[int]) -> int:
        one = Request(name, tokens=tokens, max_tokens=4)
        running.add(one)
        while one.finish_reason is None:
            running.step()
        assert one.cached_tokens is not None
        return one.cached_tokens

    assert cached("a", text[:500]) == 0
    assert cached("other", prompt(300, 8)) == 0  # in the idle slot that was never used
    assert cached("a2", text) == 500
    assert cached("again", text) == 899  # the last token is computed for its logits
    assert cached("b", text[:443] + prompt(20, 9)) == 443
    # Less than a tenth in common: the slot that was used longest ago, with what it happens to hold.
    assert cached("c", text[:40] + prompt(900, 10)) == 0
    assert cached("a3", text) == 443


def test_llamacpp_a_model_with_states_goes_back_to_a_checkpoint() -> None:
    """Made 516 and 4 tokens before the end of a prompt; chunks stop there."""
    plain = building.engine(groups=3, block=16, budget=2048, blocks=4000)
    running = Engine(replace(plain.settings, family="llamacpp"))
    text = prompt(1600, 3)
    running.add(Request("a", tokens=text[:1500], max_tokens=1))
    assert steps(running, 3) == [[("a", 984)], [("a", 512)], [("a", 4)]]
    longer = Request("b", tokens=text, max_tokens=1)
    running.add(longer)
    running.step()
    assert longer.cached_tokens == 1500  # it begins with all that the slot holds
    while longer.finish_reason is None:
        running.step()
    other = Request("c", tokens=text[:1550] + prompt(100, 4), max_tokens=1)
    running.add(other)
    running.step()
    assert other.cached_tokens == 1496  # b's checkpoints are at 1084 and 1596, a's at 984 and 1496


@pytest.mark.parametrize("family", ["sglang", "llamacpp"])
def test_leaping_is_stepping_and_everybody_is_served(family: str) -> None:
    for seed in range(40):
        r = random.Random(seed)
        plan = [(r.uniform(0, 3), r.randrange(1, 1500), r.randrange(1, 120), r.randrange(3)) for _ in range(8)]
        interval = {"prefill_decode_interval": r.choice([0, 3])} if family == "sglang" else {}

        def outputs(leap: bool, plan: list = plan, interval: dict = interval) -> list:
            people = [
                (at, Request(f"r{i}", tokens=prompt(n, text), max_tokens=answer)) for i, (at, n, answer, text) in enumerate(plan)
            ]
            running = engine(family, **interval, blocks=1100, seqs=4)
            return [(round(at, 8), o.request.id, o.first, o.finish_reason) for at, o in play(running, people, leap=leap)]

        single, leapt = outputs(False), outputs(True)
        assert [one[1:] for one in leapt] == [one[1:] for one in single]
        assert [one[0] for one in leapt] == pytest.approx([one[0] for one in single], abs=2e-8)
        assert sum(1 for one in single if one[3]) == len(plan)
