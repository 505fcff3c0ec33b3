"""One step of the engine, as the pacer sees it: what there is to do, what it may carry, what it carried.

Invariant: plain data; nothing here knows vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple


class Began(NamedTuple):
    """A request whose prompt ends with the step in which it began."""

    waited: float
    """Seconds from its arrival until the step was scheduled."""
    tokens: int
    """Of its prompt, in that step."""


NOTHING: Mapping[str, Began | None] = MappingProxyType({})


@dataclass(slots=True, frozen=True)
class Work:
    """Prefill work at a moment. All zero: none."""

    under_way: int = 0
    """Prompts that the engine has begun."""
    left: int = 0
    """Tokens left of the one that would run next."""
    newcomer: str | None = None
    """The first request that waits and could be let in."""
    newcomer_tokens: int = 0
    """Its tokens, less those that the prefix cache has."""
    newcomer_waited: float = 0.0
    """Seconds since it arrived."""


@dataclass(slots=True, frozen=True)
class Decision:
    hold: bool = False
    """No prefill in this step."""
    budget: int | None = None
    """Prefill tokens of this step at most; None: as many as the engine likes."""
    shorts_first: bool = False
    """Let prompts that end with this chunk go before longer ones."""
    door: bool = False
    """For newcomers alone: prompts under way stand aside."""


HOLD = Decision(hold=True)
FREE = Decision()
DOOR = Decision(door=True)


@dataclass(slots=True)
class Tally:
    """What happened, since the start."""

    overlaps: int = 0
    overlap_s: float = 0.0
    """Seconds of steps with live answers while prefill work was there."""
    turns_s: float = 0.0
    """Of these, what the turns that the answers got are worth at their solo rate: turns_s / overlap_s is the share kept."""
    held: int = 0
    chunks: int = 0
    tokens: int = 0
    yields: int = 0
    longest_gap: float = 0.0
    """Seconds; since it was last reset."""


@dataclass(slots=True)
class Step:
    key: int
    at: float
    turns: Sequence[str] = ()
    """Live answers that have their turn in it."""
    prefill: int = 0
    begins: Mapping[str, Began | None] = field(default_factory=dict)
    """Requests whose prompt ends with it, live from its end on. None: its own prompt took several steps."""
    overlap: bool = False
