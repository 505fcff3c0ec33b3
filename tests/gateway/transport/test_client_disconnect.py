"""A client that leaves, at any moment and in any manner, cancels the handler and ends its call."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.transport.interface import ResponseHead
from tests.gateway.transport.peers import eventually, listening, raw_client, read_request, relaying

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LEAVE = ["close", "half_close", "reset"]


class Watched:
    """A handler that stops at a chosen point and notes how it ends."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.at_stage = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.down = None

    async def __call__(self, down):
        self.down = down
        try:
            if self.stage == "body":
                self.at_stage.set()
            await down.body()
            if self.stage == "streaming":
                down.head(ResponseHead(200, b"OK", [(b"Transfer-Encoding", b"chunked")]))
                down.data(b"first")
            self.at_stage.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("stage", ["body", "waiting", "streaming"])
def test_handler_is_cancelled(run, leave, stage):
    async def scenario():
        handler = Watched(stage)
        async with listening(handler) as listener, raw_client(listener.port) as client:
            if stage == "body":
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nonly a part")
            else:
                client.send(GET)
            await handler.at_stage.wait()
            assert listener.live == 1
            getattr(client, leave)()
            await asyncio.wait_for(handler.cancelled.wait(), 1)
            await eventually(lambda: listener.live == 0 and not listener.connections)

    run(scenario)


def test_cancelled_before_the_handler_ran_at_all(run):
    async def scenario():
        ran = []

        async def handler(down):
            ran.append(down)
            await asyncio.sleep(60)

        async with listening(handler) as listener:
            for _ in range(20):
                async with raw_client(listener.port) as client:
                    client.send(GET)
                    client.reset()
            await eventually(lambda: listener.live == 0 and not listener.connections)

    run(scenario)


def test_leaving_is_seen_behind_pipelined_bytes(run):
    async def scenario():
        handler = Watched("waiting")
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET + GET)
            await handler.at_stage.wait()
            client.send(GET * 10)
            await asyncio.sleep(0.01)
            client.close()
            await asyncio.wait_for(handler.cancelled.wait(), 1)

    run(scenario)


def test_what_the_handler_writes_after_the_client_left_goes_nowhere(run):
    async def scenario():
        done = asyncio.Event()

        async def handler(down):
            try:
                await asyncio.sleep(60)
            finally:
                down.head(ResponseHead(200, b"OK", [(b"Content-Length", b"1")]))
                down.data(b"x")
                down.eof()
                down.abort()
                done.set()

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await eventually(lambda: listener.live == 1)
            client.close()
            await done.wait()

    run(scenario)


def test_cancellation_leaves_no_log(run, caplog):
    async def scenario():
        handler = Watched("streaming")
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await handler.at_stage.wait()
            client.reset()
            await handler.cancelled.wait()

    run(scenario)
    assert caplog.records == []


@pytest.mark.parametrize("leave", LEAVE)
def test_upstream_connection_is_closed(run, leave):
    async def scenario():
        begun, gone = asyncio.Event(), asyncio.Event()

        async def upstream(reader, writer, _):
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            begun.set()
            assert await reader.read() == b""
            gone.set()

        async with relaying(upstream) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await client.until(b"abc")
            getattr(client, leave)()
            await asyncio.wait_for(gone.wait(), 1)

    run(scenario)


def test_leaving_while_a_slow_response_is_still_unread(run):
    """A client that reads nothing and leaves: the writes it never took do not hide that it left."""

    async def scenario():
        async def handler(down):
            down.head(ResponseHead(200, b"OK", [(b"Transfer-Encoding", b"chunked")]))
            while down.writable:
                down.data(b"x" * 50_000)
            await asyncio.sleep(60)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            await eventually(lambda: listener.live == 1)
            await asyncio.sleep(0.05)
            client.close()
            await eventually(lambda: listener.live == 0 and not listener.connections)

    run(scenario)
