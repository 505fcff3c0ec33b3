"""How a KV cache is laid out, and what one request has in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.simulator.blocks import Block


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`blocks` counts the null block too; `state_groups` is 0 for a dense model, 3 for three linear layers
    to each full one.
    """

    blocks: int
    block_size: int
    state_groups: int = 0
    caching: bool = True
    #: Draft tokens a decode step carries (0: no speculative decoding).
    draft_tokens: int = 0
    max_model_len: int = 131072


@dataclass(slots=True)
class Hit:
    """Cached tokens of a prompt and the blocks that hold them; `longest` is how far full attention alone
    matched.
    """

    tokens: int = 0
    longest: int = 0
    full: list[Block] = field(default_factory=list)
    states: list[Block] = field(default_factory=list)

    @property
    def junction(self) -> int:
        return self.longest if self.longest > self.tokens else 0


@dataclass(slots=True)
class States:
    """One recurrent group of one request: blocks by position, None where no state is held."""

    blocks: list[Block | None] = field(default_factory=list)
    published: int = 0
    previous: int | None = None
    allocated: bool = False
    retired: int = 0


@dataclass(slots=True)
class Held:
    full: list[Block]
    published: int
    states: list[States]
    #: The blocks in which the last allocation lay: another one that lies in the same changes no block.
    place: tuple[int, ...] = ()
    #: It would register a state for this step again, though (`_new_states`).
    renews: bool = False
