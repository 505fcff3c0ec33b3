"""Must: the `openai` client works through the gateway unchanged: chat, streaming, tools, async, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import openai
import pytest

from headway.gateway.server import Gateway
from headway.simulator.server import RunningServer
from tests.gateway.support import chat, engine, gateway, metric, now, post, run, teach, text, until

KEY = "sk-right"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]

Use = Callable[[openai.AsyncOpenAI, Gateway, RunningServer], Awaitable[None]]


def through(use: Use, policy: str = "pace", **options: object) -> None:
    async def main() -> None:
        async with engine(api_key=KEY) as server, gateway(server.url, policy, **options) as served:
            teach(served)
            async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0, timeout=20) as client:
                await use(client, served, server)

    run(main())


def test_chat() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
        assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"
        assert answer.usage is not None and answer.usage.completion_tokens == 5

    through(use)


@pytest.mark.parametrize("size", [10, 3000])
def test_streaming(size: int) -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        parts, usage = [], None
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": text(size)}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for event in stream:
            parts += [choice.delta.content or "" for choice in event.choices]
            usage = event.usage or usage
        assert usage is not None and usage.completion_tokens == 6 and usage.prompt_tokens >= size
        assert len("".join(parts)) == 6 * 4
        assert metric(served, 'headway_requests_total{outcome="paced"}') == (size == 3000)

    through(use, gap=0.03)


def test_leaving_a_stream_frees_the_engine() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        messages = [{"role": "user", "content": "hi"}]
        stream = await client.chat.completions.create(model="m", messages=messages, max_tokens=4000, stream=True)  # type: ignore
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: server.engine.num_running == 0 and now(served)["requests"] == 0, 2)

    through(use)


def test_tools_in_pieces() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [{"role": "user", "content": "look"}]
        for n in range(10):
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})  # type: ignore[dict-item]
            messages.append({"role": "tool", "tool_call_id": "1", "content": text(300, str(n))})
        answer = await client.chat.completions.create(
            model="m", messages=messages, tools=TOOLS, tool_choice="auto", reasoning_effort="low", max_tokens=3
        )  # type: ignore[call-overload]
        assert answer.usage.prompt_tokens > 3000
        assert answer.usage.prompt_tokens_details.cached_tokens > 2900
        assert metric(served, "headway_pieces_total") >= 3

    through(use, gap=0.03)


def test_completions_models_responses() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        assert [model.id async for model in client.models.list()] == ["m"]
        answer = await client.completions.create(model="m", prompt="hi", max_tokens=3)
        assert answer.choices[0].text
        kinds = [e.type async for e in await client.responses.create(model="m", input="hi", max_output_tokens=3, stream=True)]
        assert kinds.count("response.output_text.delta") == 3

    through(use)


def test_many_at_once() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        async def ask(n: int) -> str:
            messages = [{"role": "user", "content": text(50, str(n))}]
            answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=3)  # type: ignore
            return str(answer.choices[0].message.content)

        once = await asyncio.gather(*(ask(n) for n in range(12)))
        assert await asyncio.gather(*(ask(n) for n in range(12))) == once
        assert len(set(once)) == 12

    through(use)


def test_errors_of_the_engine() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        messages = [{"role": "user", "content": "hi"}]
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").chat.completions.create(model="m", messages=messages)  # type: ignore
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="other", messages=messages)  # type: ignore
        assert "other" in missing.value.message
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="m", messages=messages, max_tokens=-1)  # type: ignore
        assert bad.value.param in ("max_tokens", "max_completion_tokens")
        with pytest.raises(openai.AuthenticationError):  # whole, its pieces were refused with the same key
            messages = [{"role": "user", "content": text(3000)}]
            await client.with_options(api_key="wrong").chat.completions.create(model="m", messages=messages)  # type: ignore

    through(use)


def test_errors_of_ours() -> None:
    async def use(client: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        long = asyncio.ensure_future(
            post(served.front.port, "/v1/chat/completions", chat("x", max_tokens=3000), [("Authorization", f"Bearer {KEY}")])
        )
        await until(lambda: server.engine.num_running == 1)
        messages = [{"role": "user", "content": "hi"}]
        waiting = asyncio.ensure_future(client.chat.completions.create(model="m", messages=messages))  # type: ignore
        await until(lambda: now(served)["queued"] == 1)
        with pytest.raises(openai.RateLimitError) as full:
            await client.chat.completions.create(model="m", messages=messages)  # type: ignore
        assert "--queue" in full.value.message and full.value.response.headers["retry-after"]
        with pytest.raises(openai.InternalServerError) as expired:
            await waiting
        assert expired.value.status_code == 503 and "--wait" in expired.value.message
        with pytest.raises(openai.NotFoundError):
            await client.with_options(base_url=served.url + "/nowhere").models.list()
        await server.kill()
        with pytest.raises(openai.InternalServerError) as down:
            await client.chat.completions.create(model="m", messages=messages)  # type: ignore
        assert down.value.status_code == 502 and down.value.type == "api_error"
        assert (await long).status == 502

    through(use, "serialize", queue=1, wait=0.5)


def test_synchronous_client() -> None:
    async def use(_: openai.AsyncOpenAI, served: Gateway, server: RunningServer) -> None:
        def ask() -> str:
            with openai.OpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0, timeout=20) as client:
                messages = [{"role": "user", "content": "hi"}]
                stream = client.chat.completions.create(model="m", messages=messages, max_tokens=4, stream=True)  # type: ignore
                return "".join(event.choices[0].delta.content or "" for event in stream)

        assert len(await asyncio.to_thread(ask)) == 16

    through(use)
