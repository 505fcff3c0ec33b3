"""No option is offered that the version refuses, does not know, or lets do nothing; the bounds that no option moves are said."""

from __future__ import annotations

import pytest

from headway.advisor.deployment import Deployment
from headway.advisor.lint import check
from headway.advisor.plan.options import ROOM, Option, options, refusal
from headway.advisor.plan.plan import plan, price
from headway.advisor.plan.rig import Rig, chunk_of, named
from headway.advisor.versions import parse_version
from headway.core.targets import Targets
from headway.simulator.engine import Engine

VERSIONS = ("0.19.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.30.0", "0.32.0", "0.33.0")


def rig(version: str, budget: int = 8192, name: str = "h200-qwen3.6-27b") -> Rig:
    return named(name, version, budget)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("budget", [2048, 8192, 16_384])
@pytest.mark.parametrize("gap", [0.02, 0.15, 0.25, 1.0])
def test_what_is_offered_starts_and_does_something(version: str, budget: int, gap: float) -> None:
    mine = rig(version, budget)
    good, _ = options(mine, Targets(gap=gap))
    assert any(option.policy == "pace" for option in good)
    for option in good:
        Engine(mine.with_engine(**option.engine).engine)
        told = {"mamba_cache_mode": "align", "enable_prefix_caching": True, "block_size": 1568, "max_num_batched_tokens": budget}
        one = Deployment("test", "vllm", told | option.engine, version=parse_version(version))
        assert not [f for f in check(one) if f.level != "note" and f.option in option.engine], option


@pytest.mark.parametrize("version", VERSIONS)
def test_an_interval_is_offered_where_it_works(version: str) -> None:
    good, bad = options(rig(version), Targets())
    works = version == "0.33.0"
    assert any("prefill_schedule_interval" in option.engine for option in good) is works
    refused = [one for one in bad if "prefill_schedule_interval" in one.option.engine]
    assert bool(refused) is not works
    assert all("interval" in one.why for one in refused)


def test_the_trap_of_a_budget_of_one_block_is_not_set() -> None:
    assert refusal(rig("0.25.1"), Option("trap", {"max_num_batched_tokens": 1568})) is not None
    good, _ = options(rig("0.25.1"), Targets(gap=0.15))
    budgets = [option.engine["max_num_batched_tokens"] for option in good if "max_num_batched_tokens" in option.engine]
    assert budgets and all(budget % 1568 >= ROOM for budget in budgets)
    assert chunk_of(rig("0.25.1", 1568 + ROOM).engine) == 1568


def test_a_threshold_below_the_block_is_refused_where_it_is() -> None:
    option = Option("small", {"long_prefill_token_threshold": 1024})
    assert refusal(rig("0.25.1"), option) is not None
    assert refusal(rig("0.27.1"), option) is None


def test_a_dense_model_gets_budgets_of_any_size() -> None:
    mine = named("demo", "0.32.0", None)
    good, _ = options(mine, Targets(gap=0.1))
    assert any(256 <= option.engine.get("max_num_batched_tokens", 0) < 2048 for option in good)


# -- bounds -------------------------------------------------------------------------------------------


def verdict(targets: Targets, load: float | None = None, name: str = "demo") -> tuple[str, tuple[str, ...]]:
    found = plan(named(name, None, None), targets, 14_000, load)
    return found.verdict, found.reasons


def test_a_target_that_can_be_kept() -> None:
    found = plan(named("demo", None, None), Targets(gap=0.1), 14_000)
    assert found.verdict == "kept"
    assert found.options[0].option.policy == "pace" and not found.options[0].misses
    assert all(one.misses for one in found.options if one.option.policy is None)


@pytest.mark.parametrize(
    ("targets", "word"),
    [
        (Targets(share=0.99, gap=0.1), "waits for the answers to end"),
        (Targets(share=0.9, gap=0.1, wait=1.0, stretch=2.0), "at the least"),
        (Targets(share=0.5, gap=0.012), "any step with prefill"),
    ],
)
def test_beyond_the_frontier(targets: Targets, word: str) -> None:
    found, reasons = verdict(targets)
    assert found == "beyond-frontier" and any(word in reason for reason in reasons)


def test_a_gap_below_one_block_is_said() -> None:
    _, reasons = verdict(Targets(gap=0.1), name="h200-qwen3.6-27b")
    assert any("one block (1568 tokens)" in reason for reason in reasons)


def test_saturation_makes_every_schedule_useless() -> None:
    found, reasons = verdict(Targets(gap=0.1), load=1.2)
    assert found == "saturated" and "seconds of long prefill" in reasons[0]


def test_a_load_beside_which_the_share_cannot_hold() -> None:
    found, reasons = verdict(Targets(share=0.75, gap=0.1), load=0.4)
    assert found == "beyond-frontier" and any("share yields" in reason for reason in reasons)


def test_a_load_beside_which_it_can() -> None:
    assert verdict(Targets(share=0.5, gap=0.1), load=0.1)[0] == "kept"


def test_hold_is_bounded_by_the_wait() -> None:
    found = plan(named("demo", None, None), Targets(gap=0.1, wait=5.0), 14_000)
    held = next(one for one in found.options if one.option.policy == "hold")
    assert held.waited == pytest.approx(5.0, abs=0.1)
    assert held.ttft is not None and held.ttft > 5.0
    assert held.excess is None


def test_room_for_e_keeps_the_gap_of_the_first_pieces() -> None:
    mine, targets = named("2x3090-as-reported", None, None), Targets(share=0.75, gap=1.5)
    found = plan(mine, targets, 28_623)
    assert found.verdict == "kept"
    plain, roomy = (
        next(one for one in found.options if one.option.name == name)
        for name in ("paced by the gateway", "paced, with room for e")
    )
    assert roomy.gap <= 1.5 < plain.gap


def test_an_engine_that_shuts_long_prompts_out_is_given_up_on() -> None:
    """A budget of one block beside one answer leaves no whole block: nothing is prefilled until the answer ends."""
    mine = rig("0.25.1", 1568)
    found = price(mine, Option("present"), Targets(stretch=5.0), 28_623, 3.0)
    assert found.ttft is None and found.misses == ("the long prompt is shut out",)
    assert found.share == pytest.approx(1.0, abs=0.02)


def test_a_way_out_of_the_trap_is_offered() -> None:
    good, _ = options(rig("0.25.1", 1568), Targets())
    ways = [option for option in good if option.engine.get("max_num_batched_tokens", 0) > 1568]
    assert {option.policy for option in ways} == {None, "pace"}
