"""The controller of one engine, driven by the gateway and by the simulator alike.

Events with a time go in (`arrive`, `measured`, `prefilled`, `first_output`, `output`, `leave`, ...); `decide(now)` gives what may
happen now, and `wake(now)` when to ask again if nothing else happens.

Invariants
----------
1. Every request that arrived leaves exactly once, by `leave`, from any phase; an `Expire` is followed by its `leave`.
2. A request that is ready has its first grant at most its class's `wait` after it arrived (if `decide` is called when `wake`
   says), policy `serialize` excepted, whose requests expire at that bound.
3. Uncached tokens in flight are at most one piece, tiny, exempt and overdue ones apart; one prompt is in pieces at a time,
   overdue ones apart.
4. With no protected answer live nothing waits for a share.
5. Counts come from three places: `entries` has all, `_queue` those that wait, `_granted` those in the engine. Each changes with
   the entry's phase, and nothing is counted a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headway.core import bounds
from headway.core.capability import Capability
from headway.core.classes import INTERACTIVE, Classes, default_classes, strictest_gap
from headway.core.debt import DebtLedger
from headway.core.foreign import Foreign
from headway.core.granted import Granted
from headway.core.pacing import Pacer
from headway.core.policy import ASIDE, PACING, POLICIES, Say, View
from headway.core.queue import Queue
from headway.core.steps import StepLearner
from headway.core.targets import Targets
from headway.core.work import YIELDS, Decision, Entry, Expire, Go, Phase, Piece, Why, Work

INFINITY = float("inf")

CONTENDING = (Phase.QUEUED, Phase.PIECE, Phase.WHOLE)
"""Phases in which a request's prefill competes with live answers."""


class QueueFull(Exception):
    """As much waits as may. `limit`: the option that says so; `wait`: seconds that the request would have waited, predicted."""

    def __init__(self, limit: str, allowed: int, wait: float) -> None:
        super().__init__(limit)
        self.limit, self.allowed, self.wait = limit, allowed, wait


