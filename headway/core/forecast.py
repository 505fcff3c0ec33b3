"""What each policy would do with a request that has just come, and what that would cost whom: predicted from the model alone.

Nothing is simulated: one look at the state in which the request finds the engine. A day's traffic under another policy, with all
that follows from its decisions, is what `headway replay` is for.

Invariant: what cannot be predicted (no model yet, a wait for answers of unknown length) is None, not a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.core import frontier
from headway.core.bounds import Loaded, queue_seconds
from headway.core.capability import Capability
from headway.core.policy import ASIDE, POLICIES, Say, View
from headway.core.work import Entry


@dataclass(slots=True, frozen=True)
class Forecast:
    """Of one policy. Times in seconds."""

    do: str
    """`pass`, `pace` or `hold`; `aside` where the policy leaves it to the engine."""
    wait: float | None = None
    """Longest time until its first prefill."""
    ttft: float | None = None
    """Time to its first token; of one that is held: from the end of the hold."""
    gap: float | None = None
    """Longest gap of the live answers, where there are any."""
    share: float | None = None
    """Part of their solo rate that live answers keep until then."""


class Seen(Loaded, Protocol):
    """What is asked of a controller."""

    capability: Capability

    @property
    def in_engine(self) -> int: ...


def forecast(controller: Seen, entry: Entry) -> dict[str, Forecast]:
    """By policy. The request is the controller's latest arrival."""
    return {name: _of(name, controller, entry) for name in POLICIES}


def _of(name: str, controller: Seen, entry: Entry) -> Forecast:
    live = controller.debt.protected
    paces = bool(controller.capability.paces)
    others = controller.in_engine - (1 if entry.first_grant is not None else 0)
    view = View(live, others, overdue=False, paces=paces)
    fresh = Entry(entry.work, entry.arrived, entry.uncached, entry.klass, at=entry.at, big=entry.big)
    say = POLICIES[name](fresh, view)
    whole = _whole(controller, entry, live)
    if say is Say.SEND or entry.klass.exempt:
        return Forecast("aside" if paces and name in ASIDE else "pass", 0.0, whole.ttft, whole.gap, whole.share)
    held = say is not Say.SHARE or (entry.big and not entry.work.paceable and live > 0)
    if held:
        after = _paced(controller, entry, live) if entry.work.paceable and say is Say.STAY and name != "serialize" else whole
        return Forecast("hold", entry.klass.targets.wait, after.ttft, after.gap, after.share)
    if not entry.big:
        return Forecast("pass", _turn(controller, entry), whole.ttft, whole.gap, whole.share)
    return _paced(controller, entry, live)


def _whole(controller: Seen, entry: Entry, live: int) -> Forecast:
    pacer = controller.pacer
    if pacer.model is None:
        return Forecast("pass")
    chunk = entry.uncached if pacer.chunk is None else min(entry.uncached, pacer.chunk)
    ttft = pacer.model.piece(entry.uncached, entry.at)
    if not live:
        return Forecast("pass", 0.0, ttft)
    gap = pacer.model.gap(chunk, entry.at)
    return Forecast("pass", 0.0, ttft, gap, min(1.0, pacer.model.a / gap))


def _paced(controller: Seen, entry: Entry, live: int) -> Forecast:
    pacer, turn = controller.pacer, _turn(controller, entry)
    if pacer.model is None:
        return Forecast("pace")
    alone = pacer.seconds_left(entry.uncached, entry.at)
    if not live:
        return Forecast("pace", turn, alone)
    share = controller.debt.highest
    return Forecast("pace", turn, frontier.ttft(alone, share), pacer.model.gap(pacer.piece(entry.at), entry.at), share)


def _turn(controller: Seen, entry: Entry) -> float | None:
    """Seconds until its turn: the work of the others that are there, the share kept; at most its bound."""
    pacer = controller.pacer
    if pacer.model is None:
        return None
    own = pacer.seconds_left(entry.uncached, entry.at)
    share = min(controller.debt.highest, 0.95) if controller.debt.protected else 0.0
    return min(entry.klass.targets.wait, max(0.0, queue_seconds(controller) - own / (1.0 - share)))
