"""Request bodies of the HTTP face: types are checked as vLLM's models check them, other fields are accepted
and ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class ApiError(Exception):
    """An error answer in vLLM's form: {"error": {"message", "type", "param", "code"}}."""

    def __init__(self, message: str, *, status: int = 400, type_: str = "BadRequestError", param: str | None = None):
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type_
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Sampling(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    return_token_ids: bool | None = None


class CompletionBody(_Sampling, kw_only=True):
    prompt: str | list[int | str | list[int]]
    echo: bool | None = None


class ChatBody(_Sampling, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """Anthropic's form."""

    model: str | None = None
    messages: list[dict[str, Any]]
    max_tokens: int
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """OpenAI's newer form."""

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    priority: int = 0
    cache_salt: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Both forms of vLLM's /tokenize: a `prompt`, or `messages` that are rendered first."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


def parse(raw: bytes, form: type[T]) -> T:
    """`raw` as a body of this form; ApiError 400 with the place of the first wrong field."""
    try:
        return msgspec.json.decode(raw, type=form)
    except msgspec.ValidationError as error:
        place = str(error).rpartition("`$.")[2].rstrip("`").split("[")[0] if "`$." in str(error) else None
        raise ApiError(f"1 validation error:\n  {error}", type_="Bad Request", param=place) from None
    except msgspec.DecodeError as error:
        raise ApiError(f"1 validation error:\n  JSON decode error: {error}", type_="Bad Request") from None


def check_common(body: _Sampling) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    if body.cache_salt is not None and not body.cache_salt:
        raise ApiError("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if body.max_tokens is not None and body.max_tokens < 1:
        raise ApiError(f"max_tokens must be at least 1, got {body.max_tokens}.", param="max_tokens")
    if body.n is not None and body.n < 1:
        raise ApiError(f"n must be at least 1, got {body.n}.", param="n")
    if not -(2**63) <= body.priority < 2**63:
        raise ApiError("priority must fit into 64 bits.", param="priority")
