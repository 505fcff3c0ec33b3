"""Must: block size, prefix caching and cached_tokens are learned: from /metrics, by a probe that nobody waits for, or from the
first paced request. What is cached is forgotten when the engine is a new one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from headway.gateway import upstream as upstream_module
from headway.gateway.server import Gateway
from headway.simulator.steps import StepModel
from tests.gateway.support import (
    FAST,
    chat,
    engine,
    exchange,
    gateway,
    metric,
    now,
    post,
    probed,
    raw_request,
    run,
    scripted,
    text,
    until,
)

BIG = 3000
GAP = 0.01
"""Seconds. With nobody live a piece may last four of these, 0.04 s: 1,000 tokens of QUICK."""
QUICK = replace(FAST, engine=replace(FAST.engine, steps=StepModel(a=0.004, b=40e-6, e=0.001)))


async def paced(served: Gateway, seed: str, **more: object) -> None:
    before = metric(served, 'headway_requests_total{outcome="paced"}')
    got = await post(served.front.port, "/v1/chat/completions", chat(text(BIG, seed), **more))
    assert got.status == 200
    assert metric(served, 'headway_requests_total{outcome="paced"}') == before + 1


@pytest.mark.parametrize("version", ["0.25.1", "0.30.0", "0.32.0", "0.33.0"])
@pytest.mark.parametrize("details", [True, False])
def test_probe_confirms_what_metrics_say(version: str, details: bool) -> None:
    """Both eras of retention, with and without cached_tokens in usage."""

    async def main() -> None:
        rig = engine(QUICK, version=version, prompt_tokens_details=details)
        async with rig as server, gateway(server.url, probe=True, gap=GAP) as served:
            await probed(served)
            learned = served.upstream.engine
            assert (learned.block, learned.block_confirmed, learned.caching) == (64, True, True)
            assert learned.reports is details
            model = served.upstream.controller.pacer.model
            assert model is not None and 15e-6 < model.b < 400e-6
            await paced(served, "x")

    run(main())


@pytest.mark.parametrize("version", ["0.25.1", "0.32.0"])
@pytest.mark.parametrize("block", [16, 528])
def test_probe_finds_other_blocks(version: str, block: int) -> None:
    async def main() -> None:
        rig = engine(QUICK, version=version, block_size=block, num_gpu_blocks=8192)
        async with rig as server, gateway(server.url, probe=True, gap=GAP) as served:
            await probed(served, 20)
            assert (served.upstream.engine.block, served.upstream.engine.caching) == (block, True)
            await paced(served, "x")

    run(main())


def test_first_paced_request_tells_where_probing_is_off() -> None:
    async def main() -> None:
        async with engine(QUICK) as server, gateway(server.url, probe=False, gap=GAP) as served:
            await until(lambda: served.upstream.engine.block == 64)
            assert not served.upstream.engine.block_confirmed
            assert served.upstream.controller.pacer.model is None
            await asyncio.sleep(0.2)
            assert server.engine.counters.cache_queries == 0  # nobody asked anything yet
            await paced(served, "x")
            assert served.upstream.engine.reports is True
            assert served.upstream.controller.pacer.model is not None

    run(main())


def test_pieces_are_confirmed_by_the_hit_counter_where_usage_says_nothing() -> None:
    async def main() -> None:
        async with engine(QUICK, prompt_tokens_details=False) as server, gateway(server.url, probe=False, gap=GAP) as served:
            await until(lambda: served.upstream.engine.block == 64)
            await paced(served, "x")
            assert metric(served, "headway_pieces_total") >= 2
            assert not served.upstream.engine.reports
            assert metric(served, 'headway_unpaced_total{reason="missed"}') == 0
            assert server.engine.counters.cache_hits >= BIG - 128

    run(main())


def test_engine_without_a_prefix_cache(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        brisk = replace(FAST, engine=replace(FAST.engine, steps=StepModel(a=0.002, b=5e-6)))
        async with engine(brisk, prefix_caching=False) as server, gateway(server.url, probe=True, gap=0.005) as served:
            await probed(served)
            assert served.upstream.engine.caching is False
            got = await post(served.front.port, "/v1/chat/completions", chat(text(BIG)))
            assert got.status == 200
            assert metric(served, 'headway_unpaced_total{reason="no_cache"}') == 1
            assert metric(served, 'headway_requests_total{outcome="whole"}') == 1
            assert metric(served, "headway_pieces_total") == 0
            assert any("prefix caching is off" in record.message for record in caplog.records)

    run(main())


def test_engine_that_says_nothing_is_not_paced(caplog: pytest.LogCaptureFixture) -> None:
    """No /metrics at all: the block is not known, and what is not known is not assumed."""

    async def main() -> None:
        body = b'{"choices":[],"usage":{"prompt_tokens":3000}}'
        raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        async with scripted(raw) as (upstream, url), gateway(url, probe=True, gap=GAP) as served:
            assert (await post(served.front.port, "/v1/chat/completions", chat(text(BIG)))).status == 200
            assert [request.target for request in upstream.requests] == [b"/v1/chat/completions"]
            assert metric(served, 'headway_unpaced_total{reason="no_cache"}') == 1
            assert any("block size is not known" in record.message for record in caplog.records)

    run(main())


def test_blocks_that_are_evicted_are_missed(caplog: pytest.LogCaptureFixture) -> None:
    """A cache that other traffic keeps turning over: pieces do not find the pieces before them."""

    async def main() -> None:
        async with engine(QUICK) as server, gateway(server.url, probe=False, gap=GAP) as served:
            await until(lambda: served.upstream.engine.block == 64)
            task = asyncio.ensure_future(post(served.front.port, "/v1/chat/completions", chat(text(BIG), max_tokens=2)))
            await until(lambda: metric(served, "headway_pieces_total") >= 3)
            pool = server.engine.cache.pool
            while not task.done():
                pool.release(pool.take(pool.free_count))  # as others do who need all the blocks that nobody holds
                await asyncio.sleep(0.002)
            got = await task
            assert got.status == 200
            assert metric(served, 'headway_unpaced_total{reason="missed"}') == 1
            assert metric(served, 'headway_requests_total{outcome="whole"}') == 1
            assert any("missed" in record.message for record in caplog.records)
            # One eviction is not held against the next prompt.
            await paced(served, "x")

    run(main())


def test_request_waits_for_no_probe() -> None:
    async def main() -> None:
        slow = replace(FAST, engine=replace(FAST.engine, steps=replace(FAST.engine.steps, a=0.3)))
        async with engine(slow) as server, gateway(server.url, probe=True, gap=GAP) as served:
            await until(lambda: server.engine.num_running == 1, what="a probe in the engine")
            probing = served.upstream._probing
            assert probing is not None
            sent = time.monotonic()
            got = await post(served.front.port, "/v1/chat/completions", chat("hi", max_tokens=1))
            assert got.status == 200
            assert probing.cancelled() and not served.upstream.engine.probed
            # The step under way, its own, and no probe's
            assert time.monotonic() - sent < 1.2

    run(main())


def test_no_probe_while_the_engine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "SCRAPE_S", 0.05)

    async def main() -> None:
        async with engine(QUICK) as server:
            body = chat("somebody else's", max_tokens=3000)
            foreign = asyncio.ensure_future(post(server.port, "/v1/chat/completions", body))
            await until(lambda: server.engine.num_running == 1)
            async with gateway(server.url, probe=True, gap=GAP) as served:
                await until(lambda: metric(served, "headway_foreign_requests") == 1)
                await asyncio.sleep(0.3)
                assert server.engine.counters.cache_queries < 50 and not served.upstream.engine.probed
                foreign.cancel()
                await probed(served)
            await asyncio.gather(foreign, return_exceptions=True)

    run(main())


def test_health_checks_do_not_stop_a_probe() -> None:
    async def main() -> None:
        async with engine(QUICK) as server, gateway(server.url, probe=True, gap=GAP) as served:
            while not served.upstream.engine.probed:
                assert (await exchange(served.front.port, raw_request("GET", "/health"))).status == 200
                await asyncio.sleep(0.01)
            assert served.upstream.engine.block_confirmed

    run(main())


def test_new_engine_behind_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cached, and what the engine can do, is forgotten with the engine."""
    monkeypatch.setattr(upstream_module, "SCRAPE_S", 0.05)

    async def main() -> None:
        async with engine(QUICK) as first:
            port = first.port
            async with gateway(first.url, probe=True, gap=GAP) as served:
                await probed(served)
                await paced(served, "x")
                assert len(served.upstream.blocks) and len(served.upstream.texts)
                await first.kill()
                await until(lambda: served.upstream.engine.up is False)
                async with engine(QUICK, port=port, block_size=128):
                    await until(lambda: served.upstream.engine.up is True and served.upstream.engine.probed)
                    assert len(served.upstream.blocks) == 0 and len(served.upstream.texts) == 0
                    assert served.upstream.engine.block == 128
                    await paced(served, "x")
                    assert now(served)["requests"] == 0

    run(main())


