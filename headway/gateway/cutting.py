"""Growing beginnings of one prompt, as bodies for the endpoint that the request itself goes to: pieces without a tokenizer.

Invariants
----------
1. A beginning keeps everything that decides over the rendering of what it keeps (tools, template options, cache_salt, model)
   and asks for one output token.
2. A cut lies in text that a user, the system or a tool wrote; an answer of the assistant is in a beginning whole, with the
   beginning of what follows it: templates and tool calls are not torn apart.
3. The request itself is never made from these: it goes on byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

DROPPED = frozenset(
    {
        "stream", "stream_options", "n", "best_of", "logprobs", "top_logprobs", "response_format", "max_completion_tokens",
        "max_output_tokens", "max_tokens", "min_tokens", "stop", "stop_sequences", "background", "metadata", "user", "seed",
    }
)  # fmt: skip
"""Fields that change the answer, not the prompt."""


@dataclass(slots=True, frozen=True)
class Shape:
    """Where a dialect keeps its turns, and how it asks for one token."""

    turns: str
    one_token: dict[str, Any]


SHAPES = {
    "chat": Shape("messages", {"max_tokens": 1, "temperature": 0}),
    "completions": Shape("prompt", {"max_tokens": 1, "temperature": 0}),
    "messages": Shape("messages", {"max_tokens": 1, "temperature": 0}),
    "responses": Shape("input", {"max_output_tokens": 1, "temperature": 0, "store": False}),
}


class Cutter:
    """Raises ValueError for a body that has no text to cut."""

    def __init__(self, dialect: str, body: bytes) -> None:
        if dialect not in SHAPES:
            raise ValueError(f"prompts of {dialect} are not cut")
        shape = SHAPES[dialect]
        decoded = msgspec.json.decode(body)
        if not isinstance(decoded, dict):
            raise ValueError("not an object")
        self._shape = shape
        self._turns: Any = decoded.get(shape.turns)
        self._base = {name: value for name, value in decoded.items() if name not in DROPPED} | shape.one_token
        self._ends: list[int] = []
        """Characters of text up to the end of each turn."""
        if isinstance(self._turns, str):
            self._ends = [len(self._turns)]
        elif isinstance(self._turns, list) and all(isinstance(turn, dict) for turn in self._turns):
            total = 0
            for turn in self._turns:
                total += sum(len(text) for text in _texts(turn))
                self._ends.append(total)
        self.length = self._ends[-1] if self._ends else 0
        """Characters of text."""
        if not self.length:
            raise ValueError("no text")

    def beginning(self, characters: int) -> bytes:
        """A body whose prompt ends after `characters` characters of text, or a little later (rule 2)."""
        if isinstance(self._turns, str):
            cut: Any = self._turns[: max(1, characters)]
        else:
            cut = self._cut(max(1, characters))
        return msgspec.json.encode(self._base | {self._shape.turns: cut})

    def _cut(self, characters: int) -> list[Any]:
        last = next((n for n, end in enumerate(self._ends) if end >= characters), len(self._ends) - 1)
        before = self._ends[last - 1] if last else 0
        keep = characters - before
        while not _may_end_in(self._turns[last]):
            if last + 1 == len(self._turns):
                return list(self._turns)
            last, keep = last + 1, 1
        return [*self._turns[:last], _shortened(self._turns[last], keep)]


def _texts(turn: dict[str, Any]) -> list[str]:
    content = turn.get("content")
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return []


def _may_end_in(turn: dict[str, Any]) -> bool:
    return turn.get("role") != "assistant" and any(_texts(turn))


def _shortened(turn: dict[str, Any], characters: int) -> dict[str, Any]:
    content = turn["content"]
    if isinstance(content, str):
        return turn | {"content": content[:characters]}
    parts: list[Any] = []
    for part in content:
        if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
            parts.append(part)
            continue
        parts.append(part | {"text": part["text"][:characters]})
        characters -= len(part["text"])
        if characters <= 0:
            break
    return turn | {"content": parts}
