"""The dialects: one row a path.

Patterns are anchored on JSON keys: inside a JSON string quotes are escaped, so no text can match them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.gateway.dialects.ask import Reader, read_chat, read_completion, read_messages, read_nothing, read_responses
from headway.gateway.dialects.errors import (
    ErrorBody,
    LateError,
    anthropic_error,
    anthropic_late,
    openai_error,
    openai_late,
    responses_late,
)


@dataclass(slots=True, frozen=True)
class Dialect:
    name: str
    read: Reader
    output: re.Pattern[bytes] | None
    """Matches a stream's first *output*: protocol events and role chunks come earlier, on some engines long before the
    prefill is over. None: the first body byte."""
    step: re.Pattern[bytes] | None
    """Matches once in each later event that carries output. None: every event does."""
    error: ErrorBody
    paced: bool
    held: bool
    """Its bodies are prompts: a big one is at least held. False for paths that are only relayed."""
    cached_apart: bool = False
    """Its usage counts cached prompt tokens beside input_tokens, not within."""
    late: LateError | None = None
    """How a stream that began as a 200 says that it failed. None: nothing of ours may stand in its streams."""
    beat: bytes | None = None
    """What the dialect itself sends while nothing happens, instead of an SSE comment."""


_FIELD = rb'"(?:content|reasoning|reasoning_content|refusal|arguments|text|data|transcript)"\s*:\s*(?:"[^"]|\[\s*\{)'
_CHAT = re.compile(_FIELD + rb'|"(?:tool_calls|function_call)"\s*:\s*[\[{]\s*["{]|"finish_reason"\s*:\s*"')
_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_MESSAGES = re.compile(rb'"type"\s*:\s*"(?:content_block_delta|message_delta)"')
_MESSAGES_STEP = re.compile(rb'"type"\s*:\s*"content_block_delta"')
_RESPONSES = re.compile(rb'"type"\s*:\s*"response\.(?:[a-z_.]+\.delta|completed|incomplete|failed)"')
_RESPONSES_STEP = re.compile(rb'"type"\s*:\s*"response\.[a-z_.]+\.delta"')
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


DIALECTS: dict[bytes, Dialect] = {
    b"/v1/chat/completions": Dialect("chat", read_chat, _CHAT, _CHOICE, openai_error, paced=True, held=True, late=openai_late),
    b"/v1/completions": Dialect(
        "completions", read_completion, _CHOICE, _CHOICE, openai_error, paced=True, held=True, late=openai_late
    ),
    b"/v1/messages": Dialect(
        "messages",
        read_messages,
        _MESSAGES,
        _MESSAGES_STEP,
        anthropic_error,
        paced=False,
        held=True,
        cached_apart=True,
        late=anthropic_late,
        beat=_PING,
    ),
    b"/v1/responses": Dialect(
        "responses", read_responses, _RESPONSES, _RESPONSES_STEP, openai_error, paced=False, held=True, late=responses_late
    ),
    # Whole prompts, but nothing is prefilled for them.
    b"/v1/messages/count_tokens": Dialect("count_tokens", read_nothing, None, None, anthropic_error, paced=False, held=False),
    b"/v1/responses/input_tokens": Dialect("count_tokens", read_nothing, None, None, openai_error, paced=False, held=False),
    b"/v1/chat/completions/render": Dialect("render", read_nothing, None, None, openai_error, paced=False, held=False),
    b"/v1/completions/render": Dialect("render", read_nothing, None, None, openai_error, paced=False, held=False),
}
OTHER = Dialect("other", read_nothing, None, None, openai_error, paced=False, held=False)
"""Any other relayed path. A streamed answer there is protected all the same."""
OTHER_V1 = Dialect("v1", read_nothing, None, None, openai_error, paced=False, held=True)
"""Any other path below /v1/, or one that --relay adds: a big body is taken for a prompt."""


def dialect_of(path: bytes, added: bool = False) -> Dialect:
    """`added`: the path is one that --relay names."""
    known = DIALECTS.get(path)
    if known is not None:
        return known
    return OTHER_V1 if added or path.startswith(b"/v1/") else OTHER
