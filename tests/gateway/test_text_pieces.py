"""Engines without a tokenizer: a big prompt goes in pieces of its own text, through its own endpoint."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from headway.core.work import Work
from headway.engines.families import FAMILIES
from headway.gateway.server import Gateway
from tests.gateway.support import Message, chat, gateway, metric, post, run, scripted, text, until
from tests.gateway.support import teach as teach_engine

BYTES = 4
TOKENS = 4000


class PlainEngine:
    """An OpenAI-compatible server with a prefix cache by text, BYTES a token, behind any of three dialects."""

    def __init__(self, caches: bool = True, reports: bool = True, token_s: float = 0.0) -> None:
        self.caches, self.reports, self.token_s = caches, reports, token_s
        self.seen: list[str] = []
        self.requests: list[tuple[bytes, dict[str, object], int]] = []
        """(target, body, tokens computed)"""

    async def __call__(self, request: Message, writer: asyncio.StreamWriter) -> None:
        if request.start.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        body = json.loads(request.body)
        turns = body.get("messages", body.get("input", body.get("prompt")))
        prompt = turns if isinstance(turns, str) else "".join(str(turn["content"]) for turn in turns)
        same = max((len(_common(prompt, earlier)) for earlier in self.seen), default=0) if self.caches else 0
        tokens, cached = len(prompt) // BYTES, min(same, len(prompt) - BYTES) // BYTES
        self.seen.append(prompt)
        self.requests.append((request.target, body, tokens - cached))
        await asyncio.sleep(self.token_s * (tokens - cached))
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.reports else {}
        data = json.dumps({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 1, **details}}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))


def _common(a: str, b: str) -> str:
    return a[: next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def teach(served: Gateway) -> None:
    upstream = served.upstream
    upstream.engine.family = FAMILIES["openai"]
    upstream.engine.probed = True
    for tokens in (64, 128, 256, 512, 64, 128, 256, 512, 1024):
        upstream.controller.timed(upstream.desk.now, tokens, 0.014 + 100e-6 * tokens)


BODIES = {
    "/v1/chat/completions": chat(text(TOKENS), temperature=0.5, stop=["x"]),
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text(TOKENS)}]},
    "/v1/responses": {"model": "m", "input": text(TOKENS), "max_output_tokens": 9},
    "/v1/completions": {"model": "m", "prompt": text(TOKENS), "max_tokens": 9},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("reports", [True, False])
def test_growing_beginnings_then_the_request_itself(path: str, reports: bool) -> None:
    async def main() -> None:
        plain = PlainEngine(reports=reports, token_s=100e-6)
        async with scripted(plain) as (_, url), gateway(url, gap=0.05) as served:
            teach(served)
            got = await post(served.front.port, path, BODIES[path], [("Authorization", "Bearer k")])
            assert got.status == 200
            *pieces, (_, whole, computed) = plain.requests
            assert len(pieces) >= 3 and {target for target, _, _ in plain.requests} == {path.encode()}
            assert whole == BODIES[path]  # the request itself is not altered
            assert all(body.get("max_tokens", body.get("max_output_tokens")) == 1 for _, body, _ in pieces)
            assert computed <= 64 and max(cost for _, _, cost in pieces) < 0.7 * TOKENS
            assert sum(cost for _, _, cost in plain.requests) < 1.3 * TOKENS
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


def test_without_a_cache_it_stops_and_such_prompts_are_held_from_then_on() -> None:
    async def main() -> None:
        plain = PlainEngine(caches=False)
        async with scripted(plain) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            for n in range(3):
                before = len(plain.requests)
                body = chat(text(TOKENS, str(n)))
                assert (await post(served.front.port, "/v1/chat/completions", body)).status == 200
                sent = plain.requests[before:]
                assert sent[-1][1] == body and len(sent) <= 8
                if metric(served, 'headway_unpaced_total{reason="missed"}') >= 2 and n == 2:
                    assert len(sent) == 1  # not tried again for a while
            assert metric(served, 'headway_unpaced_total{reason="missed"}') >= 2

    run(main())


def test_a_refused_piece_lets_the_request_go_whole() -> None:
    async def main() -> None:
        plain = PlainEngine()

        async def picky(request: Message, writer: asyncio.StreamWriter) -> None:
            if b'"max_tokens":1,' in request.body or b'"max_tokens":1}' in request.body:
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            else:
                await plain(request, writer)

        async with scripted(picky) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            assert (await post(served.front.port, "/v1/chat/completions", BODIES["/v1/chat/completions"])).status == 200
            assert metric(served, 'headway_unpaced_total{reason="piece_failed"}') == 1

    run(main())


def test_family_is_recognised_and_an_option_overrules_it() -> None:
    async def llama(request: Message, writer: asyncio.StreamWriter) -> None:
        props = b'{"default_generation_settings": {"n_ctx": 512}, "total_slots": 4}'
        known = request.target == b"/props"
        body = props if known else b""
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (200 if known else 404, len(body), body))

    async def main() -> None:
        async with scripted(llama, metrics=True) as (_, url), gateway(url) as served:
            engine = served.upstream.engine
            await until(lambda: engine.family is not None)
            assert engine.family is FAMILIES["llama.cpp"] and engine.block == 1 and engine.caching
            assert served.upstream.texts.capacity == 2048

    run(main())


def test_data_parallel_ranks_are_not_paced_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Each rank has a prefix cache of its own, so a piece may land beside the one before it."""
    page = "".join(f'vllm:num_requests_running{{engine="{n}"}} 0.0\n' for n in range(2)).encode()
    page += b'vllm:cache_config_info{block_size="64",enable_prefix_caching="True",num_gpu_blocks="9"} 1.0\n'
    plain = PlainEngine()

    async def ranks(request: Message, writer: asyncio.StreamWriter) -> None:
        if request.target == b"/metrics":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
        else:
            await plain(request, writer)

    async def main() -> None:
        async with scripted(ranks, metrics=True) as (_, url), gateway(url, gap=0.03, wait=1.0) as served:
            await until(lambda: served.upstream.controller.capability.ranks == 2)
            teach(served)
            assert (await post(served.front.port, "/v1/chat/completions", BODIES["/v1/chat/completions"])).status == 200
            assert len(plain.requests) == 1 and metric(served, "headway_pieces_total") == 0
            assert any("2 data-parallel ranks" in record.getMessage() for record in caplog.records)

    run(main())


