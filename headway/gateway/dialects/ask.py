"""What a request body asks for, as far as the gateway has to know. Parsed once, with msgspec; bodies are never re-encoded for
the request itself, which goes on byte for byte.

Invariant: a body that is not understood is not an error of ours. It gives an Ask without a prompt, is held by nothing, and the
engine answers it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

NONE = msgspec.Raw(b"null")

Text = bytes | memoryview
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


@dataclass(slots=True)
class Ask:
    size: int = 0
    """Bytes that stand for the prompt, tools included."""
    text: Text = b""
    """The prompt as sent, for the text index: a later turn's begins with an earlier turn's. A part of the body, not a copy."""
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
    media: int = 0
    """Images, sounds and the like. Their tokens are known when the answer's usage is."""
    partial: bool = False
    """More of the prompt is kept by the server (`previous_response_id`), so that `size` says only what is new of it."""
    background: bool = False
    """The answer comes at once, and the work goes on behind it."""
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
    response_format: msgspec.Raw = NONE
    functions: msgspec.Raw = NONE
    function_call: msgspec.Raw = NONE


class CompletionBody(_Common):
    prompt: msgspec.Raw = NONE
    add_special_tokens: msgspec.Raw = NONE
    prompt_logprobs: msgspec.Raw = NONE
    prompt_embeds: msgspec.Raw = NONE
    echo: bool | None = False


class MessagesBody(msgspec.Struct):
    """Anthropic's. `system` is a text or a list of blocks; thinking and tool blocks stand in `messages` like any other."""

    model: str | None = ""
    stream: bool | None = False
    messages: msgspec.Raw = NONE
    system: msgspec.Raw = NONE
    tools: msgspec.Raw = NONE


class ResponsesBody(msgspec.Struct):
    model: str | None = ""
    stream: bool | None = False
    input: msgspec.Raw = NONE
    instructions: msgspec.Raw = NONE
    tools: msgspec.Raw = NONE
    previous_response_id: msgspec.Raw = NONE
    conversation: msgspec.Raw = NONE
    prompt: msgspec.Raw = NONE
    background: bool | None = False


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
UNRENDERED = (
    "tool_choice",
    "reasoning_effort",
    "documents",
    "truncate_prompt_tokens",
    "response_format",
    "functions",
    "function_call",
)
"""Fields that may change the rendering and that /tokenize lacks."""
MEDIA = re.compile(
    rb'"type"\s*:\s*"(?:image_url|image|input_image|input_audio|audio_url|video_url|image_embeds|audio|video|file|input_file|document)"'
)
"""Content types whose tokens are not in the text. Inside a JSON string the quotes are escaped, so text cannot match."""
_BULK = re.compile(rb'"(?:data:[^"]{64,}|[A-Za-z0-9+/=_-]{512,})"')
"""A string that is an image or the like, not text."""
MEDIA_BYTES = 3500
"""Bytes of text that an image or the like counts for until usage tells: about 1,000 tokens, as many vision models make of one."""


def _without(text: Text, end: bytes) -> Text:
    """`text` up to the bytes of `end` that it ends with, not copied."""
    last = len(text)
    while last and text[last - 1] in end:
        last -= 1
    return text[:last]


def _weigh(text: Text) -> tuple[int, int]:
    """(bytes of text, its media parts included at MEDIA_BYTES each, number of media parts) of a list of messages."""
    media = sum(1 for _ in MEDIA.finditer(text))
    if not media:
        return len(text), 0
    bulk = sum(found.end() - found.start() for found in _BULK.finditer(text))
    return len(text) - bulk + media * MEDIA_BYTES, media


def _ask_of_chat(chat: ChatBody) -> Ask:
    messages = memoryview(chat.messages)
    size, media = _weigh(messages)
    pieces = _given(chat.prompt_logprobs) is None and not media
    render = None
    if pieces and bytes(messages[:1]) == b"[":
        render = {"model": chat.model} if chat.model is not None else {}
        render |= {name: raw for name in RENDERED if _given(raw := getattr(chat, name)) is not None}
    return Ask(
        size=size + len(bytes(chat.tools)),
        media=media,
        text=_without(messages, b"] \n\r\t"),
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
    prompt = memoryview(completion.prompt)
    ask = Ask(
        size=len(prompt),
        text=_without(prompt, b']" \n\r\t'),
        seed=b"\0".join([(completion.model or "").encode(), (completion.cache_salt or "").encode()]),
        stream=bool(completion.stream),
        model=completion.model or "",
        piece=_shared(completion),
    )
    whole = _given(completion.prompt_logprobs) or _given(completion.prompt_embeds) or completion.echo
    if bytes(prompt[:1]) == b"[":
        try:
            ask.ids = _ids.decode(prompt)
        except msgspec.DecodeError:
            return ask  # a batch of prompts, or what the engine will refuse: counted, not paced
    if not whole and bytes(prompt[:1]) in (b"[", b'"'):
        ask.render = {**({} if completion.model is None else {"model": completion.model}), "prompt": completion.prompt}
        if _given(completion.add_special_tokens) is not None:
            ask.render["add_special_tokens"] = completion.add_special_tokens
    return ask


def _ask_of_messages(body: MessagesBody) -> Ask:
    # What comes first in the prompt comes first here, so that a later turn begins with an earlier one.
    return _ask_of_turns(body.model, body.stream, bytes(body.system) + bytes(body.tools), memoryview(body.messages))


def _ask_of_responses(body: ResponsesBody) -> Ask:
    ask = _ask_of_turns(body.model, body.stream, bytes(body.instructions) + bytes(body.tools), memoryview(body.input))
    ask.partial = any(_given(field) is not None for field in (body.previous_response_id, body.conversation, body.prompt))
    ask.background = bool(body.background)
    return ask


def _ask_of_turns(model: str | None, stream: bool | None, head: bytes, turns: memoryview) -> Ask:
    size, media = _weigh(turns)
    return Ask(
        size=len(head) + size,
        media=media,
        text=_without(turns, b']" \n\r\t'),
        seed=(model or "").encode() + b"\0" + head,
        stream=bool(stream),
        model=model or "",
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
read_messages = _reader(MessagesBody, _ask_of_messages)
read_responses = _reader(ResponsesBody, _ask_of_responses)


def _given(raw: msgspec.Raw) -> bytes | None:
    if raw is NONE:  # the usual case, and the cheapest
        return None
    value = bytes(raw)
    return None if value in (b"null", b"") else value


def _shared(body: _Common) -> dict[str, Any]:
    fields: dict[str, Any] = {} if body.model is None else {"model": body.model}
    if body.cache_salt is not None:
        fields["cache_salt"] = body.cache_salt
    if body.priority is not None:
        fields["priority"] = body.priority
    return fields
