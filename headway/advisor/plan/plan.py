"""The options' prices, the verdict, and headway.plan/1."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headway.advisor.plan.bounds import SHARE_SLACK, bounds
from headway.advisor.plan.options import Option, Refused, options
from headway.advisor.plan.rig import Rig, chunk_of
from headway.advisor.plan.trial import Trial, alone, trial
from headway.core import frontier
from headway.core.targets import Targets

SCHEMA = "headway.plan/1"
GAP_SLACK = 0.05
"""A longest gap above its target by no more than this part is within it."""

VERDICTS = {
    "kept": "the target can be kept",
    "missed": "no option keeps the whole target; the nearest is first",
    "beyond-frontier": "no schedule on this engine can keep the target: less work (prefix cache), or other hardware",
    "saturated": "long prompts come in faster than this engine prefills, so that no schedule helps: shed, cache, or add hardware",
}


@dataclass(frozen=True, slots=True)
class Priced:
    """An option and what it does. Seconds; `factor` is T/T0, `excess` its distance from the frontier (0: on it)."""

    option: Option
    share: float
    gap: float
    ttft: float | None
    factor: float | None
    excess: float | None
    floor: float | None
    """Share that answers keep even with no idle time between pieces; None without pieces."""
    waited: float
    pieces: int
    misses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    rig: Rig
    targets: Targets
    tokens: int
    alone_s: float
    load: float | None
    """Seconds of long prefill that come in each second; None where not told."""
    verdict: str
    reasons: tuple[str, ...]
    options: tuple[Priced, ...]
    refused: tuple[Refused, ...]

    def as_json(self) -> dict[str, Any]:
        found = self.rig.estimates
        figures = {name: getattr(self.rig.model, name) for name in ("a", "e", "b", "c", "h")}
        return {
            "schema": SCHEMA,
            "source": self.rig.name,
            "engine": {
                "version": self.rig.engine.version, "max_num_batched_tokens": self.rig.engine.scheduler.max_num_batched_tokens,
                "block_size": self.rig.block, "hybrid": self.rig.hybrid,
            },
            "targets": asdict(self.targets),
            "model": {name: asdict(found.figures[name]) for name in figures} if found else {
                name: {"value": value, "low": None, "high": None, "runs": 0} for name, value in figures.items()
            },
            "prompt": {"tokens": self.tokens, "alone_s": self.alone_s, "load": self.load},
            "verdict": self.verdict,
            "says": VERDICTS[self.verdict],
            "reasons": list(self.reasons),
            "options": [
                {
                    "name": one.option.name, "do": one.option.words, "engine": one.option.engine, "policy": one.option.policy,
                    "targets": asdict(one.option.targets) if one.option.targets else None,
                    "predicted": {
                        "share": one.share, "longest_gap_s": one.gap, "ttft_s": one.ttft, "ttft_factor": one.factor,
                        "beyond_frontier": one.excess, "share_floor": one.floor, "waited_s": one.waited, "pieces": one.pieces,
                    },
                    "keeps": not one.misses, "misses": list(one.misses),
                }
                for one in self.options
            ],
            "refused": [{"do": one.option.words, "why": one.why} for one in self.refused],
            "measure": list(found.measure) if found else [],
            "notes": list(self.rig.notes),
        }  # fmt: skip


def plan(rig: Rig, targets: Targets, tokens: int, load: float | None = None) -> Plan:
    """`tokens`: uncached tokens of the long prompt; `load`: long prompts a second."""
    t0 = alone(rig, tokens)
    busy = load * t0 if load is not None else None
    good, refused = options(rig, targets)
    priced = sorted((price(rig, option, targets, tokens, t0) for option in good), key=_rank)
    limits = bounds(rig, targets, t0, busy)
    verdict = next((one.verdict for one in limits if one.verdict), None)
    if verdict is None:
        verdict = "kept" if priced and not priced[0].misses else "missed"
    return Plan(rig, targets, tokens, t0, busy, verdict, tuple(one.says for one in limits), tuple(priced), tuple(refused))


def price(rig: Rig, option: Option, targets: Targets, tokens: int, t0: float) -> Priced:
    share = min(targets.share, 0.97)
    horizon = 1.5 * t0 / (1 - share) + (targets.wait if option.policy == "hold" else 0.0) + 5.0
    # Twice the time at which the gateway's own bounds let any prompt through: what comes later is shut out.
    seen = trial(rig, option, tokens, horizon, max(horizon, 2 * (t0 + targets.wait + targets.stretch * t0)))
    floor = None
    if seen.pieces:
        work = rig.model.prefill(tokens) + seen.pieces * rig.model.e
        floor = frontier.share_floor(seen.pieces, rig.model.h, work)
    factor = seen.ttft / t0 if seen.ttft is not None else None
    over = None
    if seen.ttft is not None and seen.waited < 1.0:  # the frontier is of prompts that are being served, not held
        best = frontier.excess(t0, seen.ttft, seen.share)
        over = None if best is None else best - 1.0
    misses = tuple(_misses(seen, targets, t0))
    return Priced(option, seen.share, seen.gap, seen.ttft, factor, over, floor, seen.waited, seen.pieces, misses)


def _misses(seen: Trial, targets: Targets, t0: float) -> list[str]:
    out = []
    if seen.share < targets.share - SHARE_SLACK:
        out.append(f"share {seen.share:.2f} < {targets.share:g}")
    if seen.gap > targets.gap * (1 + GAP_SLACK):
        out.append(f"gap {seen.gap:.2f} s > {targets.gap:g} s")
    if seen.ttft is None:
        out.append("the long prompt is shut out")
    elif seen.ttft - t0 > max(targets.wait, targets.stretch * t0):
        out.append(f"TTFT {seen.ttft:.1f} s is {seen.ttft / t0:.0f} x alone")
    return out


def _rank(one: Priced) -> tuple[int, float, float]:
    """Fewest misses, then the larger share of what is missed, then the earliest first token."""
    return len(one.misses), -min(one.share, 1.0) if one.misses else 0.0, one.ttft if one.ttft is not None else 1e9


def chunk(rig: Rig) -> int:
    """Most prompt tokens of a step at the present settings."""
    return chunk_of(rig.engine)
