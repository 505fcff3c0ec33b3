"""The gateway in front of a real vLLM. Bounds are wide on purpose: this machine may be busy; docs/results/ has the figures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from headway.bench import prompts
from headway.bench.client import Request, Target, session, stream
from headway.bench.overlap import overlap, solo, victim_tokens
from headway.bench.server import find
from headway.lab.gateway import gateway, learned, status
from headway.lab.process import Served
from tests.vllm.conftest import RealEngine

pytestmark = pytest.mark.vllm

LONG = 6000


@dataclass
class Setup:
    http: aiohttp.ClientSession
    direct: Target
    served: Served
    scale: prompts.Scale
    rng: random.Random

    @property
    def through(self) -> Target:
        return replace(self.direct, url=self.served.url)

    def long(self, out: int = 8, tokens: int = LONG) -> Request:
        return prompts.chat(tokens, out, self.scale, self.rng)

    async def counters(self) -> dict[str, float]:
        """The gateway's metrics by name and label, e.g. headway_requests_total{outcome="paced"}."""
        async with self.http.get(f"{self.served.status_url}/metrics") as page:
            lines = (await page.text()).splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    async def now(self) -> dict[str, Any]:
        page = await status(self.http, self.served)
        assert page is not None
        return dict(page["now"])


@asynccontextmanager
async def before(url: str, policy: str = "pace", **options: Any) -> AsyncIterator[Setup]:
    async with session() as http, gateway(url, policy, gap=0.15, **options) as served:
        direct = await find(http, url)
        rng = random.Random()
        scale = await prompts.calibrate(http, direct, rng)
        if policy == "pace" and options.get("probe", True):
            assert await learned(http, served, 60.0), "the probe did not end on an idle engine"
        yield Setup(http, direct, served, scale, rng)


def test_a_live_answer_keeps_its_share_and_the_newcomer_gets_in(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url, share=0.5) as s:
            base, _ = await solo(s.direct, prompts.chat(38, 100, s.scale, s.rng))
            t0 = (await stream(s.through, s.long())).ttft
            assert t0 is not None
            victim = prompts.chat(38, 2 * victim_tokens(base, t0, 0.5), s.scale, s.rng)
            run = await overlap(s.through, victim, s.long(), base)
            assert run.view is not None, run.void
            share, ttft = run.view.share(base.rate), run.intruder.ttft
            assert ttft is not None
            assert 0.25 < share < 0.95, f"share {share:.2f}"
            assert ttft < 6 * t0 / 0.5
            counters = await s.counters()
            assert counters['headway_requests_total{outcome="paced"}'] >= 2
            assert counters["headway_pieces_total"] >= 4
            assert run.intruder.cached_tokens is not None and run.intruder.cached_tokens > 0.9 * LONG

    asyncio.run(main())


def test_passthrough_is_the_control(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url, "passthrough", probe=False) as s:
            base, _ = await solo(s.direct, prompts.chat(38, 100, s.scale, s.rng))
            run = await overlap(s.through, prompts.chat(38, 400, s.scale, s.rng), s.long(tokens=14_000), base)
            assert run.view is not None, run.void
            assert run.view.share(base.rate) < 0.4
            assert run.intruder.cached_tokens in (0, None)

    asyncio.run(main())


def test_a_paced_answer_is_the_answer_that_a_direct_request_gets(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url) as s:
            ask = s.long(out=6)
            direct = await stream(s.direct, replace(ask, body={**ask.body, "cache_salt": "one"}))
            paced = await stream(s.through, replace(ask, body={**ask.body, "cache_salt": "two"}))
            assert (paced.text, paced.finish_reason) == (direct.text, direct.finish_reason)
            assert paced.usage is not None and direct.usage is not None
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert paced.usage[name] == direct.usage[name]
            assert (paced.cached_tokens or 0) > 0.9 * LONG > (direct.cached_tokens or 0)

    asyncio.run(main())


def test_a_tool_conversation_is_paced_and_hits_its_pieces(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url) as s:
            answer = await stream(s.through, prompts.agent(LONG, 8, s.scale, s.rng))
            assert answer.error is None
            assert answer.cached_tokens is not None and answer.cached_tokens > 0.9 * (answer.prompt_tokens or 0)
            counters = await s.counters()
            assert counters['headway_requests_total{outcome="paced"}'] == 1
            assert counters['headway_unpaced_total{reason="missed"}'] == 0

    asyncio.run(main())


