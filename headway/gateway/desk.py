"""Where a request gets its turn: one controller, one clock, one timer, and a permit for each request.

Invariants
----------
1. A request holds one permit, a context manager around its whole life. Leaving the block, however it is left, is the only
   thing that tells the controller that the request is over.
2. After each event the controller is asked what may happen, and the timer is set to when it wants to be asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil
from types import TracebackType

from headway.core.controller import Controller
from headway.core.work import Decision, Entry, Expire, Go, Piece, Work


def clock(loop: asyncio.AbstractEventLoop) -> float:
    """Seconds of the loop's clock, rounded up to a microsecond: what a decision log can carry exactly."""
    return ceil(loop.time() * 1e6) / 1e6


class Expired(Exception):
    """The request waited as long as it may."""


class Desk:
    def __init__(self, controller: Controller, on_grant: Callable[[Entry, Decision], None]) -> None:
        self.controller = controller
        self.grants = 0
        """Grants given so far: two equal readings mean that nothing was sent in between."""
        self._on_grant = on_grant
        self._loop = asyncio.get_running_loop()
        self._permits: dict[str, Permit] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._wake_at: float | None = None
        self._emptied: asyncio.Future[None] | None = None

    @property
    def now(self) -> float:
        return clock(self._loop)

    def permit(self, work: Work) -> Permit:
        return Permit(self, work)

    def turn(self) -> None:
        """Ask the controller, hand its decisions to those who wait, set the timer."""
        now = self.now
        controller = self.controller
        for decision in controller.decide(now):
            self.grants += 1
            self._on_grant(controller.entries[decision.id], decision)
            self._permits[decision.id]._granted(decision)
        self._wake_at = at = controller.wake(now)
        if at is not None and (self._timer is None or at < self._timer_at):
            self._set_timer(at)

    def close(self) -> None:
        self._cancel_timer()

    def give_back(self, error: Exception) -> None:
        """Requests that wait and were granted nothing get `error` in place of a grant."""
        for permit in list(self._permits.values()):
            if permit.entry.first_grant is None:
                permit._refused(error)

    async def empty(self) -> None:
        """Until no request is left here."""
        while self._permits:
            self._emptied = self._emptied or self._loop.create_future()
            await asyncio.shield(self._emptied)

    def _tick(self) -> None:
        self._timer = None
        at = self._wake_at
        if at is not None and at > self._timer_at:
            self._set_timer(at)  # the turn moved on since: most events only put it off, and a timer for each would cost more
        elif at is not None:
            self.turn()

    def _set_timer(self, at: float) -> None:
        self._cancel_timer()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Permit:
    """One request's place. `with desk.permit(work) as permit:` Raises QueueFull on entering."""

    __slots__ = ("_decision", "_desk", "_waiter", "entry", "work")

    def __init__(self, desk: Desk, work: Work) -> None:
        self._desk = desk
        self._decision: Go | Piece | Expire | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.work = work

    def __enter__(self) -> Permit:
        desk = self._desk
        self.entry = desk.controller.arrive(desk.now, self.work)
        desk._permits[self.work.id] = self
        desk.turn()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        desk = self._desk
        del desk._permits[self.work.id]
        desk.controller.leave(desk.now, self.work.id)
        if not desk._permits and desk._emptied is not None:
            desk._emptied.set_result(None)
            desk._emptied = None
        desk.turn()

    @property
    def waits(self) -> bool:
        """Whether it was not granted anything at once."""
        return self._decision is None

    async def grant(self) -> Go | Piece:
        """The next decision about this request. Raises Expired."""
        if self._decision is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        decision, self._decision = self._decision, None
        assert decision is not None
        if isinstance(decision, Expire):
            raise Expired
        return decision

    def measured(self, uncached: int, cached: int, paceable: bool = True) -> None:
        """See Controller.measured."""
        self._desk.controller.measured(self._desk.now, self.work.id, uncached, paceable, cached)
        self._desk.turn()

    def release(self) -> None:
        """Pacing has been given up: its next grant is for all of it, without waiting for a share."""
        self._desk.controller.release(self._desk.now, self.work.id)
        self._desk.turn()

    def prefilled(self, uncached: int, seconds: float | None) -> None:
        """See Controller.prefilled."""
        self._desk.controller.prefilled(self._desk.now, self.work.id, uncached, seconds)
        self._desk.turn()

    def streams(self, streams: bool) -> None:
        """See Controller.streams."""
        if streams != self.work.streams:
            self._desk.controller.streams(self._desk.now, self.work.id, streams)

    def output(self, tokens: int) -> None:
        """Output came from the engine."""
        desk = self._desk
        if self.work.id in desk.controller.debt.victims:
            desk.controller.output(desk.now, self.work.id, tokens)
        else:
            desk.controller.first_output(desk.now, self.work.id)
            desk.turn()

    @property
    def grants(self) -> int:
        """Grants given so far, to anyone."""
        return self._desk.grants

    @property
    def prefilling(self) -> bool:
        """Whether any prefill is in the engine now."""
        return self._desk.controller.debt.prefilling

    def _refused(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _granted(self, decision: Decision) -> None:
        self._decision = decision
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
