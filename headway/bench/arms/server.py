"""The life of one server: started from its command in a process group of its own, waited for, stopped whole.

Nothing is left behind however the life ends: the stop command (if there is one), SIGTERM to the group, SIGKILL to the group.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import aiohttp

from headway.bench.arms.plan import Server
from headway.bench.arms.template import Unknown, fill
from headway.errors import ServerError
from headway.lab.process import ROOT

Say = Callable[[str], None]
READY_PATHS = ("/health", "/v1/models")
POLL_S, REMIND_S = 0.25, 30.0
TAIL_BYTES, TAIL_LINES = 65536, 80
NAMES_AN_ERROR = re.compile(r"\b[A-Za-z.]*(Error|Exception): \S|\b(value |fatal )?error[:,] \S", re.IGNORECASE)
#: What stands below the reason and says nothing: pydantic's link, and vLLM's pointer from one process to another.
EMPTY_WORDS = ("For further information visit", "Engine core initialization failed")
LOG_PREFIX = re.compile(r"^(\([^)]*pid=\d+\) ?)?((ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
LINGER_S = 3.0  # for the rest of a group whose first process has ended


class Lost(ServerError):
    """The server did not come up, or is gone. `stage`: command | port | start | ready | gateway | run | stop."""

    def __init__(self, stage: str, what: str) -> None:
        super().__init__(what)
        self.stage = stage


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_use(port: int) -> bool:
    """Somebody listens there: a server that was not started here must not be measured instead of the one that was."""
    for host in ("127.0.0.1", "::1"):
        with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return True
    return False


class Life:
    """A server that is up. `url` is its base URL."""

    def __init__(
        self, url: str, process: asyncio.subprocess.Process | None = None, log: IO[bytes] | None = None, detaches: bool = False
    ) -> None:
        """`detaches`: there is a stop command, so a command that ends well may have left the server running."""
        self.url, self._process, self._log, self._detaches = url, process, log, detaches

    @property
    def ended_well(self) -> bool:
        return self._process is not None and self._process.returncode == 0

    @property
    def died(self) -> str | None:
        """How it ended, with the end of its log; None while it lives, or where only its stop command knows."""
        if self._process is None or self._process.returncode is None or (self.ended_well and self._detaches):
            return None
        said = last_words(self._log)
        return f"the server ended with {ending(self._process.returncode)}{': ' + said if said else ''}"

    async def death(self, patience: float = 2.0) -> str | None:
        """The same after a request has failed: connections break a moment before a process is known to have ended."""
        if self._process is not None and not (self.ended_well and self._detaches):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), patience)
        return self.died


def ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def last_words(log: IO[bytes] | None) -> str:
    """The line of the log's end that names the reason: the last one that names an error, else the last one."""
    if log is None:
        return ""
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
    lines = [line for raw in text.splitlines() if (line := raw.strip()) and not any(words in line for words in EMPTY_WORDS)]
    named = [line for line in lines[-TAIL_LINES:] if NAMES_AN_ERROR.search(line)]
    said = (named or lines or [""])[-1]
    return LOG_PREFIX.sub("", said)[:400]


def _open(path: Path) -> IO[bytes]:
    return open(path, "w+b")


@asynccontextmanager
async def serving(server: Server, log_path: Path, say: Say) -> AsyncIterator[Life]:
    """Raises Lost when the server does not come up. A server that is only a `url` is asked whether it is ready."""
    if server.command is None:
        assert server.url is not None
        life = Life(server.url.rstrip("/").removesuffix("/v1"))
        await _ready(server, life, {"url": life.url}, say)
        yield life
        return
    if server.port is not None and in_use(server.port):
        raise Lost("port", f"port {server.port} is in use already: something else would be measured")
    port = server.port or free_port()
    url = f"http://127.0.0.1:{port}"
    values = {"port": port, "url": url}
    words = [fill(word, values) for word in server.command]
    environment = {**os.environ, **{name: fill(value, values) for name, value in server.env}}
    with _open(log_path) as log:
        say(f"starting {shlex.join(words)}")
        process = await _spawn(words, environment, server.cwd, log)
        life = Life(url, process, log, detaches=server.stop is not None)
        try:
            await _ready(server, life, values, say)
            yield life
        finally:
            await _stop(server, process, environment, values, log, say)


