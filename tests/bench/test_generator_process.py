"""The load generator's process: what it raises, and that it neither outlives its parent nor leaves it waiting."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.bench.context import Settings
from headway.bench.process import generator
from headway.errors import HeadwayError, ServerError
from headway.lab.vllm import free_port

CHILD = """
import asyncio, sys
from headway.bench.process import generator
async def main():
    async with generator(lambda text: None) as load:
        print(load._process.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def test_what_the_generator_raises_arrives_as_it_was() -> None:
    async def run() -> None:
        async with generator(lambda text: None) as load:
            await load.call("open", f"http://127.0.0.1:{free_port()}", None, None, Settings(), None)

    with pytest.raises(ServerError, match=r"cannot connect to http://127.0.0.1:.*Connection refused"):
        asyncio.run(run())


def test_a_generator_that_is_killed_is_one_line() -> None:
    async def run() -> None:
        async with generator(lambda text: None) as load:
            os.kill(load._process.pid, signal.SIGKILL)
            await load.call("run", "burst", 0)

    with pytest.raises(HeadwayError, match="the load generator's process ended with code -9"):
        asyncio.run(run())


def test_a_generator_does_not_outlive_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = Path("/proc") / parent.stdout.readline().strip()
    assert child.exists()
    parent.kill()
    parent.wait()
    end = time.monotonic() + 30
    while child.exists() and "Z" not in child.joinpath("stat").read_text().split(") ")[1][:1] and time.monotonic() < end:
        time.sleep(0.05)
    assert not child.exists() or ") Z" in child.joinpath("stat").read_text()
