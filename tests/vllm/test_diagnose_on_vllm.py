"""`headway diagnose` on a real vLLM, direct and through the gateway: under 90 s, its numbers, nothing left running."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from headway.advisor.diagnose import Diagnosis, diagnose_report
from headway.advisor.probe import Probe
from headway.lab.gateway import gateway
from tests.vllm.conftest import RealEngine

pytestmark = pytest.mark.vllm


def idle(engine: RealEngine) -> bool:
    end = time.monotonic() + 10
    while engine.running() and time.monotonic() < end:
        time.sleep(0.1)
    return engine.running() == 0


def diagnosed(probe: Probe) -> tuple[Diagnosis, dict[str, Any], float]:
    start = time.monotonic()
    report = asyncio.run(probe.run())
    return diagnose_report(report), report, time.monotonic() - start


@pytest.mark.timeout(150, func_only=True)
def test_a_bare_engine_is_chunk_arithmetic(real_engine: RealEngine) -> None:
    found, _report, seconds = diagnosed(Probe(real_engine.url))
    print(seconds, found.verdict, found.numbers, found.options, found.do)
    assert seconds < 90
    assert found.verdict in ("chunk-arithmetic", "mixed-step-cost"), found
    assert found.engine == "vllm 0.32.0"
    numbers = found.numbers
    assert numbers["share"] < 0.5 and numbers["preemptions"] == 0 and numbers["hits"] >= 0
    # A budget of 2,048: seen from the gap and counted from the engine's steps.
    assert 1000 < numbers["chunk_counted"] < 4100
    assert {"ttft_over_alone", "predicted_ttft_over_alone", "excess", "solo", "overlap", "gap"} <= set(numbers)
    assert 1 <= len(found.do) <= 3
    assert idle(real_engine)


@pytest.mark.timeout(200, func_only=True)
def test_through_the_gateway_it_says_so(real_engine: RealEngine) -> None:
    async def through() -> tuple[dict[str, Any], list[str], float]:
        async with gateway(real_engine.url, "pace") as served:
            probe = Probe(served.url)
            start = time.monotonic()
            report = await probe.run()
            return report, probe.notes, time.monotonic() - start

    report, notes, seconds = asyncio.run(through())
    found = diagnose_report(report)
    print(seconds, notes, found.verdict, found.numbers, found.do)
    assert seconds < 90
    assert "headway gateway" in notes[0]
    assert not any("put headway in front" in step["what"] for step in found.do)
    assert idle(real_engine)


async def stranger(url: str) -> None:
    """Somebody else's long answer."""
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/v1/models") as page:
            model = (await page.json())["data"][0]["id"]
        body = {"model": model, "prompt": "on and on", "max_tokens": 2000, "ignore_eos": True}
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            await answer.read()


@pytest.mark.timeout(100, func_only=True)
def test_real_traffic_ends_it(real_engine: RealEngine) -> None:
    async def both() -> tuple[Probe, float]:
        probe = Probe(real_engine.url)
        work = asyncio.create_task(probe.run())
        await asyncio.sleep(2.0)
        start = time.monotonic()
        other = asyncio.create_task(stranger(real_engine.url))
        await work
        ended = time.monotonic() - start
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        return probe, ended

    probe, ended = asyncio.run(both())
    assert probe.stopped and "real traffic" in probe.stopped
    assert ended < 15
    assert idle(real_engine)
