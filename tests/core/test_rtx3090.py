"""Must: on two RTX 3090 (1,446 to 1,118 prefill tokens a second, block 1,568, so gaps of about 1.2 s), at share 0.5, newcomers
have their first token in time, also while a prompt of 100,000 tokens is under way. Virtual time.
"""

from __future__ import annotations

import functools

import pytest

from headway.simulator.replay import Arrival, prompt
from tests.core.test_closed_loop import alone, rate, replay, solo_rate, victim

RIG = "2x3090-qwen3.6-27b"


@functools.cache
def solo(tokens: int) -> float:
    return alone(RIG, tokens)


def beside(tokens: int, long_ago: float | None = None, client: str = "") -> tuple[float, float]:
    """(TTFT of a newcomer of `tokens` tokens beside a live answer, share that the answer kept until then). `long_ago`: seconds
    before it at which a prompt of 100,000 tokens came."""
    at = 5.0 + (long_ago or 0.0)
    long = [Arrival(5.0, "long", prompt(8, 100_000), 4)] if long_ago is not None else []
    length = 9000
    arrivals = [victim("v", 0, length), *long, Arrival(at, "n", prompt(9, tokens), 4, client=client)]
    stories = replay(RIG, "auto", 0.5, arrivals, wait=30.0)
    ttft = stories["n"].ttft
    assert ttft is not None
    return ttft, rate(stories["v"].outputs, at, at + ttft) / solo_rate(RIG)


def test_a_newcomer_of_2000_tokens() -> None:
    ttft, _ = beside(2000)
    assert ttft <= 5.5, ttft


@pytest.mark.parametrize("long_ago", [2.0, 20.0, 60.0])
def test_a_newcomer_of_2000_tokens_while_a_long_prompt_is_under_way(long_ago: float) -> None:
    ttft, _ = beside(2000, long_ago)
    assert ttft <= 5.5, ttft


def test_a_newcomer_of_30000_tokens() -> None:
    ttft, kept = beside(30_000)
    assert ttft <= 1.15 * solo(30_000) / 0.5, ttft / solo(30_000)
    assert 0.48 <= kept <= 0.58


@pytest.mark.parametrize("client", ["", "another"])
@pytest.mark.parametrize("long_ago", [2.0, 20.0, 60.0])
def test_a_newcomer_of_30000_tokens_while_a_long_prompt_is_under_way(long_ago: float, client: str) -> None:
    ttft, kept = beside(30_000, long_ago, client)
    assert ttft <= 1.15 * solo(30_000) / 0.5, ttft / solo(30_000)
    assert kept >= 0.46


def test_the_long_prompt_is_not_forgotten() -> None:
    """Newcomers of 30,000 tokens all the time: it still ends, after no more than as much work of others as its own."""
    crowd = [Arrival(7.0 + 45.0 * n, f"n{n}", prompt(20 + n, 30_000), 2) for n in range(12)]
    arrivals = [victim("v", 0, 40_000), Arrival(5.0, "long", prompt(8, 100_000), 4), *crowd]
    stories = replay(RIG, "auto", 0.5, arrivals, wait=1000.0, stretch=1000.0)
    ttft = stories["long"].ttft
    assert ttft is not None
    assert ttft <= 1.2 * (solo(100_000) + 4 * solo(30_000)) / 0.5
