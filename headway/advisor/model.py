"""The step-time model, as far as advice needs it.

A step with p prefill tokens beside decodes takes `t = a + e + b*p` seconds: `a` the decode-only step, `b`
seconds a prefill token, `e` the fixed extra of a mixed step. A victim that keeps the share f of its solo
rate delays a prefill of W seconds to `T = W / (1 - f)`; no schedule on one GPU does better, except by less
work or other hardware. Linear in the chunk with residuals under 1 ms on a 5090; what measured policies
cost beyond the frontier is in docs/results.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Observed over predicted T/T0 above this is not the plain arithmetic of chunks.
EXCESS_LIMIT = 1.15


@dataclass(frozen=True, slots=True)
class StepModel:
    """a, e in seconds, b in seconds a token, work in seconds (the prefill alone)."""

    a: float
    b: float
    work: float | None = None
    e: float = 0.0

    def gap(self, chunk: float) -> float:
        """Longest gap in seconds while chunks of `chunk` tokens are computed."""
        return self.a + self.e + self.b * chunk

    def share_of_chunk(self, chunk: float) -> float:
        """Share of the solo rate kept when every step carries `chunk` prefill tokens."""
        return self.a / self.gap(chunk)

    def share_of_interval(self, chunk: float, steps: int) -> float:
        """Share kept with `steps` steps a cycle, one of which carries a chunk."""
        cycle = self.gap(chunk) + (steps - 1) * self.a
        return steps * self.a / cycle

    def ttft(self, share: float) -> float | None:
        """Seconds to the newcomer's first token when victims keep `share`; None when the work is not known."""
        return None if self.work is None or share >= 1 else self.work / (1 - share)

    def chunk_of_gap(self, gap: float) -> int:
        """Largest chunk in tokens whose step stays under `gap` seconds."""
        return max(0, int((gap - self.a - self.e) / self.b))


def excess(ttft: float, alone: float, share: float) -> float:
    """(T/T0)(1 - f): 1 when the overlap is plain arithmetic, above EXCESS_LIMIT when something else costs time."""
    return ttft / alone * (1 - share)
