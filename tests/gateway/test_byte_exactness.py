"""Must: what the upstream sent is what the client receives, and what the client sent is what the upstream receives."""

from __future__ import annotations

import asyncio
import gzip
import json
import os

import pytest

from headway.gateway.transport.framing import HOP_BY_HOP
from tests.gateway.support import (
    Message,
    chat,
    engine,
    exchange,
    gateway,
    metric,
    post,
    raw_request,
    read_stream,
    run,
    scripted,
    session,
    tapped,
    teach,
    text,
)

FRAMING = {b"transfer-encoding", b"content-length"}
"""Fields that say how this connection delimits the body."""
RESPONSE_ALLOWED = HOP_BY_HOP | FRAMING
REQUEST_ALLOWED = HOP_BY_HOP | FRAMING | {b"host"}


def end_to_end(message: Message, allowed: frozenset[bytes] | set[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in message.headers if name.lower() not in allowed]


def head(status: str, *fields: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields]).encode("latin-1") + b"\r\n\r\n"


def sized(status: str, body: bytes, *fields: str) -> bytes:
    return head(status, *fields, f"Content-Length: {len(body)}") + body


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


ZIPPED = gzip.compress(b'{"choices":[]}' * 500, mtime=0)
ERROR = b'{"object":"error",  "message":"caf\xc3\xa9 \\u00e9", "code":400}'
EVENTS = (b'data: {"choices":[{"index":0,"te', b'xt":"a"}]}\n', b"\ndata: [DO", b"NE]\n\n")
STREAM = "Content-Type: text/event-stream; charset=utf-8"

RESPONSES = {
    "json": sized("200 OK", b'{ "a" : 1.0 }\n', "Content-Type: application/json", "X-Request-Id: 7"),
    "odd header case, repeated and empty fields": sized(
        "200 Fine",
        b"x",
        "cOnTent-TYPE: text/plain",
        "SET-cookie: a=1",
        "Set-Cookie: b=2",
        "x-empty:",
        "X-Headway-Outcome: theirs",
    ),
    "400": sized("400 Bad Request", ERROR, "Content-Type: application/json"),
    "404 without a reason": sized("404 ", b"nothing here", "Content-Type: text/plain"),
    "500 in chunks": head("500 Internal Server Error", "Transfer-Encoding: chunked") + chunked(b"Internal", b" Server Error"),
    "429 with Retry-After": sized("429 Too Many Requests", b"{}", "Retry-After: 17"),
    "gzip": sized("200 OK", ZIPPED, "Content-Encoding: gzip", "Content-Type: application/json", "Vary: Accept-Encoding"),
    "gzip in chunks": head("200 OK", "Content-Encoding: gzip", "Transfer-Encoding: chunked") + chunked(ZIPPED[:7], ZIPPED[7:]),
    "events": head("200 OK", STREAM, "Cache-Control: no-store", "Transfer-Encoding: chunked") + chunked(*EVENTS),
    "gzipped events": head("200 OK", STREAM, "Content-Encoding: gzip", "Transfer-Encoding: chunked") + chunked(ZIPPED),
    "events of another kind": head("200 OK", STREAM, "Transfer-Encoding: chunked")
    + chunked(b": ping\r\n\r\n", b"event: x\r\n\r\n"),
    "204": head("204 No Content", "X-Note: empty"),
    "no body": sized("200 OK", b""),
    "ended by the connection": head("200 OK", "Content-Type: text/plain", "Connection: close") + b"to the end",
    "4 MB": sized("200 OK", os.urandom(4 << 20), "Content-Type: application/octet-stream"),
    "not UTF-8": sized("200 OK", bytes(range(256)), "Content-Type: application/json", "X-Latin: \xe9"),
}


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("stream", [False, True])
def test_response_passes_unchanged(name: str, stream: bool) -> None:
    raw = RESPONSES[name]

    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(raw), 997 if len(raw) < 1 << 20 else 1 << 20):
            writer.write(raw[at : at + (997 if len(raw) < 1 << 20 else 1 << 20)])
            await asyncio.sleep(0)
        if b"Connection: close" in raw:
            writer.close()

    async def main() -> None:
        async with scripted(answer) as (_, url), gateway(url) as served:
            direct = await post(int(url.rpartition(":")[2]), "/v1/chat/completions", chat("hi", stream=stream))
            relayed = await post(served.front.port, "/v1/chat/completions", chat("hi", stream=stream))
            assert relayed.complete
            assert relayed.start == direct.start
            assert relayed.body == direct.body
            assert end_to_end(relayed, RESPONSE_ALLOWED) == end_to_end(direct, RESPONSE_ALLOWED)
            assert relayed.get(b"content-length") == direct.get(b"content-length")

    run(main())


def test_head_request_keeps_the_length_that_it_announces() -> None:
    async def main() -> None:
        async with scripted(head("200 OK", "Content-Length: 1234", "X-A: b")) as (upstream, url), gateway(url) as served:
            relayed = await exchange(served.front.port, raw_request("HEAD", "/v1/models"), bodyless=True)
            assert (relayed.status, relayed.get(b"content-length"), relayed.body) == (200, b"1234", b"")
            assert upstream.requests[0].start == b"HEAD /v1/models HTTP/1.1"

    run(main())


