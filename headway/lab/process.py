"""A child process that serves: started in its own process group, known to be ready by what it says, stopped
whole.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

from headway.errors import ServerError

STOP_S = 8.0
ROOT = str(Path(__file__).resolve().parents[2])
T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, with SIGTERM and a closed terminal ending it the way Ctrl-C does: so that the children are stopped too."""

    async def guarded() -> T:
        task = asyncio.ensure_future(main)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def tail(log: IO[bytes], lines: int = 8) -> str:
    """The last lines of a log file that somebody else is writing."""
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), 8192, max(0, size - 8192)).decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-lines:])


async def stop(process: asyncio.subprocess.Process, patience: float | None = None) -> None:
    """SIGTERM to the process, then SIGKILL to its whole group: a server's workers must not outlive it."""
    try:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S if patience is None else patience)
    finally:  # also when a second Ctrl-C interrupts the waiting
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


@dataclass(frozen=True)
class Served:
    url: str
    status_url: str | None
    pid: int


@asynccontextmanager
async def headway(
    arguments: Sequence[str], *, ready_s: float = 30.0, env: Mapping[str, str] | None = None
) -> AsyncIterator[Served]:
    """`headway ARGUMENTS` under this interpreter, until it prints where it listens. Raises ServerError
    otherwise.
    """
    name = f"headway {arguments[0]}"
    environment = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
    # The child must run the code that this process runs, installed or not
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, environment.get("PYTHONPATH")]))
    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headway", *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            env=environment, start_new_session=True,
        )  # fmt: skip
        drain: asyncio.Task[None] | None = None
        try:
            assert process.stdout is not None
            try:
                line = await asyncio.wait_for(_ready_line(process.stdout), ready_s)
            except TimeoutError:
                raise ServerError(f"{name} was not ready within {ready_s:.0f} s: {tail(log)}") from None
            if line is None:
                raise ServerError(f"{name} stopped before it was ready: {tail(log) or 'it said nothing'}")
            drain = asyncio.create_task(_drain(process.stdout))
            listening = re.search(r"listening on (http://\S+)", line)
            status = re.search(r"status (http://\S+)", line)
            assert listening is not None
            yield Served(
                listening.group(1).rstrip("/,;)"),
                status.group(1).rstrip("/,;)") if status else None,
                process.pid,
            )
        finally:
            if drain is not None:
                drain.cancel()
            await stop(process)


async def _ready_line(out: asyncio.StreamReader) -> str | None:
    while line := await out.readline():
        text = line.decode(errors="replace")
        if "listening on http://" in text:
            return text
    return None


async def _drain(out: asyncio.StreamReader) -> None:
    """A pipe that nobody reads would in the end stop the child."""
    while await out.read(65536):
        pass
