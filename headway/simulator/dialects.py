"""/v1/messages and /v1/responses, in the part that streaming clients need. Here the first bytes come before
the first token.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from headway.simulator.bodies import MessagesBody, ResponsesBody, parse
from headway.simulator.completions import chat_text
from headway.simulator.service import CHAT_TOKENS, Generation, Prompt, Service
from headway.simulator.sse import EventStream, json_response, request_name


class _Rendered:
    """What `chat_text` reads of a body."""

    add_generation_prompt = True
    continue_final_message = False

    def __init__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
        self.messages = messages
        self.tools = tools


async def _text(generation: Generation) -> str:
    return "".join([piece.text async for piece in generation.pieces])


# -- Anthropic -------------------------------------------------------------------------------------


def _messages_prompt(body: MessagesBody, service: Service) -> Prompt:
    system = [{"role": "system", "content": body.system}] if body.system else []
    return service.text_prompt(chat_text(_Rendered(system + body.messages, body.tools)))


async def messages(request: web.Request, service: Service) -> web.StreamResponse:
    body = parse(await request.read(), MessagesBody)
    service.check_model(body.model)
    prompt = _messages_prompt(body, service)
    length = service.fit(prompt, body.max_tokens, body.max_tokens)
    await service.front_end_cost([prompt])
    name = request_name(request, "chatcmpl")
    with service.generate(name, [prompt], [length]) as generation:
        head = {"id": name, "type": "message", "role": "assistant", "model": service.model}
        if not body.stream:
            text = await _text(generation)
            return json_response(
                head
                | {
                    "content": [{"type": "text", "text": text}],
                    "stop_reason": "max_tokens",
                    "stop_sequence": None,
                    "usage": _anthropic_usage(generation, service),
                }
            )
        return await _stream_message(request, service, generation, head)


async def _stream_message(
    request: web.Request, service: Service, generation: Generation, head: dict[str, Any]
) -> web.StreamResponse:
    usage = {"input_tokens": generation.usage.prompt_tokens, "output_tokens": 0}
    empty = head | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    async with EventStream(request) as stream:
        await stream.event("message_start", {"message": empty})
        opened = False
        async for piece in generation.pieces:
            if not opened:
                opened = True
                block = {"type": "text", "text": ""}
                await stream.event("content_block_start", {"index": 0, "content_block": block})
            delta = {"type": "text_delta", "text": piece.text}
            await stream.event("content_block_delta", {"index": 0, "delta": delta})
        await stream.event("content_block_stop", {"index": 0})
        stop = {"stop_reason": "max_tokens", "stop_sequence": None}
        await stream.event("message_delta", {"delta": stop, "usage": _anthropic_usage(generation, service)})
        await stream.event("message_stop", {})
    return stream.response


def _anthropic_usage(generation: Generation, service: Service) -> dict[str, Any]:
    usage = generation.usage
    cached = usage.cached_tokens if service.prompt_tokens_details else 0
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": cached if service.prompt_tokens_details else None,
    }


# -- OpenAI's responses ----------------------------------------------------------------------------


async def responses(request: web.Request, service: Service) -> web.StreamResponse:
    body = parse(await request.read(), ResponsesBody)
    service.check_model(body.model)
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    listed = [item if "role" in item else {"role": "tool", "content": [item]} for item in items]
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    prompt = service.text_prompt(chat_text(_Rendered(system + listed, body.tools)))
    length = service.fit(prompt, body.max_output_tokens, CHAT_TOKENS)
    await service.front_end_cost([prompt])
    name = request_name(request, "resp")
    with service.generate(name, [prompt], [length], priority=body.priority, cache_salt=body.cache_salt) as generation:
        shape = _Response(service, generation)
        if body.stream:
            return await _stream_response(request, shape)
        return json_response(shape.body("incomplete", await _text(generation)))


class _Response:
    def __init__(self, service: Service, generation: Generation) -> None:
        self.service = service
        self.generation = generation
        self.item = f"msg_{generation.id}"

    def message(self, status: str, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [self.part(text)]
        return {
            "id": self.item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def body(self, status: str, text: str | None) -> dict[str, Any]:
        usage = self.generation.usage
        cached = usage.cached_tokens if self.service.prompt_tokens_details else 0
        done = text is not None
        return {
            "id": self.generation.id,
            "object": "response",
            "created_at": self.generation.created,
            "model": self.service.model,
            "status": status,
            "output": [self.message(status, text)] if done else [],
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": None,
            "instructions": None,
            "metadata": None,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            }
            if done
            else None,
        }


async def _stream_response(request: web.Request, shape: _Response) -> web.StreamResponse:
    number = 0
    place: dict[str, Any] = {"item_id": shape.item, "output_index": 0, "content_index": 0}
    texts: list[str] = []
    async with EventStream(request) as stream:

        async def event(name: str, **fields: Any) -> None:
            nonlocal number
            await stream.event(f"response.{name}", {"sequence_number": number} | fields)
            number += 1

        await event("created", response=shape.body("in_progress", None))
        await event("in_progress", response=shape.body("in_progress", None))
        async for piece in shape.generation.pieces:
            if not texts:
                await event("output_item.added", output_index=0, item=shape.message("in_progress", None))
                await event("content_part.added", **place, part=shape.part(""))
            texts.append(piece.text)
            await event("output_text.delta", **place, delta=piece.text, logprobs=[])
        text = "".join(texts)
        await event("output_text.done", **place, text=text, logprobs=[])
        await event("content_part.done", **place, part=shape.part(text))
        await event("output_item.done", output_index=0, item=shape.message("incomplete", text))
        await event("incomplete", response=shape.body("incomplete", text))
    return stream.response
