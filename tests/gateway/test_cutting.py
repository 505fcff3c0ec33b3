"""Beginnings of a prompt's text: each is a body of the same dialect, longer ones begin with shorter ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.cutting import Cutter

AGENT: dict[str, Any] = {
    "model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 500, "n": 2, "cache_salt": "s",
    "tools": [{"type": "function", "function": {"name": "f"}}], "response_format": {"type": "json_object"},
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": [{"type": "text", "text": "Read "}, {"type": "text", "text": "the file."}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "x" * 5000},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks, and now?"},
    ],
}  # fmt: skip


def cut(characters: int, dialect: str = "chat", body: dict[str, Any] = AGENT) -> dict[str, Any]:
    return dict(json.loads(Cutter(dialect, json.dumps(body).encode()).beginning(characters)))


def told(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"]).rstrip('"}] ')


def test_what_decides_over_the_prompt_stays_and_the_rest_goes() -> None:
    body = cut(1000)
    assert body["tools"] == AGENT["tools"] and body["cache_salt"] == "s" and body["model"] == "m"
    assert body["max_tokens"] == 1 and not {"stream", "stream_options", "n", "response_format"} & body.keys()
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert len(body["messages"][3]["content"]) == 1000 - len("You help.Read the file.")


@given(st.integers(-5, 6000), st.integers(0, 6000))
def test_longer_begins_with_shorter_and_none_ends_in_an_answer(characters: int, more: int) -> None:
    shorter, longer = cut(characters), cut(characters + more)
    assert told(longer).startswith(told(shorter))
    assert shorter["messages"][-1]["role"] != "assistant" and shorter["messages"][-1]["content"]


def test_all_of_it_is_the_whole_prompt() -> None:
    cutter = Cutter("chat", json.dumps(AGENT).encode())
    assert json.loads(cutter.beginning(cutter.length))["messages"] == AGENT["messages"]


def test_every_dialect() -> None:
    assert cut(3, "completions", {"prompt": "abcdef", "echo": False})["prompt"] == "abc"
    assert cut(3, "responses", {"input": "abcdef"})["input"] == "abc"
    body = cut(3, "responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "abcdef"}]}]})
    assert body["input"][0]["content"][0]["text"] == "abc" and body["max_output_tokens"] == 1 and body["store"] is False
    assert (
        cut(3, "messages", {"system": "s", "messages": [{"role": "user", "content": "abcdef"}]})["messages"][0]["content"]
        == "abc"
    )


@pytest.mark.parametrize(
    "dialect,body",
    [
        ("chat", b"[]"), ("chat", b"{"), ("chat", b'{"messages": 3}'), ("chat", b'{"messages": [3]}'),
        ("chat", b'{"messages": []}'), ("chat", b'{"messages": [{"role": "user", "content": 7}]}'),
        ("other", b'{"messages": "x"}'), ("completions", b'{"prompt": [1]}'),
    ],
)  # fmt: skip
def test_what_has_no_text(dialect: str, body: bytes) -> None:
    with pytest.raises(ValueError):
        Cutter(dialect, body)
