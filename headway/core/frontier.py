"""What no schedule on one engine can beat (docs/physics.md).

While a victim keeps the share f of its solo rate, a prefill of W seconds alone ends after W/(1 - f).
"""

from __future__ import annotations

EXCESS_LIMIT = 1.15
"""`excess` above this is not the plain arithmetic of chunks."""


def ttft(alone_s: float, share: float) -> float | None:
    """Earliest time to first token (seconds) of a prefill of `alone_s` seconds beside victims that keep `share`.
    None at a share of 0.98 and above: there the frontier is a wait for the victim to end."""
    return None if share >= 0.98 else alone_s / (1.0 - max(share, 0.0))


def excess(alone_s: float, ttft_s: float, share: float) -> float | None:
    """Observed TTFT over the frontier's. Near 1: plain arithmetic. Above about 1.15: something else costs time."""
    best = ttft(alone_s, share)
    return None if best is None or best <= 0 else ttft_s / best


def mixed_step_factor(pieces: int, mixed_s: float, prefill_s: float) -> float:
    """(T/T0)(1 - f) at best, when each of `pieces` prefill steps pays the fixed cost `mixed_s` (seconds)
    beside `prefill_s` seconds of work: 1 + n*e/(b*P)."""
    return 1.0 + pieces * mixed_s / prefill_s


def share_of_cycle(decode_s: float, mixed_s: float, decode_only: int = 0) -> float:
    """Share that victims keep when `decode_only` steps of `decode_s` seconds stand between two steps of `mixed_s` seconds that
    carry prefill: one token a step, against one every `decode_s` seconds alone."""
    return (1 + decode_only) * decode_s / (mixed_s + decode_only * decode_s)


def share_floor(pieces: int, overhead_s: float, prefill_s: float) -> float:
    """Share that victims keep with no idle time at all: they decode at full rate during the `overhead_s`
    seconds of each piece that are not prefill. n*h/(W + n*h)."""
    overhead = pieces * overhead_s
    return overhead / (prefill_s + overhead) if prefill_s + overhead > 0 else 0.0
