"""Which chunk sizes an engine step can carry.

Align mode (hybrid models, prefix caching on) rounds a chunk down to whole blocks. Up to vLLM 0.26 a limit below one block
rounds to nothing, and the prompt stalls without a word; later versions prefill part of a block, then stop at its end.

Invariants
----------
1. `fit` never answers with a size at which the engine makes no progress, if the step has room for one at which it does.
2. Below a block, parts of a block are of equal size: no small remainder that pays for a whole mixed step.
"""

from __future__ import annotations

from dataclasses import dataclass

FINE = 64
"""Tokens in which chunks are measured where blocks are smaller than that."""


@dataclass(slots=True, frozen=True)
class ChunkRule:
    budget: int
    """Tokens of one engine step at most."""
    block: int
    align: bool = False
    """Chunks end on block boundaries."""
    sub_block: bool = True
    """In align mode: less than a block makes progress."""

    @property
    def whole_blocks(self) -> bool:
        """Less than one block is no progress."""
        return self.align and not self.sub_block

    @property
    def unit(self) -> int:
        """Tokens of the smallest chunk worth its mixed step."""
        if self.whole_blocks:
            return self.block
        if self.align:
            return min(FINE, self.block)
        return self.block * max(1, FINE // self.block)

    def fit(self, wanted: int, decode_tokens: int = 0) -> int:
        """Largest chunk of at most `wanted` tokens (but at least the smallest) beside `decode_tokens`. 0: no room."""
        room = self.budget - decode_tokens
        wanted = min(max(wanted, self.unit), room)
        if wanted <= 0:
            return 0
        if self.align:
            if wanted >= self.block:
                return wanted // self.block * self.block
            return 0 if self.whole_blocks else -(-self.block // -(-self.block // wanted))
        return wanted // self.unit * self.unit or wanted
