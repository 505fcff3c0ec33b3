"""`headway serve` and `headway engine` as children of a measurement."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp

from headway.lab.process import Served, headway


@asynccontextmanager
async def gateway(
    upstream: str,
    policy: str,
    *,
    share: float | None = None,
    gap: float | None = None,
    wait: float | None = None,
    probe: bool = True,
    extra: Sequence[str] = (),
) -> AsyncIterator[Served]:
    """One gateway in front of `upstream`; it keeps what it learns for as long as the context lives."""
    arguments = ["serve", "--upstream", upstream, "--listen", "127.0.0.1:0", "--policy", policy]
    for name, value in (("--share", share), ("--gap", gap), ("--wait", wait)):
        if value is not None:
            arguments += [name, f"{value:g}"]
    arguments += ["--probe", "on" if probe else "off", *extra]
    async with headway(arguments) as served:
        yield served


def simulated_engine(profile: str = "demo") -> AbstractAsyncContextManager[Served]:
    return headway(["engine", "--profile", profile, "--port", "0"])


async def status(http: aiohttp.ClientSession, served: Served) -> dict[str, Any] | None:
    """The gateway's /status, or None when it has none or cannot answer."""
    if served.status_url is None:
        return None
    try:
        async with http.get(served.status_url + "/status", timeout=aiohttp.ClientTimeout(total=2)) as answer:
            page = json.loads(await answer.read())
            return page if answer.status == 200 and isinstance(page, dict) else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def learned(http: aiohttp.ClientSession, served: Served, patience: float = 10.0) -> bool:
    """Wait until the gateway knows its engine's step times; False when it does not within `patience`
    seconds.
    """
    end = time.monotonic() + patience
    while served.status_url is not None and time.monotonic() < end:
        page = await status(http, served)
        model = (page or {}).get("model")
        if isinstance(model, dict) and model.get("ready"):
            return True
        await asyncio.sleep(0.1)
    return False


async def undisturbed(http: aiohttp.ClientSession, served: Served, patience: float = 12.0) -> None:
    """Wait until the gateway knows that requests sent past it (a baseline straight at the engine) have ended."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        page = await status(http, served)
        if page is None or not page.get("now", {}).get("foreign"):
            return
        await asyncio.sleep(0.1)
