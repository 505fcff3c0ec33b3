"""A short experiment on a live server: one stream alone, one long prompt alone three times, both together.

Nothing is sent while the server works for others, and the experiment stops as soon as its counters show a request that is not
ours; what was measured until then is still judged. The long prompt is sized from a small one so that the whole stays under LIMIT
seconds. Prompts start with a random word, so nothing is found in the prefix cache. Through a headway gateway the same is measured
as a client gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Any

import aiohttp

from headway.advisor.scrapes import ask, moved, parse, read_metrics, slow_steps
from headway.advisor.server import get
from headway.advisor.stream import Pieces, Stream, collect
from headway.advisor.target import Target, look
from headway.errors import ServerError

#: Seconds for everything; the long prompt is sized to take at most WORK seconds alone, and RUNS runs of it are made.
LIMIT, WORK, RUNS = 85.0, 6.0, 3
#: What the overlap may take, in prefills alone: a decoding stream and a gateway's share lengthen it.
OVERLAP = 3.0
VICTIM_TOKENS, SMALL, LONGEST = 2000, 600, 60_000


AskFor = Callable[[int, int], Pieces]


class Busy(Exception):
    """Others use the server now."""


@dataclass
class Probe:
    """`notes`: what a reader has to know beside the verdict."""

    base: str
    key: str | None = None
    ours: int = 0
    stopped: str | None = None
    notes: list[str] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    observed: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0

    async def run(self) -> dict[str, Any]:
        """Report of the experiment; ServerError when the server cannot be used at all."""
        root = self.base.rstrip("/").removesuffix("/v1")
        self.started = time.monotonic()
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=LIMIT)) as session:
            target = await look(session, root)
            model = await self._model(session, root)
            self._say(target)
            try:
                async with asyncio.timeout(LIMIT - (time.monotonic() - self.started)):
                    await self._guarded(session, target, model)
            except Busy as error:
                self.stopped = str(error)
            except TimeoutError:
                self.stopped = f"stopped after {LIMIT:.0f} s"
        if self.stopped:
            self.notes.append(self.stopped)
        return self._report(target)

    def _say(self, target: Target) -> None:
        if target.gateway is not None:
            told = target.gateway
            policy = (
                f", policy {told['policy']}, in front of {told['upstream']}" if told else "; its status page is not reachable"
            )
            self.notes.append(f"{target.root} is a headway gateway{policy}: this is what its clients get, not the bare engine")
        if target.engine is None:
            self.notes.append("no metrics there: traffic of others cannot be seen, so nothing stops this experiment for it")

    def _report(self, target: Target) -> dict[str, Any]:
        config = dict(target.options)
        if target.gateway is not None:
            config["gateway"] = f"headway {target.gateway.get('policy', '')}".strip()
        name = target.title
        if self.pages:
            with contextlib.suppress(Exception):
                told = read_metrics(*self.pages[:1], *self.pages[-1:])
                config = told["given"]["config"] | config
                name += " hybrid" if "hybrid" in told["engine"] else ""
            before, after = parse(self.pages[0]), parse(self.pages[-1])
            grown = moved(before, after)
            for what in ("preemptions", "hits"):
                if (value := ask(grown, what)) is not None:
                    self.observed[what if what == "preemptions" else "prefix_tokens_found"] = value
        return {"engine": name, "given": {"config": config, "observed": self.observed}}

    async def _model(self, session: aiohttp.ClientSession, root: str) -> str:
        status, text = await get(session, f"{root}/v1/models")
        if status != 200:
            raise ServerError(f"{root}/v1/models: HTTP {status}")
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ServerError(f"{root}/v1/models: no model in the answer") from error

    async def _guarded(self, session: aiohttp.ClientSession, target: Target, model: str) -> None:
        """The experiment and the watch over foreign traffic side by side; whichever ends first ends both."""
        await self._check(session, target)
        work = asyncio.create_task(self._experiment(session, target, model))
        watch = asyncio.create_task(self._watch(session, target))
        try:
            done, _ = await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
        await self._scrape(session, target)

    async def _scrape(self, session: aiohttp.ClientSession, target: Target) -> str | None:
        page = await target.page(session)
        if page is not None:
            self.pages.append(page)
        return page

    async def _check(self, session: aiohttp.ClientSession, target: Target) -> None:
        busy = await target.busy(session, await self._scrape(session, target))
        if busy is not None and busy > self._expected(target):
            raise Busy(f"{busy:.0f} requests run or wait there and {self.ours} of them are ours: stopped for real traffic")

    def _expected(self, target: Target) -> int:
        # A gateway sends a long prompt in pieces beside the request itself.
        return self.ours + (1 if target.gateway is not None and self.ours else 0)

    async def _watch(self, session: aiohttp.ClientSession, target: Target) -> None:
        seen = 0
        while True:
            await asyncio.sleep(0.5)
            try:
                await self._check(session, target)
                seen = 0
            except Busy:
                # One of ours that has just ended is still counted until the next step: believe the second look.
                seen += 1
                if seen >= 2:
                    raise

    async def _experiment(self, session: aiohttp.ClientSession, target: Target, model: str) -> None:
        def ask_for(words: int, tokens: int) -> Pieces:
            return self._stream(session, target.root, model, words, tokens)

        victim = await collect(ask_for(8, 96))
        if len(victim.times) < 8:
            raise ServerError(f"{target.root}: a stream of 96 tokens came in {len(victim.times)} pieces, too few to measure")
        # The first pieces hold compilation and warm-up.
        self.observed["solo_tps"] = round((len(victim.times) - 5) / (victim.times[-1] - victim.times[4]), 3)
        small = await collect(ask_for(SMALL, 1))
        words = await self._alone(ask_for, self._words(SMALL, small.ttft or 1.0))
        await self._overlap(session, target, ask_for, words)

    async def _alone(self, ask_for: AskFor, words: int) -> int:
        """The long prompt alone, RUNS times; the length that was measured. One that takes far longer than planned is cut once."""
        runs: list[float] = []
        cut = False
        while len(runs) < RUNS:
            alone = await collect(ask_for(words, 1))
            if alone.ttft is None:
                break
            if alone.ttft > 1.5 * self._work() and not cut and words > 2 * SMALL:
                words, cut = self._words(words, alone.ttft), True
                continue
            runs.append(alone.ttft)
            self.observed |= {"ttft_alone_s": round(median(runs), 4), "intruder_tokens": alone.tokens or words}
            if self._left() < (1 + OVERLAP) * alone.ttft:
                break
        self.notes.append(f"the long prompt alone took {', '.join(f'{t:.2f}' for t in runs)} s")
        return words

    def _left(self) -> float:
        """Seconds until LIMIT, less what ending takes."""
        return LIMIT - (time.monotonic() - self.started) - 5.0

    def _work(self) -> float:
        """Seconds that the long prompt may take alone: its runs and the overlap have to fit into what is left."""
        return max(0.5, min(WORK, self._left() / (RUNS + OVERLAP)))

    def _words(self, words: int, seconds: float) -> int:
        """Length of a prompt that takes the allowed time, from one of `words` words that took `seconds`."""
        return int(min(LONGEST, max(2 * SMALL, self._work() * words / max(seconds, 1e-3))))

    async def _overlap(self, session: aiohttp.ClientSession, target: Target, ask_for: AskFor, words: int) -> None:
        live, intruder = Stream(0), Stream(0)
        running = asyncio.create_task(collect(ask_for(8, VICTIM_TOKENS), live))
        before = after = None
        window = [0.0, 0.0]
        try:
            while len(live.times) < 16 and not running.done():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            before, window[0] = await target.page(session), time.monotonic()
            await collect(ask_for(words, 1), intruder)
            after, window[1] = await target.page(session), time.monotonic()
        finally:
            end = time.monotonic()
            ended = running.done() and not running.cancelled()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if intruder.sent and live.times:
                end = intruder.times[0] if intruder.times else end
                if ended:
                    end = min(end, live.times[-1])
                self.observed |= {
                    "overlap_tps": live.rate(intruder.sent, end),
                    "longest_gap_s": live.longest_gap(intruder.sent, end),
                }
                if intruder.ttft is not None:
                    self.observed["ttft_s"] = intruder.ttft
        if not before or not after or ended or target.gateway is not None:
            return
        grown = moved(parse(before), parse(after))
        steps = ask(grown, "steps")
        if steps and intruder.tokens:
            # The stream puts out a token in every step, so the engine counted each of them; those that came about as fast as
            # alone carried no chunk. Between the two kinds lies the geometric mean of the gap alone and the longest one. Where
            # the engine times the gaps itself, its histogram says how many were long; else the client's own gaps do.
            alone, longest = 1.0 / self.observed["solo_tps"], self.observed["longest_gap_s"]
            if longest > 4 * alone:
                limit = sqrt(alone * longest)
                mixed = slow_steps(grown, limit) or steps - live.fast(window[0], window[1], limit)
                self.observed["chunk_by_steps"] = round(intruder.tokens / max(1.0, mixed))

    async def _stream(self, session: aiohttp.ClientSession, root: str, model: str, words: int, tokens: int) -> Pieces:
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
