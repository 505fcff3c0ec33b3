"""How much prefill may run now: piece sizes from the step model, idle time from the debt.

`grant(now, live, debt)` is the one rule behind every actuator: a piece over HTTP, a chunk in an engine step.

Invariants
----------
1. With answers live, a piece is the largest whole number of blocks whose predicted gap is within the target, and at
   least one block: the fixed cost of a mixed step is paid as rarely as the target permits.
2. Without a model a piece is one block, and it grows at most twofold over what has been seen.
3. The engine's front end spends at most FRONT_END of a prompt's prefill on the ids of its pieces where the gap target leaves
   the choice: pieces grow with the prompt then. Where it does not, the gap target wins, and `front_end` says what that costs.
4. With no answer live nothing is idle; pieces are larger, so that their fixed cost stays a small part, but bounded, so
   that a newcomer, who waits for one piece at most, waits a few gap targets at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import frontier
from headway.core.capability import Capability
from headway.core.debt import DebtLedger
from headway.core.steps import StepModel
from headway.core.targets import Targets

ALONE_OVERHEAD = 0.04
"""Part of a piece's time that its fixed cost may take when nobody decodes."""
FRONT_END = 0.05
"""Part of a piece's prefill that the engine's front end may spend on its ids, where the gap target allows it."""
ALONE_GAPS = 4
"""Gap targets that a piece may last when nobody decodes: what a newcomer may find before it."""
MOST_TOKENS = 1 << 20
"""Tokens of a piece that nothing else bounds."""
UNKNOWN_BLOCK = 256
"""Tokens a piece is measured in while the engine's block size is not known."""
UNKNOWN_BIG = 1024
"""Uncached tokens above which a request is big while no model is known."""


@dataclass(slots=True)
class Pacer:
    targets: Targets
    model: StepModel | None = None
    block: int | None = None
    """Tokens of a prefix-cache block."""
    chunk: int | None = None
    """Largest prefill of one engine step, tokens, where known."""
    seen: int = 0
    """Largest piece that was timed, tokens: what the model speaks for."""
    lost: int = 0
    """Blocks that each piece computes again."""
    least: int = 1
    """Fewest blocks of a piece."""
    beside: float | None = None
    """Gap target of the answers that live now, seconds, where it is not `targets.gap`."""

    def can(self, capability: Capability) -> None:
        """What is known of the engine."""
        self.block, self.chunk = capability.block, capability.chunk
        self.lost, self.least = capability.lost, capability.least

    @property
    def unit(self) -> int:
        return self.block or UNKNOWN_BLOCK

    def piece(self, at: int = 0) -> int:
        """Tokens of a piece beside a live answer, behind `at` cached tokens."""
        if self.model is None:
            return self.least * self.unit
        gap = self.targets.gap if self.beside is None else self.beside
        blocks = max(self.least, self.model.tokens_within(gap, at) // self.unit - self.lost)
        if self.chunk is not None and blocks * self.unit >= self.chunk:
            # A whole chunk keeps the gap target, and the engine never makes a longer step than that.
            blocks = max(blocks * ALONE_GAPS, self._cheap(at, FRONT_END) // self.unit)
        return min(blocks, max(self.least, 2 * self.seen // self.unit)) * self.unit

    def alone_piece(self, at: int = 0) -> int:
        """Tokens of a piece when nobody decodes."""
        beside = self.piece(at)
        if self.model is None or self.model.b <= 0:
            return beside
        wanted = self._cheap(at, ALONE_OVERHEAD, self.model.h)
        longest = self.model.tokens_within(ALONE_GAPS * self.targets.gap, at)
        return max(beside, min(wanted, longest, 2 * self.seen) // self.unit * self.unit)

    def _cheap(self, at: int, part: float, fixed: float = 0.0) -> int:
        """Tokens of a piece behind `at` cached ones whose overhead (`fixed` seconds and its ids) is `part` of its prefill."""
        assert self.model is not None
        room = part * (self.model.b + self.model.c * at) - self.model.k
        return int((fixed + self.model.k * at) / room) if room > 0 else MOST_TOKENS

    def front_end(self, tokens: int) -> float:
        """Part of a prompt's prefill that the engine's front end spends on the ids of its pieces beside a live answer. 0 while no
        model is known."""
        if self.model is None or tokens <= 0 or self.model.k <= 0:
            return 0.0
        pieces = -(-tokens // self.piece(tokens // 2))
        return self.model.k * tokens * (pieces + 1) / 2 / max(self.model.prefill(tokens), 1e-9)

    def seconds_left(self, uncached: int, at: int = 0) -> float:
        """Seconds that `uncached` tokens behind `at` cached ones take without a pause, in pieces where they are more than one. 0
        while no model is known."""
        if self.model is None:
            return 0.0
        pieces = -(-uncached // self.piece(at))
        each = self.model.e + self.model.front_end(at + uncached // 2)
        return self.model.prefill(uncached, at) + pieces * each

    def is_big(self, uncached: int, at: int = 0) -> bool:
        """Whether a prefill of `uncached` tokens behind `at` cached ones, sent whole, would make a gap above the target."""
        if self.model is None:
            return uncached > UNKNOWN_BIG
        largest = uncached if self.chunk is None else min(uncached, self.chunk)
        return self.model.gap(largest, at) > self.targets.gap and uncached > self.unit

    def is_tiny(self, uncached: int, at: int = 0) -> bool:
        """Whether it costs no more than a decode step: never worth a wait."""
        return uncached <= 64 or (self.model is not None and self.model.prefill(uncached, at) <= self.model.a)

    def reachable_gap(self) -> float | None:
        """Seconds of the longest gap with pieces of one block, or None while no model is known."""
        return None if self.model is None else self.model.gap((self.least + self.lost) * self.unit)

    def share_floor(self) -> float | None:
        """Share that live answers keep even with no idle time between pieces, or None while no model is known."""
        if self.model is None:
            return None
        return frontier.share_floor(1, self.model.front_end(self.piece()), self.model.e + self.model.prefill(self.piece()))

    def grant(self, now: float, live: bool, debt: DebtLedger, ahead: float = 0.0, at: int = 0) -> tuple[int, float]:
        """(tokens that may be prefilled now behind `at` cached ones, 0) or (0, time at which to ask again).

        `live`: an answer decodes, or a short request is about to. `ahead`: see DebtLedger.clear_at."""
        if not live:
            return self.alone_piece(at), 0.0
        if debt.highest >= 1.0:
            return 0, float("inf")  # all of an answer's rate is asked for: only a newcomer's bound lets it in
        clear = debt.clear_at(now, ahead)
        return (self.piece(at), 0.0) if clear <= now else (0, clear)
