"""The window's arithmetic, on streams that were never sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.client import Event, Stream
from headway.bench.window import NoOverlap, burst_share, gaps, quantile, rate, stall_threshold, view, window


def made(submitted: float, times: list[float]) -> Stream:
    return Stream(submitted=submitted, events=[Event(at, 1.0) for at in times], ended=times[-1] if times else 0.0)


def every(start: float, step: float, count: int) -> list[float]:
    return [start + step * i for i in range(count)]


def test_the_window_runs_from_submission_to_first_token() -> None:
    seen = window(made(0, every(0.1, 0.1, 100)), made(2.0, [5.0, 5.1]))
    assert (seen.start, seen.end, seen.victim_outlived) == (2.0, 5.0, True)


def test_the_victims_end_cuts_the_window() -> None:
    seen = window(made(0, every(0.1, 0.1, 30)), made(2.0, [5.0]))
    assert (seen.start, seen.end, seen.victim_outlived) == (2.0, pytest.approx(3.0), False)


def test_an_intruder_that_came_first_is_beside_the_victim_from_the_victims_submission() -> None:
    assert window(made(1.03, [2.0, 2.1, 4.0]), made(1.0, [3.0])).start == 1.03


@pytest.mark.parametrize(
    ("victim", "intruder", "words"),
    [
        (made(0, [0.1, 0.5]), made(2.0, [3.0]), "the victim ended 1.500 s before the intruder was submitted"),
        (made(4.0, [4.1, 4.5]), made(0.0, [3.0]), "first token came 1.000 s before the victim was submitted"),
        (made(0, []), made(0, [1.0]), "the victim gave no token"),
        (made(0, [1.0]), made(0, []), "the intruder gave no token"),
    ],
)
def test_no_overlap_is_refused(victim: Stream, intruder: Stream, words: str) -> None:
    with pytest.raises(NoOverlap, match=words):
        window(victim, intruder)


def test_figures_of_a_stalled_window() -> None:
    # 10 tokens/s alone; beside the intruder one token at 2.0, then 3 s of nothing, then on again
    times = [*every(0.1, 0.1, 20), 5.0, *every(5.1, 0.1, 5)]
    victim, intruder = made(0, times), made(2.0, [4.5])
    seen = view(victim, window(victim, intruder), solo_gap_median=0.1)
    assert seen.window_s == 2.5
    assert seen.tokens == 0
    assert seen.longest_gap_s == pytest.approx(3.0)  # whole, though the window closes inside it
    assert seen.stalled_s == pytest.approx(2.5)  # clipped to the window
    assert seen.share(10.0) == 0.0


def test_only_gaps_that_touch_the_window_are_tagged() -> None:
    victim, intruder = made(0, [0.5, 1.0, 2.0, 3.0, 4.0]), made(1.5, [2.5])
    tags = [gap.in_window for gap in gaps(victim.events, window(victim, intruder))]
    assert tags == [False, True, True, False]


def test_a_stall_is_three_solo_gaps_and_never_under_a_tenth() -> None:
    assert stall_threshold(0.01) == 0.1
    assert stall_threshold(0.05) == pytest.approx(0.15)


def test_the_rate_starts_at_the_first_token() -> None:
    assert rate([Event(5.0, 1), Event(5.5, 1), Event(6.0, 3)]) == pytest.approx(4.0)
    assert rate([Event(5.0, 1)]) is None


def test_a_burst_is_seen() -> None:
    burst = [Event(1.0 + 1e-5 * i, 1) for i in range(60)] + [Event(2.0 + 0.1 * i, 1) for i in range(40)]
    assert burst_share(burst) == pytest.approx(0.6)
    assert burst_share([Event(0.01 * i, 1) for i in range(50)]) == pytest.approx(0.02)


@given(st.lists(st.floats(0.0005, 3.0), min_size=2, max_size=60), st.floats(0.0, 20.0), st.floats(0.01, 20.0))
def test_the_window_loses_no_token(steps: list[float], start: float, length: float) -> None:
    times = [sum(steps[: i + 1]) for i in range(len(steps))]
    victim, intruder = made(0, times), made(start, [start + length])
    try:
        seen = window(victim, intruder)
    except NoOverlap:
        assert times[-1] <= start
        return
    figures = view(victim, seen, 0.01)
    assert figures.tokens == sum(seen.start < at <= seen.end for at in times)
    assert figures.longest_gap_s == max((gap.seconds for gap in gaps(victim.events, seen) if gap.in_window), default=0)
    assert 0 <= figures.stalled_s <= figures.window_s + 1e-9


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40))
def test_quantiles_stand_in_order(values: list[float]) -> None:
    low, middle, high = (quantile(values, q) for q in (0.0, 0.5, 1.0))
    assert low == min(values) and high == max(values)
    assert low is not None and middle is not None and high is not None
    assert low <= middle <= high
