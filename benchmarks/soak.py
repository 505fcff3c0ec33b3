"""A hundred thousand requests whose clients leave at a random moment, and an engine that dies now and then: nothing may be left.

    benchmarks/soak.py [--cancels 100000] [--kill-every 5000] [--minutes N] [--json FILE]

Gateway, embedded engine and clients share this process, so that every descriptor, task and object is counted. A client leaves
while it sends, while its request is queued, rendered or in pieces, before the first byte, in the stream, or after the end; by a
FIN, a reset or half a close; some send the same again. Every --kill-every requests the engine is stopped without a word and
started again on the same port.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headway.core.resends import Mode
from headway.gateway.server import Gateway
from headway.simulator.server import RunningServer
from headway.simulator.server import start as start_engine
from headway.simulator.steps import StepModel
from tests.gateway.support import FAST, chat, descriptors, gateway, idle, metric, now, post, raw_request, teach, text, until

BRISK = replace(FAST, engine=replace(FAST.engine, steps=StepModel(a=0.004, b=8e-6, e=0.001)))
AT_A_TIME = 48
BATCH = 0.1
"""Part of the requests between two counts; after the first, caches, indexes and pools are full."""
MOMENTS = ("sending", "at once", "queued or paced", "first byte", "stream", "end")


@dataclass
class Left:
    """What there is, at a moment without requests."""

    permits: int
    upstream_requests: int
    descriptors: int
    tasks: int
    objects: int
    rss_mb: float


class Asked:
    """Requests of any dialect and size, streamed or not; one in five is a recent one again, as an SDK would resend it."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._recent: deque[tuple[str, bytes, str]] = deque(maxlen=AT_A_TIME)

    def next(self) -> bytes:
        dice = self._dice
        again = dice.random() < 0.2 and len(self._recent) > 0
        path, asked, key = dice.choice(self._recent) if again else self._new()
        self._recent.append((path, asked, key))
        headers = [("Connection", "close"), ("Authorization", f"Bearer {key}")]
        return raw_request("POST", path, asked, [*headers, ("X-Stainless-Retry-Count", str(int(again)))])

    def _new(self) -> tuple[str, bytes, str]:
        dice = self._dice
        prompt = text(dice.choice((20, 20, 20, 1200, 2400)), f"{dice.random():.6f}")
        stream, kind, common = dice.random() < 0.6, dice.random(), {"model": "m"}
        messages = [{"role": "user", "content": prompt}]
        bodies: list[tuple[float, str, dict[str, Any]]] = [
            (0.6, "/v1/chat/completions", chat(prompt, stream=stream, max_tokens=dice.choice((2, 200)))),
            (0.75, "/v1/completions", common | {"prompt": prompt, "stream": stream, "max_tokens": 50}),
            (0.85, "/v1/messages", common | {"messages": messages, "stream": stream, "max_tokens": 50}),
            (0.95, "/v1/responses", common | {"input": prompt, "stream": stream, "max_output_tokens": 50}),
            (1.0, "/tokenize", common | {"prompt": prompt}),
        ]
        path, asked = next((path, asked) for below, path, asked in bodies if kind < below)
        return path, json.dumps(asked).encode(), str(dice.randrange(8))


async def leave_at_random(port: int, dice: random.Random, asked: Asked) -> str:
    """One request; the moment at which its client left."""
    raw = asked.next()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "refused"
    moment = dice.choices(MOMENTS, (1, 3, 8, 3, 3, 2))[0]
    writer.write(raw[: dice.randrange(1, len(raw))] if moment == "sending" else raw)
    with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        if moment == "queued or paced":
            await asyncio.sleep(dice.expovariate(1 / 0.02))
        elif moment == "first byte":
            await asyncio.wait_for(reader.read(1), 0.5)
        elif moment == "stream":
            for _ in range(dice.randrange(1, 6)):
                await asyncio.wait_for(reader.read(300), 0.5)
        elif moment == "end":
            await asyncio.wait_for(reader.read(), 1.0)
    way = dice.random()
    if way < 0.5:
        writer.transport.abort()
    elif way < 0.75 or not writer.can_write_eof():
        writer.close()
    else:
        with contextlib.suppress(OSError):
            writer.write_eof()
        await asyncio.sleep(0.002)
        writer.close()
    return moment