class Controller:
    def __init__(self, policy: str, targets: Targets, classes: Classes | None = None) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
        self.policy = policy
        self.targets = targets
        self.classes = classes or default_classes(targets)
        self.capability = Capability()
        self._one_gap = len({klass.targets.gap for klass in self.classes.values() if klass.protected}) <= 1
        self.learner = StepLearner()
        self.pacer = self._new_pacer()
        self.debt = DebtLedger(targets.share)
        self.entries: dict[str, Entry] = {}
        self.foreign = Foreign()
        self._rule = POLICIES[policy]
        self._queue = Queue()
        self._granted = Granted()
        self._retry_at = INFINITY
        self._backlog = 0.0
        """Seconds, see bounds.backlog; as of the latest grant."""
        self._saving = False
        """In this turn: the best candidate waits for the debt to be paid."""

    # -- what is the case -------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Live decodes: streams that gave their first output and have not ended."""
        return len(self.debt.victims)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        """Uncached tokens of all that wait."""
        return self._queue.tokens

    @property
    def in_engine(self) -> int:
        return len(self._granted.engine)

    @property
    def in_flight(self) -> int:
        """Uncached tokens granted and not yet prefilled."""
        return self._granted.in_flight

    @property
    def aside(self) -> bool:
        """The policy steps aside: the engine paces by itself."""
        return self.policy in ASIDE and bool(self.capability.paces)

    def pending(self) -> Iterator[Entry]:
        """Requests whose prefill waits or runs."""
        return (entry for entry in self.entries.values() if entry.phase in CONTENDING and entry.work.prefills)

    def count(self, phase: Phase) -> int:
        return sum(1 for entry in self.entries.values() if entry.phase is phase)

    # -- events -----------------------------------------------------------------------------------

    def arrive(self, now: float, work: Work) -> Entry:
        """A request came. Its `ready` says whether it must be rendered and reported by `measured` before it can be
        granted anything. Raises QueueFull."""
        if work.prefills:
            self._admit(work)
        if work.id in self.entries:
            raise ValueError(f"request {work.id} has arrived before")
        klass = self.classes.get(work.klass) or self.classes[INTERACTIVE]
        work.paceable = work.paceable and not self.capability.obstacle
        arrived = now if work.since is None else min(work.since, now)
        entry = Entry(work, arrived=arrived, uncached=max(1, work.uncached), klass=klass, at=work.cached)
        self._classify(entry)
        if entry.big and not self.live and not self._contended() and entry.uncached <= self.pacer.alone_piece(entry.at):
            entry.big = False  # one piece at most, with nobody to protect: sent whole it is the same, without the detour
        paced = self.policy in PACING and not self.aside and not klass.exempt
        entry.ready = not (entry.big and work.paceable and paced)
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
        if entry.phase is Phase.QUEUED:
            self._queue.changed(entry)

    def prefilled(self, now: float, id: str, uncached: int, seconds: float | None) -> None:
        """A piece ended; `uncached` tokens are left. `seconds`: how long it took, or None where that says nothing
        (it failed, or other prefill ran beside it). The request waits for its next grant."""
        entry = self.entries[id]
        tokens = entry.in_flight
        self.debt.prefill_ended(now)
        decoded = self.debt.decoded(entry.granted)
        gap = self.debt.take_gap(now)
        self.foreign.prefilled(now, now - entry.granted, self.targets.share)
        if seconds is not None and self.in_flight == tokens and not self.foreign.count:
            if gap is not None:
                # A gap that is longer than the piece has another cause (a buffering parser), or began before it.
                self.learner.gap(tokens, min(gap, seconds), entry.at)
            if decoded is not None:
                self.learner.beside(entry.at + tokens, min(decoded, seconds))
            self._learn(tokens, seconds, entry.at)
        self._granted.rests(entry)
        entry.at = max(0, entry.at + entry.uncached - uncached)
        entry.uncached = max(1, uncached)
        self._queue.add(entry)

    def engine(self, now: float, capability: Capability) -> None:
        """What is known of the engine has changed."""
        self.capability = capability
        self.pacer.can(capability)

    def timed(self, now: float, tokens: int, seconds: float, at: int = 0) -> None:
        """A prefill of `tokens` uncached tokens behind `at` cached ones, with no other beside it, was answered after
        `seconds`."""
        self._learn(tokens, seconds, at)

    def _learn(self, tokens: int, seconds: float, at: int) -> None:
        self.learner.piece(tokens, seconds, at)
        self.pacer.seen = max(self.pacer.seen, tokens)
        self.pacer.model = self.learner.model()

    def foreigners(self, now: float, excess: int) -> None:
        """The engine runs `excess` requests more than are known here."""
        self.foreign.seen(excess)

    def forget(self, now: float) -> None:
        """The engine may be another one: what was learned of its speed and its blocks no longer holds."""
        self.learner = StepLearner()
        self.pacer = self._new_pacer()
        self.capability = Capability()

    def streams(self, now: float, id: str, streams: bool) -> None:
        """The head of its answer says whether it comes as a stream."""
        self.entries[id].work.streams = streams

    def first_output(self, now: float, id: str) -> None:
        """The first output of a streamed answer: its prefill is over, it is a live decode."""
        entry = self.entries[id]
        kept_waiting = self._kept_waiting(now, entry)
        if entry.phase is not Phase.DECODE:  # else its prefill was taken to be over already, or it had none
            if entry.paced and self.pacer.model is not None:
                overhead = now - entry.granted - self.pacer.model.prefill(entry.in_flight, entry.at)
                self.learner.last(overhead, entry.in_flight + entry.at)
            self._prefill_over(now, entry)
        if entry.work.streams:
            self.debt.join(now, id, kept_waiting, entry.klass.share)
            self._regap()
        if not self._contended():
            self.debt.close(now)

    def output(self, now: float, id: str, tokens: int = 1) -> None:
        """More output of a live decode."""
        solo = self.debt.output(now, id, tokens)
        if solo is not None and not self.foreign.count:
            self.learner.solo(solo)

    def outputs(self, id: str, count: int, tokens: int, first: float, last: float) -> None:
        """`count` outputs of a live decode, `tokens` tokens together, evenly from `first` to `last` with nothing in between: what
        as many calls of `output` say, for a caller who knows them all at once (virtual time)."""
        for solo, times in self.debt.outputs(id, count, tokens, first, last):
            self.learner.solo(solo, times)

    def leave(self, now: float, id: str) -> None:
        """The request is over, however it ended. Unknown ids are an error: nothing leaves twice."""
        entry = self.entries.pop(id)
        self._granted.left(entry)
        if entry.phase is Phase.QUEUED:
            self._queue.remove(entry)
        elif entry.phase in (Phase.PIECE, Phase.WHOLE):
            self.debt.prefill_ended(now)
        self.debt.leave(id)
        self._regap()
        if not self._contended():
            self.debt.close(now)

    # -- decisions --------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Decision]:
        """What may happen now. Each grant is in force when this returns."""
        for entry in self.entries.values() if self._granted.over_at <= now else ():
            if entry.whole_by is not None and entry.whole_by <= now:
                self._prefill_over(now, entry)
                if not self._contended():
                    self.debt.close(now)
        self._retry_at = INFINITY
        decisions: list[Decision] = []
        while len(self._queue) and (decision := self._next(now)) is not None:
            decisions.append(decision)
        return decisions

    def wake(self, now: float) -> float | None:
        """When to call `decide` again, at the latest; None when only an event can change anything."""
        self._measure_backlog()
        times = [self._due(entry) for entry in self._queue.later if entry.ready]
        earliest = min(self._retry_at, self._queue.next_due, self._granted.over_at, *times)
        return None if earliest == INFINITY else max(now, earliest)

    def _next(self, now: float) -> Decision | None:
        self._retry_at, self._saving = INFINITY, False
        self._measure_backlog()
        busy, in_engine, live = self.in_flight, self.in_engine, self.debt.protected + self.foreign.count
        for entry, overdue in self._order(now):
            if not entry.work.prefills:
                return self._let_through(now, entry)
            if entry.klass.exempt:
                return self._send(now, entry, Why.EXEMPT)
            view = View(live, in_engine, overdue, bool(self.capability.paces), bounds.overloaded(entry, self._backlog))
            say = Say.SHARE if entry.released else self._rule(entry, view)
            if say is Say.SEND:
                return self._send(now, entry, Why.ASIDE if self.aside else Why.POLICY)
            if say is Say.EXPIRE:
                self._queue.remove(entry)
                entry.phase = Phase.EXPIRED
                return Expire(entry.work.id, now - entry.arrived)
            if say is Say.STAY:
                entry.held = True
            elif (decision := self._share(now, entry, busy, overdue)) is not None:
                return decision
        return None

    def _order(self, now: float) -> Iterator[tuple[Entry, bool]]:
        """(candidate, whether it is at its bound), best first: those at their bound, then the queue's order. One prompt at a time
        is in pieces, but a better one may go first between two of them."""
        candidates = self._queue if self._queue.next_due <= now else self._queue.later
        due = [(at, n, e) for n, e in enumerate(candidates) if e.ready and (at := self._due(e)) <= now]
        due.sort(key=lambda place: place[:2])
        yield from [(entry, True) for _, _, entry in due]
        if self._queue.unheld:
            yield from [(entry, False) for entry in self._queue if entry.work.id in self._queue.unheld]
        busy = self._granted.piece
        for entry in self._queue.order(self.pacer.piece()):
            if not (busy and entry.big and entry.work.paceable and self.policy in PACING):
                yield entry, False

    def _share(self, now: float, entry: Entry, busy: int, overdue: bool) -> Decision | None:
        """Policy pace: a piece, or all of it, if debt and room allow; else None and `_retry_at`."""
        in_pieces = entry.big and entry.work.paceable and entry.uncached > self.pacer.unit
        live = self.debt.protected + self.foreign.count > 0
        if entry.released:
            return self._send(now, entry, Why.UNPACED)
        if overdue and in_pieces:
            return self._piece(now, entry, self.pacer.piece(entry.at), Why.BOUND)
        if overdue:
            return self._send(now, entry, Why.BOUND)
        if not entry.big and self.pacer.is_tiny(entry.uncached, entry.at) and busy <= 2 * self.pacer.piece():
            return self._send(now, entry, Why.SMALL)
        if entry.big and not entry.work.paceable and live:
            entry.held = True
            return None  # held: nothing else protects the live answers from it
        if self._saving:
            return None  # one before it in order waits for the debt to be paid: what is left over is not for those behind
        if bounds.overloaded(entry, self._backlog):
            return self._yield(now, entry, busy, in_pieces)
        coming = live or self._granted.coming
        ahead = (self._lead(entry) if in_pieces else self._ahead(entry)) if entry.paced else 0.0
        room, retry_at = self.pacer.grant(now, coming, self.debt, ahead, entry.at)
        if self.foreign.count and not self.debt.protected and now < self.foreign.rest_until:
            room, retry_at = 0, max(retry_at, self.foreign.rest_until)
        if not room:
            self._retry_at = min(self._retry_at, retry_at)
            self._saving = True
            entry.held |= retry_at == INFINITY  # a share of all there is holds it, as policy `hold` would
            return None
        why = Why.SHARE if live else Why.FREE
        if not in_pieces:
            return self._send(now, entry, why) if busy == 0 or busy + entry.uncached <= room else None
        tokens = (room - busy) // self.pacer.unit * self.pacer.unit
        return self._piece(now, entry, tokens, why) if tokens > 0 else None

    def _measure_backlog(self) -> None:
        live = self.debt.protected + self.foreign.count > 0
        self._backlog = bounds.backlog(self._queue, self.pacer, self.debt.highest) if live else 0.0

    def _yield(self, now: float, entry: Entry, busy: int, in_pieces: bool) -> Decision | None:
        """What fits into one piece as with nobody live, whatever is owed: little of the engine's time is lost, and gaps stay
        within a few targets."""
        room = self.pacer.alone_piece(entry.at) - busy
        if not in_pieces and (busy == 0 or entry.uncached <= room):
            self.debt.forgive(now)
            return self._send(now, entry, Why.BACKLOG)
        tokens = room // self.pacer.unit * self.pacer.unit
        if not in_pieces or tokens <= 0:
            return None
        self.debt.forgive(now)
        return self._piece(now, entry, tokens, Why.BACKLOG)

    def _lead(self, entry: Entry) -> float:
        """The same (so negative) for a piece: while the engine's front end reads its ids, the answers get on. Sent so much
        earlier, its prefill begins when they are owed nothing, and what they get meanwhile is not lost to the bound on credit."""
        share = self.debt.highest
        if self.pacer.model is None or share <= 0:
            return 0.0
        return -self.pacer.model.k * (entry.at + self.pacer.unit) * (1.0 - share) / share

    def _ahead(self, entry: Entry) -> float:
        """Seconds of entitlement to leave in hand for the last request of a paced prompt: its tail starves the
        answers, its overhead lets them catch up."""
        share = self.debt.highest
        if self.pacer.model is None or share <= 0:
            return 0.0
        caught_up = self.learner.last_overhead(entry.at + entry.uncached) * (1.0 - share) / share
        # No more than credit can hold: what is asked for beyond that would never be in hand.
        return min(self.pacer.model.prefill(entry.uncached, entry.at) - caught_up, 0.8 * self.debt.credit)

    def _send(self, now: float, entry: Entry, why: Why) -> Go:
        waited = self._grant(now, entry, entry.uncached, Phase.WHOLE, why)
        if not entry.work.streams:
            model = self.pacer.model
            entry.whole_by = now + (model.piece(entry.uncached, entry.at) if model is not None else 1.0)
        return Go(entry.work.id, waited, why, why in YIELDS)

    def _let_through(self, now: float, entry: Entry) -> Go:
        self._queue.remove(entry)
        entry.phase = Phase.DECODE
        entry.granted = entry.first_grant = now
        return Go(entry.work.id, now - entry.arrived, Why.NO_PREFILL)

    def _piece(self, now: float, entry: Entry, tokens: int, why: Why) -> Piece:
        tokens = min(tokens, entry.uncached)
        waited = self._grant(now, entry, tokens, Phase.PIECE, why)
        return Piece(entry.work.id, tokens, waited, why, why in YIELDS)

    def _grant(self, now: float, entry: Entry, tokens: int, phase: Phase, why: Why) -> float:
        self._queue.remove(entry)
        self._queue.granted(entry, tokens)
        self.debt.take_gap(now)
        self.debt.prefill_began(now)
        self._granted.began(entry, phase)
        entry.in_flight = tokens
        entry.granted = now
        entry.yielded |= why in YIELDS
        if entry.first_grant is None:
            entry.first_grant = now
        return now - entry.arrived

    # -- helpers ----------------------------------------------------------------------------------

    def _admit(self, work: Work) -> None:
        limits = (
            ("queue", self.targets.queue, len(self._queue) + 1),
            ("queue-tokens", self.targets.queue_tokens, self._queue.tokens + work.uncached if len(self._queue) else 0),
        )
        for limit, allowed, wanted in limits:
            if wanted > allowed:
                raise QueueFull(limit, allowed, bounds.queue_seconds(self))

    def _classify(self, entry: Entry) -> None:
        model = self.pacer.model
        entry.big = self.pacer.is_big(entry.uncached, entry.at)
        entry.alone = model.prefill(entry.uncached, entry.at) if model is not None else 0.0

    def _due(self, entry: Entry) -> float:
        if entry.first_grant is None and bounds.overloaded(entry, self._backlog):
            return entry.arrived + entry.klass.targets.wait
        return bounds.due(entry, self.pacer)

    def _new_pacer(self) -> Pacer:
        return Pacer(replace(self.targets, gap=strictest_gap(self.classes, self.targets)))

    def _regap(self) -> None:
        """The smallest gap that a live protected answer asks for."""
        if self._one_gap:
            return
        live = (self.entries[id].klass for id in self.debt.victims)
        self.pacer.beside = min((klass.targets.gap for klass in live if klass.protected), default=None)

    def _prefill_over(self, now: float, entry: Entry) -> None:
        self._granted.decodes(entry)
        self.foreign.prefilled(now, now - entry.granted, self.targets.share)
        self.debt.prefill_ended(now)

    def _kept_waiting(self, now: float, entry: Entry) -> float:
        """Seconds by which pieces of others delayed the first output of a request that was sent whole."""
        model = self.pacer.model
        if model is None or entry.paced or not self._granted.pacing:
            return 0.0
        return max(0.0, now - entry.arrived - model.piece(entry.uncached, entry.at))

    def _contended(self) -> bool:
        return len(self._queue) > 0 or bool(self._granted.running)
