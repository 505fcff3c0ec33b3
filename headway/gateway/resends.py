"""The same request again, while the first still waits or runs: a client whose own timeout fired, and its load must not double.

Invariants
----------
1. A resend has the path, the body and the client of the first. Under `marked` it also says that it is one: it carries the first's
   Idempotency-Key, or counts its tries as the vendors' SDKs do. Two equal requests that do not say so are two requests: somebody
   may be sampling.
2. A place is inherited, never taken: whoever left before a byte of the answer, or was replaced, leaves the time of its arrival to
   its resend (core/resends.py).
3. Who is joined gives all of its answer: one that has begun cannot be joined.
4. The work of a request ends when the last client that wants it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import xxhash

from headway.core.outcome import Outcome
from headway.core.resends import Mode, Places
from headway.gateway.exchange import Exchange
from headway.gateway.shared import SharedAnswer
from headway.gateway.transport.interface import Downstream, RequestHead, ResponseHead

Serve = Callable[[Exchange], Awaitable[Outcome]]


@dataclass(slots=True, eq=False)
class Flight:
    """One request under way."""

    exchange: Exchange
    task: asyncio.Future[Outcome] | asyncio.Task[None]
    """What to cancel, to end it."""
    shared: SharedAnswer | None = None
    replaced: bool = False


class Resends:
    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._flights: dict[int, Flight] = {}
        self.places = Places()
        self._loop = asyncio.get_running_loop()

    async def run(self, exchange: Exchange, client: str, serve: Serve) -> Outcome:
        """Serve the exchange, in whatever relation it stands to one under way."""
        key = key_of(exchange, client)
        while (first := self._flights.get(key)) is not None and self._is_resend(exchange.down.request, first):
            if self.mode is not Mode.JOIN:
                await _replace(first)
            elif first.exchange.down.started:
                break
            else:
                return await self._join(first, exchange)
        exchange.since = self.places.inherit(self._loop.time(), key)
        if self.mode is Mode.JOIN:
            return await self._lead(key, exchange, serve)
        return await self._alone(key, exchange, serve)

    def _is_resend(self, request: RequestHead, first: Flight) -> bool:
        return self.mode is not Mode.MARKED or is_marked(request, first.exchange.down.request)

    async def _alone(self, key: int, exchange: Exchange, serve: Serve) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        flight = self._flights[key] = Flight(exchange, task)
        try:
            return await serve(exchange)
        except asyncio.CancelledError:
            self._leave(key, exchange)
            if not flight.replaced:
                raise
            task.uncancel()
            _tell(exchange)
            return Outcome.REPLACED
        finally:
            self._over(key, flight)

    # -- joining ------------------------------------------------------------------------------------------

    async def _lead(self, key: int, exchange: Exchange, serve: Serve) -> Outcome:
        """As `_alone`, in a task that outlives this client where others have joined."""
        down = exchange.down
        exchange.down = shared = SharedAnswer(down)

        async def work() -> Outcome:
            try:
                return await serve(exchange)
            except asyncio.CancelledError:
                self._leave(key, exchange)
                raise
            finally:
                self._over(key, flight)

        flight = Flight(exchange, self._loop.create_task(work()), shared)
        self._flights[key] = flight
        return await _follow(flight, down)

    async def _join(self, first: Flight, exchange: Exchange) -> Outcome:
        assert first.shared is not None
        first.shared.add(exchange.down)
        await _follow(first, exchange.down)
        return Outcome.JOINED

    # -- places -------------------------------------------------------------------------------------------

    def _leave(self, key: int, exchange: Exchange) -> None:
        if exchange.since is not None and not exchange.down.started:
            self.places.leave(self._loop.time(), key, exchange.since)

    def _over(self, key: int, flight: Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


def key_of(exchange: Exchange, client: str) -> int:
    """Equal for the same request of the same client, but for its headers."""
    digest = xxhash.xxh3_128(exchange.body)
    digest.update(b"\0" + exchange.down.request.target + b"\0" + client.encode())
    return int(digest.intdigest())


def is_marked(request: RequestHead, first: RequestHead) -> bool:
    """Whether a request says that it is a resend of the first."""
    key = request.get(b"idempotency-key")
    if key is not None:
        return key == first.get(b"idempotency-key")
    tries = request.get(b"x-stainless-retry-count") or b""
    return tries.isdigit() and int(tries[:9]) > 0


async def _replace(first: Flight) -> None:
    """End the first, and wait until it has given back what it held."""
    if not first.replaced:
        first.replaced = True
        first.task.cancel()
    await asyncio.wait({first.task})


async def _follow(flight: Flight, down: Downstream) -> Outcome:
    """Wait for the end of the work. A client that leaves takes it along only if it is the last."""
    assert flight.shared is not None
    try:
        outcome = await asyncio.shield(flight.task)
    except asyncio.CancelledError:
        flight.shared.drop(down)
        if not flight.shared.members:
            flight.task.cancel()
            await asyncio.wait({flight.task})
        raise
    assert outcome is not None
    return outcome


def _tell(exchange: Exchange) -> None:
    """The client of a replaced request, should it still be there."""
    down = exchange.down
    if down.started:
        down.abort()
        return
    body = exchange.dialect.error(409, "invalid_request_error", "replaced by a resend of the same request (--resends)")
    fields = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    down.head(ResponseHead(409, b"", [*fields, (b"X-Headway-Outcome", Outcome.REPLACED.value.encode())]))
    down.data(body)
    down.eof()
