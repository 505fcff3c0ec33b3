"""Must: SIGTERM drains with a bound: answers under way end, nothing new is taken, a second signal ends it at once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.gateway.support import Answer, chat, engine, read_stream, run, session, until
from tests.gateway.test_serve_options import serving


class Served:
    def __init__(self, process: object, url: str) -> None:
        self.process, self.url = process, url


@asynccontextmanager
async def gateway_process(upstream: str, drain: float) -> AsyncIterator[tuple[object, str]]:
    arguments = ("--upstream", upstream, "--listen", "127.0.0.1:0", "--probe", "off", "--drain", str(drain))
    process, line = await asyncio.to_thread(serving, *arguments)
    try:
        yield process, line.split()[3]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            pipe.close()  # type: ignore[union-attr]


def test_streams_under_way_complete_and_nothing_new_is_taken() -> None:
    async def main() -> None:
        async with engine() as server, gateway_process(server.url, 20) as (process, url), session() as http:
            answers = [Answer(0, 0.0) for _ in range(3)]
            streams = [
                asyncio.ensure_future(read_stream(http, url, chat(f"hello {n}", stream=True, max_tokens=100), answer))
                for n, answer in enumerate(answers)
            ]
            await until(lambda: all(len(answer.events) > 5 for answer in answers))
            process.send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
            await asyncio.sleep(0.2)
            async with session() as other:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await other.get(url + "/v1/models")
            assert process.poll() is None  # type: ignore[attr-defined]
            for answer in await asyncio.gather(*streams):
                assert answer.done and len(answer.text) == 400
            code = await asyncio.to_thread(process.wait, 5)  # type: ignore[attr-defined]
            assert code == 0

    run(main())


def test_drain_is_bounded() -> None:
    async def main() -> None:
        async with engine() as server, gateway_process(server.url, 0.5) as (process, url), session() as http:
            answer = Answer(0, 0.0)
            stream = asyncio.ensure_future(read_stream(http, url, chat("hi", stream=True, max_tokens=5000), answer))
            await until(lambda: len(answer.events) > 5)
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream
            assert await asyncio.to_thread(process.wait, 10) == 0  # type: ignore[attr-defined]
            assert 0.4 < time.monotonic() - begun < 5.0
            await until(lambda: server.engine.num_running == 0, 2)

    run(main())


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    async def main() -> None:
        async with engine() as server, gateway_process(server.url, 60) as (process, url), session() as http:
            answer = Answer(0, 0.0)
            stream = asyncio.ensure_future(read_stream(http, url, chat("hi", stream=True, max_tokens=5000), answer))
            await until(lambda: len(answer.events) > 5)
            process.send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
            await asyncio.sleep(0.3)
            assert process.poll() is None and not stream.done()  # type: ignore[attr-defined]
            begun = time.monotonic()
            process.send_signal(second)  # type: ignore[attr-defined]
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream
            assert await asyncio.to_thread(process.wait, 10) == 0  # type: ignore[attr-defined]
            assert time.monotonic() - begun < 4.0
            errors = process.stderr.read()  # type: ignore[attr-defined]
            assert "Traceback" not in errors and "stopping: 1 requests under way" in errors
            await until(lambda: server.engine.num_running == 0, 2)

    run(main())
