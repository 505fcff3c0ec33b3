"""Must: nothing leaks (permits, tasks, descriptors, requests in the engine) after 1,000 cancels at random points."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from contextlib import suppress
from dataclasses import replace

from headway.gateway.server import Gateway
from headway.simulator.steps import StepModel
from tests.gateway.support import (
    FAST,
    chat,
    descriptors,
    engine,
    gateway,
    idle,
    metric,
    post,
    raw_request,
    run,
    teach,
    text,
    until,
)

BRISK = replace(FAST, engine=replace(FAST.engine, steps=StepModel(a=0.004, b=8e-6, e=0.001)))
CANCELS = 1000
AT_A_TIME = 50


def bodies(dice: random.Random) -> tuple[str, dict[str, object]]:
    """A request of any kind: short or long, streamed or not, of any dialect."""
    prompt = text(dice.choice((20, 20, 20, 1200, 2400)), f"{dice.random():.6f}")
    stream = dice.random() < 0.6
    kind = dice.random()
    if kind < 0.6:
        return "/v1/chat/completions", chat(prompt, stream=stream, max_tokens=dice.choice((2, 400)))
    if kind < 0.75:
        return "/v1/completions", {"model": "m", "prompt": prompt, "stream": stream, "max_tokens": 50}
    if kind < 0.85:
        messages = [{"role": "user", "content": prompt}]
        return "/v1/messages", {"model": "m", "messages": messages, "stream": stream, "max_tokens": 50}
    if kind < 0.95:
        return "/v1/responses", {"model": "m", "input": prompt, "stream": stream, "max_output_tokens": 50}
    return "/tokenize", {"model": "m", "prompt": prompt}


async def one(served: Gateway, dice: random.Random) -> None:
    """Send a request and leave at a random point: before it is sent whole, before an answer, or after some of it."""
    path, body = bodies(dice)
    raw = raw_request("POST", path, json.dumps(body).encode(), [("Connection", "close")])
    reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
    point = dice.random()
    writer.write(raw[: dice.randrange(1, len(raw))] if point < 0.05 else raw)
    if point < 0.25:
        await asyncio.sleep(0)
    elif point < 0.85:
        await asyncio.sleep(dice.expovariate(1 / 0.05))
    else:
        for _ in range(dice.randrange(1, 4)):
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(2000), 0.5)
    if dice.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


def test_a_thousand_mixed_cancels() -> None:
    async def main() -> None:
        dice = random.Random(20260)
        async with engine(BRISK) as server, gateway(server.url, gap=0.008, wait=1.0) as served:
            teach(served)
            assert (await post(served.front.port, "/v1/chat/completions", chat("warm"))).status == 200
            before = descriptors(), len(asyncio.all_tasks())
            slots = asyncio.Semaphore(AT_A_TIME)

            async def leave() -> None:
                async with slots:
                    await one(served, dice)

            await asyncio.gather(*(leave() for _ in range(CANCELS)))
            await until(lambda: idle(served) and served.front.live == 0, 10, "the gateway's rest")
            await until(lambda: server.engine.num_running + server.engine.num_waiting == 0, 5, "the engine's rest")
            assert metric(served, "headway_pieces_total") > 10, "the cancels did not meet pieces"
            assert metric(served, 'headway_requests_total{outcome="client_left"}') > CANCELS / 3
            assert metric(served, 'headway_requests_total{outcome="upstream_lost"}') == 0

            upstream = served.upstream
            assert not upstream.controller.entries and not upstream.desk._permits and not upstream.controller.debt.victims
            assert upstream.controller.in_flight == 0 and not upstream.controller.debt.prefilling
            assert not upstream.rendering.locked()
            # What the connections closed, a moment later
            await until(lambda: len(asyncio.all_tasks()) <= before[1] + 2, 5, "the tasks' end")
            gc.collect()
            await until(lambda: descriptors() <= before[0] + 2 * AT_A_TIME, 5, "the descriptors' end")
            # It still works, and a big prompt is still paced
            pieces = metric(served, "headway_pieces_total")
            got = await post(served.front.port, "/v1/chat/completions", chat(text(20000, "after")))
            assert got.status == 200 and metric(served, "headway_pieces_total") > pieces

    before = descriptors()
    run(main(), 60)
    gc.collect()
    assert descriptors() <= before + 2, "descriptors outlived gateway and engine"
