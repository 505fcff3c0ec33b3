"""The engine in real time: sleeps each step's modelled duration, then hands its outputs out.

The schedule is kept against the loop's clock and not against the moment of waking, so late wake-ups do not
add up; only when the process itself was held up for longer than MAX_LAG is the lost time given up instead
of being caught up in a burst. Arrivals and departures take effect between two steps, as in the real engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from headway.simulator.engine import Engine, Output
from headway.simulator.request import Request

#: Seconds.
MAX_LAG = 0.25


class EngineDead(Exception):
    """The engine was stopped while the request was in it."""


class Driver:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._streams: dict[str, asyncio.Queue[Output | None]] = {}
        self._leaving: list[str] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="headway-engine")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for queue in self._streams.values():
            queue.put_nowait(None)

    @contextlib.contextmanager
    def submit(self, request: Request) -> Iterator[AsyncIterator[Output]]:
        """Queue `request`; iterate its outputs inside the block. Leaving the block takes it out of the
        engine.

        Raises ValueError, before anything is queued, for a request that the engine cannot serve.
        """
        self.engine.add(request)
        queue: asyncio.Queue[Output | None] = asyncio.Queue()
        self._streams[request.id] = queue
        self._wake.set()
        try:
            yield self._outputs(queue)
        finally:
            del self._streams[request.id]
            if request.finish_reason is None:
                self._leaving.append(request.id)
                self._wake.set()

    async def _outputs(self, queue: asyncio.Queue[Output | None]) -> AsyncIterator[Output]:
        while True:
            output = await queue.get()
            if output is None:
                raise EngineDead
            yield output
            if output.finish_reason is not None:
                return

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            while self._leaving:
                self.engine.abort(self._leaving.pop())
            if not self.engine.has_work:
                due = await self._idle()
                continue
            step = self.engine.begin()
            if step.stuck:
                due = await self._idle()
                continue
            due += step.duration
            if clock() - due > MAX_LAG:
                due = clock()
            await asyncio.sleep(max(due - clock(), 0.0))
            for output in self.engine.end(step):
                queue = self._streams.get(output.request.id)
                if queue is not None:
                    queue.put_nowait(output)

    async def _idle(self) -> float:
        self._wake.clear()
        if not self._leaving:
            await self._wake.wait()
        return asyncio.get_running_loop().time()


class FrontEndQueue:
    """The one HTTP process in front of the engine: its work on requests is done one after the other."""

    def __init__(self) -> None:
        self._free_at = 0.0

    async def spend(self, seconds: float) -> None:
        """Wait until this process has spent `seconds` on the caller's request."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + seconds
        await asyncio.sleep(self._free_at - now)
