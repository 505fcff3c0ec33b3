"""Must: each dialect's requests are understood enough to be counted and paced; what cannot be paced is at least counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.gateway.dialects.ask import Ask
from headway.gateway.dialects.table import DIALECTS, dialect_of

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
PIXELS = "data:image/png;base64," + "iVBORw0KGgo" * 20_000
USER = [{"role": "user", "content": "word " * 800}]


def read(path: str, body: Any) -> Ask:
    return DIALECTS[path.encode()].read(json.dumps(body).encode())


def with_image(kind: str, **part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "word " * 800}, {"type": kind} | part]}]


PACEABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": USER}),
    "n > 1": (CHAT, {"messages": USER, "n": 4}),
    "logprobs": (CHAT, {"messages": USER, "logprobs": True, "top_logprobs": 5}),
    "structured output": (CHAT, {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {}}}),
    "roles": (CHAT, {"messages": [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, *USER]}),
    "parts of text": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "word " * 800}]}]}),
    "tools": (CHAT, {"messages": USER, "tools": [{"type": "function"}], "tool_choice": "auto", "parallel_tool_calls": False}),
    "tool results": (CHAT, {"messages": [*USER, {"role": "tool", "tool_call_id": "1", "content": "y"}]}),
    "no stream_options": (CHAT, {"messages": USER, "stream": True}),
    "text that speaks of images": (CHAT, {"messages": [{"role": "user", "content": '{"type": "image_url"} ' * 200}]}),
    "completion": (COMPLETIONS, {"prompt": "word " * 800}),
    "completion of ids": (COMPLETIONS, {"prompt": list(range(2000))}),
    "completion with logprobs": (COMPLETIONS, {"prompt": "word " * 800, "logprobs": 3, "n": 2}),
}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": (COMPLETIONS, {"prompt": "word " * 800, "echo": True}),
    "logprobs of the prompt": (CHAT, {"messages": USER, "prompt_logprobs": 1}),
    "a batch": (COMPLETIONS, {"prompt": ["x" * 2000, "y" * 2000]}),
    "a batch of ids": (COMPLETIONS, {"prompt": [list(range(1000)), list(range(1000))]}),
    "an image": (CHAT, {"messages": with_image("image_url", image_url={"url": PIXELS})}),
    "a sound": (CHAT, {"messages": with_image("input_audio", input_audio={"data": PIXELS[30:], "format": "wav"})}),
    "system as a text": (MESSAGES, {"system": "s" * 1000, "messages": USER}),
    "system as blocks": (MESSAGES, {"system": [{"type": "text", "text": "s" * 1000}], "messages": USER}),
    "thinking blocks": (
        MESSAGES,
        {"messages": [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": "x"}]}]},
    ),
    "tool results of Anthropic": (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "word " * 800}]}]},
    ),
    "an image of Anthropic": (
        MESSAGES,
        {"messages": with_image("image", source={"type": "base64", "media_type": "image/png", "data": PIXELS[30:]})},
    ),
    "input as a text": (RESPONSES, {"input": "word " * 800}),
    "input as items": (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "word " * 800}]}]}),
    "an input image": (RESPONSES, {"input": with_image("input_image", image_url=PIXELS)}),
    "instructions and tools": (RESPONSES, {"input": "word " * 800, "instructions": "i" * 1000, "tools": [{"type": "function"}]}),
    "a stored response": (RESPONSES, {"input": "word " * 800, "previous_response_id": "resp_1"}),
    "a conversation": (RESPONSES, {"input": "word " * 800, "conversation": "conv_1"}),
    "in the background": (RESPONSES, {"input": "word " * 800, "background": True}),
}


@pytest.mark.parametrize("name", PACEABLE)
def test_can_go_in_pieces(name: str) -> None:
    path, body = PACEABLE[name]
    ask = read(path, body | {"model": "m"})
    assert ask.render is not None and ask.model == "m" and ask.media == 0
    assert 3900 <= ask.size <= 13_000
    assert ask.stream is bool(body.get("stream"))


@pytest.mark.parametrize("name", COUNTED)
def test_is_counted_by_its_text(name: str) -> None:
    """An image of 220 KB is not 60,000 tokens of text, and not none."""
    path, body = COUNTED[name]
    ask = read(path, body | {"model": "m", "stream": True})
    assert ask.render is None and ask.stream is True and ask.model == "m"
    assert 3900 + 3500 * ask.media <= ask.size <= 13_000, ask.size
    assert ask.media == int("image" in name or "sound" in name)
    assert ask.partial == (name in ("a stored response", "a conversation"))
    assert ask.background == (name == "in the background")


def test_what_may_change_the_rendering_is_remembered_with_the_shape() -> None:
    path, body = PACEABLE["structured output"]
    assert read(path, body).unrendered == {"response_format"}
    assert read(CHAT, {"messages": USER, "tool_choice": None, "functions": [], "reasoning_effort": "low"}).unrendered == {
        "functions",
        "reasoning_effort",
    }


def test_a_later_turn_begins_with_the_earlier_one() -> None:
    """What comes first in the prompt comes first in the text, in every dialect: the index lives on that."""
    turns = [*USER, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    for path, field in ((CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input")):
        early, late = (read(path, {"model": "m", field: turns[:count], "system": "s", "instructions": "i"}) for count in (1, 3))
        assert bytes(late.text).startswith(bytes(early.text)) and early.seed == late.seed
        assert read(path, {"model": "other", field: turns}).seed != late.seed


def test_counting_tokens_prefills_nothing() -> None:
    for path in (b"/v1/messages/count_tokens", b"/v1/responses/input_tokens", b"/v1/chat/completions/render"):
        assert not dialect_of(path).held
    assert dialect_of(b"/v1/embeddings").held and not dialect_of(b"/tokenize").held
