"""When a newcomer's own bounds overrule the share, and how long it will have to wait.

`wait` bounds the time from its arrival to its first prefill. `stretch` bounds (TTFT - W)/W, W its prefill alone: the latest
moment from which what is left, done without a pause, still ends in time. It counts for big requests: a short one is sent whole,
so after `wait` nothing of it is left to be late. Where the policy *held* a request on purpose, its stretch counts from its first
grant: a hold that reaches its bound goes on in pieces that respect the share, it does not turn into a burst. And where so many
wait that the share would take them all to their bounds, it yields before (`overloaded`): more prompt comes than the engine can
read beside that share, and holding it longer would only make everybody late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headway.core.debt import DebtLedger
from headway.core.pacing import Pacer
from headway.core.queue import Queue
from headway.core.work import Entry


def due(entry: Entry, pacer: Pacer) -> float:
    """Time (seconds) from which the share yields to this request."""
    targets = entry.klass.targets
    first = entry.arrived + targets.wait
    if entry.first_grant is None:
        return first if entry.held else min(first, _stretched(entry, entry.arrived, pacer))
    since = entry.first_grant if entry.held else entry.arrived
    return _stretched(entry, since, pacer)


def _stretched(entry: Entry, since: float, pacer: Pacer) -> float:
    if not entry.big or entry.alone <= 0:
        return since + entry.klass.targets.wait
    left = pacer.seconds_left(entry.uncached, entry.at)
    return since + max(0.0, (1.0 + entry.klass.targets.stretch) * entry.alone - left)


BURST = 0.5
"""Part of `wait` that a backlog may need while the share is kept: the rest is for those who come in between."""


def backlog(queue: Queue, pacer: Pacer, share: float) -> float:
    """Predicted seconds until all that waits for its first grant has it, the share kept: the work of the short ones and a piece
    of each long one, over 1 - share. 0 where no model is known, and for a share of all there is: that asks for waiting up to the
    bound."""
    if pacer.model is None or share >= 1.0 or not (queue.new_shorts or queue.new_longs):
        return 0.0
    return pacer.seconds_left(queue.new_shorts + queue.new_longs * pacer.piece()) / (1.0 - share)


def overloaded(entry: Entry, backlog: float) -> bool:
    """Whether so many wait that keeping the share would take them to their bounds, where they come all together. Then the share
    yields now, and no `stretch` is kept: the queue's order holds."""
    return backlog > BURST * entry.klass.targets.wait


class Loaded(Protocol):
    """What is asked of a controller."""

    pacer: Pacer
    debt: DebtLedger

    def pending(self) -> Iterable[Entry]: ...


def queue_seconds(controller: Loaded) -> float:
    """Predicted seconds until all that waits or is being prefilled now is done, the share kept: W/(1 - share). 1 where no model
    is known."""
    pacer = controller.pacer
    if pacer.model is None:
        return 1.0
    work = sum(pacer.seconds_left(entry.uncached, entry.at) for entry in controller.pending())
    share = min(controller.debt.highest, 0.95) if controller.debt.protected else 0.0
    return work / (1.0 - share)
