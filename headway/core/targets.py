"""What the operator asks for. Both sides are protected: live answers by `share` and `gap`, newcomers by `wait` and `stretch`."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(slots=True, frozen=True)
class Targets:
    share: float = 0.5
    """Part of its solo rate that every live answer keeps while prefills run, 0..1."""
    gap: float = 0.25
    """Longest time between two outputs of a live answer, seconds."""
    wait: float = 30.0
    """Longest time from a newcomer's arrival to its first prefill, seconds. At this bound the share yields."""
    stretch: float = 20.0
    """Largest (TTFT - W)/W of a newcomer, W the seconds of its prefill alone. At this bound the share yields."""
    queue: int = 1000
    """Most requests waiting at once."""
    queue_tokens: int = 4_000_000
    """Most uncached prompt tokens waiting at once; a request that finds nothing waiting is taken in any case."""

    def __post_init__(self) -> None:
        checks = (
            ("share", 0.0 <= self.share <= 1.0, "0..1"),
            ("gap", self.gap > 0.0 and isfinite(self.gap), "above 0 s"),
            ("wait", self.wait >= 0.0 and isfinite(self.wait), "0 s or more"),
            ("stretch", self.stretch >= 0.0 and isfinite(self.stretch), "0 or more"),
            ("queue", self.queue >= 1, "1 or more"),
            ("queue-tokens", self.queue_tokens >= 1, "1 or more"),
        )
        for name, good, allowed in checks:
            if not good:
                raise ValueError(f"{name}: {getattr(self, name.replace('-', '_'))} is not {allowed}")