REQUESTS = {
    "json with odd spacing": (b'{"model" : "m",\n\t"messages":[ {"role":"user","content":"\\u00e9"}]}', []),
    "gzip": (gzip.compress(json.dumps(chat("hi")).encode(), mtime=0), [("Content-Encoding", "gzip")]),
    "not JSON": (b"\x00\xff{{{", []),
    "odd header case": (b"{}", [("x-sTrAnGe", "1"), ("AUTHORIZATION", "Bearer k"), ("accept", "a"), ("Accept", "b")]),
    "hop-by-hop fields": (b"{}", [("Connection", "keep-alive, X-Mine"), ("X-Mine", "1"), ("TE", "trailers"), ("X-Yours", "2")]),
    "3 MB": (os.urandom(3 << 20), []),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_passes_unchanged(name: str) -> None:
    body, fields = REQUESTS[name]

    async def main() -> None:
        async with scripted(sized("200 OK", b"{}")) as (upstream, url), gateway(url) as served:
            target = "/v1/chat/completions?beta=true&x=%2F"
            fields_sent = [("Content-Type", "application/json"), *fields]
            assert (await exchange(served.front.port, raw_request("POST", target, body, fields_sent))).status == 200
            (got,) = upstream.requests
            assert got.start == f"POST {target} HTTP/1.1".encode()
            assert got.body == body
            sent = [
                (n.encode(), v.encode()) for n, v in fields_sent if n != "X-Mine" and n.lower().encode() not in REQUEST_ALLOWED
            ]
            assert end_to_end(got, REQUEST_ALLOWED) == sent
            assert got.get(b"host") == url.removeprefix("http://").encode()

    run(main())


def test_chunked_request_arrives_whole() -> None:
    async def main() -> None:
        async with scripted(sized("200 OK", b"{}")) as (upstream, url), gateway(url) as served:
            raw = raw_request("POST", "/v1/completions", chunked(b'{"a":', b"1}"), [("Transfer-Encoding", "chunked")])
            assert (await exchange(served.front.port, raw)).status == 200
            assert upstream.requests[0].body == b'{"a":1}'

    run(main())


def test_upstream_key_replaces_the_clients() -> None:
    async def main() -> None:
        async with scripted(sized("200 OK", b"{}")) as (upstream, url), gateway(url, upstream_key="secret") as served:
            headers = [("authorization", "Bearer mine"), ("X-Api-Key", "mine")]
            await exchange(served.front.port, raw_request("POST", "/v1/completions", b"{}", headers))
            (got,) = upstream.requests
            assert [value for name, value in got.headers if name.lower() == b"authorization"] == [b"Bearer secret"]
            assert got.get(b"x-api-key") is None

    run(main())


def test_tap_sees_what_the_client_sees() -> None:
    """The embedded engine behind a recording tap: streams, whole answers and the engine's own errors."""
    bodies = [
        chat("hello", max_tokens=8),
        chat("hello", stream=True, max_tokens=8, stream_options={"include_usage": True}),
        chat("hello", model="other"),
        chat("hello", max_tokens=-1),
        chat(text(2000), stream=True, max_tokens=3),
    ]

    async def main() -> None:
        async with engine() as server, tapped(server.port) as (tap, url), gateway(url) as served:
            teach(served)
            for body in bodies:
                relayed = await post(served.front.port, "/v1/chat/completions", body)
                answers = [m for m in await tap.responses() if m.body == relayed.body]
                assert len(answers) == 1, (relayed, await tap.responses())
                assert relayed.start == answers[0].start
                assert end_to_end(relayed, RESPONSE_ALLOWED) == end_to_end(answers[0], RESPONSE_ALLOWED)
                asked = [m for m in await tap.requests() if m.target == b"/v1/chat/completions"]
                assert json.loads(asked[-1].body) == body
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_paced_answer_equals_a_direct_one(path: str, stream: bool) -> None:
    """Text, finish reason and usage, but for cached_tokens."""
    body = chat(text(2500), stream=stream, max_tokens=6, stream_options={"include_usage": True} if stream else None)
    if path == "/v1/completions":
        body["prompt"] = body.pop("messages")[0]["content"]

    async def ask(port: int) -> tuple[str, str, dict[str, int]]:
        if stream:
            async with session() as http:
                answer = await read_stream(http, f"http://127.0.0.1:{port}", body, path=path)
            assert answer.done
            reasons = [c["finish_reason"] for _, e in answer.events for c in e["choices"] if c["finish_reason"]]
            return answer.text, reasons[0], dict(answer.usage or {})
        got = (await post(port, path, body)).json
        choice = got["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"], got["usage"]

    async def main() -> None:
        async with engine() as server:
            direct = await ask(server.port)
        async with engine() as server, gateway(server.url, gap=0.03) as served:
            teach(served)
            relayed = await ask(served.front.port)
            assert metric(served, "headway_pieces_total") >= 2
        assert relayed[:2] == direct[:2] and relayed[0]
        assert relayed[2].pop("prompt_tokens_details") != direct[2].pop("prompt_tokens_details")
        assert relayed[2] == direct[2]

    run(main())
