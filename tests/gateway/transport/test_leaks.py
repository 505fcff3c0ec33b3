"""Mixed endings by the hundred leave no task, no connection and no open file."""

from __future__ import annotations

import asyncio
import random

from tests.gateway.transport.conftest import open_files
from tests.gateway.transport.peers import dialing, eventually, listening, raw_client, read_request, scripted
from tests.gateway.transport.relay import relay

EXCHANGES = 500


async def moody_upstream(reader, writer, _):
    """Answers as the request's target says, or dies in one of several ways."""
    while True:
        head, _ = await read_request(reader)
        mood = head.split(b" ", 2)[1]
        if mood == b"/dead":
            return
        if mood == b"/silent":
            await reader.read()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20 if mood == b"/stream" else 2):
            writer.write(b"5\r\nhello\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)
        if mood == b"/cut":
            return
        writer.write(b"0\r\n\r\n")


def test_mixed_endings_leave_nothing(run):
    async def scenario():
        rng = random.Random(7)
        outcomes = {"whole": 0, "left": 0}

        async def one(port: int) -> None:
            mood = rng.choice([b"/whole", b"/stream", b"/cut", b"/dead", b"/silent"])
            leave = rng.choice(["close", "half_close", "reset"])
            stay = rng.choice([0, 0.001, 0.01, 0.03])
            async with raw_client(port) as client:
                raw = b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 400\r\n\r\n" % mood
                client.send(raw + b"x" * rng.choice([100, 400, 400, 400]))
                if mood == b"/whole" and rng.random() < 0.5:
                    try:
                        async with asyncio.timeout(1):
                            seen = await client.rest()
                            outcomes["whole"] += seen.endswith(b"0\r\n\r\n")
                    except TimeoutError:
                        pass
                else:
                    await asyncio.sleep(stay)
                    outcomes["left"] += 1
                getattr(client, leave)()

        async with scripted(moody_upstream) as up:
            before = open_files()
            async with dialing(up) as dialer, listening(relay(dialer)) as listener:
                gate = asyncio.Semaphore(50)

                async def gated() -> None:
                    async with gate:
                        await one(listener.port)

                await asyncio.gather(*(gated() for _ in range(EXCHANGES)))
                assert outcomes["whole"] > 10
                assert outcomes["left"] > 300
                await eventually(lambda: listener.live == 0 and not listener.connections)
                # What is left upstream is idle: no connection serves a client that is gone.
                await eventually(lambda: all(c.call is None for c in dialer._open))
                assert sorted(map(id, dialer._idle)) == sorted(map(id, dialer._open))
            await eventually(lambda: open_files() <= before)

    run(scenario)
