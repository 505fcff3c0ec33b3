"""The dialects: one row a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headway.gateway.dialects.ask import Reader, read_chat, read_completion, read_nothing, read_other


@dataclass(slots=True, frozen=True)
class Dialect:
    name: str
    read: Reader
    output: re.Pattern[bytes] | None
    """Matches a stream's first *output*: protocol events and role chunks come earlier, on some engines long before the
    prefill is over. None: the first body byte."""
    error: Callable[[int, str, str], bytes]
    """(status, type, message) -> body."""
    paced: bool
    held: bool
    """Its bodies are prompts: a big one is at least held. False for paths that are only relayed."""
    cached_apart: bool = False
    """Its usage counts cached prompt tokens beside input_tokens, not within."""


def openai_error(status: int, kind: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def anthropic_error(status: int, kind: str, message: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


_FIELD = rb'"(?:content|reasoning|reasoning_content|refusal|arguments|text)"\s*:\s*"[^"]'
_CHAT = re.compile(_FIELD + rb'|"tool_calls"\s*:\s*\[\s*\{|"finish_reason"\s*:\s*"')
_COMPLETION = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_MESSAGES = re.compile(rb"content_block_delta|message_delta")
_RESPONSES = re.compile(rb"\.delta\b|response\.completed")

DIALECTS: dict[bytes, Dialect] = {
    b"/v1/chat/completions": Dialect("chat", read_chat, _CHAT, openai_error, paced=True, held=True),
    b"/v1/completions": Dialect("completions", read_completion, _COMPLETION, openai_error, paced=True, held=True),
    b"/v1/messages": Dialect("messages", read_other, _MESSAGES, anthropic_error, paced=False, held=True, cached_apart=True),
    b"/v1/responses": Dialect("responses", read_other, _RESPONSES, openai_error, paced=False, held=True),
}
OTHER = Dialect("other", read_nothing, None, openai_error, paced=False, held=False)
"""Any other relayed path. A streamed answer there is protected all the same."""
OTHER_V1 = Dialect("v1", read_nothing, None, openai_error, paced=False, held=True)
"""Any other path below /v1/, or one that --relay adds: a big body is taken for a prompt."""


def dialect_of(path: bytes, added: bool = False) -> Dialect:
    """`added`: the path is one that --relay names."""
    known = DIALECTS.get(path)
    if known is not None:
        return known
    return OTHER_V1 if added or path.startswith(b"/v1/") else OTHER
