"""Whether an upstream is given requests: a circuit breaker with a half-open state.

    UP --two failures in a row, or no connection--> DOWN --backoff over, or a good health check after it--> TRIAL
    TRIAL --a request was answered, or CHECKS good checks in a row--> UP;  TRIAL --a failure--> DOWN, for twice as long

Invariants
----------
1. Only an answer to a request resets the backoff: an engine whose health page is fine and that breaks off every request is
   tried less and less often.
2. A TRIAL upstream has at most one request under way (the caller says how many it has).
"""

from __future__ import annotations

import enum

FAILURES = 2
"""Failures in a row that take an upstream out; one is enough where no connection could be made."""
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
CHECKS = 3


class Standing(enum.StrEnum):
    UP = "up"
    TRIAL = "trial"
    DOWN = "down"


class Health:
    def __init__(self) -> None:
        self.standing = Standing.UP
        self.failures = 0
        """In a row."""
        self.retry_at = 0.0
        self._backoff = FIRST_BACKOFF_S
        self._checks = 0

    def answered(self) -> None:
        """A request was answered, with whatever status."""
        self.standing, self.failures, self._backoff = Standing.UP, 0, FIRST_BACKOFF_S

    def failed(self, now: float, unreachable: bool = False) -> None:
        """A request or a health check was not answered. `unreachable`: no connection could be made."""
        self.failures += 1
        self._checks = 0
        if self.standing is Standing.DOWN:
            if now >= self.retry_at:
                self._out(now)
        elif unreachable or self.failures >= FAILURES or self.standing is Standing.TRIAL:
            self._out(now)

    def checked(self, now: float) -> None:
        """A health check was answered well."""
        if self.standing is Standing.DOWN and now >= self.retry_at:
            self.standing, self._checks = Standing.TRIAL, 0
        elif self.standing is Standing.TRIAL:
            self._checks += 1
            if self._checks >= CHECKS:
                self.standing, self.failures = Standing.UP, 0
        elif self.standing is Standing.UP:
            self.failures = 0

    def at(self, now: float) -> Standing:
        """Its standing now: one that is DOWN is tried again when its backoff is over."""
        if self.standing is Standing.DOWN and now >= self.retry_at:
            return Standing.TRIAL
        return self.standing

    def takes(self, now: float, under_way: int) -> bool:
        """Whether one more request may go there; `under_way`: how many are there."""
        standing = self.at(now)
        return standing is Standing.UP or (standing is Standing.TRIAL and under_way == 0)

    def _out(self, now: float) -> None:
        self.standing = Standing.DOWN
        self.retry_at = now + self._backoff
        self._backoff = min(2 * self._backoff, LONGEST_BACKOFF_S)
