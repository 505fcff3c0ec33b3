"""How late this process's event loop runs: a client that lags measures itself, not the server."""

from __future__ import annotations

import asyncio
import gc
import time
from types import TracebackType

from headway.bench.window import quantile

PERIOD_S = 0.005
LIMIT_S = 0.02  # the loop may be this late (p99) before a run is void


class LagMeter:
    """`async with LagMeter() as lag`: afterwards `lag.p99_s` and `lag.max_s` are the lateness of a timer, seconds, and
    `lag.stalls` the (start, end) in which it was later than LIMIT_S, monotonic.

    Collects garbage before and after and never inside: a full collection is a gap of some ms in every stream at once.
    """

    def __init__(self) -> None:
        self._late: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self.stalls: list[tuple[float, float]] = []

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = time.monotonic() + PERIOD_S
            # A bare timer: asyncio.sleep() would add its own cost to what is measured
            done: asyncio.Future[None] = loop.create_future()
            handle = loop.call_later(PERIOD_S, _wake, done)
            try:
                await done
            finally:
                handle.cancel()
            now = time.monotonic()
            self._late.append(max(0.0, now - due))
            if now - due > LIMIT_S:
                self.stalls.append((due, now))

    async def __aenter__(self) -> LagMeter:
        gc.collect()
        gc.disable()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        gc.enable()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def p99_s(self) -> float:
        return quantile(self._late, 0.99) or 0.0

    @property
    def max_s(self) -> float:
        return max(self._late, default=0.0)

    def inside(self, start: float, end: float) -> float:
        """Seconds between two moments in which this process was held up, so that they are not the server's."""
        return sum(max(0.0, min(b, end) - max(a, start)) for a, b in self.stalls)


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
