"""Must: a client that leaves frees its permit and its upstream request at once, at whatever point it leaves."""

from __future__ import annotations

import asyncio
import json

import pytest

from headway.gateway.server import Gateway
from headway.simulator.server import RunningServer
from tests.gateway.support import (
    Message,
    chat,
    close,
    engine,
    gateway,
    idle,
    metric,
    now,
    raw_request,
    read_stream,
    run,
    scripted,
    session,
    teach,
    text,
    until,
)

AT_ONCE_S = 1.0
"""Generous for a slow machine; what would hold things longer here holds them for tens of seconds."""
LEFT = 'headway_requests_total{outcome="client_left"}'


class Client:
    """A request that has been sent and not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def ask(cls, port: int, body: dict[str, object], path: str = "/v1/chat/completions") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw_request("POST", path, json.dumps(body).encode()))
        return cls(reader, writer)

    def leave(self, reset: bool) -> None:
        if reset:
            self.writer.transport.abort()
        else:
            self.writer.close()


def in_engine(server: RunningServer) -> int:
    return server.engine.num_running + server.engine.num_waiting


async def gone(server: RunningServer, served: Gateway, count: int = 1) -> None:
    await until(lambda: idle(served), AT_ONCE_S, "the permit's end")
    await until(lambda: in_engine(server) == 0, AT_ONCE_S, "the end in the engine")
    assert metric(served, LEFT) == count


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_byte(stream: bool, reset: bool) -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, "passthrough") as served:
            client = await Client.ask(served.front.port, chat(text(20000), stream=stream, max_tokens=500))
            await until(lambda: server.engine.num_running == 1)
            client.leave(reset)
            await gone(server, served)

    run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_mid_stream(reset: bool) -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url) as served:
            client = await Client.ask(served.front.port, chat("hello", stream=True, max_tokens=5000))
            assert b"data: " in await client.reader.readuntil(b"\n\n")
            await until(lambda: now(served)["live"] == 1)
            client.leave(reset)
            await gone(server, served)

    run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_while_queued(reset: bool) -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize") as served:
            first = await Client.ask(served.front.port, chat("hello", stream=True, max_tokens=5000))
            await until(lambda: in_engine(server) == 1)
            second = await Client.ask(served.front.port, chat("me too", stream=True))
            await until(lambda: now(served)["queued"] == 1)
            second.leave(reset)
            await until(lambda: now(served)["queued"] == 0, AT_ONCE_S)
            assert in_engine(server) == 1 and metric(served, LEFT) == 1
            first.leave(reset)
            await gone(server, served, 2)

    run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_while_its_pieces_run(reset: bool) -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, gap=0.3) as served, session() as http:
            teach(served)
            victim = asyncio.ensure_future(read_stream(http, served.url, chat("hello", stream=True, max_tokens=400)))
            await until(lambda: now(served)["live"] == 1)
            client = await Client.ask(served.front.port, chat(text(20000), stream=True, max_tokens=500))
            await until(lambda: now(served)["pieces"] == 1 and server.engine.num_running == 2, 10)
            client.leave(reset)
            await until(lambda: now(served)["requests"] == 1, AT_ONCE_S)
            await until(lambda: in_engine(server) == 1, AT_ONCE_S)
            assert now(served)["prefill_tokens_in_flight"] == 0 and metric(served, LEFT) == 1
            assert not victim.done()
            victim.cancel()
            await asyncio.gather(victim, return_exceptions=True)
            await gone(server, served, 2)

    run(main())


def test_while_its_prompt_is_rendered() -> None:
    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        assert request.target == b"/tokenize"
        await asyncio.sleep(60)

    async def main() -> None:
        async with scripted(answer) as (upstream, url), gateway(url) as served:
            teach(served)
            clients = [await Client.ask(served.front.port, chat(text(3000, str(n)))) for n in range(4)]
            # Two are being rendered, two wait for that.
            await until(lambda: len(upstream.requests) == 2 and now(served)["requests"] == 4)
            for client in clients:
                client.leave(True)
            await until(lambda: idle(served), AT_ONCE_S)
            await until(lambda: upstream.left >= 2, AT_ONCE_S, "the end of the connections upstream")
            assert not served.upstream.rendering.locked()

    run(main())


def test_while_its_body_arrives() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url) as served:
            _reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
            writer.write(raw_request("POST", "/v1/completions", b"x", [("Content-Length", "1000")]))
            await until(lambda: served.front.live == 1)
            assert now(served)["requests"] == 0  # nothing is held for half a body
            await close(writer)
            await until(lambda: served.front.live == 0, AT_ONCE_S)

    run(main())


def test_upstream_is_not_read_for_a_client_that_does_not_read() -> None:
    """Back-pressure: a slow reader holds the upstream back, and nothing is buffered without bound."""
    written = 0

    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 104857600\r\n\r\n")
        for _ in range(1600):
            writer.write(b"data: " + b"x" * 65528 + b"\n\n")
            await writer.drain()
            written += 65536

    async def main() -> None:
        async with scripted(answer) as (upstream, url), gateway(url) as served:
            client = await Client.ask(served.front.port, chat("hi", stream=True))
            await until(lambda: written > 0)
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.2)
            assert written < 32 << 20  # socket buffers, not the answer
            client.leave(True)
            await until(lambda: idle(served), AT_ONCE_S)
            await until(lambda: upstream.left == 1, AT_ONCE_S)

    run(main())
