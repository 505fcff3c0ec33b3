"""`headway engine`: what it refuses, and how it runs as a process."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from headway.cli import main

RUN = [sys.executable, "-c", "from headway.cli import main; main()", "engine"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--profile", "nope"], "--profile"),
        (["--vllm-version", "0.1"], "--vllm-version"),
        (["--port", "99999"], "--port"),
        (["--scheduling-policy", "random"], "--scheduling-policy"),
        (["--profile", "h200-qwen3.6-27b", "--max-num-batched-tokens", "1024"], "--max-num-batched-tokens"),
        (["--tokens-per-step", "3"], "--tokens-per-step"),
        (["--num-gpu-blocks", "10"], "--num-gpu-blocks"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_the_option(
    arguments: list[str], option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(arguments, monkeypatch, capsys).startswith(f"headway: {option}: ")


def test_a_port_in_use_names_the_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refusal(["--port", str(port)], monkeypatch, capsys).startswith("headway: --port: ")


def refusal(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command says before it ends with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["headway", "engine", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_it_serves_until_it_is_told_to_stop() -> None:
    process = subprocess.Popen(
        [*RUN, "--port", "0", "--model", "small", "--vllm-version", "0.25.1", "--max-num-seqs", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline()
        assert "SIMULATED, not a real engine" in said
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None
        with urllib.request.urlopen(f"{found[0]}/version", timeout=10) as answer:
            assert json.load(answer) == {"version": "simulated-0.25.1"}
        with urllib.request.urlopen(f"{found[0]}/v1/models", timeout=10) as answer:
            assert json.load(answer)["data"][0]["id"] == "small"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