async def _spawn(
    words: Sequence[str], environment: Mapping[str, str], cwd: str | None, log: IO[bytes]
) -> asyncio.subprocess.Process:
    if words[0] == "headway":  # this one, installed or not
        words = [sys.executable, "-m", "headway", *words[1:]]
        environment = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, environment.get("PYTHONPATH")]))}
    try:
        return await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=cwd,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        if cwd is not None and not os.path.isdir(cwd):  # noqa: ASYNC240 (once, before anything is measured)
            raise Lost("command", f"there is no folder {cwd} (server.cwd)") from None
        found = "command not found" if isinstance(error, FileNotFoundError) else error.strerror
        raise Lost("command", f"{words[0]}: {found}") from None


def _ready_urls(server: Server, url: str, values: Mapping[str, object]) -> list[str]:
    if server.ready is None:
        return [url + path for path in READY_PATHS]
    told = fill(server.ready, values)
    return [told if told.startswith(("http://", "https://")) else f"{url}/{told.lstrip('/')}"]


async def _ready(server: Server, life: Life, values: Mapping[str, object], say: Say) -> None:
    urls = _ready_urls(server, life.url, values)
    begun = told = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5), trust_env=False) as http:
        while not await _answers(http, urls):
            if life.ended_well and server.stop is None:
                raise Lost(
                    "start",
                    "the command ended (exit code 0) before the server was ready; if it starts something in the "
                    "background, say how to stop that: stop = \"...\"",
                )  # fmt: skip
            if (died := life.died) is not None:
                raise Lost("start", died)
            now = time.monotonic()
            if now - begun > server.ready_s:
                said = last_words(life._log)
                last = f"; it last said: {said}" if said else ""
                raise Lost("ready", f"{urls[0]} did not answer 200 within {server.ready_s:.0f} s (ready_s){last}")
            if now - told > REMIND_S:
                told = now
                say(f"  waiting for {urls[0]} ({now - begun:.0f} of {server.ready_s:.0f} s)")
            await asyncio.sleep(POLL_S)


async def _answers(http: aiohttp.ClientSession, urls: Sequence[str]) -> bool:
    """200 at the first; the next ones are for servers that have no such page."""
    for url in urls:
        try:
            async with http.get(url) as answer:
                if answer.status == 200:
                    return True
                if answer.status not in (404, 405):
                    return False
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
    return False


async def _stop(
    server: Server,
    process: asyncio.subprocess.Process,
    environment: Mapping[str, str],
    values: Mapping[str, object],
    log: IO[bytes],
    say: Say,
) -> None:
    try:
        if server.stop is not None:
            await _stop_command(server, environment, values, log, say)
        await _end_group(process, server.stop_s)
    finally:  # also when this itself is interrupted
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _stop_command(
    server: Server, environment: Mapping[str, str], values: Mapping[str, object], log: IO[bytes], say: Say
) -> None:
    assert server.stop is not None
    try:
        stopper = await _spawn([fill(word, values) for word in server.stop], environment, server.cwd, log)
    except (Lost, Unknown) as error:
        say(f"stop: {error}")
        return
    try:
        await asyncio.wait_for(stopper.wait(), server.stop_s)
    except TimeoutError:
        say(f"stop: {shlex.join(server.stop)} did not end within {server.stop_s:.0f} s (stop_s)")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(stopper.pid, signal.SIGKILL)
    if stopper.returncode:
        say(f"stop: {shlex.join(server.stop)} ended with {ending(stopper.returncode)}: {last_words(log)}")


async def _end_group(process: asyncio.subprocess.Process, patience: float) -> None:
    """SIGTERM to the whole group; returns when it is gone, or after `patience` seconds."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience)
    end = time.monotonic() + LINGER_S
    while time.monotonic() < end and _group_lives(process.pid):  # noqa: ASYNC110 (nobody tells when a group is empty)
        await asyncio.sleep(0.05)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
