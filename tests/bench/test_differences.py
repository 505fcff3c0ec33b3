"""When a difference is called: not for noise, not within what the same configuration differs by from itself."""

from __future__ import annotations

import random

import pytest

from headway.bench.differences import Difference, difference, floor, interval_of, paired_interval


def numbered(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


A = numbered([1.00, 1.02, 0.99, 1.01, 1.00])
AGAIN = numbered([1.03, 0.98, 1.01, 0.99, 1.02])
HIGHER = numbered([1.50, 1.52, 1.49, 1.51, 1.50])


def called(a: dict[int, float], b: dict[int, float], noise: float | None) -> str:
    found = difference("x", a, b, noise)
    assert found is not None
    return found.called


def test_only_what_is_larger_than_the_noise_of_the_same_thing_twice_is_called() -> None:
    noise = floor(A, AGAIN)
    assert noise is not None and 0.01 < noise < 0.1
    slightly = numbered([value + 0.02 for value in A.values()])
    assert called(A, HIGHER, noise) == "higher" and called(HIGHER, A, noise) == "lower"
    assert called(A, slightly, noise) == "within the A/A noise"
    assert called(A, slightly, 0.001) == "higher"
    assert called(A, AGAIN, noise) == "no difference seen"
    assert called(A, HIGHER, None) == "no A/A floor"
    assert called(A, numbered([1.5, 1.5]), noise) == "too few runs"
    assert difference("x", A, {}, noise) is None


def test_what_drifts_for_both_is_not_noise() -> None:
    drift = [0.0, 1.0, 2.0, 3.0, 4.0]
    a, b = numbered([10 + d for d in drift]), numbered([10.5 + d for d in drift])
    low, high = paired_interval(a, b) or (0, 0)
    assert 0.49 < low <= high < 0.51
    apart = {rep + 100: value for rep, value in b.items()}  # other repetitions: the drift cannot be told from noise
    low, high = paired_interval(a, apart) or (0, 0)
    assert low < 0 < high


@pytest.mark.parametrize(("reps", "with_floor", "without"), [(3, 0.10, 0.15), (5, 0.03, 0.02)])
def test_the_same_thing_is_seldom_called_different(reps: int, with_floor: float, without: float) -> None:
    """Three sets of the same normal noise: the floor keeps false calls rare where the interval alone does not."""
    rng, calls, apart, sets = random.Random(5), 0, 0, 200
    for _ in range(sets):
        a, again, other = (numbered([rng.gauss(1, 0.1) for _ in range(reps)]) for _ in range(3))
        calls += called(a, other, floor(a, again)) in ("higher", "lower")
        apart += called(a, other, 0.0) in ("higher", "lower")
    assert calls <= with_floor * sets and apart >= without * sets


def test_no_interval_under_three() -> None:
    assert interval_of([1.0, 2.0]) is None and floor(numbered([1, 2]), numbered([1, 2])) is None
    assert interval_of([1.0, 2.0, 3.0]) == (1.0, 3.0)


def test_a_difference_between_files_needs_no_floor() -> None:
    assert Difference("x", 1, 2, 0.5, 1.5).called == "higher"
    assert Difference("x", 1, 2, 0.5, 1.5, floor=1.2).called == "within the A/A noise"
