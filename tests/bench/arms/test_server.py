"""One server's life: up, or one clear reason why not; and nothing of it is left afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from headway.bench.arms.plan import Server
from headway.bench.arms.server import Life, Lost, last_words, serving

FAKE = str(Path(__file__).with_name("fake_server.py"))


def fake(*how: str, **options: object) -> Server:
    return Server((sys.executable, FAKE, "{port}", *how), **options)  # type: ignore[arg-type]


def live(server: Server, folder: Path, seconds: float = 0.0) -> list[str]:
    """Start it, keep it that long, stop it; what was said."""
    said: list[str] = []

    async def run() -> None:
        async with serving(server, folder / "log", said.append) as life:
            assert life.died is None
            await asyncio.sleep(seconds)
            said.append(life.died or "lives")

    asyncio.run(run())
    return said


def gone(pid: int) -> bool:
    """Within 5 s; a zombie that nobody reaps here is gone too."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_nothing_of_a_server_is_left(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert live(fake("fork", str(pids)), tmp_path)[-1] == "lives"
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2 and all(gone(pid) for pid in started)


def test_nothing_is_left_when_waiting_is_interrupted_twice(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # The server ignores SIGTERM, so that stopping it takes its time
    stubborn = (
        "import runpy, signal, sys; signal.signal(15, signal.SIG_IGN); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    )
    server = Server((sys.executable, "-c", stubborn, FAKE, "{port}", "fork", str(pids)), stop_s=60)

    async def run() -> None:
        async def body() -> None:
            async with serving(server, tmp_path / "log", lambda text: None):
                await asyncio.sleep(600)

        task = asyncio.ensure_future(body())
        while not pids.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(0.3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert all(gone(int(line)) for line in pids.read_text().split())


@pytest.mark.parametrize(
    ("server", "stage", "words"),
    [
        (Server(("no-such-command", "{port}")), "command", "no-such-command: command not found"),
        (fake(cwd="/nowhere"), "command", "there is no folder /nowhere (server.cwd)"),
        (fake("die"), "start", "the server ended with exit code 1: ValueError: no such model"),
        (fake("never", ready_s=0.8), "ready", "did not answer 200 within 1 s (ready_s)"),
        (Server((sys.executable, "-c", "pass")), "start", "say how to stop that: stop ="),
        (Server(None, "http://127.0.0.1:9", ready_s=0.3), "ready", "http://127.0.0.1:9/health did not answer"),
    ],
)
def test_a_server_that_does_not_come_up_is_one_line(server: Server, stage: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Lost) as lost:
        live(server, tmp_path)
    assert lost.value.stage == stage and words in str(lost.value) and "\n" not in str(lost.value)


def test_a_port_in_use_is_not_measured(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Lost, match=f"port {port} is in use already"):
            live(fake(port=port), tmp_path)


def test_a_server_that_dies_says_how(tmp_path: Path) -> None:
    async def run() -> str | None:
        async with serving(fake("dies-later", "0.5"), tmp_path / "log", lambda text: None) as life:
            return await life.death(10)

    assert asyncio.run(run()) == "the server ended with exit code 9"


def test_what_a_command_left_running_is_stopped_by_the_stop_command(tmp_path: Path) -> None:
    """Like `docker compose up -d` and `docker compose down`."""
    pid = tmp_path / "pid"
    start = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], start_new_session=True); "
        f"open({str(pid)!r}, 'w').write(str(p.pid))"
    )
    stop = f"import os; os.kill(int(open({str(pid)!r}).read()), 9)"
    server = Server((sys.executable, "-c", start, sys.executable, FAKE, "{port}"), stop=(sys.executable, "-c", stop), ready_s=20)
    try:
        assert live(server, tmp_path)[-1] == "lives"
        assert gone(int(pid.read_text()))
    finally:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_stop_command_that_fails_is_said(tmp_path: Path) -> None:
    said = live(fake(stop=(sys.executable, "-c", "import sys; sys.exit('no such container')")), tmp_path)
    assert "ended with exit code 1: no such container" in said[-1]


def test_a_running_server_is_neither_started_nor_stopped(tmp_path: Path) -> None:
    async def run() -> str:
        async with serving(fake(), tmp_path / "a", lambda text: None) as first:
            told = Server(None, first.url + "/v1")
            async with serving(told, tmp_path / "b", lambda text: None) as second:
                assert isinstance(second, Life) and second.url == first.url
            return first.died or "lives"

    assert asyncio.run(run()) == "lives"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ready\nbye\n", "bye"),
        ("Traceback\n  File\nKeyError: 'x'\n", "KeyError: 'x'"),
        (
            "ValidationError: 1 validation error for C\n  Value error, tokens (4) must be at least seqs (8). [type=value_error]\n"
            "    For further information visit https://errors.pydantic.dev\n",
            "Value error, tokens (4) must be at least seqs (8). [type=value_error]",
        ),
        (
            "(EngineCore pid=12) ERROR 12-01 15:00:00 [core.py:866] AssertionError: In Mamba cache align mode, no.\n"
            "(APIServer pid=9)   File x\n"
            "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above.\n",
            "AssertionError: In Mamba cache align mode, no.",
        ),
        ("vllm: error: unrecognized arguments: --x\n", "vllm: error: unrecognized arguments: --x"),
        ("", ""),
    ],
)
def test_the_reason_is_found_in_the_log(log: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log)
    with open(tmp_path / "log", "rb") as file:
        assert last_words(file) == words
