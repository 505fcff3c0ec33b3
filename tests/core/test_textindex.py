"""The text index: what it says of a prompt follows what the engine said of earlier ones, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.textindex import COARSE, FINE, Guess, PromptText, Rule, TextIndex

BYTES = 4
"""Bytes of a token in these tests."""
BLOCK = 64


def text(tokens: int, name: str = "a") -> bytes:
    unit = f"{name} sails. ".encode()
    return (unit * (tokens * BYTES // len(unit) + 1))[: tokens * BYTES]


class Cache:
    """An engine: full attention, or a hybrid model that keeps a state at a prompt's last whole block only."""

    def __init__(self, hybrid: bool, tokens: int = 10**9) -> None:
        self.hybrid, self.room = hybrid, tokens
        self.prompts: list[bytes] = []

    def send(self, prompt: bytes) -> int:
        """Cached tokens of it. The oldest prompts are forgotten whole."""
        best, used = 0, None
        for earlier in self.prompts:
            pairs = enumerate(zip(earlier, prompt, strict=False))
            same = next((n for n, (x, y) in pairs if x != y), min(len(earlier), len(prompt)))
            end = (len(earlier) // BYTES - 1) // BLOCK * BLOCK if self.hybrid else same // BYTES // BLOCK * BLOCK
            end = min(end, (len(prompt) // BYTES - 1) // BLOCK * BLOCK)
            if end > best and end * BYTES <= same:
                best, used = end, earlier
        if used is not None:
            self.prompts.remove(used)
            self.prompts.append(used)
        self.prompts.append(prompt)
        while sum(len(p) for p in self.prompts) / BYTES > self.room and len(self.prompts) > 1:
            self.prompts.pop(0)
        return best


def send(index: TextIndex, cache: Cache, data: bytes, seed: bytes = b"m") -> tuple[Guess, int]:
    prompt = PromptText(seed, data)
    guess = index.look(prompt, BYTES)
    cached = cache.send(seed + data)
    index.answered(prompt, guess, len(data) // BYTES, cached)
    return guess, cached


def fresh(block: int = BLOCK) -> TextIndex:
    index = TextIndex()
    index.block = block
    return index


@pytest.mark.parametrize("hybrid", [False, True])
def test_growing_conversation_is_predicted_after_one_turn_taught_the_rule(hybrid: bool) -> None:
    index, cache = fresh(), Cache(hybrid)
    errors = []
    for turn in range(6):
        guess, cached = send(index, cache, text(2000 + 300 * turn))
        errors.append(abs(guess.cached - cached))
    assert errors[1] > 1500  # nothing had been confirmed: it is not assumed that what went through is cached
    assert max(errors[2:]) <= FINE // BYTES + BLOCK


def test_rule_of_a_hybrid_is_told_from_one_of_full_attention_by_prompts_that_part_early() -> None:
    for hybrid in (True, False):
        index, cache = fresh(), Cache(hybrid)
        send(index, cache, text(4000) + text(1000, "x"))
        for n in range(4):
            send(index, cache, text(4000) + text(1000, f"y{n}"))
        assert (index.rule is Rule.WHOLE) == (not hybrid)


def test_tokens_are_known_up_to_where_a_prompt_differs() -> None:
    """Another density than the learned ratio says: 2 bytes a token at first."""
    index = fresh()
    first = PromptText(b"m", text(4096))
    index.answered(first, index.look(first, BYTES), 8192, 0)
    guess = index.look(PromptText(b"m", text(4096) + text(512, "b")), BYTES)
    assert abs(guess.tokens - (8192 + 512)) < 0.02 * 8192


def test_seed_never_mixes() -> None:
    index, cache = fresh(), Cache(False)
    for _ in range(3):
        send(index, cache, text(3000))
    assert index.look(PromptText(b"m", text(3000)), BYTES).cached > 2900
    assert index.look(PromptText(b"salted", text(3000)), BYTES).cached == 0


def test_what_no_longer_fits_is_not_believed() -> None:
    index, cache = fresh(), Cache(False, 10_000)
    index.resize(10_000)
    for _ in range(3):
        send(index, cache, text(3000))
    for n in range(4):
        send(index, cache, text(3000, f"other{n}"))
    guess, cached = send(index, cache, text(3000))
    assert cached == 0 and guess.cached < 200


def test_capacity_that_was_said_too_large_is_learned() -> None:
    """One prompt comes often and is found, others come seldom and are not."""
    index, cache = fresh(), Cache(False, 8_000)
    index.resize(1_000_000)
    for _ in range(10):
        wrong = 0
        for n in range(5):
            for name in ("often", f"seldom{n}"):
                guess, cached = send(index, cache, text(3000, name))
                wrong += abs(guess.cached - cached) > 512
    assert wrong <= 1 and 6_000 <= index.capacity < 100_000


def test_capacity_that_was_said_too_small_is_learned() -> None:
    index, cache = fresh(), Cache(False)
    index.resize(7_000)
    for _ in range(4):
        wrong = sum(abs(g.cached - c) > 512 for g, c in (send(index, cache, text(3000, f"name{n}")) for n in range(4)))
    assert wrong == 0 and index.capacity >= 11_000


def test_restart_forgets() -> None:
    index, cache = fresh(), Cache(False)
    for _ in range(3):
        send(index, cache, text(3000))
    index.clear()
    assert len(index) == 0 and index.look(PromptText(b"m", text(3000)), BYTES).cached == 0 and index.rule is Rule.CONFIRMED


def test_engine_that_does_not_report_is_believed_for_pieces_only() -> None:
    index = fresh()
    prompt = PromptText(b"m", text(4000))
    for _ in range(3):
        index.answered(prompt, index.look(prompt, BYTES), 4000, None)
    assert index.look(prompt, BYTES).cached == 0 and index.look(prompt, BYTES).matched > 3900
    index.confirm(prompt, 4000, 3968)
    assert index.look(prompt, BYTES).cached == 3968
    index.deny(prompt)
    assert index.look(prompt, BYTES).cached == 0


parts = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3000)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(parts, min_size=1, max_size=25), st.booleans(), st.integers(500, 40_000))
def test_whatever_comes_the_books_add_up(prompts: Sequence[Sequence[tuple[str, int]]], hybrid: bool, room: int) -> None:
    index, cache = fresh(), Cache(hybrid, room)
    index.resize(room)
    for prompt in prompts:
        data = b"".join(text(tokens, name) for name, tokens in prompt)
        guess, _ = send(index, cache, data)
        assert 0 <= guess.cached <= guess.tokens and guess.matched <= guess.tokens
        held = sum(mark.width for mark in index._held.values())
        assert abs(held - index._held_tokens) < 1.0 and index._held_tokens <= max(index.capacity, COARSE)
        assert abs(sum(mark.width for mark in index._gone.values()) - index._gone_tokens) < 1.0
        assert not index._held.keys() & index._gone.keys()