def test_the_second_turn_goes_whole_and_finds_what_the_first_one_primed(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url) as s:
            first = s.long(out=8)
            one = await stream(s.through, first)
            pieces = (await s.counters())["headway_pieces_total"]
            second = prompts.turn(first, one.text, 100, 8, s.scale, s.rng)
            two = await stream(s.through, second)
            assert two.error is None and two.cached_tokens is not None
            assert two.cached_tokens > 0.9 * LONG
            assert (await s.counters())["headway_pieces_total"] - pieces <= 1

    asyncio.run(main())


def test_a_client_that_leaves_frees_the_engine(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url) as s:
            for wait, body in ((0.2, s.long(out=400)), (1.5, s.long(out=4000)), (0.0, s.long(out=400))):
                task = asyncio.create_task(stream(s.through, body))
                await asyncio.sleep(wait)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                for _ in range(100):
                    if real_engine.running() == 0 and (await s.now())["requests"] == 0:
                        break
                    await asyncio.sleep(0.1)
                assert real_engine.running() == 0
                assert (await s.now())["requests"] == 0

    asyncio.run(main())


def test_the_openai_client_works_unchanged(real_engine: RealEngine) -> None:
    async def main() -> None:
        async with before(real_engine.url) as s:
            client = openai.AsyncOpenAI(base_url=s.served.url + "/v1", api_key="none", max_retries=0)
            messages: Any = [{"role": "user", "content": prompts.words(s.scale.words_for(LONG), s.rng)}]
            whole = await client.chat.completions.create(model="m", messages=messages, max_tokens=5, temperature=0)
            chunks = await client.chat.completions.create(
                model="m", messages=messages, max_tokens=5, temperature=0, stream=True, stream_options={"include_usage": True}
            )
            parts, usage = [], None
            async for chunk in chunks:
                usage = chunk.usage or usage
                parts += [choice.delta.content or "" for choice in chunk.choices]
            assert "".join(parts) == whole.choices[0].message.content
            assert usage is not None and whole.usage is not None and usage.total_tokens == whole.usage.total_tokens
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="absent", messages=messages)
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=messages, max_tokens=-1)

    asyncio.run(main())


def test_without_cached_tokens_pieces_are_confirmed_by_the_hit_counter(tmp_path: Path) -> None:
    engine = RealEngine(tmp_path / "vllm.log", details=False)

    async def main() -> None:
        async with before(engine.url) as s:
            answer = await stream(s.through, s.long())
            assert answer.error is None and answer.cached_tokens is None
            counters = await s.counters()
            assert counters['headway_requests_total{outcome="paced"}'] == 1
            assert counters['headway_unpaced_total{reason="missed"}'] == 0
            page = await status(s.http, s.served)
            assert page is not None and page["engine"]["block_confirmed"] is True
            # Killed under a live stream: the client must see a broken answer, not a short one.
            task = asyncio.create_task(stream(s.through, prompts.chat(38, 4000, s.scale, s.rng)))
            await asyncio.sleep(1.5)
            engine.kill()
            broken = await asyncio.wait_for(task, 30)
            assert broken.error is not None and broken.finish_reason is None
            after = await stream(s.through, prompts.chat(38, 8, s.scale, s.rng))
            assert after.status == 502

    try:
        asyncio.run(main())
    finally:
        engine.stop()


BY_TEXT = {
    "/v1/messages": lambda text: {"max_tokens": 8, "messages": [{"role": "user", "content": text}]},
    "/v1/responses": lambda text: {"max_output_tokens": 8, "input": text},
}


@pytest.mark.parametrize("path", BY_TEXT)
def test_dialects_that_vllm_does_not_render_go_in_pieces_of_their_text(real_engine: RealEngine, path: str) -> None:
    async def main() -> None:
        async with before(real_engine.url) as s:
            text = s.long().body["messages"][0]["content"]
            body = {"model": s.direct.model, **BY_TEXT[path](text)}
            async with s.http.post(s.served.url + path, json=body) as answer:
                assert answer.status == 200, await answer.text()
                usage = (await answer.json())["usage"]
            counters = await s.counters()
            assert counters['headway_requests_total{outcome="paced"}'] == 1, counters
            assert counters["headway_pieces_total"] >= 2
            details = usage.get("input_tokens_details") or {}
            cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
            assert cached > 0.8 * LONG, usage
            assert not [name for name, value in counters.items() if name.startswith("headway_unpaced_total") and value]

    asyncio.run(main())
