"""A small tokenizer of our own: about four bytes a token, the same text always the same ids.

Text is cut at special markers and newlines and then every four bytes, so a common prefix of two texts is a
common prefix of their ids but for the last piece, as with a real tokenizer. An id is a hash into a
vocabulary of the usual size; text can be got back for pieces that this process has seen, which is all that
decoding an answer or a prompt needs.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from headway.simulator.blocks import ID

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|tool_call|>", "<|endoftext|>")
VOCABULARY = 151_936
_PIECE = re.compile(b"|".join([*(re.escape(s.encode()) for s in SPECIALS), rb"\n", rb"(?:(?!<\|)[^\n]){1,4}", rb"[^\n]"]))
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Tokenizer:
    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {s.encode(): i for i, s in enumerate(SPECIALS)}
        self._pieces: dict[int, bytes] = {i: s.encode() for i, s in enumerate(SPECIALS)}

    def encode(self, text: str) -> array[int]:
        ids = self._ids
        return array(
            ID,
            [ids.get(piece) or self._learn(piece) for piece in _PIECE.findall(text.encode(errors="replace"))],
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; a piece never seen here becomes its number in angle brackets."""
        return b"".join(self.piece(i) for i in ids).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        return self._pieces.get(token) or f"<{token}>".encode()

    def _learn(self, piece: bytes) -> int:
        token = self._ids.get(piece)
        if token is None:
            token = len(SPECIALS) + zlib.crc32(piece) % (VOCABULARY - len(SPECIALS))
            if len(self._ids) < 4 * VOCABULARY:
                self._ids[piece] = token
            self._pieces.setdefault(token, piece)
        return token

    def answer_piece(self, seed: int, index: int) -> tuple[int, str]:
        """Token `index` of the answer to the prompt whose hash is `seed`: its id and its text, always four
        bytes.
        """
        number = xxhash.xxh3_64_intdigest(index.to_bytes(8, "little"), seed=seed)
        text = " "
        for _ in range(3):
            number, letter = divmod(number, len(_LETTERS))
            text += _LETTERS[letter]
        return self._learn(text.encode()), text


def prompt_seed(tokens: array[int]) -> int:
    return xxhash.xxh3_64_intdigest(tokens.tobytes())


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """ChatML, with tools as one JSON line each in front, as the templates of that family do.

    Raises ValueError for a message without a role or with content of an unknown form.
    """
    parts: list[str] = []
    if tools:
        listed = "\n".join(msgspec.json.encode(tool).decode() for tool in tools)
        parts.append(f"<|im_start|>system\n# Tools\n{listed}<|im_end|>\n")
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise ValueError(f"messages[{number}].role is missing")
        text = _content(message.get("content"), number)
        for call in message.get("tool_calls") or ():
            text += f"\n<|tool_call|>{msgspec.json.encode(call).decode()}"
        last = continue_final_message and number == len(messages) - 1
        parts.append(f"<|im_start|>{role}\n{text}" + ("" if last else "<|im_end|>\n"))
    if add_generation_prompt and not continue_final_message:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def _content(content: Any, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = []
        for part in content:
            text = part.get("text", part.get("content")) if isinstance(part, Mapping) else part
            if isinstance(text, list):
                text = _content(text, number)
            elif text is None and isinstance(part, Mapping):
                text = msgspec.json.encode(part).decode()
            if not isinstance(text, str):
                raise ValueError(f"messages[{number}].content has a part without text")
            texts.append(text)
        return "".join(texts)
    raise ValueError(f"messages[{number}].content must be a string or a list of parts")
