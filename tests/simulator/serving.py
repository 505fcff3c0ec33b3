"""Servers and clients for tests: `with_server(body)` runs an async test body against a started engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp

from headway.simulator.profiles import DEMO, FrontEnd, Profile
from headway.simulator.server import RunningServer, start
from headway.simulator.steps import StepModel

#: The demo rig with steps of 2 ms and 10 µs a prompt token, so that functional tests take no time.
QUICK = replace(DEMO, engine=replace(DEMO.engine, steps=StepModel(a=0.002, b=10e-6)), front_end=FrontEnd(0.0, 0.0, 0.0))

Body = Callable[[RunningServer, aiohttp.ClientSession], Awaitable[Any]]


def with_server(body: Body, profile: Profile = QUICK, **options: Any) -> Any:
    async def run() -> Any:
        server = await start(profile, **options)
        try:
            async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(20)) as session:
                return await body(server, session)
        finally:
            await server.close()

    return asyncio.run(run())


async def post(session: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, Any]:
    async with session.post(path, json=body) as response:
        return response.status, await response.json()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The data of each server-sent event; "[DONE]" as text."""
    buffer = b""
    async for part in response.content.iter_any():
        buffer += part
        while b"\n\n" in buffer:
            event, _, buffer = buffer.partition(b"\n\n")
            data = event.split(b"data: ", 1)[1]
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)


async def metrics(session: aiohttp.ClientSession) -> dict[str, float]:
    """Values by metric name (labels dropped; the last of several)."""
    async with session.get("/metrics") as response:
        text = await response.text()
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name.partition("{")[0]] = float(value)
    return values


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (the engine under test offers no event to wait for)
            await asyncio.sleep(0.002)


def ids(count: int, seed: int = 0) -> list[int]:
    return [(i * 31 + seed * 977 + i * i % 101) % 50_000 for i in range(count)]
