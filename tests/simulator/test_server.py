"""The HTTP face as clients see it."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from tests.simulator.serving import events, ids, metrics, post, until, with_server

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
HELLO = [{"role": "user", "content": "Say hello to everyone in this room."}]


def client(server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_it_says_that_it_is_simulated() -> None:
    async def body(server, session):
        async with session.get("/version") as answer:
            assert (await answer.json())["version"] == "simulated-0.32.0"
            assert answer.headers["server"] == "headway-engine"
        async with session.get("/v1/models") as answer:
            (card,) = (await answer.json())["data"]
        assert card["owned_by"] == "headway-simulated"
        assert (card["id"], card["max_model_len"]) == ("m", 131072)
        async with session.get("/health") as answer:
            assert answer.status == 200

    with_server(body)


def test_openai_client_chats_with_and_without_a_stream() -> None:
    async def body(server, session):
        async with client(server) as api:
            whole = await api.chat.completions.create(model="m", messages=HELLO, max_tokens=12, tools=[TOOL], tool_choice="auto")
            text, roles, reasons, usage = "", [], [], None
            stream = await api.chat.completions.create(
                model="m",
                messages=HELLO,
                max_tokens=12,
                tools=[TOOL],
                tool_choice="auto",
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    roles.append(choice.delta.role)
                    reasons.append(choice.finish_reason)
        assert len(text) == 48
        assert whole.choices[0].message.content == text
        assert whole.choices[0].finish_reason == "length"
        assert roles == ["assistant"] + [None] * 12
        assert reasons == [None] * 12 + ["length"]
        assert usage is not None
        assert whole.usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens == 12
        assert usage.prompt_tokens == whole.usage.prompt_tokens > 20

    with_server(body)


def test_openai_client_completes_text_and_ids_alike() -> None:
    async def body(server, session):
        text = "One two three four five six seven. " * 4
        _, rendered = await post(session, "/tokenize", model="m", prompt=text)
        assert rendered["count"] == len(rendered["tokens"]) == 35
        async with client(server) as api:
            by_text = await api.completions.create(model="m", prompt=text)
            by_ids = await api.completions.create(model="m", prompt=rendered["tokens"])
            several = await api.completions.create(model="m", prompt=[rendered["tokens"], [1, 2, 3]], max_tokens=3)
        assert by_text.choices[0].text == by_ids.choices[0].text
        assert by_text.usage is not None
        assert by_text.usage.completion_tokens == 16
        assert [c.index for c in several.choices] == [0, 1]
        assert several.choices[0].text == by_text.choices[0].text[:12]
        assert several.usage is not None
        assert several.usage.prompt_tokens == 35 + 3

    with_server(body)


def test_stream_of_several_answers_names_each_by_its_index() -> None:
    async def body(server, session):
        request = {"model": "m", "prompt": ["alpha", "beta"], "n": 2, "max_tokens": 4, "stream": True}
        texts = {}
        async with session.post("/v1/completions", json=request) as answer:
            async for event in events(answer):
                if event != "[DONE]":
                    (choice,) = event["choices"]
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        assert sorted(texts) == [0, 1, 2, 3]
        assert all(len(text) == 16 for text in texts.values())
        assert len(set(texts.values())) == 4

    with_server(body)


def test_tokenize_renders_a_chat_as_the_chat_endpoint_does() -> None:
    conversation = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": [{"type": "text", "text": "What is in the file?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "a line\nanother line"},
    ]

    async def body(server, session):
        _, rendered = await post(session, "/tokenize", model="m", messages=conversation, tools=[TOOL])
        _, without = await post(session, "/tokenize", model="m", messages=conversation)
        _, chat = await post(session, "/v1/chat/completions", messages=conversation, tools=[TOOL], max_tokens=1)
        assert chat["usage"]["prompt_tokens"] == rendered["count"] > without["count"]
        _, text = await post(session, "/detokenize", model="m", tokens=rendered["tokens"])
        assert "another line" in text["prompt"]
        assert text["prompt"].endswith("<|im_start|>assistant\n")
        _, shorter = await post(session, "/tokenize", messages=conversation[:3], add_generation_prompt=False)
        assert rendered["tokens"][: shorter["count"]] != shorter["tokens"]
        assert without["tokens"][: shorter["count"]] == shorter["tokens"]

    with_server(body)


def test_pieces_of_ids_prime_the_chat_that_they_were_rendered_from() -> None:
    messages = [{"role": "user", "content": "word and word, " * 300}]

    async def body(server, session):
        _, rendered = await post(session, "/tokenize", messages=messages)
        tokens, hits = rendered["tokens"], []
        blocks = (len(tokens) - 1) // 256
        assert blocks >= 4
        for k in range(1, blocks + 1):
            _, answer = await post(session, "/v1/completions", prompt=tokens[: k * 256 + 1], max_tokens=1)
            hits.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert hits == [256 * k for k in range(blocks)]
        _, chat = await post(session, "/v1/chat/completions", messages=messages, max_tokens=2)
        assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] == 256 * blocks

    with_server(body)


def test_next_turn_of_a_conversation_hits_the_first_one_and_its_answer() -> None:
    first = [{"role": "user", "content": "some words " * 800}]

    async def body(server, session):
        _, one = await post(session, "/v1/chat/completions", messages=first, max_tokens=600)
        reply = one["choices"][0]["message"]["content"]
        turn = [*first, {"role": "assistant", "content": reply}, {"role": "user", "content": "And now?"}]
        _, rendered = await post(session, "/tokenize", messages=turn)
        _, two = await post(session, "/v1/chat/completions", messages=turn, max_tokens=1)
        known = one["usage"]["prompt_tokens"] + 600
        cached = two["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert rendered["count"] > known
        assert known - 256 <= cached < known

    with_server(body, version="0.28.0")


def test_cached_tokens_can_be_left_out() -> None:
    async def body(server, session):
        _, answer = await post(session, "/v1/completions", prompt=ids(600), max_tokens=1)
        assert answer["usage"]["prompt_tokens_details"] is None
        _, again = await post(session, "/v1/completions", prompt=ids(600), max_tokens=1)
        assert again["usage"]["prompt_tokens_details"] is None
        # the counters still tell it
        assert (await metrics(session))["vllm:prefix_cache_hits_total"] == 512

    with_server(body, prompt_tokens_details=False)


def test_cache_salt_separates_clients() -> None:
    async def body(server, session):
        async def cached(salt):
            _, answer = await post(session, "/v1/completions", prompt=ids(600), max_tokens=1, cache_salt=salt)
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [await cached(s) for s in ("a", "a", "b", "b")] == [0, 512, 0, 512]

    with_server(body)


def test_metrics_carry_vllms_names_and_labels() -> None:
    async def body(server, session):
        await post(session, "/v1/completions", prompt=ids(600), max_tokens=5)
        async with session.get("/metrics") as answer:
            text = await answer.text()
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'vllm:prompt_tokens_total{engine="0",model_name="m"} 600.0' in text
        assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 5.0' in text
        assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in text
        # 512 + 88 and four decodes
        assert 'vllm:iteration_tokens_total_bucket{engine="0",model_name="m",le="1.0"} 4.0' in text
        assert 'vllm:iteration_tokens_total_bucket{engine="0",model_name="m",le="+Inf"} 6.0' in text
        assert 'vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 604.0' in text
        (info,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
        for label in ('block_size="256"', 'enable_prefix_caching="True"', 'mamba_cache_mode="align"'):
            assert label in info
        assert 'num_gpu_blocks="4096"' in info

    with_server(body)


def test_metrics_page_is_valid_for_prometheus_own_parser() -> None:
    parser = pytest.importorskip("prometheus_client.parser")

    async def body(server, session):
        await post(session, "/v1/completions", prompt="hello", max_tokens=2)
        async with session.get("/metrics") as answer:
            families = {f.name: f for f in parser.text_string_to_metric_families(await answer.text())}
        assert families["vllm:generation_tokens"].type == "counter"
        assert [s.value for s in families["vllm:generation_tokens"].samples] == [2.0]
        assert families["vllm:iteration_tokens_total"].type == "histogram"

    with_server(body)


def test_a_prompt_counts_as_running_while_it_is_computed() -> None:
    async def body(server, session):
        task = asyncio.create_task(post(session, "/v1/completions", prompt=ids(30_000), max_tokens=1))
        seen = []
        while not task.done():
            seen.append((await metrics(session))["vllm:num_requests_running"])
            await asyncio.sleep(0.01)
        assert seen.count(1.0) > len(seen) * 0.7
        assert (await metrics(session))["vllm:num_requests_running"] == 0.0

    with_server(body)


def test_requests_beyond_max_num_seqs_wait() -> None:
    async def body(server, session):
        tasks = [asyncio.create_task(post(session, "/v1/completions", prompt=f"number {i}", max_tokens=30)) for i in range(3)]
        await until(lambda: server.engine.num_waiting == 2)
        values = await metrics(session)
        assert values["vllm:num_requests_running"] == 1
        assert values["vllm:num_requests_waiting"] == 2
        for task in tasks:
            status, _ = await task
            assert status == 200

    with_server(body, max_num_seqs=1)


def test_messages_stream_is_anthropics() -> None:
    async def body(server, session):
        request = {"model": "m", "max_tokens": 3, "system": "terse", "messages": HELLO, "stream": True}
        names, text = [], ""
        async with session.post("/v1/messages", json=request) as answer:
            raw = (await answer.read()).decode()
        for block in raw.strip().split("\n\n"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            names.append(event["type"])
            text += event.get("delta", {}).get("text", "")
        assert names == [
            "message_start", "content_block_start", *["content_block_delta"] * 3,
            "content_block_stop", "message_delta", "message_stop",
        ]  # fmt: skip
        _, whole = await post(session, "/v1/messages", **{**request, "stream": False})
        assert whole["content"][0]["text"] == text
        assert whole["usage"]["output_tokens"] == 3

    with_server(body)


def test_responses_stream_by_the_openai_client() -> None:
    async def body(server, session):
        async with client(server) as api:
            names, text = [], ""
            stream = await api.responses.create(model="m", input="hello", max_output_tokens=3, stream=True)
            async for event in stream:
                names.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
            whole = await api.responses.create(model="m", input="hello", max_output_tokens=3)
        assert names[:2] == ["response.created", "response.in_progress"]
        assert names.count("response.output_text.delta") == 3
        assert names[-1] == "response.incomplete"
        assert whole.output_text == text
        assert whole.usage is not None
        assert whole.usage.output_tokens == 3

    with_server(body)


def test_first_bytes_of_a_chat_come_with_the_first_token_but_headers_at_once() -> None:
    async def body(server, session):
        loop = asyncio.get_running_loop()
        request = {
            "messages": [{"role": "user", "content": "long " * 30_000}],
            "max_tokens": 2,
            "stream": True,
        }
        sent = loop.time()
        async with session.post("/v1/chat/completions", json=request) as answer:
            headers = loop.time() - sent
            async for _ in events(answer):
                first = loop.time() - sent
                break
        # 30,000 tokens of 10 µs: headers do not wait for them
        assert first - headers > 0.25

    with_server(body)
