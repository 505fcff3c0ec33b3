"""What becomes of the same request again, and whose place it has.

Invariants
----------
1. A place is inherited once, by the next request with the same key, and only within REMEMBERED_S of its loss.
2. What is remembered is bounded by REMEMBERED.
"""

from __future__ import annotations

import enum

REMEMBERED_S = 60.0
"""Seconds for which the place of a request that left is kept: SDKs wait up to 8 s between tries, proxies longer."""
REMEMBERED = 4096
"""Most places kept."""


class Mode(enum.StrEnum):
    """In every mode but `off` the same request again inherits the place of one that has left without an answer."""

    MARKED = "marked"  # one that says that it is a resend replaces the first
    REPLACE = "replace"  # every one replaces the first
    JOIN = "join"  # every one waits for the first's answer, if that has not begun
    OFF = "off"  # it is a request like any other


class Places:
    """Arrival times of requests that have left, by key."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def leave(self, now: float, key: int, arrived: float) -> None:
        self._left.pop(key, None)
        self._left[key] = arrived, now
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]

    def inherit(self, now: float, key: int) -> float | None:
        """When the request whose place this one has arrived, or None."""
        arrived, left = self._left.pop(key, (None, 0.0))
        return arrived if now - left <= REMEMBERED_S else None

    def __len__(self) -> int:
        return len(self._left)
