"""A short experiment on a live server: one stream alone, one long prompt alone, both together.

Nothing is sent while the server works for others, and the experiment stops as soon as its metrics show a
request that is not ours; what was measured until then is still judged. The long prompt is sized from a
small one so that the whole stays under LIMIT seconds. Prompts start with a random word, so nothing is found
in the prefix cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from headway.advisor.scrapes import parse, read_metrics, total
from headway.advisor.server import fetch_version, get
from headway.errors import ServerError

#: Seconds for everything; the long prompt is sized to take WORK seconds alone.
LIMIT, WORK = 85.0, 6.0
VICTIM_TOKENS, SMALL, LONGEST = 400, 600, 60_000


class Busy(Exception):
    """Others use the server now."""


@dataclass
class Stream:
    """Times (seconds, monotonic) at which one answer's pieces came, and the tokens that it had in the end."""

    sent: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def ttft(self) -> float | None:
        return self.times[0] - self.sent if self.times else None

    def rate(self, start: float, end: float) -> float | None:
        """Pieces a second between two times."""
        seen = [t for t in self.times if start <= t <= end]
        return len(seen) / (end - start) if end > start else None

    def longest_gap(self, start: float, end: float) -> float:
        marks = [start, *[t for t in self.times if start < t < end], end]
        return max(b - a for a, b in pairwise(marks))


@dataclass
class Probe:
    base: str
    key: str | None = None
    ours: int = 0
    stopped: str | None = None
    pages: list[str] = field(default_factory=list)

    async def run(self) -> dict[str, Any]:
        """Report of the experiment; ServerError when the server cannot be used at all."""
        root = self.base.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=LIMIT)) as session:
            version = await fetch_version(session, root)
            model = await self._model(session, root)
            observed: dict[str, Any] = {}
            try:
                async with asyncio.timeout(LIMIT):
                    await self._guarded(session, root, model, observed)
            except Busy as error:
                self.stopped = str(error)
            except TimeoutError:
                self.stopped = f"stopped after {LIMIT:.0f} s"
        report: dict[str, Any] = {
            "engine": f"vllm {version}" if version else "server",
            "given": {"config": {}, "observed": {}},
        }
        if self.pages:
            with contextlib.suppress(Exception):
                told = read_metrics(*self.pages[:1], *self.pages[-1:])
                report["given"]["config"] = told["given"]["config"]
                report["engine"] += " hybrid" if "hybrid" in told["engine"] else ""
                for name in ("preemptions",):
                    if name in told["given"]["observed"]:
                        observed[name] = told["given"]["observed"][name]
        report["given"]["observed"] = observed
        return report

    async def _model(self, session: aiohttp.ClientSession, root: str) -> str:
        status, text = await get(session, f"{root}/v1/models")
        if status != 200:
            raise ServerError(f"{root}/v1/models: HTTP {status}")
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ServerError(f"{root}/v1/models: no model in the answer") from error

    async def _guarded(self, session: aiohttp.ClientSession, root: str, model: str, observed: dict[str, Any]) -> None:
        """The experiment and the watch over foreign traffic side by side; whichever ends first ends both."""
        await self._check(session, root)
        work = asyncio.create_task(self._experiment(session, root, model, observed))
        watch = asyncio.create_task(self._watch(session, root))
        try:
            done, _ = await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
        await self._scrape(session, root)

    async def _scrape(self, session: aiohttp.ClientSession, root: str) -> float | None:
        status, page = await get(session, f"{root}/metrics")
        if status != 200 or "vllm:" not in page:
            return None
        self.pages.append(page)
        series = parse(page)
        return (total(series, "vllm:num_requests_running") or 0) + (total(series, "vllm:num_requests_waiting") or 0)

    async def _check(self, session: aiohttp.ClientSession, root: str) -> None:
        busy = await self._scrape(session, root)
        if busy is not None and busy > self.ours:
            raise Busy(f"{busy:.0f} requests run or wait there and {self.ours} of them are ours: stopped for real traffic")

    async def _watch(self, session: aiohttp.ClientSession, root: str) -> None:
        seen = 0
        while True:
            await asyncio.sleep(0.5)
            try:
                await self._check(session, root)
                seen = 0
            except Busy:
                # One of ours that has just ended is still counted until the next step: believe the second
                # look.
                seen += 1
                if seen >= 2:
                    raise

    async def _experiment(self, session: aiohttp.ClientSession, root: str, model: str, observed: dict[str, Any]) -> None:

        def ask(words: int, tokens: int) -> AsyncGenerator[tuple[float, int], None]:
            return self._stream(session, root, model, words, tokens)

        victim = await _all(ask(8, 96))
        if len(victim.times) < 8:
            raise ServerError(f"{root}: a stream of 96 tokens came in {len(victim.times)} pieces, too few to measure")
        # The first pieces hold compilation and warm-up.
        observed["solo_tps"] = round((len(victim.times) - 5) / (victim.times[-1] - victim.times[4]), 3)
        small = await _all(ask(SMALL, 1))
        words = int(min(LONGEST, max(2 * SMALL, WORK * SMALL / max(small.ttft or 1.0, 1e-3))))
        alone = await _all(ask(words, 1))
        observed |= {"ttft_alone_s": alone.ttft, "intruder_tokens": alone.tokens or words}
        live = Stream(0)
        running = asyncio.create_task(_all(ask(8, VICTIM_TOKENS), live))
        try:
            while len(live.times) < 16 and not running.done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            intruder = await _all(ask(words, 1))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if intruder.ttft is None or not live.times:
            return
        start, end = (
            intruder.sent,
            min(intruder.times[0], live.times[-1]) if running.done() and not running.cancelled() else intruder.times[0],
        )
        observed |= {
            "ttft_s": intruder.ttft,
            "overlap_tps": live.rate(start, end),
            "longest_gap_s": live.longest_gap(start, end),
        }

    async def _stream(
        self, session: aiohttp.ClientSession, root: str, model: str, words: int, tokens: int
    ) -> AsyncGenerator[tuple[float, int], None]:
        """(time, prompt tokens or 0) for each piece of one answer, after (time of sending, 0)."""
        prompt = " ".join(f"{random.randrange(10**6)}" if i % 7 == 0 else "and" for i in range(max(words, 1)))
        body = {
            "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        self.ours += 1
        try:
            yield time.monotonic(), 0
            async with session.post(f"{root}/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise ServerError(f"{root}/v1/completions: HTTP {answer.status}: {(await answer.text())[:200]}")
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    usage = event.get("usage") or {}
                    if event.get("choices"):
                        yield time.monotonic(), 0
                    elif usage:
                        yield 0.0, int(usage.get("prompt_tokens") or 0)
        except aiohttp.ClientError as error:
            raise ServerError(f"{root}/v1/completions: {error}") from error
        finally:
            self.ours -= 1


async def _all(pieces: AsyncGenerator[tuple[float, int], None], into: Stream | None = None) -> Stream:
    """The whole of one answer, filled into `into` while it comes."""
    stream = into or Stream(0)
    first = True
    async with contextlib.aclosing(pieces) as open_pieces:
        async for at, tokens in open_pieces:
            if first:
                stream.sent, first = at, False
            elif tokens:
                stream.tokens = tokens
            else:
                stream.times.append(at)
    return stream
