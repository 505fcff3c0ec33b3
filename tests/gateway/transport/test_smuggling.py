"""Requests that two parsers could read differently, and heads without end, are refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from headway.gateway.transport.interface import ResponseHead
from tests.gateway.transport.peers import echo, eventually, listening, raw_client

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CASES = {
    "length and chunked": (400, POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked and length": (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    "list of lengths": (400, POST + b"Content-Length: 3, 3\r\n\r\nabc"),
    "signed length": (400, POST + b"Content-Length: +3\r\n\r\nabc"),
    "negative length": (400, POST + b"Content-Length: -3\r\n\r\nabc"),
    "endless length": (400, POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n"),
    "chunked twice": (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "coding before chunked": (400, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "coding before chunked, two fields": (
        400,
        POST + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "unknown coding": (400, POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "space before colon": (400, POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "vertical tab": (400, POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
    "chunked in 1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "bare line feeds": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "folded field": (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n"),
    "carriage return in value": (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n"),
    "nul in value": (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "not http": (400, b"\x16\x03\x01\x02\x00\x01\x00"),
    "http/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "http/0.9": (505, b"GET / HTTP/0.9\r\n\r\n"),
    "connect": (501, b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "head above the limit in one read": (
        431,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ),
    "field without end": (431, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000),
    "fields without end": (431, b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 12_000),
    "target without end": (431, b"GET /" + b"x" * 70_000),
    "bad chunk size": (400, POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "chunk longer than its size": (400, POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n"),
    "chunk extension without end": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"3;x=" + b"y" * 200_000,
    ),
    "trailer without end": (400, POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 200_000),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(run, case):
    status, raw = CASES[case]

    async def scenario():
        served = []

        async def handler(down):
            await down.body()
            served.append(down)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(raw)
            got, fields, body = await client.response()
            assert (got, fields["connection"], fields["content-type"]) == (
                status,
                "close",
                "application/json",
            )
            error = json.loads(body)["error"]
            assert error["type"] == "invalid_request_error"
            assert (error["code"], error["param"]) == (status, None)
            assert error["message"]
            assert await client.rest() == b""
            assert served == []

    run(scenario)


def test_what_follows_a_refused_request_is_never_served(run):
    async def scenario():
        served = []

        async def handler(down):
            served.append(down.request.target)
            await echo(down)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
            client.send(CASES["length and chunked"][1] + smuggled)
            assert (await client.response())[0] == 400
            client.send(smuggled)
            assert await client.rest() == b""
            assert served == []

    run(scenario)


def test_fault_behind_a_good_request_waits_for_its_answer(run):
    async def scenario():
        go = asyncio.Event()

        async def handler(down):
            await go.wait()
            await echo(down)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Content-Length: 2\r\n\r\nok" + b"rubbish \0\r\n\r\n")
            await eventually(lambda: listener.live == 1)
            go.set()
            assert (await client.response())[::2] == (200, b"ok")
            assert (await client.response())[0] == 400
            assert await client.rest() == b""

    run(scenario)


def test_fault_in_the_body_of_a_request_that_is_already_answered_in_part(run):
    async def scenario():
        cancelled = asyncio.Event()

        async def handler(down):
            down.head(ResponseHead(200, b"OK", [(b"Transfer-Encoding", b"chunked")]))
            down.data(b"begun")
            try:
                await down.body()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            await client.until(b"begun")
            client.send(b"zz\r\n")
            assert await client.rest() == b"\r\n"  # the chunk's end, and no last chunk
            await cancelled.wait()

    run(scenario)


def test_absolute_form_is_read_as_path_and_query(run):
    async def scenario():
        async with listening(echo) as listener, raw_client(listener.port) as client:
            for target, path in {
                b"http://a/v1/x?y=1": "/v1/x?y=1",
                b"http://a": "/",
                b"http://a?q": "/?q",
                b"/v1/x?u=http://b/": "/v1/x?u=http://b/",
                b"/a%20b": "/a%20b",
            }.items():
                client.send(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await client.response())[1]["x-target"] == path

    run(scenario)


def test_slow_head_is_cut_off(run):
    async def scenario():
        async with listening(echo, head_timeout_s=0.2) as listener, raw_client(listener.port) as client:
            sent_until = asyncio.get_running_loop().time() + 2
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
            answer = asyncio.create_task(client.rest())
            while not answer.done():
                assert asyncio.get_running_loop().time() < sent_until
                client.send(b"X: y\r\n")  # a byte now and then does not extend the time for a head
                await asyncio.sleep(0.03)
            assert answer.result().startswith(b"HTTP/1.1 408 ")

    run(scenario)


def test_slow_body_is_cut_off(run):
    async def scenario():
        async with listening(echo, head_timeout_s=0.2) as listener, raw_client(listener.port) as client:
            client.send(POST + b"Content-Length: 10\r\n\r\nabc")
            assert (await client.response())[0] == 408
            await eventually(lambda: listener.live == 0)

    run(scenario)


def test_silent_connection_is_closed(run):
    async def scenario():
        async with listening(echo, head_timeout_s=0.2) as listener, raw_client(listener.port) as client:
            assert await client.rest() == b""

    run(scenario)


def test_idle_connection_is_closed(run):
    async def scenario():
        async with listening(echo, idle_timeout_s=0.2) as listener, raw_client(listener.port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await client.response())[0] == 200
            assert await asyncio.wait_for(client.rest(), 2) == b""

    run(scenario)


def test_timeouts_leave_a_slow_handler_alone(run):
    async def scenario():
        async def handler(down):
            await down.body()
            await asyncio.sleep(0.5)
            await echo(down)

        async with (
            listening(handler, head_timeout_s=0.1, idle_timeout_s=0.1) as listener,
            raw_client(listener.port) as client,
        ):
            client.send(POST + b"Content-Length: 2\r\n\r\nok")
            assert (await client.response())[2] == b"ok"

    run(scenario)
