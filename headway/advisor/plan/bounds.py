"""What no option can change: the frontier, the smallest gap, the floor of a share, saturation (docs/physics.md).

To add one: a function in BOUNDS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.advisor.plan.rig import Rig
from headway.core import frontier
from headway.core.targets import Targets

SHARE_SLACK = 0.02
"""A share that is missed by no more than this is kept."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`verdict`: of the whole plan, None where the bound only says what to expect."""

    verdict: str | None
    says: str


@dataclass(frozen=True, slots=True)
class Case:
    """`busy`: seconds of long prefill that come in each second, None where not told."""

    rig: Rig
    targets: Targets
    t0: float
    busy: float | None


def bounds(rig: Rig, targets: Targets, t0: float, busy: float | None) -> list[Bound]:
    case = Case(rig, targets, t0, busy)
    return [found for bound in BOUNDS if (found := bound(case)) is not None]


def _saturation(case: Case) -> Bound | None:
    if case.busy is None:
        return None
    if case.busy >= 1.0:
        return Bound("saturated", f"{case.busy:.2f} seconds of long prefill come in each second")
    left = 1.0 - case.busy
    if case.targets.share <= left:
        return None
    told = (
        f"beside {case.busy:.2f} seconds of prefill a second, answers that are always live keep {left:.2f} of their rate at most"
    )
    return Bound("beyond-frontier", f"{told}: the share yields at --wait")


def _frontier(case: Case) -> Bound | None:
    share, wait, stretch = case.targets.share, case.targets.wait, case.targets.stretch
    least, most = frontier.ttft(case.t0, share), case.t0 + max(wait, stretch * case.t0)
    if least is None:
        return Bound("beyond-frontier", f"at a share of {share:g} a long prompt waits for the answers to end")
    if least <= most:
        return None
    return Bound(
        "beyond-frontier", f"a share of {share:g} costs {least:.1f} s at the least; --wait and --stretch allow {most:.1f} s"
    )


def _gap(case: Case) -> Bound | None:
    model, gap, block = case.rig.model, case.targets.gap, case.rig.block
    single = model.a + model.e
    if gap <= single:
        return Bound("beyond-frontier", f"any step with prefill takes {single:.3f} s; a gap of {gap:g} s is asked for")
    if model.gap(block) > gap:
        return Bound(
            None, f"a piece of one block ({block} tokens) makes a gap of {model.gap(block):.2f} s: no gateway goes below it"
        )
    return None


def _floor(case: Case) -> Bound | None:
    model, share = case.rig.model, case.targets.share
    piece = max(case.rig.block, model.tokens_within(case.targets.gap))
    floor = frontier.share_floor(1, model.h, model.e + model.prefill(piece))
    if share >= floor - SHARE_SLACK:
        return None
    return Bound(None, f"pieces within the gap leave answers {floor:.2f} of their rate at the least; {share:g} is asked for")


BOUNDS: tuple[Callable[[Case], Bound | None], ...] = (_saturation, _frontier, _gap, _floor)
