"""Profiles give back what they were derived from. Figures and tolerances: the comments in profiles.py."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from headway.simulator.engine import Engine
from headway.simulator.profiles import PROFILES, configure, profile_named
from headway.simulator.request import Request
from headway.simulator.virtual import play


@dataclass
class Overlap:
    solo: float  # victim alone, tokens/s
    alone: float  # the intruder alone, seconds to its first token
    ttft: float  # the same beside the victim
    gap: float  # the victim's longest, seconds
    share: float  # of the solo rate in the window


def overlap(name: str, intruder: int, victim: int = 512, **options: object) -> Overlap:
    """A victim decodes; after its 16th token a prompt of `intruder` uncached tokens arrives as text."""
    profile = configure(PROFILES[name], **options)  # type: ignore[arg-type]
    cost = profile.front_end.request_s + profile.front_end.text_token_s * intruder

    def run(*arrivals: tuple[float, str, int, int]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {}
        requests = [(at, Request(name, prompt_tokens=count, max_tokens=answer)) for at, name, count, answer in arrivals]
        for at, output in play(Engine(profile.engine), requests):
            times.setdefault(output.request.id, []).append(at)
        return times

    victim_alone = run((0.0, "v", 38, victim))["v"]
    solo = (len(victim_alone) - 1) / (victim_alone[-1] - victim_alone[0])
    sent = victim_alone[15]
    both = run((0.0, "v", 38, victim), (sent + cost, "i", intruder, 58))
    first = both["i"][0]
    inside = sum(sent < at <= first for at in both["v"])
    return Overlap(
        solo=solo,
        alone=run((cost, "i", intruder, 1))["i"][0],
        ttft=first - sent,
        gap=max(b - a for a, b in pairwise(both["v"])),
        share=inside / (first - sent) / solo,
    )


def within(value: float, measured: float, tolerance: float) -> bool:
    return abs(value - measured) <= tolerance * measured


def test_h200_direct_arms() -> None:
    big = overlap("h200-qwen3.6-27b", 28_623)
    small = overlap("h200-qwen3.6-27b", 28_623, max_num_batched_tokens=2048)
    assert within(big.solo, 66.2, 0.01)
    assert within(big.gap, 0.743, 0.03)
    assert within(small.gap, 0.183, 0.03)
    assert within(big.ttft, 2.85, 0.05)
    assert within(small.ttft, 3.15, 0.05)
    # shares of 0.04 and 0.10 were measured; the front end's time counts as window here too
    assert big.share < 0.08
    assert small.share < 0.14


def test_h200_budget_of_one_block_shuts_the_intruder_out_until_the_victim_ends() -> None:
    trap = overlap("h200-qwen3.6-27b", 28_623, max_num_batched_tokens=1568)
    assert trap.gap < 0.020
    assert trap.ttft > (512 - 16) / 67 + trap.alone - 0.2


def test_h200_prefix_caching_off_does_not_help() -> None:
    off = overlap("h200-qwen3.6-27b", 28_623, prefix_caching=False)
    assert off.gap > 0.75
    assert off.share < 0.08


def test_3090_published_prefill_rates() -> None:
    for tokens, rate in ((10_000, 1446), (90_000, 1118), (237_000, 830)):
        alone = overlap("2x3090-qwen3.6-27b", tokens, victim=40).alone
        assert within(tokens / alone, rate, 0.06), tokens
    assert within(overlap("2x3090-qwen3.6-27b", 28_623, victim=40).solo, 48, 0.02)


def test_3090_as_reported_has_the_reports_steps_and_says_what_contradicts_them() -> None:
    big = overlap("2x3090-as-reported", 28_623)
    small = overlap("2x3090-as-reported", 28_623, max_num_batched_tokens=2048)
    assert 2.5 <= big.gap <= 5.0
    assert within(small.gap, 1.1, 0.03)
    assert within(big.solo, 48, 0.01)
    # the walls of 246 and 107 s cannot come out, and the profile says so
    assert big.ttft < 20
    assert "246 s" in profile_named("2x3090-as-reported").contradiction
    assert not profile_named("2x3090-qwen3.6-27b").contradiction


def test_cpu_tiny() -> None:
    both = overlap("cpu-next-tiny", 14_000, victim=300)
    assert within(both.solo, 104, 0.01)
    assert 1.05 <= both.alone <= 1.15
    assert within(both.ttft, 1.5, 0.06)
    assert within(both.gap, 0.220, 0.12)
    steps = profile_named("cpu-next-tiny").engine.steps
    assert within(steps.step_seconds([(7000, 256)], [100]), 0.044, 0.1)
    assert within(steps.step_seconds([(7000, 768)], [100]), 0.085, 0.1)


def test_demo_starves_visibly_and_is_quick() -> None:
    both = overlap("demo", 12_000, victim=300)
    assert within(both.solo, 100, 0.01)
    assert 0.9 <= both.alone <= 1.2
    assert both.share < 0.2
    assert 0.12 <= both.gap <= 0.2


def test_configure_refuses_what_does_not_exist() -> None:
    with pytest.raises(TypeError, match="no option 'max_batch'"):
        configure(PROFILES["demo"], max_batch=3)
    with pytest.raises(KeyError, match="known: h200"):
        profile_named("b300")
    with pytest.raises(ValueError, match="older"):
        configure(PROFILES["demo"], version="0.9.0")


def test_configure_leaves_the_profile_alone() -> None:
    changed = configure(PROFILES["demo"], max_num_batched_tokens=512, dense=True, mtp=2, version="0.33.0")
    assert changed.engine.scheduler.max_num_batched_tokens == 512
    assert changed.engine.layout.state_groups == 0
    assert changed.engine.layout.draft_tokens == 2
    assert changed.engine.tokens_per_step == 2.0
    assert changed.engine.version == "0.33.0"
    assert PROFILES["demo"].engine.scheduler.max_num_batched_tokens == 2048
    assert PROFILES["demo"].engine.layout.draft_tokens == 0
