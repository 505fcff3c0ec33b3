"""The probe against engines that keep this or that: does it find the block, and does it ask little?"""

from __future__ import annotations

import pytest

from headway.engines.vllm.probe import Answer, Found, Question, fresh, probe


class Cache:
    """Token prefixes that an engine keeps: every whole block (dense), or the last one before the last token (sparse)."""

    def __init__(self, block: int, dense: bool, reports: bool = True, on: bool = True, lost: int = 0) -> None:
        """`lost`: blocks at the end of a match that are dropped, as with a drafter up to vLLM 0.32."""
        self.lost = lost
        self.block, self.dense, self.reports, self.on = block, dense, reports, on
        self.kept: set[tuple[int, ...]] = set()
        self.asked = 0

    def answer(self, question: Question) -> Answer:
        ids = question.ids
        last = len(ids) // self.block - 1 if self.lost else (len(ids) - 1) // self.block
        hit = next((n for n in range(last, 0, -1) if tuple(ids[: n * self.block]) in self.kept), 0) if self.on else 0
        for n in range(1 if self.dense else max(last, 1), last + 1):
            self.kept.add(tuple(ids[: n * self.block]))
        cached = hit * self.block
        self.asked += len(ids) - cached
        return Answer(0.01 + 1e-4 * (len(ids) - cached), cached if self.reports else None)


def run(cache: Cache, hint: int | None, caching: bool | None = None) -> Found:
    asking = probe(7, hint, caching)
    try:
        question = next(asking)
        while True:
            question = asking.send(cache.answer(question))
    except StopIteration as stop:
        assert isinstance(stop.value, Found)
        return stop.value


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("block", [16, 128, 256, 528, 784, 1568])
@pytest.mark.parametrize("right", [True, False])
def test_it_finds_the_block_whether_metrics_know_it_or_not(block: int, dense: bool, right: bool) -> None:
    found = run(Cache(block, dense), block if right else 16)
    assert (found.block, found.caching, found.reports) == (block, True, True)


def test_without_a_hint_too() -> None:
    assert run(Cache(640, dense=False), None).block == 640


def test_an_engine_that_does_not_report_hits_is_not_guessed_about() -> None:
    found = run(Cache(256, dense=True, reports=False), 16)
    assert (found.block, found.caching, found.reports) == (None, None, False)


def test_an_engine_that_says_it_has_no_cache_is_only_timed() -> None:
    cache = Cache(16, dense=True, on=False)
    found = run(cache, 16, caching=False)
    assert found.block is None and found.caching is False
    assert len(found.timed) >= 4 and cache.asked < 6000


def test_no_hit_at_any_length_means_no_cache() -> None:
    assert run(Cache(16, dense=True, on=False), 16).caching is False


def test_fresh_prompts_share_no_prefix() -> None:
    assert len({tuple(fresh(seed, 8)) for seed in range(500)}) == 500
    assert all(0 <= id < 1124 for id in fresh(3, 500))


@pytest.mark.parametrize("block", [16, 256, 784, 1568])
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_block_that_a_drafter_loses_is_found(block: int, dense: bool, lost: int) -> None:
    found = run(Cache(block, dense, lost=lost), block)
    assert (found.block, found.caching, found.lost) == (block, True, lost)


def test_hits_finer_than_a_block_are_found() -> None:
    """vLLM's --prefix-match-unit: /metrics names it, and the probe confirms it."""
    assert run(Cache(32, dense=False), 32).block == 32
