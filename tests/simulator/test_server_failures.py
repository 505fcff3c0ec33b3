"""Clients that ask wrongly, leave, or lose the engine."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import aiohttp
import openai
import pytest

from headway.simulator.profiles import FrontEnd
from headway.simulator.server import start
from headway.simulator.steps import StepModel
from tests.simulator.serving import QUICK, events, ids, metrics, post, until, with_server

CHAT = {"messages": [{"role": "user", "content": "hello"}]}

#: 60,000 tokens take 6 s, in steps of a fifth of a second.
SLOW_PREFILL = replace(QUICK, engine=replace(QUICK.engine, steps=StepModel(a=0.002, b=100e-6)))

BAD_BODIES = [
    # path, body, param that the error names
    ("/v1/completions", {}, None),
    ("/v1/completions", {"prompt": 7}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 200_000}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "cache_salt": ""}, "cache_salt"),
    ("/v1/completions", {"prompt": "a", "n": 0}, "n"),
    ("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    ("/v1/completions", {"prompt": ids(131_072)}, "input_tokens"),
    ("/v1/chat/completions", {}, None),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": "hello"}, "messages"),
    ("/v1/chat/completions", {"messages": [{"content": "no role"}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages"),
    ("/v1/chat/completions", {**CHAT, "tools": "hammer"}, "tools"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
    ("/v1/messages", {"messages": []}, None),
    ("/v1/responses", {"input": 3}, "input"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"messages": [{"content": "x"}]}, "messages"),
    ("/detokenize", {"tokens": "abc"}, "tokens"),
]


def test_bad_bodies_are_400_in_vllms_form() -> None:
    async def body(server, session):
        for path, request, param in BAD_BODIES:
            status, answer = await post(session, path, **request)
            case = (path, str(request)[:80])
            assert status == 400, case
            assert set(answer["error"]) == {"message", "type", "param", "code"}, case
            assert answer["error"]["code"] == 400, case
            assert answer["error"]["param"] == param, (case, answer)
        for raw in (b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"null"):
            async with session.post("/v1/completions", data=raw) as answer:
                assert answer.status == 400, raw
                assert "error" in await answer.json()
        assert not server.engine.has_work

    with_server(body)


def test_too_long_says_how_long_it_may_be() -> None:
    async def body(server, session):
        _, answer = await post(session, "/v1/completions", prompt=ids(1000), max_tokens=100)
        assert answer["error"]["message"].startswith(
            "This model's maximum context length is 1024 tokens. However, you requested 100 output tokens "
            "and your prompt contains 1000 input tokens, for a total of 1100 tokens."
        )

    with_server(body, max_model_len=1024)


def test_unknown_model_and_path_are_404() -> None:
    async def body(server, session):
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, answer = await post(session, path, model="other", prompt="a", **CHAT)
            assert status == 404
            assert answer["error"]["type"] == "NotFoundError"
            assert answer["error"]["param"] == "model"
        status, answer = await post(session, "/v1/nothing")
        assert (status, answer["error"]["code"]) == (404, 404)
        async with session.get("/v1/completions") as wrong_method:
            assert wrong_method.status == 405
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as api:
            with pytest.raises(openai.NotFoundError, match="`nope` does not exist"):
                await api.chat.completions.create(model="nope", messages=CHAT["messages"])
            with pytest.raises(openai.BadRequestError):
                await api.chat.completions.create(model="m", messages=[])

    with_server(body)


def test_api_key_guards_v1_and_nothing_else() -> None:
    async def body(server, session):
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "secret"}, 401),
            ({"Authorization": "Basic secret"}, 401),
            ({"Authorization": "Bearer secret"}, 200),
        ):
            async with session.get("/v1/models", headers=headers) as answer:
                assert answer.status == status, headers
                if status == 401:
                    assert await answer.json() == {"error": "Unauthorized"}
        for path in ("/health", "/metrics", "/version"):
            async with session.get(path) as answer:
                assert answer.status == 200

    with_server(body, api_key="secret")


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_its_request_within_a_step(stream: bool) -> None:
    async def body(server, session):
        request = {"prompt": ids(100), "max_tokens": 5000, "stream": stream}
        task = asyncio.create_task(post(session, "/v1/completions", **request))
        await until(lambda: server.engine.counters.generation_tokens > 3)
        assert (await metrics(session))["vllm:num_requests_running"] == 1
        task.cancel()
        await until(lambda: server.engine.num_running == 0)
        values = await metrics(session)
        assert values["vllm:num_requests_running"] == 0
        assert values["vllm:kv_cache_usage_perc"] == 0
        assert values["vllm:generation_tokens_total"] < 500
        assert server.engine.counters.finished["abort"] == 1

    with_server(body)


def test_client_that_leaves_while_its_prompt_is_computed_or_waits() -> None:
    async def body(server, session):
        first = asyncio.create_task(post(session, "/v1/completions", prompt=ids(60_000), max_tokens=1))
        await until(lambda: server.engine.num_running == 1)
        second = asyncio.create_task(post(session, "/v1/completions", prompt=ids(50, 3), max_tokens=1))
        await until(lambda: server.engine.num_waiting == 1)
        second.cancel()
        await until(lambda: server.engine.num_waiting == 0)
        assert server.engine.num_running == 1
        first.cancel()
        await until(lambda: not server.engine.has_work)
        assert server.engine.counters.finished == {"stop": 0, "length": 0, "abort": 2}
        status, _ = await post(session, "/v1/completions", prompt="still there", max_tokens=2)
        assert status == 200

    with_server(body, profile=SLOW_PREFILL, max_num_seqs=1)


def test_client_that_leaves_in_the_front_end_never_reaches_the_engine() -> None:
    async def body(server, session):
        task = asyncio.create_task(post(session, "/v1/completions", prompt="a", max_tokens=100))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.2)
        assert server.engine.counters.steps == 0
        assert not server.engine.has_work

    with_server(body, profile=replace(QUICK, front_end=FrontEnd(request_s=0.15)))


def test_many_mixed_leavers_leave_nothing_behind() -> None:
    async def body(server, session):
        async def streaming(number: int) -> None:
            request = {"prompt": ids(20 + number * 13, number), "max_tokens": 4000, "stream": True}
            async with session.post("/v1/completions", json=request) as answer:
                left = number % 5
                async for _ in events(answer):
                    if left == 0:
                        return
                    left -= 1

        whole = [
            asyncio.create_task(post(session, "/v1/completions", prompt=ids(50 + i, i), max_tokens=4000, n=2)) for i in range(20)
        ]
        await asyncio.gather(*(streaming(number) for number in range(40)))
        await until(lambda: server.engine.counters.generation_tokens > 500, 10)
        for task in whole:
            task.cancel()
        await until(lambda: not server.engine.has_work, 10)
        assert server.engine.cache.pool.usage == 0.0
        assert server.service.driver._streams == {}
        assert server.engine.counters.finished == {"stop": 0, "length": 0, "abort": 80}

    with_server(body)


def test_killed_engine_breaks_streams_off_and_refuses_new_ones() -> None:
    async def run() -> None:
        server = await start(QUICK)
        async with aiohttp.ClientSession(server.url) as session:
            request = {"prompt": "a", "max_tokens": 5000, "stream": True}
            async with session.post("/v1/completions", json=request) as answer:
                count = 0
                with pytest.raises(aiohttp.ClientError):
                    async for _ in events(answer):
                        count += 1
                        if count == 5:
                            await server.kill()
                assert count < 50
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get("/health")
        assert not server.service.driver.alive

    asyncio.run(run())


def test_closed_engine_answers_500_or_breaks_off_but_never_half() -> None:
    async def run() -> None:
        server = await start(QUICK)
        async with aiohttp.ClientSession(server.url) as session:
            whole = asyncio.create_task(post(session, "/v1/completions", prompt="a", max_tokens=5000))
            await until(lambda: server.engine.num_running == 1)
            await server.close()
            try:
                status, answer = await whole
            except aiohttp.ClientError:
                return
            assert status == 500
            assert answer["error"]["type"] == "InternalServerError"

    asyncio.run(run())


def test_a_taken_port_is_an_os_error_and_leaves_nothing_running() -> None:
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            before = len(asyncio.all_tasks())
            with pytest.raises(OSError, match="address already in use"):
                await start(QUICK, port=taken.getsockname()[1])
            assert len(asyncio.all_tasks()) == before

    asyncio.run(run())


def test_health_says_when_the_engine_loop_has_stopped() -> None:
    async def body(server, session):
        await server.service.driver.stop()
        async with session.get("/health") as answer:
            assert answer.status == 503

    with_server(body)
