"""Request bodies: any framing, any cut, Expect, Upgrade, and the bound."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.transport.interface import BodyTooLarge
from tests.gateway.transport.peers import echo, eventually, listening, raw_client
from tests.gateway.transport.relay import answer

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


async def bounded_echo(down):
    try:
        body = await down.body()
    except BodyTooLarge:
        answer(down, 413, b"too large")
    else:
        answer(down, 200, body)


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_chunked_body_with_extensions_and_trailers(run, step):
    async def scenario():
        raw = POST + b"Transfer-Encoding: chunked\r\n\r\n4;a=b\r\nwiki\r\nA\r\npedia12345\r\n0\r\nT: v\r\n\r\n"
        async with listening(echo) as listener, raw_client(listener.port) as client:
            for at in range(0, len(raw), step):
                client.send(raw[at : at + step])
                await asyncio.sleep(0)
            assert (await client.response())[2] == b"wikipedia12345"

    run(scenario)


def test_body_can_be_asked_for_again(run):
    async def scenario():
        async def handler(down):
            first = await down.body()
            answer(down, 200, first + await down.body())

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Content-Length: 2\r\n\r\n")
            await asyncio.sleep(0.01)
            client.send(b"ab")
            assert (await client.response())[2] == b"abab"

    run(scenario)


def test_expect_is_answered_when_the_body_is_asked_for(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(down):
            await go.wait()
            await echo(down)

        async with listening(handler, head_timeout_s=0.2) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            early = asyncio.create_task(client.until(b"\r\n\r\n"))
            await asyncio.sleep(0.4)  # no time limit runs while the client waits for us
            assert not early.done()
            go.set()
            assert await early == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"ok")
            assert (await client.response())[2] == b"ok"

    run(scenario)


def test_expect_is_not_answered_when_the_body_is_already_here(run):
    async def scenario():
        async with listening(echo) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok")
            assert (await client.response())[::2] == (200, b"ok")

    run(scenario)


def test_expect_refused_ends_the_connection(run):
    """The client may or may not send the body now: what comes next could be either."""

    async def scenario():
        async def handler(down):
            answer(down, 401, b"no")

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            status, fields, _ = await client.response()
            assert (status, fields["connection"]) == (401, "close")
            assert await client.rest() == b""

    run(scenario)


@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
def test_body_above_the_bound(run, framing):
    async def scenario():
        async with listening(bounded_echo, max_body=1000) as listener, raw_client(listener.port) as client:
            if framing == "chunked":
                client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(11):
                    client.send(b"64\r\n" + b"x" * 100 + b"\r\n")
            elif framing == "length":
                client.send(POST + b"Content-Length: 1001\r\n\r\n" + b"x" * 500)
            else:
                client.send(POST + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
            status, fields, body = await client.response()
            assert (status, fields["connection"], body) == (413, "close", b"too large")
            assert await client.rest() == b""

    run(scenario)


def test_body_at_the_bound(run):
    async def scenario():
        async with listening(bounded_echo, max_body=1000) as listener, raw_client(listener.port) as client:
            for _ in range(2):
                client.send(POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000)
                assert (await client.response())[::2] == (200, b"x" * 1000)

    run(scenario)


def test_client_that_never_stops_sending_still_gets_its_413(run):
    """Closing with bytes unread would reset the connection, and the reset would overtake the answer."""

    async def scenario():
        async with listening(bounded_echo, max_body=1000) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Content-Length: 20000000\r\n\r\n")

            async def flood():
                try:
                    for _ in range(200):
                        if client.writer.is_closing():
                            break
                        client.send(b"x" * 100_000)
                        await client.writer.drain()
                except ConnectionError:
                    pass

            flooding = asyncio.create_task(flood())
            assert (await client.response())[0] == 413
            client.close()
            await flooding
            await eventually(lambda: not listener.connections)

    run(scenario)


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_upgrade_is_ignored_and_the_body_kept(run, framing, step):
    """Java's HttpClient offers h2c with every request on a new connection, bodies included."""

    async def scenario():
        raw = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n" + framing
        async with listening(echo) as listener, raw_client(listener.port) as client:
            both = raw + raw
            for at in range(0, len(both), step):
                client.send(both[at : at + step])
                await asyncio.sleep(0)
            for _ in range(2):
                assert (await client.response())[::2] == (200, b"hello")
            client.send(POST + b"Content-Length: 2\r\n\r\nok")
            assert (await client.response())[2] == b"ok"

    run(scenario)


def test_upgrade_without_a_body(run):
    async def scenario():
        async with listening(echo) as listener, raw_client(listener.port) as client:
            client.send(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" * 2)
            for _ in range(2):
                assert (await client.response())[1]["x-target"] == "/ws"

    run(scenario)
