"""One real vLLM on this CPU for the tests that only need it to be there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.lab.vllm import free_port

ARGUMENTS = (
    "--max-num-batched-tokens", "2048", "--max-num-seqs", "8", "--enable-prefix-caching",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
)  # fmt: skip


class RealEngine:
    """A real vLLM in a process group of its own."""

    def __init__(self, log: Path, *, details: bool = True) -> None:
        port = free_port()
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "headway", "lab", "serve", "--port", str(port), "--log", str(log)]
        command += ["--details" if details else "--no-details", *ARGUMENTS]
        self.process = subprocess.Popen(command, start_new_session=True)
        end = time.monotonic() + 240
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                pytest.fail(f"vLLM did not start: {log.read_text()[-2000:]}")
            time.sleep(0.5)

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def running(self) -> float:
        """Requests that the engine runs or keeps waiting, by its own count."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))

    def kill(self) -> None:
        """As the kernel would: no handler runs, connections are reset."""
        mark = f"--port\0{self.port}\0".encode()
        for folder in Path("/proc").iterdir():
            try:
                command = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
                if mark in command and b"launch.py" in command:
                    os.killpg(int(folder.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    engine = RealEngine(tmp_path_factory.mktemp("vllm") / "vllm.log")
    yield engine
    engine.stop()
