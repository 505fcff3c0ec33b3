"""A real vLLM on this CPU, on the loopback address, for as long as a context lives.

Cores. The engine and its worker never sleep; with only two cores vLLM's HTTP front end may not get its turn until an
answer is complete, which then comes all at once and looks like starvation. So the engine and its worker are put
on core 0, the front end on core 1, and whoever measures stays on core 1 as well (`off_core_0`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO

import aiohttp

from headway.errors import ServerError, UsageError
from headway.lab.process import ROOT, stop, tail

MODEL_NAME = "m"
SCHEDULER = "headway.engines.vllm.scheduler.HeadwayScheduler"
READY_S = 240.0
LAUNCHER = Path(__file__).with_name("launch.py").resolve()
SETTINGS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "PYTHONSAFEPATH": "1",  # the launcher's own folder has a vllm.py too
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(python: Path, model: Path, port: int, arguments: Sequence[str] = (), *, details: bool = True) -> list[str]:
    """Through launch.py, not `vllm serve`: that looks for a package named vllm, and this one is named
    vllm-cpu.

    `details`: report cached tokens (`--enable-prompt-tokens-details`).
    """
    return [
        str(python), str(LAUNCHER), "--model", str(model),
        "--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port),
        "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager",
        *(["--enable-prompt-tokens-details"] if details else []), *arguments,
    ]  # fmt: skip


@asynccontextmanager
async def serve_vllm(
    python: Path,
    model: Path,
    arguments: Sequence[str] = (),
    *,
    details: bool = True,
    port: int | None = None,
    log_path: Path | None = None,
    pin: bool = True,
    ready_s: float = READY_S,
    targets: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Yields the base URL once /health answers. `targets`: with the scheduler class, and these HEADWAY_* variables.

    Raises ServerError with the end of the log when it never does.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", **os.environ, **SETTINGS}
    environment.pop("PYTHONPATH", None)
    if targets is not None:
        arguments = [*arguments, "--scheduler-cls", SCHEDULER]
        environment |= {"PYTHONPATH": ROOT, **targets}
    with _log(log_path) as log:
        with all_cores():
            process = await asyncio.create_subprocess_exec(
                *command(python, model, port, arguments, details=details),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, cwd=model, start_new_session=True,
            )  # fmt: skip
        try:
            end = time.monotonic() + ready_s
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
                while not await _healthy(http, url):
                    if process.returncode is not None:
                        raise ServerError(f"vLLM stopped with code {process.returncode}: {tail(log)}")
                    if time.monotonic() > end:
                        raise ServerError(f"vLLM was not ready within {ready_s:.0f} s: {tail(log)}")
                    await asyncio.sleep(0.5)
            if pin:
                pin_vllm(process.pid)
            yield url
        finally:
            await stop(process)


def _log(path: Path | None) -> IO[bytes]:
    try:
        return open(path, "w+b") if path else tempfile.TemporaryFile()
    except OSError as error:
        raise UsageError(f"cannot write the log {path}: {error.strerror}") from None


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url + "/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def pin_vllm(front_end: int) -> None:
    """The front end to core 1, its children and theirs to core 0. Does nothing on fewer than two cores."""
    if not _two_cores():
        return
    _pin(front_end, {1})
    for child in _descendants(front_end):
        _pin(child, {0})


def _two_cores() -> bool:
    return hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) >= 2


def _pin(pid: int, cores: set[int]) -> None:
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # a thread may end in between
                os.sched_setaffinity(int(task), cores)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


@contextmanager
def off_core_0() -> Iterator[None]:
    """This process, and what it starts meanwhile, leaves core 0 to the engine."""
    yield from _affinity({1})


@contextmanager
def all_cores() -> Iterator[None]:
    """For starting an engine from a process that is pinned: it would inherit that."""
    yield from _affinity(set(range(os.cpu_count() or 1)))


def _affinity(cores: set[int]) -> Iterator[None]:
    if not _two_cores():
        yield
        return
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
