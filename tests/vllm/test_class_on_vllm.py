"""The scheduler class in a real vLLM's server on this CPU. Bounds are wide, for this machine may be busy."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from headway.bench import prompts
from headway.bench.client import Request, Stream, Target, session, stream
from headway.bench.overlap import overlap, solo, victim_tokens
from headway.bench.server import find
from headway.lab.gateway import gateway, status
from headway.lab.install import install
from headway.lab.model import model
from headway.lab.vllm import serve_vllm
from tests.vllm.conftest import ARGUMENTS, RealEngine

pytestmark = pytest.mark.vllm

LONG, WORDS = 6000, 60


async def beside(target: Target, request: Request, neighbour: Request) -> str:
    """The text of `request`, with the neighbour sent once it has a few tokens."""
    begun = asyncio.Event()

    def count(tokens: float) -> None:
        if tokens >= 4:
            begun.set()

    async def other() -> Stream:
        await begun.wait()
        return await stream(target, neighbour)

    answer, _ = await asyncio.gather(stream(target, request, on_tokens=count), other())
    assert answer.error is None and answer.usage is not None
    return answer.text


def test_share_metrics_gateway_and_text(real_engine: RealEngine, tmp_path: Path) -> None:
    python = install()
    folder = tmp_path / "metrics"
    folder.mkdir()
    targets = {"HEADWAY_SHARE": "0.5", "HEADWAY_GAP": "0.15", "PROMETHEUS_MULTIPROC_DIR": str(folder)}

    async def main() -> None:
        rng = random.Random(7)
        log = tmp_path / "vllm.log"
        async with (
            serve_vllm(python, model("next-tiny", python), ARGUMENTS, log_path=log, targets=targets) as url,
            session() as http,
        ):
            target = await find(http, url)
            scale = await prompts.calibrate(http, target, rng)
            stock = replace(target, url=real_engine.url)
            victim = prompts.chat(38, WORDS, scale, rng)
            long, short = (prompts.chat(tokens, 4, scale, rng) for tokens in (LONG, 38))

            # Equal to stock: alone, and beside a long prompt; there only if a short neighbour does not change stock's own text.
            alone = (await stream(stock, victim)).text
            assert (await stream(target, victim)).text == alone
            if await beside(target, victim, long) != alone:
                assert await beside(stock, victim, short) != alone, "the class changes an answer that a neighbour does not change"

            base, _ = await solo(target, prompts.chat(38, 100, scale, rng))
            t0 = (await stream(target, prompts.chat(LONG, 4, scale, rng))).ttft
            assert t0 is not None
            answer = prompts.chat(38, 2 * victim_tokens(base, t0, 0.5), scale, rng)
            run = await overlap(target, answer, prompts.chat(LONG, 4, scale, rng), base)
            assert run.view is not None, run.void
            share, ttft = run.view.share(base.rate), run.intruder.ttft
            assert ttft is not None and ttft < 6 * t0 / 0.5
            assert 0.25 < share < 0.95, f"share {share:.2f}"

            async with http.get(url + "/metrics") as page:
                names = (await page.text()).splitlines()
            assert any(line.startswith("headway_scheduler_share_target") and line.endswith(" 0.5") for line in names)
            async with gateway(url, "auto", share=0.5, probe=False) as served:
                for _ in range(100):
                    known = await status(http, served)
                    async with http.get(f"{served.status_url}/metrics") as page:
                        if any(
                            line.startswith("headway_stepped_aside") and line.endswith(" 1.0")
                            for line in (await page.text()).splitlines()
                        ):
                            break
                    await asyncio.sleep(0.2)
                else:
                    pytest.fail(f"the gateway did not step aside: {known}")

    asyncio.run(main())
