"""The driver as a child process: scenarios in, traces of vLLM's own Scheduler out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.simulator.scenarios import spelled_out

DRIVER = Path(__file__).with_name("scheduler_driver.py")
VARIABLE = "HEADWAY_VLLM_PYTHON"


@contextlib.contextmanager
def vllm_scheduler() -> Iterator[Callable[[dict[str, Any]], list[dict[str, Any]]]]:
    """A function from a scenario to vLLM's trace. KeyError where HEADWAY_VLLM_PYTHON is not set."""
    process = subprocess.Popen(
        [os.environ[VARIABLE], str(DRIVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def ask(scenario: dict[str, Any]) -> list[dict[str, Any]]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(spelled_out(scenario)) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"scenario {scenario['seed']}: {answer['error']}")
        return answer["trace"]

    try:
        yield ask
    finally:
        process.kill()
        process.wait()