def test_counters_that_go_back_mean_a_new_engine() -> None:
    """A restart so quick that no look at /metrics failed."""

    async def main() -> None:
        async with engine(QUICK) as server, gateway(server.url, probe=False, gap=GAP) as served:
            await until(lambda: served.upstream.engine.block == 64)
            await paced(served, "x")
            served.upstream._learn_metrics(await served.upstream.scrape())  # type: ignore[arg-type]
            assert len(served.upstream.blocks) and len(served.upstream.texts)
            server.engine.counters.cache_queries = 0
            served.upstream._learn_metrics(await served.upstream.scrape())  # type: ignore[arg-type]
            assert len(served.upstream.blocks) == 0 and len(served.upstream.texts) == 0
            await paced(served, "x")

    run(main())


def test_gap_below_one_block_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rig = engine(QUICK, block_size=1024, num_gpu_blocks=512)
        async with rig as server, gateway(server.url, probe=True, gap=0.02) as served:
            await probed(served)
            warned = [record.getMessage() for record in caplog.records if "--gap" in record.getMessage()]
            assert len(warned) == 1 and "0.02" in warned[0] and "1024 tokens" in warned[0]
            reachable = float(warned[0].split()[-2])
            assert 0.03 < reachable < 0.4
            await paced(served, "x")

    run(main())
