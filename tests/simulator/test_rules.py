"""The version table."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.simulator.rules import TABLE, rules_for


@pytest.mark.parametrize(
    ("version", "row"),
    [
        ("0.19.1", (0, 19)), ("0.23", (0, 19)), ("0.25.1", (0, 19)), ("0.26.0", (0, 19)),
        ("0.27.1", (0, 27)), ("v0.28.0", (0, 27)), ("0.29.0", (0, 27)), ("0.30.0", (0, 30)),
        ("0.31.2", (0, 30)), ("0.32.0", (0, 32)), ("0.32.0+cpu", (0, 32)), ("0.33.0.dev3", (0, 33)),
        ("0.40.0", (0, 33)), ("1.0.0", (0, 33)),
    ],
)  # fmt: skip
def test_a_version_gets_the_last_row_that_is_not_newer(version: str, row: tuple[int, int]) -> None:
    assert rules_for(version).since == row


def test_every_row_changes_something_and_rows_are_in_order() -> None:
    from dataclasses import replace

    for older, newer in pairwise(TABLE):
        assert older.since < newer.since
        assert replace(newer, since=older.since) != older


@pytest.mark.parametrize("text", ["", "latest", "0", "0.18.0", "0.x"])
def test_text_that_is_no_known_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"version|older"):
        rules_for(text)


def test_no_rule_is_ever_taken_back() -> None:
    # a table of what changed: each rule flips at most once
    for name in TABLE[0].__dataclass_fields__:
        if name != "since":
            values = [getattr(row, name) for row in TABLE]
            assert sum(a != b for a, b in pairwise(values)) == 1, name
