"""Bad input from clients: relayed for the engine to refuse, or refused in the dialect's form; nothing is held for it."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headway.gateway.dialects.table import DIALECTS, OTHER_V1
from tests.gateway.support import (
    Message,
    chat,
    close,
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
    teach,
    text,
    until,
)

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b'{"model": "m", "messages": [',
    "not UTF-8": b'{"model": "m", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "a list": b"[1, 2, 3]",
    "null": b"null",
    "wrong types": b'{"model": 7, "messages": "hello", "stream": "yes", "max_tokens": []}',
    "messages of numbers": b'{"model": "m", "messages": [1, 2]}',
    "half a surrogate": b'{"model": "\\ud800", "cache_salt": "\\udfff", "messages": []}',
    "deep": b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a NUL": b'{"model": "m\\u0000", "messages": []}',
    "a huge number": b'{"model": "m", "priority": 1e999, "messages": [], "max_tokens": ' + b"9" * 400 + b"}",
    "twice the same key": b'{"model": "m", "model": 3, "messages": []}',
}


@pytest.mark.parametrize("name", BODIES)
def test_is_the_engines_to_refuse(name: str) -> None:
    body = BODIES[name]

    async def main() -> None:
        async with engine() as server, gateway(server.url) as served:
            teach(served)
            for path in ("/v1/chat/completions", "/v1/completions"):
                raw = raw_request("POST", path, body, [("Content-Type", "application/json")])
                direct = await exchange(server.port, raw)
                relayed = await asyncio.wait_for(exchange(served.front.port, raw), 5)
                assert (relayed.status, relayed.body) == (direct.status, direct.body)
                assert relayed.status >= 400
            await until(lambda: idle(served))

    run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_above_the_limit(path: str) -> None:
    async def main() -> None:
        async with (
            scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (upstream, url),
            gateway(url, max_body=1000) as served,
        ):
            assert (await post(served.front.port, path, b"x" * 1000)).status == 200
            for body, fields in (
                (b"x" * 1001, []),
                (b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n", [("Transfer-Encoding", "chunked")]),
            ):
                got = await post(served.front.port, path, body, fields)
                assert got.status == 413 and "--max-body" in got.json["error"]["message"]
                assert ("type" in got.json) == (path == "/v1/messages")
            assert len(upstream.requests) == 1
            assert metric(served, 'headway_requests_total{outcome="refused"}') == 2

    run(main())


def test_fifty_megabytes() -> None:
    """Relayed, and the gateway still answers others meanwhile."""

    async def main() -> None:
        size = 50 << 20

        async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
            body = b"%d" % len(request.body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        async with scripted(answer) as (_, url), gateway(url) as served:
            teach(served)
            body = b'{"model":"m","messages":[{"role":"user","content":' + b'"' + b"x" * (size - 54) + b'"}]}'
            big = asyncio.ensure_future(post(served.front.port, "/v1/responses", body))
            await asyncio.sleep(0.05)
            begun = time.monotonic()
            assert (await post(served.front.port, "/v1/chat/completions", chat("hi"))).status == 200
            assert time.monotonic() - begun < 5
            got = await big
            assert got.status == 200 and int(got.body) == len(body)
            await until(lambda: idle(served))

    run(main())


LIES: dict[str, tuple[bytes, int | None]] = {
    "longer than it says": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}{}{}", 400),
    "not a number": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: two\r\n\r\n{}", 400),
    "negative": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -2\r\n\r\n{}", 400),
    "two of them": (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "and chunked": (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_length_that_lies(name: str) -> None:
    raw, status = LIES[name]

    async def main() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (upstream, url), gateway(url) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
            writer.write(raw)
            got = await asyncio.wait_for(read_message(reader), 5)
            if name == "longer than it says":
                assert got.status == 200 and upstream.requests[0].body == b"{}"
                got = await asyncio.wait_for(read_message(reader), 5)
            else:
                assert upstream.requests == []
            assert got.status == status and got.json["error"]["message"]
            await close(writer)
            await until(lambda: idle(served))

    run(main())


def test_shorter_than_it_says_holds_nothing() -> None:
    async def main() -> None:
        async with scripted(b"") as (upstream, url), gateway(url, "serialize") as served:
            _reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
            writer.write(raw_request("POST", "/v1/completions", b"{}", [("Content-Length", "100")]))
            await asyncio.sleep(0.1)
            assert now(served)["requests"] == 0 and upstream.requests == []
            await close(writer)
            await until(lambda: served.front.live == 0)

    run(main())


def test_folded_header_is_refused_or_passed_never_lost() -> None:
    async def main() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (_, url), gateway(url) as served:
            raw = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\n{}"
            got = await asyncio.wait_for(exchange(served.front.port, raw), 5)
            assert got.status in (200, 400) and got.complete
            await until(lambda: idle(served))

    run(main())


# What a client may send where a field of the API belongs.
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_names = ("model", "messages", "prompt", "stream", "tools", "input", "system", "cache_salt", "priority", "echo", "max_tokens")
_bodies = st.fixed_dictionaries({}, optional=dict.fromkeys(_names, _json)).map(
    lambda body: json.dumps(body, ensure_ascii=True).encode("utf-8", "surrogatepass")
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(body=_bodies | st.binary(max_size=60), cut=st.integers(0, 200))
def test_readers_take_anything(body: bytes, cut: int) -> None:
    """A body that is not understood is no error of ours."""
    for dialect in (*DIALECTS.values(), OTHER_V1):
        for data in (body, body[:cut]):
            ask = dialect.read(data)
            assert ask.size >= 0 and isinstance(ask.block_seed, bytes)
            assert ask.ids is None or all(0 <= i < 2**32 for i in ask.ids)
            json.dumps(ask.model)


def test_nothing_is_held_for_a_body_that_is_not_understood() -> None:
    """Beside a live answer: the engine's refusal comes at once."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "hold", wait=20) as served:
            teach(served)
            live = asyncio.ensure_future(post(served.front.port, "/v1/chat/completions", chat("x", stream=True, max_tokens=3000)))
            await until(lambda: now(served)["live"] == 1)
            body = json.dumps(chat(text(3000))).encode()[:-1]
            got = await asyncio.wait_for(post(served.front.port, "/v1/chat/completions", body), 5)
            assert got.status == 400
            live.cancel()
            await asyncio.gather(live, return_exceptions=True)

    run(main())
