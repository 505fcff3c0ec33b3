"""Requests sent when they are due, however slow the server is: else its slowness would thin out the load that it is measured
under (coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headway.bench.client import Stream


def poisson(rate: float, duration: float, rng: random.Random) -> list[float]:
    """Arrival times in [0, duration), seconds, of a Poisson process of `rate` a second."""
    times, now = [], rng.expovariate(rate)
    while now < duration:
        times.append(now)
        now += rng.expovariate(rate)
    return times


@dataclass(frozen=True)
class Sent:
    """`late_s`: seconds between the moment a request was due and its submission."""

    answers: list[Stream]

    @property
    def late_s(self) -> list[float]:
        return [answer.submitted - answer.due for answer in self.answers if answer.due is not None]


async def at(due: float) -> None:
    """Until the monotonic time `due`."""
    while (left := due - time.monotonic()) > 0:  # noqa: ASYNC110 (a timer may fire a little early)
        await asyncio.sleep(left)


async def send_when_due(start: float, times: Sequence[float], send: Callable[[int, float], Awaitable[Stream]]) -> Sent:
    """`send(number, due)` for each of `times` (seconds after `start`, monotonic), none waiting for another."""

    async def one(number: int) -> Stream:
        await at(start + times[number])
        return await send(number, start + times[number])

    return Sent(list(await asyncio.gather(*(one(number) for number in range(len(times))))))


def backlog(answers: Sequence[Stream], moment: float) -> int:
    """Requests that were due before `moment` and had given no token by then."""
    return sum(1 for a in answers if (a.due or a.submitted) <= moment and (not a.events or a.events[0].at > moment))
