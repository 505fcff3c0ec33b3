"""Which upstream a request goes to.

Order of what counts: it serves the model; it is not being drained; it takes requests (health.py); its role; then the least
estimated time to the first token there, which is the prefill ahead of the request and its own uncached tokens. Prefix
affinity needs no rule of its own: where a prompt is cached it has less to prefill.

Invariants
----------
1. A request has an upstream as long as there is one that was not tried: the rules order, they do not refuse.
2. Only estimates that are at hand are used: nothing is asked of an upstream for a choice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.core.health import Standing
from headway.core.steps import StepModel
from headway.core.work import Entry, Phase


class Role(enum.StrEnum):
    ANY = "any"
    INTERACTIVE = "interactive"
    BULK = "bulk"


SMALL = {Role.ANY: 0, Role.INTERACTIVE: 0, Role.BULK: 1}
"""Rank of a role for a small request: bulk upstreams take it only where no other does."""
BIG = {Role.ANY: 0, Role.BULK: 0, Role.INTERACTIVE: 1}
BIG_ROUTED = {Role.BULK: 0, Role.ANY: 1, Role.INTERACTIVE: 2}
"""Rank for a big request under policy `route`."""
UNKNOWN_TOKEN_S = 100e-6
"""Seconds of prefill a token while no model is known: only the order matters."""
REQUEST_S = 0.02
"""Seconds that a request in the engine counts for beside its prefill: of two idle queues the one with fewer live answers wins."""
SEEN = 0.5
"""Part of its price at which a token counts that went through here before, but is not known to be cached."""


@dataclass(slots=True, frozen=True)
class Candidate:
    """One upstream, as seen by one request."""

    role: Role = Role.ANY
    standing: Standing = Standing.UP
    takes: bool = True
    """See Health.takes."""
    draining: bool = False
    serves: bool = True
    """False only where its list of models is known and the request's is not in it, but is in another upstream's."""
    big: bool = False
    ahead: float = 0.0
    """Seconds of prefill that were accepted there and are not done."""
    own: float = 0.0
    """Seconds of the request's own prefill there."""
    seen: float = 0.0
    """Seconds of `own` for tokens that went through there before."""
    in_engine: int = 0

    @property
    def cost(self) -> float:
        """Estimated seconds to the first token, and a little for every request there."""
        return self.ahead + self.own - SEEN * self.seen + REQUEST_S * self.in_engine


def choose(candidates: Sequence[Candidate], tried: Iterable[int] = (), route: bool = False, turn: int = 0) -> int | None:
    """Index of the best candidate that was not tried, or None when all were. `turn` moves on with every request: equals
    take turns."""
    left = [index for index in range(len(candidates)) if index not in set(tried)]
    if not left:
        return None

    def rank(index: int) -> tuple[bool, bool, bool, int, float, int]:
        it = candidates[index]
        roles = (BIG_ROUTED if route else BIG) if it.big else SMALL
        return not it.serves, it.draining, not it.takes, roles[it.role], round(it.cost, 3), (index - turn) % len(candidates)

    return min(left, key=rank)


def backlog(entries: Iterable[Entry], model: StepModel | None) -> float:
    """Seconds of prefill that these requests still need."""
    total = 0.0
    for entry in entries:
        if entry.phase is not Phase.DECODE and entry.work.prefills:
            total += seconds(entry.uncached, entry.at, model)
    return total


def seconds(tokens: int, at: int, model: StepModel | None) -> float:
    """Seconds of prefill of `tokens` behind `at` cached ones."""
    return model.prefill(tokens, at) if model is not None else UNKNOWN_TOKEN_S * tokens
