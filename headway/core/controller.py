"""The controller of one engine, driven by the gateway and by the simulator alike.

Events with a time go in (`arrive`, `measured`, `prefilled`, `first_output`, `output`, `leave`); `decide(now)` gives what may
happen now, and `wake(now)` when to ask again if nothing else happens.

Invariants
----------
1. Every request that arrived leaves exactly once, by `leave`, from any phase; an `Expire` is followed by its `leave`.
2. A request that is ready has its first grant at most `targets.wait` after it arrived (if `decide` is called when `wake`
   says), policy `serialize` excepted, whose requests expire at that bound.
3. Uncached tokens in flight are at most one piece, tiny requests and overdue ones apart.
4. With no answer live nothing waits for a share.
5. Counts come from `entries` alone: there is no second place in which they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.core.capability import Capability
from headway.core.debt import DebtLedger
from headway.core.pacing import Pacer
from headway.core.policy import PACING, POLICIES, Say, View
from headway.core.queue import Queue
from headway.core.steps import StepLearner
from headway.core.targets import Targets
from headway.core.work import Decision, Entry, Expire, Go, Phase, Piece, Work

INFINITY = float("inf")

CONTENDING = frozenset({Phase.QUEUED, Phase.PIECE, Phase.WHOLE})
"""Phases in which a request's prefill competes with live answers."""

IN_ENGINE = frozenset({Phase.PIECE, Phase.WHOLE, Phase.DECODE})


class QueueFull(Exception):
    """As many requests wait as `Targets.queue` allows."""


