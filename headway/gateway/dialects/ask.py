"""What a request body asks for, as far as the gateway has to know. Parsed once, with msgspec; bodies are never re-encoded for
the request itself, which goes on byte for byte.

Invariant: a body that is not understood is not an error of ours. It gives an Ask without a prompt, is held by nothing, and the
engine answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

NONE = msgspec.Raw(b"null")

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


@dataclass(slots=True)
class Ask:
    size: int = 0
    """Bytes that stand for the prompt, tools included."""
    text: bytes = b""
    """The prompt as sent, for the text index: a later turn's begins with an earlier turn's."""
    seed: bytes = b""
    """What else decides over cached or not: model, cache_salt, tools, template options."""
    ids: list[int] | None = None
    """The prompt as token ids, where it came so."""
    stream: bool | None = None
    """None: not said in a way that was understood."""
    model: str = ""
    render: dict[str, Any] | None = None
    """Body for the engine's /tokenize, or None where the prompt cannot go in pieces."""
    piece: dict[str, Any] = field(default_factory=dict)
    """Fields that a piece must share with the request, beside its prompt."""
    unrendered: frozenset[str] = frozenset()
    """Fields of the request that /tokenize does not know: its rendering is checked by the last hit."""

    @property
    def block_seed(self) -> bytes:
        """Seed of the block index: what decides over a hit once the ids are known."""
        return f"{self.model}\0{self.piece.get('cache_salt', '')}".encode()


Reader = Callable[[bytes], Ask]
Body = TypeVar("Body")


class _Common(msgspec.Struct):
    model: str | None = ""
    stream: bool | None = False
    cache_salt: str | None = None
    priority: int | None = None


class ChatBody(_Common):
    messages: msgspec.Raw = NONE
    tools: msgspec.Raw = NONE
    chat_template: msgspec.Raw = NONE
    chat_template_kwargs: msgspec.Raw = NONE
    add_generation_prompt: msgspec.Raw = NONE
    continue_final_message: msgspec.Raw = NONE
    add_special_tokens: msgspec.Raw = NONE
    tool_choice: msgspec.Raw = NONE
    reasoning_effort: msgspec.Raw = NONE
    documents: msgspec.Raw = NONE
    truncate_prompt_tokens: msgspec.Raw = NONE
    prompt_logprobs: msgspec.Raw = NONE


class CompletionBody(_Common):
    prompt: msgspec.Raw = NONE
    add_special_tokens: msgspec.Raw = NONE
    prompt_logprobs: msgspec.Raw = NONE
    prompt_embeds: msgspec.Raw = NONE
    echo: bool | None = False


class OtherBody(msgspec.Struct):
    """/v1/messages and /v1/responses: counted, protected and held, not paced."""

    model: str | None = ""
    stream: bool | None = False
    messages: msgspec.Raw = NONE
    input: msgspec.Raw = NONE
    system: msgspec.Raw = NONE
    instructions: msgspec.Raw = NONE
    tools: msgspec.Raw = NONE


_ids = msgspec.json.Decoder(list[TokenId])

RENDERED = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
"""Fields of a chat request that /tokenize takes under the same name."""
UNRENDERED = ("tool_choice", "reasoning_effort", "documents", "truncate_prompt_tokens")
"""Fields that may change the rendering and that /tokenize lacks."""
MEDIA = (b'"image_url"', b'"input_audio"', b'"video_url"', b'"audio_url"', b'"image_embeds"', b'"file"')
"""Content types whose tokens are not in the text. Inside a JSON string the quotes are escaped, so text cannot match."""


def _ask_of_chat(chat: ChatBody) -> Ask:
    messages = bytes(chat.messages)
    pieces = _given(chat.prompt_logprobs) is None and not any(mark in messages for mark in MEDIA)
    render = None
    if pieces and messages[:1] == b"[":
        render = {"model": chat.model} if chat.model is not None else {}
        render |= {name: getattr(chat, name) for name in RENDERED if _given(getattr(chat, name)) is not None}
    return Ask(
        size=len(messages) + len(bytes(chat.tools)),
        text=messages.rstrip(b"] \n\r\t"),
        seed=b"\0".join(
            [(chat.model or "").encode(), (chat.cache_salt or "").encode(), bytes(chat.tools), bytes(chat.chat_template_kwargs)]
        ),
        stream=bool(chat.stream),
        model=chat.model or "",
        render=render,
        piece=_shared(chat),
        unrendered=frozenset(name for name in UNRENDERED if _given(getattr(chat, name)) is not None),
    )


def _ask_of_completion(completion: CompletionBody) -> Ask:
    prompt = bytes(completion.prompt)
    ask = Ask(
        size=len(prompt),
        text=prompt.rstrip(b']" \n\r\t'),
        seed=b"\0".join([(completion.model or "").encode(), (completion.cache_salt or "").encode()]),
        stream=bool(completion.stream),
        model=completion.model or "",
        piece=_shared(completion),
    )
    whole = _given(completion.prompt_logprobs) or _given(completion.prompt_embeds) or completion.echo
    if prompt[:1] == b"[":
        try:
            ask.ids = _ids.decode(prompt)
        except msgspec.DecodeError:
            return ask  # a batch of prompts, or what the engine will refuse: counted, not paced
    if not whole and prompt[:1] in (b"[", b'"'):
        ask.render = {**({} if completion.model is None else {"model": completion.model}), "prompt": completion.prompt}
        if _given(completion.add_special_tokens) is not None:
            ask.render["add_special_tokens"] = completion.add_special_tokens
    return ask


def _ask_of_other(other: OtherBody) -> Ask:
    # What comes first in the prompt comes first here, so that a later turn begins with an earlier one.
    head = b"".join(bytes(part) for part in (other.system, other.instructions, other.tools))
    text = bytes(other.messages) if _given(other.messages) is not None else bytes(other.input)
    return Ask(
        size=len(head) + len(text),
        text=text.rstrip(b']" \n\r\t'),
        seed=(other.model or "").encode() + b"\0" + head,
        stream=bool(other.stream),
        model=other.model or "",
    )


def _reader(kind: type[Body], ask_of: Callable[[Body], Ask]) -> Reader:
    decoder = msgspec.json.Decoder(kind)

    def read(body: bytes) -> Ask:
        try:
            decoded = decoder.decode(body)
        except msgspec.ValidationError:
            return Ask(size=len(body))  # an engine may be laxer about types: it counts as what it weighs, and is not paced
        except (msgspec.DecodeError, RecursionError):
            return Ask()
        return ask_of(decoded)

    return read


def read_nothing(body: bytes) -> Ask:
    return Ask(size=len(body), text=body)


read_chat = _reader(ChatBody, _ask_of_chat)
read_completion = _reader(CompletionBody, _ask_of_completion)
read_other = _reader(OtherBody, _ask_of_other)


def _given(raw: msgspec.Raw) -> bytes | None:
    value = bytes(raw)
    return None if value in (b"null", b"") else value


def _shared(body: _Common) -> dict[str, Any]:
    fields: dict[str, Any] = {} if body.model is None else {"model": body.model}
    if body.cache_salt is not None:
        fields["cache_salt"] = body.cache_salt
    if body.priority is not None:
        fields["priority"] = body.priority
    return fields
