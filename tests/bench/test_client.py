"""One stream: what arrived, when, and what is said when it goes wrong."""

from __future__ import annotations

import asyncio

import pytest

from headway.bench.client import Request, Stream, Target, stream
from headway.bench.sse import Events
from tests.bench.stub import Stub, serve

BODY = Request({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8})


def ask(stub: Stub, *, model: str = "m", continuous: bool = True, timeout: float = 10) -> Stream:
    async def run() -> Stream:
        async with serve(stub):
            target = Target(stub.url, model, continuous=continuous)
            return await stream(target, BODY, timeout=timeout)

    return asyncio.run(run())


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_events_are_found_wherever_the_chunks_are_cut(cut: int) -> None:
    raw = b': hold\n\ndata: {"a":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 3\n\ndata: [DONE]\n\n'
    parser = Events()
    found = [data for i in range(0, len(raw), cut) for data in parser.feed(raw[i : i + cut])]
    assert found == [b'{"a":1}', b"two\nlines", b"[DONE]"]
    assert parser.end() is None


def test_an_event_without_its_blank_line_is_handed_over_at_the_end() -> None:
    parser = Events()
    assert parser.feed(b"data: a\n\ndata: b") == [b"a"]
    assert parser.end() == b"data: b"


def test_a_stream_has_its_text_usage_and_finish_reason() -> None:
    answer = ask(Stub(plan=lambda body: [0.02] * 8, cached=3))
    assert answer.error is None
    assert (len(answer.events), answer.tokens, answer.finish_reason) == (8, 8, "length")
    assert answer.text == "".join(f"t{i} " for i in range(8))
    assert answer.cached_tokens == 3
    assert answer.token_source == "final"


def test_times_are_those_of_the_bytes() -> None:
    stub = Stub(plan=lambda body: [0.05, 0.02, 0.3, 0.02])
    answer = ask(stub)
    (written,) = stub.written
    for event, at in zip(answer.events, written, strict=True):
        assert abs(event.at - at) < 0.005
    assert answer.ttft is not None and answer.ttft >= 0.05


def test_a_chunk_of_several_tokens_counts_as_several() -> None:
    plan = [0.01] * 5
    continuous = ask(Stub(plan=lambda body: plan, per_event=3, continuous=True))
    assert [event.tokens for event in continuous.events] == [3] * 5
    assert continuous.token_source == "continuous"
    final = ask(Stub(plan=lambda body: plan, per_event=3))
    assert (final.tokens, final.token_source) == (15, "final")


def test_without_usage_each_chunk_counts_as_one_token() -> None:
    answer = ask(Stub(plan=lambda body: [0.01] * 5, usage=False))
    assert (answer.tokens, answer.token_source, answer.usage) == (5, "events", None)


@pytest.mark.parametrize(
    ("stub", "kind", "words"),
    [
        (Stub(plan=lambda body: [0.01] * 4, streams=False), "not_streaming", "application/json"),
        (Stub(plan=lambda body: [0.01] * 4, garbage_after=2), "garbage", "not a JSON object"),
        (Stub(plan=lambda body: [0.01] * 4, error_after=2), "server", "out of memory"),
        (Stub(plan=lambda body: [0.01] * 4, break_after=2), "broken", "broke"),
        (Stub(plan=lambda body: [0.01] * 4, models=("other",)), "refused", "HTTP 404: no model m"),
    ],
)
def test_what_went_wrong_is_said_and_what_arrived_is_kept(stub: Stub, kind: str, words: str) -> None:
    answer = ask(stub)
    assert answer.error_kind == kind
    assert words in (answer.error or "")
    if kind in ("garbage", "server", "broken"):
        assert len(answer.events) >= 2
        assert answer.text.startswith("t0 t1 ")


def test_a_server_that_never_ends_is_given_up() -> None:
    answer = ask(Stub(plan=lambda body: [0.01, 5.0]), timeout=0.3)
    assert answer.error_kind == "timeout"
    assert len(answer.events) == 1


def test_nobody_there() -> None:
    async def run() -> Stream:
        async with serve(Stub(plan=lambda body: [0.0])) as stub:
            url = stub.url
        return await stream(Target(url, "m"), BODY)

    answer = asyncio.run(run())
    assert answer.error_kind == "down"
    assert "cannot connect to http://127.0.0.1:" in (answer.error or "")
