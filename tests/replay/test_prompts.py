"""Prompts named by a trace's blocks become keys of engine blocks of any size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.replay.prompts import Prompts
from headway.traces import Call


def call(blocks: tuple[int, ...], tokens: int, size: int, thread: str = "a") -> Call:
    return Call(0.0, tokens, 1, "s", thread, size, blocks)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(0, 50),
    st.booleans(),
)
def test_an_engine_block_is_shared_where_all_that_reaches_into_it_is(
    block: int, size: int, first: list[int], second: list[int], tail: int, one_thread: bool
) -> None:
    prompts = Prompts(block)
    a = prompts.keys(call(tuple(first), len(first) * size + tail, size), 0)
    b = prompts.keys(call(tuple(second), len(second) * size + tail, size, "a" if one_thread else "b"), 1)
    assert len(a) == (len(first) * size + tail) // block
    shared = common(first, second) * size
    assert common(a, b) == min(shared // block, len(a), len(b))
    assert len(set(a)) == len(a)


def test_class_of_a_call_is_what_no_earlier_call_had() -> None:
    prompts = Prompts(64, (100, 1000))
    calls = [call(tuple(range(20)), 1290, 64), call(tuple(range(21)), 1354, 64), call((), 90, 0), call((), 500, 0)]
    assert [arrival.label for arrival in prompts.arrivals(calls)] == ["over 1,000", "up to 100", "up to 100", "up to 1,000"]
