"""One clock for all sessions, cut and scaled; and memory that does not grow with the file."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.traces import Call, Cut, read
from headway.traces.arrange import arrange
from headway.traces.branches import KEPT, Branches

HERE = Path("trace")


def sessions(count: int, calls: int, apart: float) -> Iterator[Call]:
    for s, i in itertools.product(range(count), range(calls)):
        yield Call(i * apart, 100, 5, f"s{s}", "", 1, tuple(range(s * 1000, s * 1000 + 100)))


def test_sessions_start_one_after_the_other_and_their_calls_interleave() -> None:
    out = list(arrange(sessions(3, 4, 25.0), HERE, Cut(every=40.0), own_clocks=True))
    assert [call.arrival for call in out] == sorted(call.arrival for call in out)
    firsts = {name: min(call.arrival for call in out if call.session == name) for name in ("s0", "s1", "s2")}
    assert firsts == {"s0": 0, "s1": 40, "s2": 80}
    assert len(out) == 12


def test_pauses_are_cut() -> None:
    calls = [Call(at, 10, 1, "s") for at in (0.0, 10.0, 4000.0, 4005.0)]
    out = arrange(calls, HERE, Cut(max_idle=60.0), own_clocks=True)
    assert [call.arrival for call in out] == [0, 10, 70, 75]


def test_a_part_of_a_trace_faster() -> None:
    calls = [Call(float(at), at + 1, 1) for at in range(100)]
    out = list(arrange(calls, HERE, Cut(start=10, end=20, speed=2.0, longest=15), own_clocks=False))
    assert [call.arrival for call in out] == [0, 0.5, 1.0, 1.5, 2.0]
    assert len(list(arrange(calls, HERE, Cut(limit=7), own_clocks=False))) == 7


def test_memory_is_that_of_the_sessions_that_overlap() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        for _ in arrange(sessions(count, 50, 1.0), HERE, Cut(every=25.0), own_clocks=True):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(400) < 1.5 * peak(40)


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,10,5\nbroken\n")
    calls = read(file)
    assert [next(calls).arrival, next(calls).arrival] == [0, 1]
    with pytest.raises(Exception, match=r"a\.csv:4"):
        next(calls)


def test_a_branch_that_was_left_is_found_again() -> None:
    branches = Branches(64)
    long = branches.ids("t", 640, 0)
    side = branches.ids("t", 256, 128)
    again = branches.ids("t", 704, 640)
    assert side[:2] == long[:2] and side[2] != long[2]
    assert again[:10] == long
    for _ in range(KEPT):
        branches.ids("t", 64, 0)
    assert not set(branches.ids("t", 640, 640)[1:]) & set(long)  # forgotten: memory is bounded
