"""Keep-alive and pipelining: one exchange at a time, answers in order, bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.transport.inbound import HELD_BYTES
from tests.gateway.transport.peers import echo, eventually, listening, raw_client
from tests.gateway.transport.relay import answer


def post(body: bytes, target: bytes = b"/") -> bytes:
    return b"POST " + target + b" HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class OneAtATime:
    def __init__(self, seconds: float = 0.005) -> None:
        self.seconds = seconds
        self.under_way = 0
        self.most = 0
        self.served = 0

    async def __call__(self, down):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        body = await down.body()
        await asyncio.sleep(self.seconds)
        self.under_way -= 1
        self.served += 1
        answer(down, 200, body)


@pytest.mark.parametrize("step", [1, 7, 40, 10_000])
def test_pipelined_requests_are_answered_in_order_one_at_a_time(run, step):
    async def scenario():
        handler = OneAtATime(0.001)
        async with listening(handler) as listener, raw_client(listener.port) as client:
            raw = b"".join(post(b"request %d" % n) for n in range(6))
            for at in range(0, len(raw), step):
                client.send(raw[at : at + step])
                await asyncio.sleep(0)
            for n in range(6):
                assert (await client.response())[2] == b"request %d" % n
            assert handler.most == 1

    run(scenario)


def test_pipelined_body_that_comes_late(run):
    async def scenario():
        handler = OneAtATime()
        async with listening(handler) as listener, raw_client(listener.port) as client:
            second = post(b"second" * 100)
            client.send(post(b"first") + second[:100])
            await asyncio.sleep(0.002)
            client.send(second[100:300])
            assert (await client.response())[2] == b"first"
            client.send(second[300:])
            assert (await client.response())[2] == b"second" * 100

    run(scenario)


def test_pipelined_chunked_requests(run):
    async def scenario():
        handler = OneAtATime()
        one = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        one += b"3\r\nabc\r\n0\r\nT: trailer\r\n\r\n"
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(one * 3)
            for _ in range(3):
                assert (await client.response())[2] == b"abc"

    run(scenario)


def test_flood_behind_a_slow_exchange_is_bounded(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(down):
            body = await down.body()
            await go.wait()
            answer(down, 200, body)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            big = post(b"x" * 500_000)
            client.send(post(b"first"))
            await eventually(lambda: listener.live == 1)
            client.send(big * 8)
            await asyncio.sleep(0.1)
            (connection,) = listener.connections
            assert len(connection._held) < HELD_BYTES + 512 * 1024  # the bound and one read
            go.set()
            assert (await client.response())[2] == b"first"
            for _ in range(8):
                assert len((await client.response())[2]) == 500_000

    run(scenario)


def test_connection_close_is_honoured(run):
    async def scenario():
        handler = OneAtATime()
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + post(b"never"))
            status, fields, _ = await client.response()
            assert (status, fields["connection"]) == (200, "close")
            assert await client.rest() == b""
            assert handler.served == 1

    run(scenario)


def test_http_1_0_closes_unless_asked_to_keep_alive(run):
    async def scenario():
        async with listening(echo) as listener:
            async with raw_client(listener.port) as client:
                client.send(b"GET / HTTP/1.0\r\n\r\n")
                assert (await client.response())[1]["connection"] == "close"
                assert await client.rest() == b""
            async with raw_client(listener.port) as client:
                for _ in range(2):
                    client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                    assert (await client.response())[1]["connection"] == "keep-alive"

    run(scenario)


def test_answer_before_the_body_has_come_keeps_the_connection(run):
    """The rest of the body is dropped; the next request is served."""

    async def scenario():
        async def handler(down):
            if down.request.target == b"/early":
                answer(down, 401, b"who are you")
            else:
                await echo(down)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            raw = post(b"x" * 1000, b"/early")
            client.send(raw[:500])
            assert (await client.response())[0] == 401
            client.send(raw[500:] + post(b"next"))
            assert (await client.response())[2] == b"next"

    run(scenario)


def test_small_answers_leave_without_delay(run):
    """No Nagle: two small writes in a row are not held back for an acknowledgement (40 ms each)."""

    async def scenario():
        async with listening(OneAtATime(0)) as listener, raw_client(listener.port) as client:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            for _ in range(20):
                client.send(post(b"x"))
                await client.response()
            assert loop.time() - begin < 20 * 0.04

    run(scenario)
