"""The gateways that are compared: how each is started as one worker in front of one upstream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = [Path(part) for part in os.environ.get("HEADWAY_PEERS", "").split(os.pathsep) if part]
"""Folders with peers that are not on PATH: the bin/ of a virtual environment each."""
START_S = 240.0
SETTLE_S = 3.0
"""Seconds from the first answer to the measurement: health checks, and Headway's probe."""


@dataclass
class Subject:
    name: str
    port: int
    process: asyncio.subprocess.Process | None
    folder: tempfile.TemporaryDirectory[str] | None = None

    def pids(self) -> list[int]:
        """Its process and all below."""
        if self.process is None:
            return []
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    queue += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        return found

    def cpu_ns(self) -> int:
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with contextlib.suppress(OSError):
                        total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        return total

    def rss_mb(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        if self.folder is not None:
            self.folder.cleanup()


Command = Callable[[int, int, Path], list[str]]
"""(port to listen on, upstream's port, an empty folder) -> command line."""


def _headway(*options: str) -> Command:
    def command(port: int, upstream: int, folder: Path) -> list[str]:
        own = [sys.executable, "-m", "headway", "serve", "--upstream", f"http://127.0.0.1:{upstream}", *options]
        return [*own, "--listen", f"127.0.0.1:{port}", "--status", "127.0.0.1:0", "--log-level", "warning"]

    return command


def _nginx(port: int, upstream: int, folder: Path) -> list[str]:
    (folder / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; client_body_buffer_size 1m;
  client_max_body_size 64m; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_request_buffering on; proxy_read_timeout 600;
    }}
  }}
}}
"""
    )
    return [_where("nginx"), "-c", str(folder / "nginx.conf"), "-p", str(folder)]


def _haproxy(port: int, upstream: int, folder: Path) -> list[str]:
    (folder / "haproxy.cfg").write_text(
        f"""global
  nbthread 1
  maxconn 2000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  http-reuse always
  server s 127.0.0.1:{upstream}
"""
    )
    return [_where("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


def _router(program: str, *words: str) -> Command:
    def command(port: int, upstream: int, folder: Path) -> list[str]:
        urls = ["--worker-urls", f"http://127.0.0.1:{upstream}", "--host", "127.0.0.1", "--port", str(port)]
        return [
            _where(program),
            *words,
            *urls,
            "--policy",
            "round_robin",
            "--log-level",
            "error",
            "--prometheus-port",
            str(free()),
        ]

    return command


def _litellm(port: int, upstream: int, folder: Path) -> list[str]:
    (folder / "config.yaml").write_text(
        f"""model_list:
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "http://127.0.0.1:{upstream}/v1", api_key: k}}
litellm_settings: {{telemetry: false}}
"""
    )
    return [_where("litellm"), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]


SUBJECTS: dict[str, Command | None] = {
    "direct": None,
    "headway": _headway(),
    "headway-passthrough": _headway("--policy", "passthrough", "--probe", "off"),
    "nginx": _nginx,
    "haproxy": _haproxy,
    "vllm-router": _router("vllm-router"),
    "sglang-router": _router("sglang-router", "launch"),
    "smg": _router("smg", "launch"),
    "litellm": _litellm,
}
SHARES = {"litellm": 0.04}
"""Part of the requests that a slow one is measured with."""
VERSIONS = {"nginx": ["-v"], "haproxy": ["-v"]}
PACKAGES = {"vllm-router": "vllm-router", "sglang-router": "sglang-router", "smg": "smg", "litellm": "litellm"}


def _where(program: str) -> str:
    for folder in PEERS:
        if (folder / program).exists() and (program not in PACKAGES or _package(folder, PACKAGES[program])):
            return str(folder / program)
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not installed")
    return found


def _package(folder: Path, package: str) -> str:
    """Version of a package in the virtual environment of this bin/ folder; empty where it is not there."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([str(folder / "python"), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def version(name: str) -> str:
    if name in VERSIONS:
        done = subprocess.run([_where(name), *VERSIONS[name]], capture_output=True, text=True, check=False)
        words = (done.stdout + done.stderr).replace("/", " ").split()
        return next((word for word in words if word[0].isdigit()), "")
    if name in PACKAGES:
        return _package(Path(_where(name)).parent, PACKAGES[name])
    return ""


def free() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def upstream() -> AsyncIterator[int]:
    """Port of the upstream, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.overhead_peers.upstream"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def start(name: str, upstream_port: int) -> Subject | str:
    """The gateway, answering; or why it cannot be compared here."""
    command = SUBJECTS[name]
    if command is None:
        return Subject(name, upstream_port, None)
    folder = tempfile.TemporaryDirectory(prefix="headway-overhead-")
    port = free()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # it listens on loopback
    try:
        line = command(port, upstream_port, Path(folder.name))
        with open(Path(folder.name) / "log", "wb") as log:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(*line, cwd=folder.name, stdout=log, stderr=log, env=environment)
    except OSError as error:
        folder.cleanup()
        return str(error)
    subject = Subject(name, port, process, folder)
    loop = asyncio.get_running_loop()
    end = loop.time() + START_S
    while loop.time() < end and process.returncode is None:
        if await _answers(port):
            await asyncio.sleep(SETTLE_S)
            return subject
        await asyncio.sleep(0.2)
    said = (Path(folder.name) / "log").read_text(errors="replace")[-300:]
    await subject.stop()
    return f"it did not start: {said}"


async def _answers(port: int) -> bool:
    from benchmarks.overhead_peers import load

    try:
        await asyncio.wait_for(load.plain(port, b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}', 1, 1), 5)
    except (OSError, load.Unexpected, asyncio.IncompleteReadError, TimeoutError, ValueError):
        return False
    return True
