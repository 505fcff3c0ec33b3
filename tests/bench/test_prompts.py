"""Prompts of a wanted size that no cache has seen."""

from __future__ import annotations

import asyncio
import random

import pytest

from headway.bench import prompts
from headway.bench.client import Target, session
from headway.errors import ServerError
from tests.bench.stub import Stub, count, serve


def scale_of(stub: Stub) -> prompts.Scale:
    async def run() -> prompts.Scale:
        async with serve(stub), session() as http:
            return await prompts.calibrate(http, Target(stub.url, "m"), random.Random(1))

    return asyncio.run(run())


@pytest.mark.parametrize("tokenizes", [True, False])
def test_sizes_are_calibrated_with_and_without_a_tokenizer(tokenizes: bool) -> None:
    scale = scale_of(Stub(plan=lambda body: [0.0, 0.01], tokenizes=tokenizes))
    assert scale.source == ("tokenize" if tokenizes else "usage")
    for tokens in (38, 14000):
        request = prompts.chat(tokens, 8, scale, random.Random(2))
        assert abs(count(request.body) - tokens) <= 1


def test_a_server_that_counts_nothing_is_an_error() -> None:
    with pytest.raises(ServerError, match="reports no usage"):
        scale_of(Stub(plan=lambda body: [0.0, 0.01], tokenizes=False, usage=False))


def test_no_two_prompts_begin_alike() -> None:
    rng = random.Random(3)
    starts = {prompts.words(5, rng)[:16] for _ in range(500)}
    assert len(starts) == 500


def test_an_agents_conversation_has_its_size_and_its_tools() -> None:
    scale = prompts.Scale(1.0, 5.0, "tokenize")
    request = prompts.agent(14000, 16, scale, random.Random(4))
    body = request.body
    assert len(body["messages"]) == 20
    assert body["tool_choice"] == "auto" and body["reasoning_effort"] == "low" and len(body["tools"]) == 3
    assert 0.9 < count(body) / 14000 < 1.02
    calls = {c["id"] for m in body["messages"] if m.get("tool_calls") for c in m["tool_calls"]}
    assert calls == {m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"}


def test_a_turn_keeps_the_history() -> None:
    scale, rng = prompts.Scale(1.0, 5.0, "tokenize"), random.Random(5)
    first = prompts.chat(1000, 8, scale, rng)
    second = prompts.turn(first, "an answer", 500, 8, scale, rng)
    assert second.body["messages"][:1] == first.body["messages"]
    assert second.body["messages"][1]["content"] == "an answer"
    assert count(second.body) - count(first.body) == pytest.approx(500, abs=15)
