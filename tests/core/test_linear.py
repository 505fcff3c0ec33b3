"""Small linear systems."""

from __future__ import annotations

import pytest

from headway.core.linear import solve


def test_a_system_of_very_different_sizes_is_solved() -> None:
    assert solve([[1e9, 2.0], [3e9, 1e-3]], [1e9 + 4.0, 3e9 + 2e-3]) == pytest.approx([1.0, 2.0])


def test_a_pivot_of_zero_is_exchanged() -> None:
    assert solve([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 4.0]], [5.0, 3.0, 4.0]) == pytest.approx([3.0, 2.0, 1.0])


def test_a_singular_one_has_no_answer() -> None:
    assert solve([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0]) is None
