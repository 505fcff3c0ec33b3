"""A rate that forgets: tokens over seconds, decaying exponentially with each output."""

from __future__ import annotations

from dataclasses import dataclass

ENOUGH = 6
"""Outputs after which an answer's own rate is believed."""
MEMORY = 64
"""Outputs over which a rate is averaged, by exponential decay: the engine's speed drifts."""


@dataclass(slots=True)
class Rate:
    """Tokens over seconds, decaying exponentially over MEMORY outputs."""

    tokens: float = 0.0
    seconds: float = 0.0
    outputs: int = 0
    memory: int = MEMORY

    def add(self, tokens: float, seconds: float, times: int = 1) -> None:
        """So many outputs of `tokens` tokens, each `seconds` after the one before it."""
        decay = (1.0 - 1.0 / self.memory) ** times
        gained = self.memory * (1.0 - decay)
        self.tokens = self.tokens * decay + tokens * gained
        self.seconds = self.seconds * decay + seconds * gained
        self.outputs += times

    @property
    def value(self) -> float | None:
        """Tokens a second, or None while too little was seen."""
        return self.tokens / self.seconds if self.outputs >= ENOUGH and self.seconds > 0 else None
