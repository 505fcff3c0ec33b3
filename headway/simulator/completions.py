"""/v1/completions and /v1/chat/completions, streaming or not, with vLLM's chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from headway.simulator.bodies import ApiError, ChatBody, CompletionBody, StreamOptions, check_common, parse
from headway.simulator.service import CHAT_TOKENS, Generation, Prompt, Service, Usage
from headway.simulator.sse import EventStream, json_response, request_name
from headway.simulator.tokenizer import render_chat

_COMPLETION_TOKENS = 16


async def completions(request: web.Request, service: Service) -> web.StreamResponse:
    body = parse(await request.read(), CompletionBody)
    service.check_model(body.model)
    check_common(body)
    prompts = _prompts(body.prompt, service)
    lengths = [service.fit(prompt, body.max_tokens, _COMPLETION_TOKENS) for prompt in prompts]
    await service.front_end_cost(prompts)
    name = request_name(request, "cmpl", body.request_id)
    with service.generate(
        name, prompts, lengths, n=body.n or 1, priority=body.priority, cache_salt=body.cache_salt
    ) as generation:
        shape = _Completion(service, generation, bool(body.return_token_ids))
        if body.stream:
            return await _stream(request, shape, body.stream_options)
        return await shape.whole()


async def chat_completions(request: web.Request, service: Service) -> web.StreamResponse:
    body = parse(await request.read(), ChatBody)
    service.check_model(body.model)
    check_common(body)
    if not body.messages:
        raise ApiError("messages must not be empty.", param="messages")
    prompt = service.text_prompt(chat_text(body))
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if wanted is not None and wanted < 1:
        raise ApiError(f"max_tokens must be at least 1, got {wanted}.", param="max_completion_tokens")
    length = service.fit(prompt, wanted, CHAT_TOKENS)
    await service.front_end_cost([prompt])
    name = request_name(request, "chatcmpl", body.request_id)
    with service.generate(
        name, [prompt], [length], n=body.n or 1, priority=body.priority, cache_salt=body.cache_salt
    ) as generation:
        shape = _Chat(service, generation, bool(body.return_token_ids))
        if body.stream:
            return await _stream(request, shape, body.stream_options)
        return await shape.whole()


def chat_text(body: Any) -> str:
    """The prompt of a body with messages; ApiError 400 where they cannot be rendered."""
    try:
        return render_chat(
            body.messages,
            body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
    except (ValueError, AttributeError) as error:
        raise ApiError(str(error), param="messages") from None


def _prompts(prompt: str | list[int | str | list[int]], service: Service) -> list[Prompt]:
    if isinstance(prompt, str):
        return [service.text_prompt(prompt)]
    if not prompt:
        raise ApiError("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return [service.id_prompt(prompt)]  # type: ignore[arg-type]
    if all(isinstance(item, str) for item in prompt):
        return [service.text_prompt(item) for item in prompt]  # type: ignore[arg-type]
    if all(isinstance(item, list) for item in prompt):
        return [service.id_prompt(item) for item in prompt]  # type: ignore[arg-type]
    raise ApiError("prompt must be a string, a list of strings, a list of ids or a list of lists of ids.", param="prompt")


class _Completion:
    """Chunks and bodies of /v1/completions."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, service: Service, generation: Generation, token_ids: bool) -> None:
        self.service = service
        self.generation = generation
        self.token_ids = token_ids

    def head(self, object_: str) -> dict[str, Any]:
        return {
            "id": self.generation.id,
            "object": object_,
            "created": self.generation.created,
            "model": self.service.model,
        }

    def usage(self) -> dict[str, Any]:
        return usage_body(self.generation.usage, self.service.prompt_tokens_details)

    def opening(self) -> Sequence[dict[str, Any]]:
        return ()

    def choice(self, index: int, text: str, ids: list[int], reason: str | None) -> dict[str, Any]:
        choice = {
            "index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None,
        }  # fmt: skip
        return choice | ({"token_ids": ids} if self.token_ids else {})

    def final_choice(self, index: int, text: str, ids: list[int], reason: str | None) -> dict[str, Any]:
        return self.choice(index, text, ids, reason) | {"prompt_logprobs": None}

    async def whole(self) -> web.Response:
        texts = [""] * self.generation.answers
        ids: list[list[int]] = [[] for _ in texts]
        reasons: list[str | None] = [None] * len(texts)
        async for piece in self.generation.pieces:
            texts[piece.index] += piece.text
            ids[piece.index] += piece.token_ids
            reasons[piece.index] = piece.finish_reason
        choices = [self.final_choice(i, texts[i], ids[i], reasons[i]) for i in range(len(texts))]
        return json_response(self.head(self.whole_object) | {"choices": choices, "usage": self.usage()})


class _Chat(_Completion):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            for index in range(self.generation.answers)
        ]

    def choice(self, index: int, text: str, ids: list[int], reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": reason,
        }  # fmt: skip
        if reason is not None:
            choice["stop_reason"] = None
        return choice | ({"token_ids": ids} if self.token_ids else {})

    def final_choice(self, index: int, text: str, ids: list[int], reason: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        choice = {
            "index": index, "message": message, "logprobs": None, "finish_reason": reason,
            "stop_reason": None,
        }  # fmt: skip
        return choice | ({"token_ids": ids} if self.token_ids else {})


async def _stream(request: web.Request, shape: _Completion, options: StreamOptions | None) -> web.StreamResponse:
    """Headers at once, then one chunk an engine step; the role chunk comes with the first output, as in
    vLLM.
    """
    options = options or StreamOptions()
    head = shape.head(shape.chunk_object)
    always = {"usage": shape.usage} if options.continuous_usage_stats and options.include_usage else {}
    async with EventStream(request) as stream:
        opened = False
        async for piece in shape.generation.pieces:
            extra = {key: value() for key, value in always.items()}
            choices = [] if opened else list(shape.opening())
            opened = True
            choices.append(shape.choice(piece.index, piece.text, piece.token_ids, piece.finish_reason))
            for choice in choices:
                await stream.data(head | {"choices": [choice]} | extra)
        if options.include_usage:
            await stream.data(head | {"choices": [], "usage": shape.usage()})
        await stream.raw(b"data: [DONE]\n\n")
    return stream.response


def usage_body(usage: Usage, details: bool) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens} if details else None,
    }
