"""Traffic that reaches the engine past the gateway.

Nothing is known of such requests but that they are there: they are taken for live answers that must keep the share too. Their
tokens cannot be counted, so there is no debt: after each grant prefill rests for as long as leaves them the share of the time.
Beside protected answers of our own it does not: they decode in the same steps, so what those are owed is owed to all.

Invariants
----------
1. One look at the engine's running count proves nothing, since our own requests come and go between two looks; LOOKS in a row do.
2. While they are there nothing is learned of the engine's speed: a step's time is theirs as well.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOKS = 2
"""Looks in a row at which the engine runs more than was sent."""


@dataclass(slots=True)
class Foreign:
    count: int = 0
    """Requests that did not come through here; 0 until it is certain."""
    rest_until: float = 0.0
    _looks: int = 0

    def seen(self, excess: int) -> None:
        """The engine runs `excess` requests more than were sent to it."""
        self._looks = self._looks + 1 if excess > 0 else 0
        self.count = excess if self._looks >= LOOKS else 0

    def prefilled(self, now: float, seconds: float, share: float) -> None:
        """A prefill took `seconds`."""
        if self.count and 0.0 < share < 1.0:
            self.rest_until = now + seconds * share / (1.0 - share)
