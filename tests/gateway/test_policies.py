"""The policies through the real gateway over the embedded engine. Bounds are wide: what is tested is that a policy does its
work, not how well (that is measured).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from headway.gateway.server import Gateway
from headway.simulator.server import RunningServer
from tests.gateway.support import (
    Answer,
    chat,
    engine,
    gateway,
    metric,
    now,
    post,
    read_stream,
    run,
    session,
    teach,
    text,
    until,
)

PROMPT = 5000
"""Tokens of the intruder: 0.5 s alone."""
RATE = 100.0
"""Tokens a second of the victim alone, at best."""


@dataclass
class Rig:
    server: RunningServer
    gateway: Gateway
    http: aiohttp.ClientSession
    victim: Answer
    stream: asyncio.Future[Answer]

    async def intrude(self, body: dict[str, object] | None = None, path: str = "/v1/chat/completions") -> tuple[float, float]:
        """Send the intruder; (sent, first event)."""
        body = body or chat(text(PROMPT, "intruder"), stream=True, max_tokens=2)
        answer = await read_stream(self.http, self.gateway.url, body, path=path)
        assert answer.status == 200 and answer.events
        return answer.sent, answer.events[0][0]


VICTIMS = {
    "/v1/chat/completions": chat("hello", stream=True, max_tokens=5000),
    "/v1/completions": {"model": "m", "prompt": "hello", "stream": True, "max_tokens": 5000},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 5000},
    "/v1/responses": {"model": "m", "input": "hello", "stream": True, "max_output_tokens": 5000},
}


@asynccontextmanager
async def rig(policy: str, path: str = "/v1/chat/completions", **options: float) -> AsyncIterator[Rig]:
    """A live victim behind a gateway that knows its engine."""
    async with engine() as server, gateway(server.url, policy, **options) as served, session() as http:
        teach(served)
        victim = Answer(0, 0.0)
        stream = asyncio.ensure_future(read_stream(http, served.url, VICTIMS[path], victim, path))
        await until(lambda: len(victim.events) > 20 and now(served)["live"] == 1, what="a live victim")
        try:
            yield Rig(server, served, http, victim, stream)
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)


def test_passthrough_lets_the_victim_starve() -> None:
    async def main() -> None:
        async with rig("passthrough") as r:
            sent, first = await r.intrude()
            assert r.victim.count(sent, first) < 0.35 * RATE * (first - sent)
            assert metric(r.gateway, "headway_pieces_total") == 0

    run(main())


@pytest.mark.parametrize("path", VICTIMS)
def test_pace_keeps_a_share_whatever_the_victims_dialect(path: str) -> None:
    async def main() -> None:
        async with rig("pace", path, share=0.5, gap=0.1) as r:
            sent, first = await r.intrude()
            share = r.victim.count(sent, first) / (RATE * (first - sent))
            assert 0.3 < share < 0.85, share
            # A burst of a slow machine is no gap of the gateway's: five times the target still tells pace from passthrough
            assert r.victim.longest_gap(sent, first) < 0.5
            assert 0.6 < first - sent < 4.0
            assert metric(r.gateway, "headway_pieces_total") >= 5
            assert metric(r.gateway, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


def test_pace_without_a_victim_costs_little() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url) as served, session() as http:
            teach(served)
            answer = await read_stream(http, served.url, chat(text(PROMPT), stream=True, max_tokens=2))
            assert answer.done and answer.ttft < 1.5
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


def test_pace_holds_small_requests_for_nothing() -> None:
    async def main() -> None:
        async with rig("pace") as r:
            intruder = asyncio.ensure_future(r.intrude())
            await until(lambda: now(r.gateway)["pieces"] == 1)
            small = await read_stream(r.http, r.gateway.url, chat("hi", stream=True, max_tokens=2))
            assert not intruder.done() and small.ttft < 0.6
            await intruder

    run(main())


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_dialects_that_the_engine_does_not_render_go_by_their_text(path: str) -> None:
    async def main() -> None:
        async with rig("pace") as r:
            body = {"model": "m", "stream": True}
            if path == "/v1/messages":
                body |= {"messages": [{"role": "user", "content": text(PROMPT)}], "max_tokens": 2}
            else:
                body |= {"input": text(PROMPT), "max_output_tokens": 2}
            assert (await read_stream(r.http, r.gateway.url, body, path=path)).status == 200
            assert metric(r.gateway, 'headway_requests_total{outcome="paced"}') == 1
            assert metric(r.gateway, "headway_pieces_total") >= 3

    run(main())


def test_big_body_without_pieces_is_held_at_most_wait() -> None:
    async def main() -> None:
        async with rig("pace", wait=0.6) as r:
            body = chat(text(PROMPT), stream=True, max_tokens=2, prompt_logprobs=1)
            begun = time.monotonic()
            asked = asyncio.ensure_future(read_stream(r.http, r.gateway.url, body))
            await asyncio.sleep(0.3)
            assert now(r.gateway)["queued"] == 1 and r.server.engine.num_running == 1
            await until(lambda: r.server.engine.num_running == 2)
            assert 0.5 < time.monotonic() - begun < 2.0
            assert (await asked).status == 200
            assert metric(r.gateway, 'headway_unpaced_total{reason="dialect"}') == 1
            assert metric(r.gateway, "headway_share_yielded_total") == 1

    run(main())


def test_big_body_without_pieces_goes_at_once_where_nobody_is_live() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, wait=20) as served:
            teach(served)
            body = {"model": "m", "messages": [{"role": "user", "content": text(PROMPT)}], "max_tokens": 2}
            begun = time.monotonic()
            assert (await post(served.front.port, "/v1/messages", body)).status == 200
            assert time.monotonic() - begun < 5

    run(main())


def test_hold_waits_for_the_victims_end() -> None:
    async def main() -> None:
        async with rig("hold", wait=20) as r:
            intruder = asyncio.ensure_future(r.intrude())
            await asyncio.sleep(0.5)
            assert now(r.gateway)["queued"] == 1 and metric(r.gateway, "headway_pieces_total") == 0
            r.stream.cancel()
            await asyncio.wait_for(intruder, 8)

    run(main())


def test_hold_goes_on_as_pace_at_its_bound() -> None:
    async def main() -> None:
        async with rig("hold", wait=0.5, gap=0.1) as r:
            sent, first = await r.intrude()
            held = r.victim.count(sent, sent + 0.45)
            assert held > 0.6 * RATE * 0.45
            assert first - sent > 0.9
            assert metric(r.gateway, "headway_pieces_total") >= 5
            assert r.victim.count(sent + 0.5, first) > 0.3 * RATE * (first - sent - 0.5)

    run(main())


def test_serialize_has_one_request_in_the_engine() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize") as served, session() as http:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, server.engine.num_running + server.engine.num_waiting)
                    await asyncio.sleep(0.001)

            watching = asyncio.ensure_future(watch())
            bodies = [chat(text(200, str(n)), stream=n % 2 == 0, max_tokens=8) for n in range(6)]
            answers = await asyncio.gather(*(http.post(served.url + "/v1/chat/completions", json=body) for body in bodies))
            assert [answer.status for answer in answers] == [200] * 6
            assert all([await answer.read() for answer in answers])
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert most == 1

    run(main())


def test_serialize_expires_with_a_retry_after() -> None:
    async def main() -> None:
        async with rig("serialize", wait=0.4) as r:
            begun = time.monotonic()
            got = await post(r.gateway.front.port, "/v1/chat/completions", chat("hi"))
            assert 0.35 < time.monotonic() - begun < 3.0
            assert got.status == 503 and int(got.get(b"retry-after") or 0) > 0
            assert got.json["error"]["code"] == 503 and "--wait" in got.json["error"]["message"]
            got = await post(r.gateway.front.port, "/v1/messages", {"model": "m", "messages": [], "max_tokens": 1})
            assert got.status == 503 and got.json["error"]["type"] == "overloaded_error"
            assert r.server.engine.num_running == 1
            assert metric(r.gateway, 'headway_requests_total{outcome="wait_expired"}') == 2

    run(main())


def test_full_queue_is_said_at_once() -> None:
    async def main() -> None:
        async with rig("serialize", queue=2, wait=20) as r:
            waiting = [asyncio.ensure_future(post(r.gateway.front.port, "/v1/completions", {"prompt": "x"})) for _ in range(2)]
            await until(lambda: now(r.gateway)["queued"] == 2)
            got = await asyncio.wait_for(post(r.gateway.front.port, "/v1/chat/completions", chat("hi")), 3)
            assert got.status == 429 and got.get(b"retry-after") and "--queue" in got.json["error"]["message"]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


def test_whole_answers_are_not_live_decodes() -> None:
    """An answer that is not streamed has nothing to stutter: nobody waits for it."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "hold", wait=20) as served:
            teach(served)
            whole = asyncio.ensure_future(post(served.front.port, "/v1/chat/completions", chat("hi", max_tokens=110)))
            await until(lambda: server.engine.num_running == 1)
            await asyncio.sleep(0.1)
            assert now(served)["live"] == 0
            got = await post(served.front.port, "/v1/chat/completions", chat(text(3000), max_tokens=2))
            assert got.status == 200 and not whole.done()
            assert (await whole).status == 200

    run(main())


