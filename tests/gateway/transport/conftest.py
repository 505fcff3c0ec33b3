"""Both event loops, a small harness, and a check after each test that nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LIMIT_S = 15

uvloop.run(asyncio.sleep(0))  # the first loop opens files that stay open for the life of the process


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run an async scenario on one of the loops; fail if it leaves a task, a file or an unhandled error."""

    def runner(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        unhandled: list[str] = []

        async def guarded() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: unhandled.append(repr(context)))
            await asyncio.wait_for(scenario(), LIMIT_S)
            await asyncio.sleep(0)
            mine = asyncio.current_task()
            left = [task for task in asyncio.all_tasks() if task is not mine and not task.done()]
            assert left == []

        before = open_files()
        (uvloop.run if request.param == "uvloop" else asyncio.run)(guarded())
        if open_files() > before:
            gc.collect()  # a test's own peers may hang on reference cycles
        assert open_files() <= before
        assert unhandled == []

    return runner
