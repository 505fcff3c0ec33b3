"""The gateway's own page: what it says is what is the case, and every request is counted once."""

from __future__ import annotations

import asyncio

from headway.core.outcome import REASONS, Outcome, Unpaced
from tests.gateway.support import (
    Answer,
    chat,
    engine,
    exchange,
    gateway,
    metric,
    now,
    post,
    raw_request,
    read_stream,
    run,
    session,
    teach,
    text,
    until,
)


def test_status_says_what_is_the_case() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, "hold", wait=20, share=0.4) as served, session() as http:
            teach(served)
            victim = Answer(0, 0.0)
            stream = asyncio.ensure_future(read_stream(http, served.url, chat("hi", stream=True, max_tokens=3000), victim))
            await until(lambda: now(served)["live"] == 1)
            big = asyncio.ensure_future(post(served.front.port, "/v1/chat/completions", chat(text(4000))))
            await until(lambda: now(served)["queued"] == 1)
            page = (await exchange(served.status.port, raw_request("GET", "/status"))).json
            assert page["schema"] == "headway.status/2" and page["policy"] == "hold"
            assert page["targets"] == {"share": 0.4, "gap": 0.1, "wait": 20.0, "stretch": 20.0}
            assert page["upstream"]["url"] == server.url and page["upstream"]["up"] and page["upstream"]["standing"] == "up"
            assert len(page["upstreams"]) == 1 and page["upstreams"][0]["now"] == page["now"]
            assert page["engine"]["block"] == 64 and page["engine"]["prefix_caching"] is True
            assert page["model"]["ready"] and page["model"]["b"] > 0 and page["model"]["piece_tokens"] >= 64
            assert page["now"] == {
                "live": 1, "queued": 1, "pieces": 0, "in_engine": 1, "requests": 2, "prefill_tokens_in_flight": 0, "foreign": 0
            }  # fmt: skip
            text_page = (await exchange(served.status.port, raw_request("GET", "/metrics"))).body.decode()
            for line in ("headway_live_decodes", "headway_queued_requests", "headway_upstream_up", "headway_upstream_takes"):
                assert f'{line}{{upstream="{served.upstream.target.label}"}} 1.0' in text_page.splitlines()
            for task in (stream, big):
                task.cancel()
            await asyncio.gather(stream, big, return_exceptions=True)

    run(main())


def test_every_outcome_and_reason_has_its_series() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url) as served:
            page = served.metrics.page().decode()
            assert set(REASONS) == set(Outcome)
            for outcome in Outcome:
                assert f'headway_requests_total{{outcome="{outcome.value}"}} 0.0' in page
            for reason in Unpaced:
                assert f'headway_unpaced_total{{reason="{reason.value}"}} 0.0' in page

    run(main())


def test_each_request_is_counted_once() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, gap=0.03, max_body=100_000) as served:
            teach(served)
            port = served.front.port
            await post(port, "/v1/chat/completions", chat("hi"))  # passed
            await post(port, "/v1/chat/completions", chat("hi", model="other"))  # passed: the engine's 404
            await post(port, "/v1/chat/completions", chat(text(3000)))  # paced
            await post(port, "/v1/chat/completions", chat(text(3000, "b"), prompt_logprobs=1))  # whole
            await post(port, "/v1/completions", b"x" * 100_001)  # refused
            await exchange(port, raw_request("GET", "/sleep"))  # refused
            await exchange(port, raw_request("GET", "/health"))  # passed
            counted = {o.value: metric(served, f'headway_requests_total{{outcome="{o.value}"}}') for o in Outcome}
            assert {name: count for name, count in counted.items() if count} == {
                "passed": 3, "paced": 1, "whole": 1, "refused": 2
            }  # fmt: skip

    run(main())