async def settled(served: Gateway, server: RunningServer) -> None:
    await until(lambda: idle(served) and served.front.live == 0, 30, "the gateway's rest")
    await until(lambda: in_engine(server) == 0, 30, "the engine's rest")


def in_engine(server: RunningServer) -> int:
    return int(server.engine.num_running + server.engine.num_waiting)


async def left(served: Gateway, server: RunningServer, count_objects: bool) -> Left:
    await settled(served, server)
    await asyncio.sleep(6.0 if count_objects else 0.5)  # idle connections to the engine are closed after 4 s
    gc.collect()
    return Left(
        permits=now(served)["requests"],
        upstream_requests=in_engine(server),
        descriptors=descriptors(),
        tasks=len(asyncio.all_tasks()),
        objects=len(gc.get_objects()) if count_objects else 0,
        rss_mb=rss_mb(),
    )


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


async def soak(cancels: int, kill_every: int, seed: int = 1, limit_s: float = 1e9, say: bool = True) -> dict[str, Any]:
    """Returns what was counted; `limit_s` seconds of cancels at most. Raises AssertionError where anything is left."""
    dice = random.Random(seed)
    asked = Asked(dice)
    server = await start_engine(BRISK)
    port = server.port
    moments: Counter[str] = Counter()
    kills, begun = 0, time.monotonic()
    first: Left | None = None
    async with gateway(server.url, gap=0.008, wait=1.0, keepalive=0.2, keepalive_json=True, resends=Mode.MARKED) as served:
        teach(served)
        done = 0
        while done < cancels and time.monotonic() - begun < limit_s:
            batch = min(cancels - done, max(1, int(cancels * BATCH)))
            running: set[asyncio.Task[str]] = set()
            for number in range(done, done + batch):
                if number > (kills + 0.5) * kill_every and in_engine(server) > 1:
                    await server.kill()
                    server = await restarted(port)
                    kills += 1
                running.add(asyncio.create_task(leave_at_random(served.front.port, dice, asked)))
                if len(running) >= AT_A_TIME:
                    ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    moments.update(task.result() for task in ended)
            if running:
                moments.update(await asyncio.gather(*running))
            done += batch
            await settled(served, server)
            await until(lambda: served.upstream.engine.up is not False, 20, "the engine's return")
            teach(served)  # after a restart it would have to learn its block again
            if first is None:
                first = await left(served, server, True)
            if say:
                here = await left(served, server, False)
                print(f"{done} in {time.monotonic() - begun:.0f} s: {here}", file=sys.stderr, flush=True)
        last = await left(served, server, True)
        outcomes = {
            line.split('"')[1]: int(float(line.rsplit(" ", 1)[1]))
            for line in served.metrics.page().decode().splitlines()
            if line.startswith("headway_requests_total{")
        }
        pieces, kept = metric(served, "headway_pieces_total"), metric(served, "headway_keepalives_total")
        got = await post(served.front.port, "/v1/chat/completions", chat("still there?"))
        assert got.status == 200
    await server.close()
    assert first is not None
    assert last.permits == last.upstream_requests == 0
    assert last.descriptors <= first.descriptors + 4, (first, last)
    assert last.tasks <= first.tasks + 2, (first, last)  # a look at /metrics may be under way
    return {
        "schema": "headway.soak/1",
        "cancels": done,
        "kills": kills,
        "seconds": round(time.monotonic() - begun, 1),
        "moments": dict(moments),
        "outcomes": outcomes,
        "pieces": int(pieces),
        "keepalives": int(kept),
        "after_warm_up": vars(first),
        "at_the_end": vars(last),
    }


async def restarted(port: int) -> RunningServer:
    for _ in range(200):
        try:
            return await start_engine(BRISK, port=port)
        except OSError:  # the old one's socket is being closed
            await asyncio.sleep(0.02)
    raise AssertionError("the engine's port is not given back")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cancels", type=int, default=100_000)
    parser.add_argument("--kill-every", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this many, and say how many cancels there were")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for every engine that dies and every client that left
    record = uvloop.run(soak(options.cancels, options.kill_every, options.seed, options.minutes * 60))
    print(json.dumps(record, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