class Controller:
    def __init__(self, policy: str, targets: Targets) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
        self.policy = policy
        self.targets = targets
        self.capability = Capability()
        self.learner = StepLearner()
        self.pacer = Pacer(targets)
        self.debt = DebtLedger(targets.share)
        self.entries: dict[str, Entry] = {}
        self._rule = POLICIES[policy]
        self._queue = Queue()
        self._retry_at = INFINITY

    # -- what is the case -------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Live decodes: streams that gave their first output and have not ended."""
        return len(self.debt.victims)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_engine(self) -> int:
        return sum(1 for entry in self.entries.values() if entry.phase in IN_ENGINE and entry.work.prefills)

    @property
    def in_flight(self) -> int:
        """Uncached tokens granted and not yet prefilled."""
        return sum(entry.in_flight for entry in self.entries.values())

    def count(self, phase: Phase) -> int:
        return sum(1 for entry in self.entries.values() if entry.phase is phase)

    # -- events -----------------------------------------------------------------------------------

    def arrive(self, now: float, work: Work) -> Entry:
        """A request came. Its `big` says whether it must be rendered and reported by `measured` before it can be
        granted anything. Raises QueueFull."""
        if len(self._queue) >= self.targets.queue and work.prefills:
            raise QueueFull
        if work.id in self.entries:
            raise ValueError(f"request {work.id} has arrived before")
        entry = Entry(
            work, arrived=now if work.since is None else min(work.since, now), uncached=max(1, work.uncached), at=work.cached
        )
        self._classify(entry)
        if entry.big and not self.live and not self._contended() and entry.uncached <= self.pacer.alone_piece(entry.at):
            entry.big = False  # one piece at most, with nobody to protect: sent whole it is the same, without the detour
        entry.ready = not (entry.big and work.paceable and self.policy in PACING)
        self.entries[work.id] = entry
        self._queue.add(entry)
        if work.prefills:
            self.debt.open(now)
        return entry

    def measured(self, now: float, id: str, uncached: int, paceable: bool, cached: int = 0) -> None:
        """The exact uncached and cached tokens of a waiting request are known, and whether it can go in pieces after all."""
        entry = self.entries[id]
        if entry.phase is Phase.QUEUED:
            self._queue.remove(entry)
            entry.uncached, entry.at = max(1, uncached), cached
            entry.work.paceable = paceable
            self._classify(entry)
            entry.ready = True
            self._queue.add(entry)

    def release(self, now: float, id: str) -> None:
        """Pacing of this waiting request has been given up (the engine cannot do it): it goes on whole, at once."""
        entry = self.entries[id]
        entry.released = entry.ready = True

    def prefilled(self, now: float, id: str, uncached: int, seconds: float | None) -> None:
        """A piece ended; `uncached` tokens are left. `seconds`: how long it took, or None where that says nothing
        (it failed, or other prefill ran beside it). The request waits for its next grant."""
        entry = self.entries[id]
        tokens = entry.in_flight
        self.debt.prefill_ended(now)
        gap = self.debt.take_gap(now)
        if seconds is not None and self.in_flight == tokens:
            self.learner.piece(tokens, seconds, entry.at)
            self.pacer.seen = max(self.pacer.seen, tokens)
            if gap is not None:
                # A gap that is longer than the piece has another cause (a buffering parser), or began before it.
                self.learner.gap(tokens, min(gap, seconds), entry.at)
            self._refit()
        entry.in_flight = 0
        entry.phase = Phase.QUEUED
        entry.at = max(0, entry.at + entry.uncached - uncached)
        entry.uncached = max(1, uncached)
        self._queue.add(entry)

    def engine(self, now: float, capability: Capability) -> None:
        """What is known of the engine has changed."""
        self.capability = capability
        self.pacer.block, self.pacer.chunk = capability.block, capability.chunk

    def timed(self, now: float, tokens: int, seconds: float, at: int = 0) -> None:
        """A prefill of `tokens` uncached tokens behind `at` cached ones, with nothing beside it, was answered after `seconds`."""
        self.learner.piece(tokens, seconds, at)
        self.pacer.seen = max(self.pacer.seen, tokens)
        self._refit()

    def forget(self, now: float) -> None:
        """The engine may be another one: what was learned of its speed and its blocks no longer holds."""
        self.learner = StepLearner()
        self.pacer = Pacer(self.targets)
        self.capability = Capability()

    def _refit(self) -> None:
        self.pacer.model = self.learner.model()

    def streams(self, now: float, id: str, streams: bool) -> None:
        """The head of its answer says whether it comes as a stream."""
        self.entries[id].work.streams = streams

    def first_output(self, now: float, id: str) -> None:
        """The first output of a streamed answer: its prefill is over, it is a live decode."""
        entry = self.entries[id]
        kept_waiting = self._kept_waiting(now, entry)
        if entry.phase is not Phase.DECODE:  # else its prefill was taken to be over already, or it had none
            if entry.paced and self.pacer.model is not None:
                self.learner.last(now - entry.granted - self.pacer.model.prefill(entry.in_flight, entry.at))
            self._prefill_over(now, entry)
        if entry.work.streams:
            self.debt.join(now, id, kept_waiting)
        if not self._contended():
            self.debt.close(now)

    def output(self, now: float, id: str, tokens: int = 1) -> None:
        """More output of a live decode."""
        solo = self.debt.output(now, id, tokens)
        if solo is not None:
            self.learner.solo(solo)

    def leave(self, now: float, id: str) -> None:
        """The request is over, however it ended. Unknown ids are an error: nothing leaves twice."""
        entry = self.entries.pop(id)
        if entry.phase is Phase.QUEUED:
            self._queue.remove(entry)
        elif entry.phase in (Phase.PIECE, Phase.WHOLE):
            self.debt.prefill_ended(now)
        self.debt.leave(id)
        if not self._contended():
            self.debt.close(now)

    # -- decisions --------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Decision]:
        """What may happen now. Each grant is in force when this returns."""
        for entry in self.entries.values():
            if entry.whole_by is not None and entry.whole_by <= now:
                self._prefill_over(now, entry)
                if not self._contended():
                    self.debt.close(now)
        if not len(self._queue):
            self._retry_at = INFINITY
            return []
        decisions: list[Decision] = []
        while (decision := self._next(now)) is not None:
            decisions.append(decision)
        return decisions

    def wake(self, now: float) -> float | None:
        """When to call `decide` again, at the latest; None when only an event can change anything."""
        times = [self._retry_at]
        times += [self._due(entry) for entry in self._queue if entry.ready]
        times += [entry.whole_by for entry in self.entries.values() if entry.whole_by is not None]
        earliest = min(times)
        return None if earliest == INFINITY else max(now, earliest)

    def _next(self, now: float) -> Decision | None:
        self._retry_at = INFINITY
        busy = self.in_flight
        in_engine = self.in_engine
        for entry in self._order(now):
            due = self._due(entry)
            view = View(live=self.live, in_engine=in_engine, overdue=now >= due)
            if not entry.work.prefills:
                return self._let_through(now, entry)
            say = Say.SHARE if entry.released else self._rule(entry, view)
            if say is Say.SEND:
                return self._send(now, entry, view.overdue and self.policy != "passthrough")
            if say is Say.EXPIRE:
                self._queue.remove(entry)
                entry.phase = Phase.EXPIRED
                return Expire(entry.work.id, now - entry.arrived)
            if say is Say.SHARE and (decision := self._share(now, entry, busy, view.overdue)) is not None:
                return decision
        return None

    def _order(self, now: float) -> Iterator[Entry]:
        """Candidates, best first: those at their bound, then the queue's order; of the long ones that can be paced only
        the one under way, if there is one."""
        yield from sorted((e for e in self._queue if e.ready and now >= self._due(e)), key=self._due)
        yield from [entry for entry in self._queue if entry.released or not entry.work.prefills]
        under_way = next((e for e in self.entries.values() if e.paced and e.phase is not Phase.DECODE), None)
        for entry in self._queue.order(self.pacer.piece()):
            if under_way is None or entry is under_way or not (entry.big and entry.work.paceable):
                yield entry
        if under_way is not None and under_way.phase is Phase.QUEUED:
            yield under_way  # where an older request of its client stands before it, still being rendered

    def _share(self, now: float, entry: Entry, busy: int, overdue: bool) -> Decision | None:
        """Policy pace: a piece, or all of it, if debt and room allow; else None and `_retry_at`."""
        in_pieces = entry.big and entry.work.paceable and entry.uncached > self.pacer.unit
        if entry.released:
            return self._send(now, entry, False)
        if overdue:
            return self._piece(now, entry, self.pacer.piece(entry.at), True) if in_pieces else self._send(now, entry, True)
        if not entry.big and self.pacer.is_tiny(entry.uncached, entry.at) and busy <= 2 * self.pacer.piece():
            return self._send(now, entry, False)
        if entry.big and not entry.work.paceable and self.live:
            return None  # held: nothing else protects the live answers from it
        coming = any(e.phase is Phase.WHOLE and e.work.streams for e in self.entries.values())
        ahead = self._ahead(entry) if entry.paced and not in_pieces else 0.0
        room, retry_at = self.pacer.grant(now, self.live > 0 or coming, self.debt, ahead, entry.at)
        if not room:
            self._retry_at = min(self._retry_at, retry_at)
            return None
        if not in_pieces:
            return self._send(now, entry, False) if busy == 0 or busy + entry.uncached <= room else None
        tokens = (room - busy) // self.pacer.unit * self.pacer.unit
        return self._piece(now, entry, tokens, False) if tokens > 0 else None

    def _ahead(self, entry: Entry) -> float:
        """Seconds of entitlement to leave in hand for the last request of a paced prompt: its tail starves the
        answers, its overhead lets them catch up."""
        if self.pacer.model is None or self.targets.share <= 0:
            return 0.0
        caught_up = self.learner.last_overhead * (1.0 - self.targets.share) / self.targets.share
        # No more than credit can hold: what is asked for beyond that would never be in hand.
        return min(self.pacer.model.prefill(entry.uncached, entry.at) - caught_up, 0.8 * self.debt.credit)

    def _send(self, now: float, entry: Entry, yielded: bool) -> Go:
        waited = self._grant(now, entry, entry.uncached, Phase.WHOLE, yielded)
        if not entry.work.streams:
            model = self.pacer.model
            entry.whole_by = now + (model.piece(entry.uncached, entry.at) if model is not None else 1.0)
        return Go(entry.work.id, waited, yielded)

    def _let_through(self, now: float, entry: Entry) -> Go:
        self._queue.remove(entry)
        entry.phase = Phase.DECODE
        entry.granted = entry.first_grant = now
        return Go(entry.work.id, now - entry.arrived)

    def _piece(self, now: float, entry: Entry, tokens: int, yielded: bool) -> Piece:
        entry.paced = True
        tokens = min(tokens, entry.uncached)
        waited = self._grant(now, entry, tokens, Phase.PIECE, yielded)
        return Piece(entry.work.id, tokens, waited, yielded)

    def _grant(self, now: float, entry: Entry, tokens: int, phase: Phase, yielded: bool) -> float:
        self._queue.remove(entry)
        self._queue.granted(entry, tokens)
        self.debt.take_gap(now)
        self.debt.prefill_began(now)
        entry.phase = phase
        entry.in_flight = tokens
        entry.granted = now
        entry.yielded |= yielded
        if entry.first_grant is None:
            entry.first_grant = now
        return now - entry.arrived

    # -- helpers ----------------------------------------------------------------------------------

    def _classify(self, entry: Entry) -> None:
        model = self.pacer.model
        entry.big = self.pacer.is_big(entry.uncached, entry.at)
        entry.alone = model.prefill(entry.uncached, entry.at) if model is not None else 0.0

    def _due(self, entry: Entry) -> float:
        """When the share yields to this request: `wait` bounds its first grant, `stretch` the rest."""
        if entry.first_grant is None:
            return entry.arrived + self.targets.wait
        # From the first grant on: what a request waited before, in a queue or under `hold`, must not make the rest of it overdue.
        return entry.first_grant + max(self.targets.wait, entry.alone * self.targets.stretch)

    def _prefill_over(self, now: float, entry: Entry) -> None:
        entry.phase = Phase.DECODE
        entry.in_flight = 0
        entry.whole_by = None
        self.debt.prefill_ended(now)

    def _kept_waiting(self, now: float, entry: Entry) -> float:
        """Seconds by which pieces of others delayed the first output of a request that was sent whole."""
        model = self.pacer.model
        if model is None or entry.paced or not any(e.paced for e in self.entries.values() if e.phase in CONTENDING):
            return 0.0
        return max(0.0, now - entry.arrived - model.piece(entry.uncached, entry.at))

    def _contended(self) -> bool:
        return any(entry.phase in CONTENDING for entry in self.entries.values())
