"""What a scheduler decides for one engine step, whatever the engine's rules are."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.simulator.request import Request


@dataclass(slots=True)
class Chunk:
    """`tokens` of `request` from position `start` on, in one step. `prefill` until the last known token."""

    request: Request
    start: int
    tokens: int
    prefill: bool


@dataclass(slots=True)
class Step:
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Alike:
    """The steps that follow are alike: `requests` decode and nothing else happens.

    `most`: for so many steps (None: without end); `frozen`: only as long as no block moves.
    """

    requests: tuple[Request, ...]
    most: int | None = None
    frozen: bool = False
