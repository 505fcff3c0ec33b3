"""Must: policy `auto` passes what is below the gap target, paces the rest, holds what cannot be paced, and steps aside where the
engine paces by itself; the log and /metrics say so.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from headway.gateway.config import Config
from tests.gateway.support import Message, chat, engine, gateway, metric, read_stream, run, scripted, session, teach, text, until
from tests.gateway.test_policies import rig

PACES = b"headway_scheduler_share_target 0.5\nvllm:num_requests_running 0\n"


def test_auto_is_the_default() -> None:
    assert Config(()).policy == "auto"


def test_auto_paces_beside_a_live_answer() -> None:
    async def main() -> None:
        async with rig("auto", share=0.5, gap=0.1) as r:
            await r.intrude()
            assert metric(r.gateway, "headway_pieces_total") >= 5
            assert metric(r.gateway, 'headway_grants_total{why="share"}') >= 5
            assert metric(r.gateway, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


def test_auto_holds_what_cannot_be_paced_for_no_longer_than_wait() -> None:
    """/v1/embeddings has no pieces; a big one is held, and goes on whole at its bound."""

    async def main() -> None:
        async with rig("auto", share=0.5, gap=0.1, wait=0.8) as r:
            sent, first = await r.intrude({"model": "m", "messages": [{"role": "user", "content": text(5000)}]} | MEDIA)
            assert first - sent > 0.8
            assert metric(r.gateway, "headway_pieces_total") == 0
            assert metric(r.gateway, 'headway_grants_total{why="bound"}') == 1
            assert metric(r.gateway, 'headway_unpaced_total{reason="dialect"}') == 1

    run(main())


MEDIA = {"stream": True, "max_tokens": 2, "prompt_logprobs": 1}
"""Log probabilities of a prompt cannot come from a prefix cache."""


def test_auto_steps_aside_where_it_is_told_to(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        caplog.set_level(logging.INFO)
        async with engine() as server, gateway(server.url, "auto", engine_paces="yes") as served, session() as http:
            teach(served)
            await until(lambda: served.upstream.controller.aside, what="stepping aside")
            victim = asyncio.ensure_future(read_stream(http, served.url, chat("hello", stream=True, max_tokens=5000)))
            await until(lambda: served.upstream.controller.live == 1)
            answer = await read_stream(http, served.url, chat(text(4000), stream=True, max_tokens=2))
            victim.cancel()
            await asyncio.gather(victim, return_exceptions=True)
            assert answer.status == 200
            assert metric(served, "headway_pieces_total") == 0
            assert metric(served, 'headway_grants_total{why="aside"}') == 2
            label = served.upstream.target.label
            assert metric(served, f'headway_stepped_aside{{upstream="{label}"}}') == 1
            assert metric(served, 'headway_requests_total{outcome="passed"}') >= 1
            assert any("steps aside: --engine-paces says so" in record.message for record in caplog.records)

    run(main())


PAGES = {
    "scheduler class": {b"/metrics": PACES},
    "sglang": {b"/get_server_info": b'{"prefill_decode_interval": 3}'},
    "vllm": {
        b"/server_info?config_format=text": b"SchedulerConfig(prefill_schedule_interval=4)",
        b"/version": b'{"version": "0.33.0"}',
    },
}


@pytest.mark.parametrize("family", PAGES)
def test_auto_asks_the_engine(family: str) -> None:
    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        body = PAGES[family].get(request.target)
        head = b"HTTP/1.1 200 OK" if body is not None else b"HTTP/1.1 404 Not Found"
        writer.write(head + b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body or b""), body or b""))

    async def main() -> None:
        async with scripted(answer, metrics=True) as (_, url), gateway(url, "auto") as served:
            await until(lambda: served.upstream.controller.aside, what="stepping aside")

    run(main())


def test_no_means_no() -> None:
    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(PACES), PACES))

    async def main() -> None:
        async with scripted(answer, metrics=True) as (_, url), gateway(url, "auto", engine_paces="no") as served:
            await until(lambda: served.upstream.engine.paces != "")
            await asyncio.sleep(0.05)
            assert not served.upstream.controller.aside

    run(main())
