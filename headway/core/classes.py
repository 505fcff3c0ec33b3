"""Traffic classes: whom to protect, from whom, and how much.

A class says two things apart. As a live answer: is it *protected*, and with what share and gap. As a newcomer: is it *exempt*
(its prefill is never held nor paced), and otherwise how long it may wait (`wait`, `stretch`). A class can be both, or neither.

Invariants
----------
1. Every request has exactly one class; without a rule that says otherwise it is `interactive`.
2. `rank` orders those that wait, lower first; a bound that is reached goes before every rank, so no class starves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.targets import Targets

INTERACTIVE, AGENT, BACKGROUND = "interactive", "agent", "background"

NAMES = (INTERACTIVE, AGENT, BACKGROUND)
"""In order of rank."""


@dataclass(slots=True, frozen=True)
class TrafficClass:
    name: str
    targets: Targets
    protected: bool = True
    """Its live answers keep `targets.share` and `targets.gap`."""
    exempt: bool = False
    """Its prefill goes at once, whole. What it takes from live answers is owed to them all the same."""

    @property
    def rank(self) -> int:
        return NAMES.index(self.name)

    @property
    def share(self) -> float:
        """What a live answer of this class is owed of its solo rate."""
        return self.targets.share if self.protected else 0.0


Classes = Mapping[str, TrafficClass]


def default_classes(targets: Targets) -> dict[str, TrafficClass]:
    """All with the same targets; background work is not protected from others, since it is nobody's live answer."""
    return {name: TrafficClass(name, targets, protected=name != BACKGROUND) for name in NAMES}


def strictest_gap(classes: Classes, targets: Targets) -> float:
    """Seconds of the smallest gap that any protected class asks for: what decides whether a prompt is big."""
    return min((c.targets.gap for c in classes.values() if c.protected), default=targets.gap)
