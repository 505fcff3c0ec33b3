"""The load generator: opens a server, runs scenarios against it, lets it cool down between them. Lives in a process of its own
(`process.py`), so that nothing but the load keeps its event loop busy.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

import aiohttp

from headway.bench import prompts
from headway.bench.client import Request
from headway.bench.context import Context, Run, Say, Settings
from headway.bench.overlap import require
from headway.bench.scenarios import SCENARIOS, intruder_alone
from headway.bench.server import Server, busy, look
from headway.errors import ServerError, UsageError

PATIENCE_S = 30.0  # for a server that still works on something after a run
POLL_S = 0.1
ALONE = "intruder-alone"


def _fits(server: Server, settings: Settings) -> None:
    for name in ("victim", "intruder"):
        size, out = getattr(settings, f"{name}_in"), getattr(settings, f"{name}_out")
        if server.context is not None and size + out > server.context:
            what = f"{size} tokens of prompt and {out} of answer do not fit the server's context of {server.context}"
            raise UsageError(f"--{name}-in: {what}")


@dataclass
class Generator:
    http: aiohttp.ClientSession
    say: Say
    context: Context | None = None

    async def open(self, url: str, model: str | None, key: str | None, settings: Settings, seed: int | None) -> Server:
        """Find the server, learn how long its tokens are, warm it up. Raises ServerError with what is wrong with it."""
        server, rng = await look(self.http, url, model, key), random.Random(seed)
        _fits(server, settings)
        target = server.target
        scale = await prompts.calibrate(self.http, target, rng)
        self.context = Context(self.http, target, server, scale, rng, settings, self.say)
        self.say(f"{target.url}, model {target.model}: warm-up")
        for _ in range(max(1, settings.warmup)):
            await self._warm_up(self.context, settings)
        return server

    async def _warm_up(self, context: Context, settings: Settings) -> None:
        """A short answer (does it stream, is it what the protocol says, does it count?), then half of a long prompt."""
        answer = require(await context.send(context.victim(8)), "warm-up", context.target)
        if answer.usage is None:
            raise ServerError(f"{context.target.url} sends no usage in its streams, so tokens cannot be counted")
        if settings.warmup:
            half = prompts.chat(settings.intruder_in // 2, 4, context.scale, context.rng)
            require(await context.send(Request(half.body)), "warm-up", context.target)

    async def run(self, name: str, rep: int) -> list[Run]:
        """One repetition of a scenario, then the cool-down."""
        assert self.context is not None
        made = await (intruder_alone if name == ALONE else SCENARIOS[name])(self.context, rep)
        left = await self._cool_down(self.context)
        if left:
            made[-1].notes.append(
                f"the server still had {left:.0f} requests {PATIENCE_S:.0f} s after the run: it is not ours alone"
            )
        return made

    async def _cool_down(self, context: Context) -> float | None:
        """Requests that the server still had at the end of patience; None where it is idle or does not say."""
        if context.settings.cooldown_s <= 0:
            return None
        end = time.monotonic() + PATIENCE_S
        await asyncio.sleep(context.settings.cooldown_s)
        while left := await busy(self.http, context.target.url):
            if time.monotonic() > end:
                return left
            await asyncio.sleep(POLL_S)
        return None