WHOLE_BLOCKS = {
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text(12_000)}]},
    "/v1/responses": {"model": "m", "input": text(12_000), "max_output_tokens": 9},
}


@pytest.mark.parametrize("path", WHOLE_BLOCKS)
def test_pieces_by_text_end_behind_whole_blocks_on_an_engine_that_keeps_those(path: str) -> None:
    """vLLM's own dialects that it does not render, with a block of 512 tokens of which nothing less is kept."""
    block, slack = 512, 30

    class Blocks(PlainEngine):
        async def __call__(self, request: Message, writer: asyncio.StreamWriter) -> None:
            body = json.loads(request.body)
            turns = body.get("messages", body.get("input"))
            prompt = turns if isinstance(turns, str) else turns[0]["content"]
            # A density that differs along the text, and a template's end that is not the text's.
            tokens = int(len(prompt) / 4 + 40 * math.sin(len(prompt) / 3000)) + slack
            cached = max((min(tokens - 1, kept) for kept in self.kept), default=0) // block * block
            self.kept.append((tokens - slack) // block * block)
            self.requests.append((request.target, body, tokens - cached))
            await asyncio.sleep(100e-6 * (tokens - cached))
            apart = request.target == b"/v1/messages"
            usage = {"input_tokens": tokens - cached if apart else tokens, "output_tokens": 1}
            usage |= {"cache_read_input_tokens": cached} if apart else {"input_tokens_details": {"cached_tokens": cached}}
            data = json.dumps({"usage": usage}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))

        kept: list[int]

    async def main() -> None:
        plain = Blocks()
        plain.kept = []
        async with scripted(plain) as (_, url), gateway(url, gap=0.15) as served:
            teach_engine(served, block)
            served.upstream.estimator.learn(48_000, 12_000)
            served.upstream.controller.arrive(served.upstream.desk.now, Work("live", 1))
            served.upstream.controller.decide(served.upstream.desk.now)
            served.upstream.controller.first_output(served.upstream.desk.now, "live")
            try:
                assert (await post(served.front.port, path, WHOLE_BLOCKS[path])).status == 200
            finally:
                served.upstream.controller.leave(served.upstream.desk.now, "live")
            *pieces, (_, whole, computed) = plain.requests
            assert whole == WHOLE_BLOCKS[path]
            assert len(pieces) >= 8 and computed <= block + 2 * slack
            assert max(cost for _, _, cost in pieces) <= 2.45 * block
            assert sum(cost for _, _, cost in plain.requests) < 1.25 * 12_000
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1

    run(main())
