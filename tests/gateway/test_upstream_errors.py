"""Must: an upstream that is down or breaks off gives each client an honest error."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import closing

import pytest

from tests.gateway.support import (
    Message,
    chat,
    engine,
    exchange,
    gateway,
    idle,
    metric,
    now,
    post,
    raw_request,
    read_message,
    run,
    scripted,
    text,
    until,
)

LOST = 'headway_requests_total{outcome="upstream_lost"}'
STREAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("policy", ["passthrough", "serialize", "hold", "pace"])
def test_upstream_that_is_down(policy: str) -> None:
    async def main() -> None:
        async with gateway(f"http://127.0.0.1:{free_port()}", policy) as served:
            for prompt in ("hi", text(3000)):
                got = await post(served.front.port, "/v1/chat/completions", chat(prompt, stream=True))
                assert got.status == 502 and got.complete
                assert got.get(b"content-type") == b"application/json"
                error = got.json["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["code"] == 502 and "refused" in error["message"]
            got = await post(served.front.port, "/v1/messages", {"model": "m", "messages": [], "max_tokens": 1})
            assert got.status == 502 and got.json["type"] == "error"
            assert got.json["error"]["type"] == "api_error" and "refused" in got.json["error"]["message"]
            assert (await exchange(served.front.port, raw_request("GET", "/health"))).status == 502
            assert metric(served, LOST) == 4
            assert idle(served)

    run(main())


BROKEN = {
    "chunks": (STREAMED + b"%x\r\n%b\r\n" % (len(EVENT), EVENT), EVENT),
    "inside a chunk": (STREAMED + b"ff\r\n" + EVENT, EVENT),
    "a counted body": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{}", b"{}"),
    "nothing but a head": (STREAMED, b""),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("reset", [False, True])
def test_answer_that_breaks_off_looks_broken(name: str, reset: bool) -> None:
    raw, body = BROKEN[name]

    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await asyncio.sleep(0.02)
        if reset:
            writer.transport.abort()
        writer.close()

    async def main() -> None:
        async with scripted(answer) as (_, url), gateway(url) as served:
            got = await post(served.front.port, "/v1/chat/completions", chat("hi", stream=True))
            assert got.status == 200
            assert not got.complete
            assert got.body == body
            assert metric(served, LOST) == 1
            assert idle(served)

    run(main())


UNUSABLE = {
    "closed without a word": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "a folded field": b"HTTP/1.1 200 OK\r\nX-A: b\r\n  c\r\nContent-Length: 2\r\n\r\n{}",
    "switched protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_answer_that_cannot_be_used(name: str) -> None:
    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(UNUSABLE[name])
        await asyncio.sleep(0.02)
        writer.close()

    async def main() -> None:
        async with scripted(answer) as (_, url), gateway(url) as served:
            got = await asyncio.wait_for(post(served.front.port, "/v1/chat/completions", chat("hi")), 5)
            assert got.status in (200, 502) and got.complete
            assert (got.status == 200) == (name == "a folded field" and got.body == b"{}")
            await until(lambda: idle(served))

    run(main())


def test_engine_killed_gives_each_client_an_error() -> None:
    """Streams under way break off visibly, requests that wait or are being prefilled get a 502, nothing stays."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize") as serial, gateway(server.url) as paced:
            streams = []
            for n in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", paced.front.port)
                body = chat(f"hello {n}", stream=True, max_tokens=2000)
                writer.write(raw_request("POST", "/v1/chat/completions", json.dumps(body).encode()))
                streams.append((writer, asyncio.ensure_future(read_message(reader))))
            one = asyncio.ensure_future(post(serial.front.port, "/v1/chat/completions", chat("one", max_tokens=2000)))
            await until(lambda: now(serial)["in_engine"] == 1)
            queued = asyncio.ensure_future(post(serial.front.port, "/v1/chat/completions", chat("two")))
            await until(lambda: now(paced)["live"] == 3 and now(serial)["queued"] == 1)
            await server.kill()
            for writer, stream in streams:
                got = await asyncio.wait_for(stream, 5)
                assert got.status == 200 and not got.complete and got.body
                writer.close()
            for waiting in (one, queued):
                assert (await asyncio.wait_for(waiting, 5)).status == 502
            await until(lambda: idle(serial) and idle(paced))
            assert metric(paced, LOST) == 3 and metric(serial, LOST) == 2

    run(main())
