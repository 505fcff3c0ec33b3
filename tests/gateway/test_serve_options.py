"""What `headway serve` is told: bad input is one line that names the option, no traceback; files and variables work."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from headway import cli
from headway.errors import ServerError, UsageError
from headway.gateway.config import Address, parse_address, parse_key, parse_origin, parse_targets
from headway.gateway.server import start
from tests.gateway.support import settings

ROOT = str(Path(__file__).resolve().parents[2])
UP = ["--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    return {**kept, "PYTHONPATH": ROOT, "PYTHONUNBUFFERED": "1", **more}


@dataclass
class Ended:
    returncode: object
    stdout: str
    stderr: str


Serve = Callable[..., Ended]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Serve:
    """`headway serve ARGUMENTS`, in this process, for command lines with which it does not start."""

    def call(*arguments: str) -> Ended:
        for name in [name for name in os.environ if name.startswith("HEADWAY_")]:
            monkeypatch.delenv(name)
        monkeypatch.setattr(sys, "argv", ["headway", "serve", *arguments])
        monkeypatch.setattr(cli, "app", typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False))
        cli.app.callback()(cli._root)
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfd.readouterr()
        return Ended(end.value.code, out, err)

    return call


BAD: list[tuple[str, list[str]]] = [
    ("--upstream", []),
    ("--upstream", ["--upstream", "127.0.0.1:8000"]),
    ("--upstream", ["--upstream", "ftp://127.0.0.1:8000"]),
    ("--upstream", ["--upstream", "http://127.0.0.1:eighty"]),
    ("--upstream", ["--upstream", "http://no-such-host.invalid:8000", "--listen", "127.0.0.1:0"]),
    ("--policy", [*UP, "--policy", "fair"]),
    ("--share", [*UP, "--share", "1.5"]),
    ("--share", [*UP, "--share", "half"]),
    ("--config", [*UP, "--config", "no-such-file.toml"]),
    ("--nope", [*UP, "--nope"]),
]


@pytest.mark.parametrize("option,arguments", BAD, ids=lambda value: value if isinstance(value, str) else " ".join(value[-2:]))
def test_bad_input_is_one_line(option: str, arguments: list[str], serve: Serve) -> None:
    ended = serve(*arguments)
    assert ended.returncode in (2, 3)
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1 and ended.stderr.startswith("headway: ")
    assert option in ended.stderr


def test_port_in_use(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--listen", "--status"):
            ended = serve(*UP, option, address)
            assert ended.returncode == 2
            assert len(ended.stderr.splitlines()) == 1 and option in ended.stderr and address in ended.stderr


@pytest.mark.parametrize(
    "url",
    [
        "", "http://", "http://:8000", "http://h:0", "http://h:70000", "http://h:-1", "http://h h:1", "http://h:1/a b", "//h:1",
        "http://user:key@h:1", "http://h:1/?a=b", "http://h:1/#f", "http://h:1\r\nX: y", "http://[::1:1", "http://h\u00e9:1",
        "h:1",
    ],
)  # fmt: skip
def test_unusable_upstream(url: str) -> None:
    with pytest.raises(UsageError, match="--upstream"):
        parse_origin(url)


def test_usable_upstream() -> None:
    assert parse_origin("http://h").port == 80 and parse_origin("https://h").port == 443
    assert parse_origin("http://[::1]:8000").authority == b"[::1]:8000"
    assert parse_origin("https://h:443/x/v1/").url == "https://h/x"


@pytest.mark.parametrize("text", ["x", "127.0.0.1", "h:x", "h:-1", "h:65536", "h:\u00b2", "h:", ""])
def test_unusable_address(text: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        parse_address(text, "--listen")


def test_usable_address() -> None:
    assert parse_address("8100", "--listen") == parse_address(":8100", "--listen") == Address("127.0.0.1", 8100)
    assert parse_address("[::1]:1", "--listen") == Address("::1", 1)


@pytest.mark.parametrize("key", ["", "a\nb", "a\r\nX-Evil: 1", "caf\u00e9"])
def test_unusable_key(key: str) -> None:
    with pytest.raises(UsageError, match="--upstream-key") as error:
        parse_key(key)
    assert not key or key not in str(error.value)


def test_names_that_are_none() -> None:
    async def main() -> None:
        with pytest.raises((UsageError, ServerError), match="--upstream"):
            await start(settings("http://a..b:1"))
        with pytest.raises(UsageError, match="--listen"):
            config = settings("http://127.0.0.1:1")
            await start(type(config)(config.upstreams, listen=Address("a..b", 1)))

    asyncio.run(main())


@pytest.mark.parametrize("name", ["share", "gap", "wait", "stretch", "queue"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_targets_out_of_range(name: str, value: str) -> None:
    good = {"share": 0.5, "gap": 0.25, "wait": 30.0, "stretch": 20.0, "queue": 10.0}
    if name == "queue" and value != "-1":
        return  # a whole number: the command line refuses it
    with pytest.raises(UsageError, match=f"--{name}"):
        parse_targets(**(good | {name: float(value)}))  # type: ignore[arg-type]


TOML = {
    "not TOML": "share = = 1",
    "not UTF-8": b"\xff\xfe",
    "an unknown key": "shares = 0.5",
    "a table": "[share]\nx = 1",
    "a share that is none": "share = 'much'",
}


@pytest.mark.parametrize("name", TOML)
def test_bad_file(name: str, tmp_path: Path, serve: Serve) -> None:
    file = tmp_path / "headway.toml"
    content = TOML[name]
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    ended = serve(*UP, "--config", str(file))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ("--share" if "share that" in name else "--config") in ended.stderr


def test_traceback_of_no_kind_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "headway", "serve", "--upstream", "http://a..b:1", "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=20)
    assert ended.returncode in (2, 3) and len(ended.stderr.splitlines()) == 1 and "--upstream" in ended.stderr


def serving(*arguments: str, **variables: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "headway", "serve", *arguments]
    process = subprocess.Popen(
        command, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def test_file_variables_and_options(tmp_path: Path) -> None:
    """The command line wins over variables, they win over the file, the file over the defaults."""
    file = tmp_path / "headway.toml"
    file.write_text(
        'upstream = "http://127.0.0.1:9/v1"\nlisten = "127.0.0.1:0"\nshare = 0.3\ngap = 0.3\nwait = 3\n'
        'policy = "hold"\nprobe = false\nmax-body = 100\nrelay = ["/ping"]\n'
    )
    process, line = serving("--config", str(file), "--share", "0.7", HEADWAY_SHARE="0.6", HEADWAY_GAP="0.6")
    try:
        assert "policy hold" in line and "share 0.7" in line and "gap 0.6 s" in line and "-> http://127.0.0.1:9 " in line
        assert "listening on http://127.0.0.1:" in line
        url = line.split("status ")[1].strip()
        with urllib.request.urlopen(url + "/status", timeout=5) as page:
            assert b'"wait":3.0' in page.read()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0 and "Traceback" not in errors


def test_other_machines_are_warned_about() -> None:
    process, line = serving("--upstream", "http://127.0.0.1:9", "--listen", "0.0.0.0:0")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert "http://0.0.0.0:" in line and "status http://127.0.0.1:" in line
    assert "reachable from other machines" in errors and process.returncode == 0