def test_hold_needs_no_prefix_cache() -> None:
    async def main() -> None:
        async with rig("hold", wait=20) as r:
            r.gateway.upstream.engine.caching = False
            intruder = asyncio.ensure_future(r.intrude())
            await asyncio.sleep(0.8)
            assert now(r.gateway)["queued"] == 1 and not intruder.done()
            r.stream.cancel()
            await asyncio.wait_for(intruder, 8)
            assert metric(r.gateway, 'headway_unpaced_total{reason="no_cache"}') == 1

    run(main())


def test_a_big_body_on_a_path_that_relay_adds_is_held() -> None:
    async def main() -> None:
        async with rig("pace", wait=20, relay=(b"/generate",)) as r:
            sending = asyncio.ensure_future(post(r.gateway.front.port, "/generate", {"prompt": text(PROMPT, "x")}))
            await until(lambda: now(r.gateway)["queued"] == 1, what="a held body")
            await asyncio.sleep(0.3)
            assert not sending.done()
            r.stream.cancel()
            assert (await asyncio.wait_for(sending, 8)).status == 404  # this engine has no such path

    run(main())


@pytest.mark.parametrize("lax", [{"model": None}, {"stream": "true"}, {"priority": 0.5}])
def test_a_body_of_lax_types_counts_as_what_it_weighs(lax: dict[str, object]) -> None:
    async def main() -> None:
        async with rig("pace", wait=20) as r:
            body = {**chat(text(PROMPT, "lax"), max_tokens=2), **lax}
            sending = asyncio.ensure_future(post(r.gateway.front.port, "/v1/chat/completions", body))
            await until(lambda: now(r.gateway)["queued"] + now(r.gateway)["pieces"] > 0, what="a big body that waits")
            r.stream.cancel()
            await asyncio.wait_for(sending, 8)

    run(main())
