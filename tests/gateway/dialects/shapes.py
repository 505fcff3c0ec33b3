"""Streams as engines and services send them, event by event, with what each event is worth in tokens.

Written by hand after the servers' documented forms: vLLM 0.32 (`/v1/chat/completions`, `/v1/completions`, `/v1/messages`,
`/v1/responses`), llama.cpp's server, and the two vendors' API references. 0: no output; 1: one token; more: what it says itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Event = tuple[bytes, int]


@dataclass(frozen=True)
class Shape:
    path: bytes
    events: list[Event]
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def raw(self) -> bytes:
        return b"".join(event for event, _ in self.events)

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.events)


def data(body: Any, tokens: int = 0, compact: bool = True) -> Event:
    return b"data: " + json.dumps(body, separators=(",", ":") if compact else None).encode() + b"\n\n", tokens


def named(kind: str, tokens: int = 0, compact: bool = True, **fields: Any) -> Event:
    body = json.dumps({"type": kind} | fields, separators=(",", ":") if compact else None)
    return f"event: {kind}\ndata: {body}\n\n".encode(), tokens


def delta(tokens: int, index: int = 0, usage: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> Event:
    choice = {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish}
    body: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return data(body | ({"usage": usage} if usage else {}), tokens)


def usage(completion: int, prompt: int = 30, cached: int | None = None) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion} | details


ROLE = delta(0, role="assistant", content="")
DONE: Event = (b"data: [DONE]\n\n", 0)
USAGE_ONLY = data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage(3, 30, 16)})
CHAT, COMPLETIONS, MESSAGES, RESPONSES = b"/v1/chat/completions", b"/v1/completions", b"/v1/messages", b"/v1/responses"
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}]}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m"}
RESPONSE = {"id": "resp_1", "object": "response", "status": "in_progress", "instructions": 'say "type":"response.x.delta"'}

SHAPES: dict[str, Shape] = {
    "chat": Shape(CHAT, [ROLE, delta(1, content="a"), delta(1, content="b"), delta(1, content="", finish="stop"), DONE]),
    "chat, role and content null": Shape(CHAT, [delta(0, role="assistant", content=None), delta(1, content="a"), DONE]),
    "chat with usage at the end": Shape(CHAT, [ROLE, delta(1, content="a"), USAGE_ONLY, DONE], 30, 16),
    "chat, spaces after colons": Shape(
        CHAT,
        [
            data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, 0, compact=False),
            data({"choices": [{"index": 0, "delta": {"content": "a"}}]}, 1, compact=False),
            DONE,
        ],
    ),
    "chat, reasoning first": Shape(
        CHAT, [ROLE, delta(1, reasoning="hm"), delta(1, reasoning_content="hm"), delta(1, content="a")]
    ),
    "chat, tool call": Shape(
        CHAT,
        [ROLE, delta(1, tool_calls=[CALL]), delta(1, tool_calls=[{"index": 0, "function": {"arguments": '{"a'}}]), DONE],
    ),
    "chat, the old function call": Shape(CHAT, [ROLE, delta(1, function_call={"name": "look", "arguments": ""}), DONE]),
    "chat, refusal": Shape(CHAT, [ROLE, delta(1, refusal="No"), DONE]),
    "chat, content in parts": Shape(CHAT, [ROLE, delta(1, content=[{"type": "text", "text": "a"}]), DONE]),
    "chat, empty answer": Shape(CHAT, [ROLE, delta(1, finish="stop"), DONE]),
    "chat, n = 2": Shape(
        CHAT,
        [
            ROLE,
            delta(0, 1, role="assistant", content=""),
            delta(1, 1, content="a"),
            delta(1, 0, content="b"),
            delta(1, 1, content="c"),
        ],
    ),
    "chat, multi-token prediction with continuous usage": Shape(
        CHAT,
        [
            delta(0, role="assistant", content="", usage=usage(0)),
            delta(1, content="a", usage=usage(1)),
            delta(3, content="b c d", usage=usage(4)),
            delta(2, content="e f", usage=usage(6)),
            delta(1, content="", usage=usage(6), finish="stop"),
            DONE,
        ],
        30,
    ),
    "chat, n = 2 with continuous usage": Shape(
        CHAT,
        [
            ROLE,
            delta(2, 0, content="a b", usage=usage(2)),
            delta(3, 1, content="a b c", usage=usage(3)),
            delta(2, 0, content="c d", usage=usage(4)),
            delta(1, 1, content="d", usage=usage(4)),
        ],
        30,
    ),
    "chat, logprobs": Shape(
        CHAT,
        [
            ROLE,
            data({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": LOGPROBS, "finish_reason": None}]}, 1),
            DONE,
        ],
    ),
    "chat, text that looks like the protocol": Shape(
        CHAT,
        [
            ROLE,
            delta(1, content='"choices":[{ "completion_tokens": 900 data: [DONE]'),
            delta(1, content="\n\ndata: x\n\n: y"),
            DONE,
        ],
    ),
    "chat behind comments": Shape(
        CHAT,
        [
            (b": OPENROUTER PROCESSING\n\n", 0),
            (b":\n\n", 0),
            ROLE,
            (b': {"choices":[{"index":0,"delta":{"content":"not yet"}}]}\n\n', 0),
            delta(1, content="a"),
            (b": ping\n\n", 0),
            delta(1, content="b"),
            (b": one line\n", 0),
            delta(1, content="c"),
            DONE,
        ],
    ),
    "chat, an error in the stream": Shape(CHAT, [ROLE, data({"error": {"message": "bad", "type": "x", "code": 500}}), DONE]),
    "completions": Shape(
        COMPLETIONS,
        [
            data({"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": None}]}, 1),
            data({"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length"}]}, 1),
            data({"object": "text_completion", "choices": [], "usage": usage(2, 9, 0)}),
            DONE,
        ],
        9,
        0,
    ),
    "completions, echo": Shape(
        COMPLETIONS,
        [data({"choices": [{"index": 0, "text": "the prompt"}]}, 1), data({"choices": [{"index": 0, "text": " a"}]}, 1), DONE],
    ),
    "messages": Shape(
        MESSAGES,
        [
            named(
                "message_start",
                message=MESSAGE | {"usage": {"input_tokens": 14, "cache_read_input_tokens": 16, "output_tokens": 1}},
            ),
            named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            named("ping"),
            named("content_block_delta", 1, index=0, delta={"type": "text_delta", "text": "a"}),
            named("content_block_delta", 1, index=0, delta={"type": "text_delta", "text": "event: content_block_delta"}),
            named("content_block_stop", index=0),
            named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
            named("message_stop"),
        ],
        30,
        16,
    ),
    "messages, spaces after colons": Shape(
        MESSAGES,
        [
            named("message_start", 0, False, message=MESSAGE),
            named("content_block_delta", 1, False, index=0, delta={"type": "text_delta", "text": "a"}),
            named("message_stop", 0, False),
        ],
    ),
    "messages, thinking then a tool": Shape(
        MESSAGES,
        [
            named("message_start", message=MESSAGE),
            named("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
            named("content_block_delta", 1, index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
            named("content_block_delta", 1, index=0, delta={"type": "signature_delta", "signature": "x"}),
            named("content_block_stop", index=0),
            named("content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "look", "input": {}}),
            named("content_block_delta", 1, index=1, delta={"type": "input_json_delta", "partial_json": "{"}),
            named("content_block_stop", index=1),
            named("message_delta", delta={"stop_reason": "tool_use"}),
            named("message_stop"),
        ],
    ),
    "messages, empty answer": Shape(
        MESSAGES, [named("message_start", message=MESSAGE), named("message_delta", 1, delta={"stop_reason": "end_turn"})]
    ),
    "responses": Shape(
        RESPONSES,
        [
            named("response.created", response=RESPONSE),
            named("response.in_progress", response=RESPONSE),
            named("response.output_item.added", output_index=0, item={"type": "message", "content": []}),
            named("response.content_part.added", part={"type": "output_text", "text": ""}),
            named("response.output_text.delta", 1, delta="a"),
            named("response.output_text.delta", 1, delta="b"),
            named("response.output_text.done", text="ab"),
            named(
                "response.completed",
                response=RESPONSE
                | {"usage": {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 2}},
            ),
        ],
        30,
        16,
    ),
    "responses, reasoning then a function call": Shape(
        RESPONSES,
        [
            named("response.created", response=RESPONSE),
            named("response.reasoning_text.delta", 1, delta="hm"),
            named("response.reasoning_summary_text.delta", 1, delta="hm"),
            named("response.function_call_arguments.delta", 1, delta="{"),
            named("response.function_call_arguments.done", arguments="{}"),
            named("response.completed", response=RESPONSE),
        ],
    ),
    "responses, failed": Shape(
        RESPONSES, [named("response.created", response=RESPONSE), named("response.failed", 1, response=RESPONSE | {"error": {}})]
    ),
}
