"""Stopping: no new connections, exchanges under way have their time, then nothing is left."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.transport.interface import ResponseHead
from headway.gateway.transport.listener import listen
from tests.gateway.transport.peers import echo, eventually, listening, raw_client
from tests.gateway.transport.relay import answer

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Slow:
    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cancelled = False

    async def __call__(self, down):
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        answer(down, 200, b"done")


def test_port_in_use(run):
    async def scenario():
        async with listening(echo) as listener:
            with pytest.raises(OSError, match="in use"):
                await listen("127.0.0.1", listener.port, echo, max_body=1)

    run(scenario)


def test_exchange_under_way_ends_within_the_grace(run):
    async def scenario():
        handler = Slow()
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await eventually(lambda: listener.live == 1)
            closing = asyncio.create_task(listener.close(5))
            await asyncio.sleep(0.02)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", listener.port)
            handler.go.set()
            status, fields, body = await client.response()
            assert (status, fields["connection"], body) == (200, "close", b"done")
            assert await client.rest() == b""
            await asyncio.wait_for(closing, 1)
            assert listener.live == 0

    run(scenario)


def test_exchange_above_the_grace_is_aborted(run):
    async def scenario():
        handler = Slow()
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await eventually(lambda: listener.live == 1)
            await asyncio.wait_for(listener.close(0.1), 1)
            assert handler.cancelled
            assert listener.live == 0
            assert await client.rest() == b""

    run(scenario)


def test_aborted_response_that_ends_with_the_connection_is_a_reset(run):
    async def scenario():
        async def handler(down):
            down.head(ResponseHead(200, b"OK", []))
            down.data(b"half")
            await asyncio.sleep(60)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await client.until(b"half")
            await listener.close(0)
            with pytest.raises(ConnectionResetError):
                await client.rest()

    run(scenario)


def test_idle_connections_end_when_accepting_stops(run):
    async def scenario():
        handler = Slow()
        async with (
            listening(handler) as listener,
            raw_client(listener.port) as busy,
            raw_client(listener.port) as idle,
        ):
            busy.send(GET + GET)
            await eventually(lambda: listener.live == 1 and len(listener.connections) == 2)
            listener.stop_accepting()
            listener.stop_accepting()
            assert await asyncio.wait_for(idle.rest(), 1) == b""
            handler.go.set()
            assert (await busy.response())[2] == b"done"
            assert await busy.rest() == b""

    run(scenario)


def test_close_without_any_connection_is_immediate(run):
    async def scenario():
        async with listening(echo) as listener:
            await asyncio.wait_for(listener.close(30), 1)

    run(scenario)


def test_handler_that_ignores_its_cancellation_does_not_hold_close_for_ever(run, monkeypatch):
    monkeypatch.setattr("headway.gateway.transport.listener.CANCEL_S", 0.1)

    async def scenario():
        go = asyncio.Event()

        async def handler(down):
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await eventually(lambda: listener.live == 1)
            await asyncio.wait_for(listener.close(0), 2)
            go.set()
            await eventually(lambda: listener.live == 0)

    run(scenario)
