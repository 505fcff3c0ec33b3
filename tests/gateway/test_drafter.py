"""Must: at least four blocks a piece where each piece loses one (MTP up to vLLM 0.32), found by the probe."""

from __future__ import annotations

from dataclasses import replace

from headway.simulator.profiles import configure
from headway.simulator.steps import StepModel
from tests.gateway.support import FAST, chat, engine, gateway, metric, post, probed, run, text

QUICK = replace(FAST, engine=replace(FAST.engine, steps=StepModel(a=0.004, b=40e-6, e=0.001)))


def test_a_prompt_is_paced_although_each_piece_loses_a_block() -> None:
    async def main() -> None:
        rig = configure(QUICK, mtp=2)
        async with engine(rig) as server, gateway(server.url, "auto", probe=True, gap=0.01) as served:
            await probed(served, 20)
            assert (served.upstream.engine.block, served.upstream.engine.lost) == (64, 1)
            assert served.upstream.controller.pacer.piece() >= 4 * 64
            got = await post(served.front.port, "/v1/chat/completions", chat(text(3000)))
            assert got.status == 200
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1
            assert metric(served, 'headway_unpaced_total{reason="missed"}') == 0

    run(main())
