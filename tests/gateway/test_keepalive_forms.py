"""What a held client is sent, event by event: no sockets, no time but that of the clock here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headway.gateway.dialects.table import DIALECTS, OTHER_V1
from headway.gateway.keepalive import COMMENT, COMMENT_LINE, CorsMemory, Form, HeldAnswer, form_for
from headway.gateway.metrics import Metrics
from headway.gateway.transport.interface import RequestHead, ResponseHead
from tests.gateway.support import ManualClock

CHAT, MESSAGES, RESPONSES = DIALECTS[b"/v1/chat/completions"], DIALECTS[b"/v1/messages"], DIALECTS[b"/v1/responses"]
STREAM = ResponseHead(200, b"OK", [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class Client:
    """`Downstream` that remembers."""

    def __init__(self, **headers: str) -> None:
        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.request = RequestHead(b"POST", b"/v1/chat/completions", fields)
        self.peer = "127.0.0.1:1"
        self.heads: list[ResponseHead] = []
        self.got = b""
        self.over = ""
        self.writable = True
        self.on_writable: Callable[[], None] | None = None

    @property
    def started(self) -> bool:
        return bool(self.heads)

    async def body(self) -> bytes:
        return b""

    def head(self, head: ResponseHead) -> None:
        assert not self.heads, "two heads"
        self.heads.append(head)

    def data(self, data: bytes) -> None:
        assert self.heads and data and not self.over
        self.got += data

    def eof(self) -> None:
        assert self.heads and not self.over
        self.over = "eof"

    def abort(self) -> None:
        self.over = "abort"


def form(dialect: Any = CHAT, stream: bool | None = True, padding: bool = False, **headers: str) -> Form | None:
    return form_for(dialect, stream, Client(**headers).request, padding, ())


def held(form: Form | None, **headers: str) -> tuple[Client, ManualClock, HeldAnswer, Metrics]:
    assert form is not None
    client, clock, metrics = Client(**headers), ManualClock(), Metrics()
    return client, clock, HeldAnswer(client, form, clock, 15.0, metrics), metrics


def test_nothing_before_the_first_beat_and_the_upstreams_head_is_the_clients() -> None:
    client, clock, answer, _ = held(form())
    clock.advance(14.9)
    assert not client.started
    head = ResponseHead(429, b"Too Many", [(b"Retry-After", b"7")])
    answer.head(head)
    answer.data(b"slow down")
    answer.eof()
    clock.advance(600)
    assert (client.heads, client.got, client.over) == ([head], b"slow down", "eof")


@pytest.mark.parametrize(("dialect", "beat"), [(CHAT, COMMENT), (MESSAGES, PING), (RESPONSES, COMMENT)])
def test_six_minutes_then_an_answer(dialect: Any, beat: bytes) -> None:
    client, clock, answer, metrics = held(form(dialect))
    clock.advance(360)
    assert client.got == beat * 24
    fields = dict(client.heads[0].headers)
    assert client.heads[0].status == 200 and fields[b"Content-Type"].startswith(b"text/event-stream")
    answer.head(STREAM)
    clock.advance(30)  # the engine's own prefill
    assert client.got == beat * 26
    answer.data(b"data: 1\n\n")
    clock.advance(600)
    answer.data(b"data: 2\n\n")
    answer.eof()
    assert client.got == beat * 26 + b"data: 1\n\ndata: 2\n\n" and client.over == "eof"
    assert metrics.keepalives._value.get() == 26 and metrics.late_errors._value.get() == 0


def test_between_the_upstreams_head_and_its_first_byte() -> None:
    client, clock, answer, _ = held(form())
    answer.head(STREAM)
    clock.advance(31)
    answer.data(b"data: 1\n\n")
    assert client.heads == [STREAM] and client.got == COMMENT * 2 + b"data: 1\n\n"


@pytest.mark.parametrize(
    "head",
    [
        ResponseHead(200, b"OK", [(b"Content-Type", b"text/event-stream"), (b"Content-Length", b"9")]),
        ResponseHead(200, b"OK", [(b"Content-Type", b"text/event-stream"), (b"Content-Encoding", b"gzip")]),
        ResponseHead(200, b"OK", [(b"Content-Type", b"application/json")]),
        ResponseHead(500, b"No", [(b"Content-Type", b"text/event-stream")]),
    ],
)
def test_nothing_of_ours_in_a_body_that_has_no_place_for_it(head: ResponseHead) -> None:
    client, clock, answer, _ = held(form())
    answer.head(head)
    clock.advance(100)
    answer.data(b"data: 1\n\n")
    answer.eof()
    assert client.heads == [head] and client.got == b"data: 1\n\n"


def error_event(dialect: Any, status: int, body: bytes) -> Any:
    client, clock, answer, metrics = held(form(dialect))
    clock.advance(15)
    before = len(client.got)
    answer.head(ResponseHead(status, b"", [(b"Content-Type", b"application/json"), (b"Content-Length", b"1")]))
    if body:
        answer.data(body)
    assert not answer.started, "it can still be told otherwise"
    answer.eof()
    clock.advance(100)
    assert client.over == "eof" and metrics.late_errors._value.get() == 1
    event = client.got[before:]
    assert event.endswith(b"\n\n")
    data = next(line for line in event.split(b"\n") if line.startswith(b"data: "))
    if dialect is CHAT:
        assert event.endswith(b"}\n\ndata: [DONE]\n\n")
    else:
        assert event.startswith(b"event: error\ndata: ") and event.count(b"\n\n") == 1
    return json.loads(data[6:])


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    ("status", "body", "message", "kind"),
    [
        (400, b'{"error": {"message": "too\\nlong", "type": "BadRequestError", "code": 400}}', "too\nlong", "BadRequestError"),
        (
            400,
            b'{\n  "object": "error",\n  "message": "too long",\n  "type": "BadRequestError"\n}',
            "too long",
            "BadRequestError",
        ),
        (529, b'{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}', "busy", "overloaded_error"),
        (422, b'{"detail": "no such field"}', "no such field", "invalid_request_error"),
        (500, b"Internal Server Error", "Internal Server Error", "api_error"),
        (503, b"", "HTTP 503 without a body", "api_error"),
        (500, b"\xff\xfe{", "\ufffd\ufffd{", "api_error"),
        (400, b"[1]", "[1]", "invalid_request_error"),
        (404, b'{"error": "no model"}', "no model", "invalid_request_error"),
        (200, b'{"choices": []}', '{"choices": []}', "api_error"),
    ],
)
def test_the_upstreams_error_after_an_early_head(dialect: Any, status: int, body: bytes, message: str, kind: str) -> None:
    event = error_event(dialect, status, body)
    assert (event["error"]["message"], event["error"]["type"]) == (message, kind)
    if dialect is RESPONSES:
        assert event["type"] == "error" and event["message"] == message
    if dialect is MESSAGES:
        assert event["type"] == "error"


def test_an_error_body_without_end_is_bounded() -> None:
    client, clock, answer, _ = held(form())
    clock.advance(15)
    answer.head(ResponseHead(500, b"", []))
    for _ in range(100):
        answer.data(b"x" * 10_000)
    answer.eof()
    assert len(client.got) < 2000


def test_lost_after_an_early_head_another_answer_may_follow() -> None:
    """An upstream that dies after its head, before a byte: what the gateway says then is told; after a byte it is broken off."""
    client, clock, answer, _ = held(form())
    clock.advance(15)
    answer.head(STREAM)
    assert not answer.started
    answer.head(ResponseHead(502, b"", []))
    answer.data(CHAT.error(502, "api_error", "gone"))
    answer.eof()
    assert b'"gone"' in client.got and client.over == "eof"
    client, clock, answer, _ = held(form())
    clock.advance(15)
    answer.head(STREAM)
    answer.data(b"data: 1\n\n")
    assert answer.started
    answer.abort()
    clock.advance(60)
    assert client.over == "abort"


def test_whitespace_before_json_only_when_asked_for() -> None:
    assert form(stream=False) is None
    client, clock, answer, _ = held(form(stream=False, padding=True))
    clock.advance(360)
    assert client.got == b"\n" * 24 and dict(client.heads[0].headers)[b"Content-Type"] == b"application/json"
    answer.head(ResponseHead(200, b"OK", [(b"Content-Type", b"application/json"), (b"Content-Length", b"8")]))
    answer.data(b'{"a": 1}')
    answer.eof()
    assert json.loads(client.got) == {"a": 1}
    client, clock, answer, metrics = held(form(stream=False, padding=True))
    clock.advance(15)
    answer.head(ResponseHead(500, b"", [(b"Content-Length", b"0")]))
    answer.eof()
    assert json.loads(client.got)["error"]["code"] == 500 and metrics.late_errors._value.get() == 1


def test_a_client_that_does_not_read_is_not_written_to() -> None:
    client, clock, answer, _ = held(form())
    clock.advance(15)
    client.writable = False
    clock.advance(600)
    assert client.got == COMMENT
    client.writable = True
    clock.advance(15)
    assert client.got == COMMENT * 2
    answer.close()
    clock.advance(600)
    assert client.got == COMMENT * 2


def test_who_gets_none() -> None:
    assert form(OTHER_V1) is None and form(DIALECTS[b"/v1/messages/count_tokens"]) is None
    assert form(stream=None) is None and form(stream=None, padding=True) is None
    assert form(x_headway_keepalive="off") is None
    assert form_for(CHAT, True, RequestHead(b"GET", b"/", []), True, ()) is None
    assert form_for(CHAT, True, Client().request, True, None) is None


def test_openai_go_gets_no_empty_line() -> None:
    assert form(x_stainless_lang="go").beat == COMMENT_LINE  # type: ignore[union-attr]
    assert form(MESSAGES, x_stainless_lang="go").beat == PING  # type: ignore[union-attr]


def test_early_head_carries_what_the_client_needs() -> None:
    found = form(x_request_id="abc")
    assert found is not None and (b"X-Request-Id", b"abc") in found.head
    known = CorsMemory(2)
    assert known.fields(None) == () and known.fields(b"http://a") is None
    known.learn(b"http://a", [(b"Access-Control-Allow-Origin", b"*"), (b"Server", b"x"), (b"vary", b"Origin")])
    fields = known.fields(b"http://a")
    assert fields == [(b"Access-Control-Allow-Origin", b"*"), (b"vary", b"Origin")]
    found = form_for(CHAT, True, Client().request, False, fields)
    assert found is not None and (b"Access-Control-Allow-Origin", b"*") in found.head
    known.learn(b"http://b", [])
    known.learn(b"http://c", [])
    assert known.fields(b"http://a") is None
