"""What an engine can do, as far as decisions depend on it: found by `headway/engines`, judged here and nowhere else.

Invariant: what is not known is None, and nothing is paced on a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BLOCKS = 4
"""Blocks of a piece where each piece computes one again: the price is then at most a quarter."""


@dataclass(slots=True, frozen=True)
class Capability:
    block: int | None = None
    """Tokens in which prefix-cache hits are counted, and so in which pieces are measured: a cache block, or what
    `--prefix-match-unit` says where hits are finer than a block."""
    chunk: int | None = None
    """Largest prefill of one engine step, tokens, where known."""
    lost: int = 0
    """Blocks that each piece computes again because the engine drops the last one that matched (MTP, EAGLE)."""
    caching: bool | None = None
    """Whether there is a prefix cache."""
    paces: str = ""
    """Why the engine paces prefill by itself, in words for the log; empty where it does not."""
    ranks: int = 1
    """Data-parallel ranks behind one address. Each has a prefix cache of its own."""
    pinned: bool = False
    """Pieces and their request can be sent to one and the same rank."""

    @property
    def obstacle(self) -> str:
        """Why nothing can go in pieces through this engine, in words; empty where it can, or may."""
        if self.caching is False:
            return "prefix caching is off"
        if self.ranks > 1 and not self.pinned:
            return f"{self.ranks} data-parallel ranks, each with a cache of its own"
        return ""

    @property
    def least(self) -> int:
        """Fewest blocks of a piece."""
        return LEAST_BLOCKS if self.lost else 1
