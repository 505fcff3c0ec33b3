"""Must: each dialect is understood enough to be counted: where output begins, how many tokens, what usage says."""

from __future__ import annotations

import random

import pytest

from headway.gateway.dialects.progress import LONGEST_EVENT, Progress
from headway.gateway.dialects.table import DIALECTS, OTHER, OTHER_V1
from tests.gateway.dialects.shapes import SHAPES, Shape


def progress(shape: Shape) -> Progress:
    return Progress(DIALECTS[shape.path], events=True, lines=False, readable=True)


@pytest.mark.parametrize("name", SHAPES)
def test_an_event_at_a_time(name: str) -> None:
    shape = SHAPES[name]
    seen = progress(shape)
    begun = False
    for event, tokens in shape.events:
        begun = begun or tokens > 0
        assert seen.feed(event) == tokens, event
        assert seen.begun is begun, event
    told = seen.input_tokens
    if told is not None and DIALECTS[shape.path].cached_apart:
        told += seen.cached_tokens or 0
    assert told == shape.prompt_tokens and seen.cached_tokens == shape.cached_tokens


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", SHAPES)
def test_however_the_bytes_come(name: str, ends: str) -> None:
    """Cut anywhere, joined, with any of the line ends that the standard allows: the same tokens."""
    shape = SHAPES[name]
    raw = shape.raw.replace(b"\n", ends.encode())
    dice = random.Random(name)
    for _ in range(40):
        seen, at, tokens = progress(shape), 0, 0
        most = dice.choice((1, 7, 60, 400, len(raw)))
        while at < len(raw):
            size = dice.randint(1, most)
            tokens += seen.feed(raw[at : at + size])
            at += size
        assert tokens == shape.tokens, most
        assert seen.cached_tokens == shape.cached_tokens


def test_of_a_path_without_a_table_every_event_counts() -> None:
    for dialect in (OTHER, OTHER_V1):
        seen = Progress(dialect, events=True, lines=False, readable=True)
        assert [seen.feed(raw) for raw in (b": hi\n\n", b"data: 1\n\ndata: 2\n\n", b"data: 3\n\n")] == [0, 2, 1]
        lines = Progress(dialect, events=True, lines=True, readable=True)
        assert [lines.feed(raw) for raw in (b'{"a": 1}\n{"a"', b": 2}\n", b"\n")] == [1, 1, 0]


def test_a_compressed_stream_counts_by_reads() -> None:
    seen = Progress(DIALECTS[b"/v1/chat/completions"], events=True, lines=False, readable=False)
    assert [seen.feed(b"\x1f\x8b"), seen.feed(b"\0")] == [1, 1] and seen.begun


def test_a_plain_body() -> None:
    seen = Progress(DIALECTS[b"/v1/chat/completions"], events=False, lines=False, readable=True)
    body = b'{"choices": [], "usage": {"prompt_tokens": 1234, "prompt_tokens_details": {"cached_tokens": 567}}}'
    assert [seen.feed(body[at : at + 3]) for at in range(0, len(body), 3)].count(1) == 1
    assert (seen.input_tokens, seen.cached_tokens) == (1234, 567)


def test_an_event_without_an_end_is_bounded() -> None:
    seen = Progress(DIALECTS[b"/v1/chat/completions"], events=True, lines=False, readable=True)
    for _ in range(200):
        seen.feed(b'data: {"choices":[{"delta":{"content":"' + b"x" * 10_000)
        assert len(seen._buffer) <= LONGEST_EVENT
    assert seen.begun
