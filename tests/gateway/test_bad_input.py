"""Bad input from either side, through the whole gateway: relayed or refused in the dialect's form, nothing held for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headway.gateway.dialects import ask as readers
from headway.gateway.dialects.table import DIALECTS
from tests.gateway.support import (
    Hangup,
    Message,
    chat,
    close,
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

VALID: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/chat/completions": (readers.ChatBody, chat("hi")),
    "/v1/completions": (readers.CompletionBody, {"model": "m", "prompt": "hi"}),
    "/v1/messages": (readers.MessagesBody, {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}),
    "/v1/responses": (readers.ResponsesBody, {"model": "m", "input": "hi"}),
}
FIELDS = [(path, name) for path, (kind, _) in VALID.items() for name in kind.__struct_fields__]
WRONG = [None, True, -1, 10**400, 0.5, "", "\ud800", "x" * 3000, [], [None], [[1]], {}, {"a": {"b": []}}, [2**32], ["a", 1]]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@hypothesis_settings(max_examples=300, deadline=None)
@given(field=st.sampled_from(FIELDS), value=anything, other=st.sampled_from(FIELDS), more=anything)
def test_every_field_of_every_dialect_takes_anything(
    field: tuple[str, str], value: Any, other: tuple[str, str], more: Any
) -> None:
    path, name = field
    body = {**VALID[path][1], other[1]: more, name: value}
    ask = DIALECTS[path.encode()].read(json.dumps(body).encode("utf-8", "surrogatepass"))
    assert ask.size >= 0 and ask.media >= 0 and isinstance(ask.model, str)
    assert ask.stream in (None, True, False)
    assert ask.render is None or msgspec.json.encode(ask.render)
    assert msgspec.json.encode(ask.piece) and isinstance(ask.block_seed, bytes)


@pytest.mark.parametrize("path", VALID)
def test_wrong_types_are_relayed_byte_for_byte(path: str) -> None:
    """Every field of the dialect with every wrong value, on one connection: the engine has the last word on each."""
    kind, valid = VALID[path]
    bodies = [json.dumps({**valid, name: value}).encode() for name in kind.__struct_fields__ for value in WRONG]

    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        refusal = b'{"error": {"message": "%d bytes"}}' % len(request.body)
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(refusal) + refusal)

    async def main() -> None:
        async with scripted(answer) as (upstream, url), gateway(url, "pace", wait=0.5) as served:
            teach(served)
            reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
            for body in bodies:
                writer.write(raw_request("POST", path, body))
                got = await asyncio.wait_for(read_message(reader), 10)
                assert got.status == 400 and got.json["error"]["message"] == f"{len(body)} bytes"
            await close(writer)
            assert [request.body for request in upstream.requests if request.target == path.encode()] == bodies
            await until(lambda: idle(served))

    run(main(), 60)


def test_duplicate_headers_arrive_as_they_came() -> None:
    fields = [
        ("X-Twice", "1"),
        ("x-twice", "2"),
        ("Cookie", "a"),
        ("Cookie", "b"),
        ("Authorization", "one"),
        ("Authorization", "two"),
    ]

    async def main() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (upstream, url), gateway(url) as served:
            assert (await post(served.front.port, "/v1/chat/completions", chat("hi"), fields)).status == 200
            sent = [(name.decode(), value.decode()) for name, value in upstream.requests[0].headers]
            assert [field for field in sent if field in fields] == fields
            raw = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"
            assert (await exchange(served.front.port, raw)).status == 400 and len(upstream.requests) == 1

    run(main())


REFUSED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "both lengths": b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "obscured coding": b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding of HTTP/1.0": b"POST /v1/messages HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "sign before the length": b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n{ }",
    "space before the colon": b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\n{ }",
    "a chunk that is no number": b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a head without end": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_refused_in_a_form_that_every_client_reads(name: str) -> None:
    async def main() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (upstream, url), gateway(url) as served:
            got = await asyncio.wait_for(exchange(served.front.port, REFUSED[name]), 10)
            assert got.status in (400, 431) and got.get(b"connection") == b"close"
            error = got.json
            assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error" and error["error"]["message"]
            assert upstream.requests == []
            await until(lambda: idle(served) and served.front.live == 0)

    run(main())


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
BROKEN: dict[str, tuple[bytes, int]] = {
    "garbage": (b"\0\1\2 garbage \r\n\r\n", 502),
    "nothing": (b"", 502),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Type: te", 502),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 502),
    "both lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 502),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 502),
    "only a 100": (b"HTTP/1.1 100 Continue\r\n\r\n", 502),
    "a head without end": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, 502),
    "closed in a chunk": (HEAD + CHUNK + b"400\r\ndata: {", 200),
    "closed between chunks": (HEAD + CHUNK, 200),
    "a chunk that is no number": (HEAD + CHUNK + b"zz\r\n", 200),
    "shorter than it says": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{", 200),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_upstream_that_answers_nonsense(path: str, name: str) -> None:
    """Before a byte was passed on: 502 in the dialect's form. After: the answer breaks off, it does not end."""
    raw, status = BROKEN[name]

    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with scripted(answer) as (upstream, url), gateway(url) as served:
            got = await asyncio.wait_for(post(served.front.port, path, chat("hi", stream=True)), 10)
            assert got.status == status
            if status == 502:
                assert got.complete and got.json["error"]["type"] == "api_error"
                assert ("type" in got.json) == (path == "/v1/messages")
                assert got.get(b"x-headway-outcome") == b"upstream_lost"
            else:
                assert not got.complete
            assert metric(served, 'headway_requests_total{outcome="upstream_lost"}') == 1
            await until(lambda: idle(served) and upstream.open <= 1)  # the watch of its metrics apart

    run(main())


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"]
)
def test_interim_answers_are_not_passed_on(interim: bytes) -> None:
    async def main() -> None:
        async with scripted(interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (_, url), gateway(url) as served:
            got = await post(served.front.port, "/v1/chat/completions", chat("hi"))
            assert (got.status, got.body) == (200, b"{}") and got.get(b"link") is None
            await until(lambda: idle(served))

    run(main())


def test_an_answer_before_the_body_was_read() -> None:
    """An upstream that refuses a large body by its head alone, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        if head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        else:
            writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as served:
            got = await asyncio.wait_for(post(served.front.port, "/v1/completions", b"x" * (8 << 20)), 20)
            assert (got.status, got.body) == (413, b"big") or got.status == 502
            await until(lambda: idle(served))
        server.close()

    run(main())


@pytest.mark.parametrize("when", ["before the answer", "in the stream"])
def test_a_client_that_closes_its_half_has_left(when: str) -> None:
    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        if when == "in the stream":
            writer.write(HEAD + CHUNK)
        await asyncio.sleep(60)

    async def main() -> None:
        async with scripted(answer) as (upstream, url), gateway(url) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
            writer.write(raw_request("POST", "/v1/chat/completions", json.dumps(chat("hi", stream=True)).encode()))
            await until(lambda: len(upstream.requests) == 1)
            if when == "in the stream":
                await reader.readuntil(EVENT)
            writer.write_eof()
            await until(lambda: idle(served), 1.0)
            await close(writer)

    run(main())


def test_many_slow_heads_cost_nobody_a_place() -> None:
    """Two hundred clients that send a byte now and then: the others are served, nothing is held for these."""

    async def main() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (_, url), gateway(url, "serialize") as served:
            slow = [await asyncio.open_connection("127.0.0.1", served.front.port) for _ in range(200)]
            body = json.dumps(chat(text(3000))).encode()
            for number, (_, writer) in enumerate(slow):
                writer.write(raw_request("POST", "/v1/chat/completions", body)[: 10 + number])
            assert (await post(served.front.port, "/v1/chat/completions", chat("hi"))).status == 200
            assert now(served)["requests"] == 0
            for _, writer in slow:
                writer.transport.abort()
            await until(lambda: served.front.live == 0)

    run(main())


def test_bytes_behind_a_request_are_no_part_of_it() -> None:
    """What follows a complete request is the next one, and is refused as that if it is none."""

    async def main() -> None:
        async with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (upstream, url), gateway(url) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
            smuggled = b"GET /sleep HTTP/1.1\r\nHost: a\r\n\r\n"
            writer.write(raw_request("POST", "/v1/completions", b"{}" + smuggled, [("Content-Length", "2")]))
            assert (await read_message(reader)).status == 200
            second = await read_message(reader)
            assert second.status == 404 and second.get(b"x-headway-outcome") == b"refused"
            assert len(upstream.requests) == 1
            writer.write(b"}}garbage\r\n\r\n")
            assert (await read_message(reader)).status == 400
            with pytest.raises(Hangup):
                await read_message(reader)
            await close(writer)

    run(main())
