"""Random arrivals, outputs, cancels and finishes through every policy: the controller's invariants, after each event."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.capability import Capability
from headway.core.controller import Controller, QueueFull
from headway.core.policy import PACING, POLICIES
from headway.core.targets import Targets
from headway.core.work import Expire, Go, Phase, Piece, Work

WAIT = 3.0
TICK = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 1.0])


class Traffic(RuleBasedStateMachine):
    """A driver that keeps its own books and never looks at the controller's to do so."""

    policy = "pace"

    @initialize(model=st.booleans(), share=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]))
    def begin(self, model: bool, share: float) -> None:
        self.controller = Controller(self.policy, Targets(share=share, gap=0.1, wait=WAIT, queue=30))
        self.controller.engine(99.0, Capability(block=256, caching=True))
        if model:
            for tokens in (256, 512, 1024, 256, 512):
                self.controller.timed(99.0, tokens, 0.01 + 80e-6 * tokens)
        self.now = 100.0
        self.next = 0
        self.waiting: dict[str, Work] = {}
        self.pieces: dict[str, int] = {}
        self.left: dict[str, int] = {}
        self.prefilling: set[str] = set()
        self.decoding: set[str] = set()
        self.expired: set[str] = set()
        self.arrived: dict[str, float] = {}
        self.granted: dict[str, float] = {}
        self.order: dict[tuple[str, bool], list[str]] = {}
        self.ended: set[str] = set()

    # -- driving

    def turn(self) -> None:
        """Asks as a timer would, at every moment the controller named up to now."""
        for decision in self.controller.decide(self.now):
            id = decision.id
            assert id in self.waiting, f"{decision} for a request that does not wait"
            if isinstance(decision, Expire):
                assert self.policy == "serialize"
                self.expired.add(id)
                del self.waiting[id]
                self.forget_order(id)
                continue
            first = id not in self.granted
            self.granted.setdefault(id, self.now)
            if isinstance(decision, Piece):
                assert self.policy in PACING
                assert 0 < decision.tokens <= self.left[id]
                self.pieces[id] = decision.tokens
            else:
                assert isinstance(decision, Go)
                self.prefilling.add(id)
            work = self.waiting.pop(id)
            if first:
                big = self.controller.entries[id].big
                line = self.order[work.client, big]
                # Long ones go by what is left of them: queue.py, and its own tests.
                assert big or line[0] == id, "out of order"
                line.remove(id)

    def forget_order(self, id: str) -> None:
        for line in self.order.values():
            if id in line:
                line.remove(id)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(10_000):
            wake = self.controller.wake(self.now)
            if wake is None or wake > end:
                break
            assert wake >= self.now
            self.now = max(wake, self.now + 1e-6)
            self.turn()
        else:
            raise AssertionError("the controller wants to be woken without end")
        self.now = max(end, self.now)
        self.turn()

    @rule(
        uncached=st.sampled_from([1, 40, 300, 1000, 1500, 14_000, 100_000]),
        client=st.sampled_from("ab"),
        streams=st.booleans(),
        paceable=st.booleans(),
    )
    def arrive(self, uncached: int, client: str, streams: bool, paceable: bool) -> None:
        id = str(self.next)
        self.next += 1
        work = Work(id, uncached, client=client, streams=streams, paceable=paceable)
        try:
            entry = self.controller.arrive(self.now, work)
        except QueueFull:
            assert len(self.waiting) >= 30
            return
        self.waiting[id], self.arrived[id], self.left[id] = work, self.now, uncached
        self.order.setdefault((client, entry.big), []).append(id)
        if not entry.ready:
            assert self.policy in PACING and paceable
            self.controller.measured(self.now, id, uncached, paceable=True)
        self.turn()

    @rule(seconds=TICK)
    def time_passes(self, seconds: float) -> None:
        self.advance(seconds)

    @precondition(lambda self: self.pieces)
    @rule(data=st.data(), seconds=TICK, timed=st.booleans())
    def piece_ends(self, data: st.DataObject, seconds: float, timed: bool) -> None:
        self.advance(seconds)
        id = data.draw(st.sampled_from(sorted(self.pieces)))
        tokens = self.pieces.pop(id)
        self.left[id] = max(1, self.left[id] - tokens)
        self.waiting[id] = Work(id, self.left[id])
        self.controller.prefilled(self.now, id, self.left[id], 0.01 + 80e-6 * tokens if timed else None)
        self.turn()

    @precondition(lambda self: self.prefilling)
    @rule(data=st.data())
    def first_output(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.prefilling)))
        self.prefilling.discard(id)
        self.decoding.add(id)
        self.controller.first_output(self.now, id)
        self.turn()

    @precondition(lambda self: self.decoding)
    @rule(count=st.integers(1, 8))
    def outputs(self, count: int) -> None:
        for _ in range(count):
            self.advance(0.01)
            for id in self.decoding:
                if self.controller.entries[id].work.streams:
                    self.controller.output(self.now, id)

    @precondition(lambda self: self.controller.entries)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Finished, or its client left: at whatever point it stands."""
        id = data.draw(st.sampled_from(sorted(self.controller.entries)))
        self.forget_order(id)
        for place in (self.waiting, self.pieces):
            place.pop(id, None)
        for place in (self.prefilling, self.decoding, self.expired):
            place.discard(id)
        assert id not in self.ended
        self.ended.add(id)
        self.controller.leave(self.now, id)
        self.turn()

    # -- what must hold

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "controller"):
            return
        c = self.controller
        assert c.waiting == len(self.waiting)
        assert c.count(Phase.PIECE) == len(self.pieces)
        assert set(c.entries) == {*self.waiting, *self.pieces, *self.prefilling, *self.decoding, *self.expired}
        assert c.in_flight >= 0 and c.live >= 0
        assert c.live == sum(1 for id in self.decoding if c.entries[id].work.streams)
        assert c.debt.prefilling == any(e.in_flight for e in c.entries.values())

    @invariant()
    def no_wait_is_above_its_bound(self) -> None:
        if hasattr(self, "controller"):
            for id in self.waiting:
                if id not in self.granted:
                    assert self.now - self.arrived[id] <= WAIT + 1e-3, f"{self.policy}: {id} waits too long"

    @invariant()
    def serialize_has_one_in_the_engine(self) -> None:
        if self.policy == "serialize" and hasattr(self, "controller"):
            assert len(self.prefilling) + len(self.decoding) <= 1

    @invariant()
    def passthrough_holds_nothing(self) -> None:
        if self.policy == "passthrough" and hasattr(self, "controller"):
            assert not self.waiting

    @invariant()
    def nothing_waits_when_the_engine_is_idle(self) -> None:
        if hasattr(self, "controller") and self.waiting:
            assert self.prefilling or self.pieces or self.decoding, "all wait and the engine does nothing"

    @invariant()
    def hold_and_pace_hold_nothing_for_a_share_when_no_answer_lives(self) -> None:
        if self.policy in PACING and hasattr(self, "controller") and self.waiting and not self.controller.live:
            # Then what waits, waits for the prefill in the engine, or for its turn behind it.
            assert any(e.in_flight for e in self.controller.entries.values())


@pytest.mark.parametrize("name", POLICIES)
def test_controller_keeps_its_invariants(name: str) -> None:
    machine = type(f"Traffic_{name}", (Traffic,), {"policy": name})
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)),
    )
