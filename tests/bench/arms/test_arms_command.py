"""`headway bench arms` from the outside, on the embedded engine: two budgets are told apart, the same one twice is not; every
figure can be computed again from the events; and what is wrong is one line with its exit code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headway.bench.client import Event, Stream
from headway.bench.compare import ARMS_SCHEMA
from headway.bench.window import gaps, median, rate, view, window
from headway.core import frontier
from tests.bench.arms.test_server import FAKE, gone
from tests.bench.test_bench_command import command, last_line

QUIET_S = 0.3  # a machine on which the same engine's longest gaps differ by more cannot call the half second between two
ENGINE = """
title = "Budgets"
reps = 3
reps_per_start = 3
[vars]
budget = 8192
[server]
command = "headway engine --profile demo --port {port} --max-num-batched-tokens {budget}"
ready_s = 60
[client]
intruder_in = 7600
victim_out = 90
intruder_out = 4
after = 6
cooldown_s = 0.0
lag_limit_s = 10.0  # a busy test machine must not void these runs
[[arm]]
name = "8192"
[[arm]]
name = "512"
vars = { budget = 512 }
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    folder = tmp_path_factory.mktemp("arms")
    (folder / "f.toml").write_text(ENGINE)
    code, out, err = command("arms", str(folder / "f.toml"), "--out", str(folder / "out"), "--json", str(folder / "a.json"))
    assert code == 0, err
    return json.loads((folder / "a.json").read_text()), folder / "out", out


def one(document: dict[str, Any], arm: str, figure: str) -> dict[str, Any]:
    (found,) = (
        entry for entry in document["differences"]
        if (entry["arm"], entry["scenario"], entry["figure"]) == (arm, "overlap-after", figure)
    )  # fmt: skip
    return dict(found)


@pytest.mark.timeout(400)
def test_two_settings_are_told_apart(measured: tuple[dict[str, Any], Path, str]) -> None:
    document, _, out = measured
    assert document["schema"] == ARMS_SCHEMA
    assert [(arm["name"], arm["state"], arm["repetitions"]) for arm in document["arms"]] == [
        ("8192", "done", 3), ("512", "done", 3), ("8192 (A/A)", "done", 3),
    ]  # fmt: skip
    gap = one(document, "512", "longest_gap_s")
    # The engine's own rule: a step of p prefill tokens beside a decode takes a + e + b·p; one of 7,600 against 30 of 256 tokens
    assert gap["difference"] < -0.5 * (7600 - 256) * 80e-6
    if gap["floor"] < QUIET_S:
        assert gap["called"] == "lower" and gap["high"] < 0
    assert {entry["arm"] for entry in document["differences"]} == {"512"}  # the A/A pair is the measure, not the measured
    assert "A/A floor" in out and "8192 (A/A)" in out


@pytest.mark.timeout(400)
def test_pages_and_pictures_are_written(measured: tuple[dict[str, Any], Path, str]) -> None:
    _, folder, _ = measured
    names = {path.name for path in folder.iterdir()}
    assert {"arms.json", "report.md", "report.html", "timeline.svg", "frontier.svg"} <= names
    assert "| 512 |" in (folder / "report.md").read_text() and "<svg" in (folder / "report.html").read_text()


def restored(run: dict[str, Any], folder: Path) -> dict[str, Stream]:
    """The streams of a run, from the document and the side file alone."""
    lines = [json.loads(line) for line in (folder / run["events"]).read_text().splitlines()]
    out = {}
    for number, told in enumerate(run["streams"]):
        events = [Event(e["at_s"], e["tokens"]) for e in lines if e["run"] == run["run"] and e["stream"] == number]
        submitted = told["submitted_s"]
        out[told["class"]] = Stream(submitted=submitted, events=events, ended=submitted + told["ended_s"])
    return out


@pytest.mark.timeout(400)
def test_every_figure_can_be_computed_again_from_the_events(measured: tuple[dict[str, Any], Path, str]) -> None:
    document, folder, _ = measured
    checked = 0
    solo: dict[tuple[str, int], tuple[float, float]] = {}
    alone: dict[str, list[float]] = {}
    for run in document["runs"]:
        streams = restored(run, folder)
        if run["scenario"] == "intruder-alone":
            alone.setdefault(run["arm"], []).append(streams["intruder"].ttft or 0.0)
            assert streams["intruder"].ttft == pytest.approx(run["figures"]["t0_s"], abs=2e-4)
        if run["scenario"] == "victim-alone":
            speed, gap = rate(streams["victim"].events), median([g.seconds for g in gaps(streams["victim"].events)])
            assert speed == pytest.approx(run["figures"]["victim_tokens_per_s"], rel=1e-3)
            assert speed and gap is not None
            solo[run["arm"], run["rep"]] = speed, gap
    for run in document["runs"]:
        if run["scenario"] not in ("overlap-after", "overlap-together") or run["void"]:
            continue
        streams, (speed, gap) = restored(run, folder), solo[run["arm"], run["rep"]]
        seen = view(streams["victim"], window(streams["victim"], streams["intruder"]), gap)
        t0, late = median(alone[run["arm"]]), streams["intruder"].ttft
        assert t0 and late
        share = seen.share(speed)
        again = {
            "share": share, "victim_tokens_per_s": seen.rate, "longest_gap_s": seen.longest_gap_s,
            "stalled_s": seen.stalled_s, "window_s": seen.window_s, "intruder_ttft_s": late, "stretch": late / t0,
            "frontier_ttft_s": frontier.ttft(t0, share), "excess": frontier.excess(t0, late, share),
        }  # fmt: skip
        told = {key: run["figures"][key] for key in again}
        assert again == pytest.approx(told, rel=5e-3, abs=5e-4)
        checked += 1
    assert checked >= 9
    for arm in document["arms"]:
        shares = [
            r["figures"]["share"] for r in document["runs"]
            if r["arm"] == arm["name"] and r["scenario"] == "overlap-after" and not r["void"]
        ]  # fmt: skip
        assert arm["summary"]["overlap-after"]["share"]["median"] == pytest.approx(median(shares))


@pytest.mark.timeout(400)
def test_arms_can_be_compared_across_documents(measured: tuple[dict[str, Any], Path, str]) -> None:
    _, folder, _ = measured
    file, result = folder / "arms.json", folder / "compared.json"
    code, out, err = command("compare", f"{file}#8192", f"{file}#512", "--json", str(result))
    assert code == 0, err
    entries = {entry["name"]: entry for entry in json.loads(result.read_text())["differences"]}
    gap = entries["overlap-after, longest_gap_s"]
    assert gap["difference"] < 0 < gap["floor"]
    if gap["floor"] < QUIET_S:
        assert gap["called"] == "lower"
    code, out, err = command("compare", str(file), str(file))
    assert code == 0 and "8192: overlap-after, share" in out
    assert "higher" not in out and "lower" not in out
    code, _, err = command("compare", f"{file}#999", str(file))
    assert code == 2 and "no such arm; there are 8192, 512" in last_line(err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("arms",), "Missing argument 'FILE'"),
        (("arms", "/nowhere.toml"), "/nowhere.toml: No such file"),
        (("arms", "--example", "x"), "--example 'x' is unknown; there are cpu-vllm, engine, report"),
        (("arms", "FILE", "--set", "x"), "--set 'x' is not NAME=VALUE"),
        (("arms", "FILE", "--set", "x=1"), "--set x: the file has no such vars"),
        (("arms", "FILE", "--reps", "0"), "--reps 0 must be at least 1"),
        (("arms", "FILE", "--json", "/nowhere/a"), "--json /nowhere/a: there is no folder"),
        (("arms", "FILE", "--out", "/proc/x"), "--out /proc/x: "),
    ],
)
def test_an_unusable_command_line_is_one_line_and_two(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(ENGINE)
    code, _, err = command(*(str(tmp_path / "f.toml") if word == "FILE" else word for word in arguments))
    assert code == 2
    assert words in last_line(err)


def test_check_starts_nothing_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(ENGINE)
    code, out, _ = command("arms", str(tmp_path / "f.toml"), "--check", "--out", str(tmp_path / "out"))
    assert code == 0 and "512: 3 repetitions of long-prefill-overlap" in out
    assert not (tmp_path / "out").exists()


def test_a_server_that_does_not_start_is_three_and_what_there_is_is_kept(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('aa = false\n[[arm]]\nname = "a"\nserver = { command = "no-such-server" }\n')
    code, _, err = command("arms", str(tmp_path / "f.toml"), "--out", str(tmp_path / "out"))
    assert code == 3
    assert last_line(err) == "headway: 1 of 1 arms are not complete (a): no-such-server: command not found"
    assert json.loads((tmp_path / "out" / "arms.json").read_text())["failures"][0]["stage"] == "command"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "f.toml").write_text(
        f'[[arm]]\nname = "a"\nserver = {{ command = "{sys.executable} {FAKE} {{port}} fork {pids}" }}\n'
    )
    arguments = [sys.executable, "-m", "headway", "bench", "arms", "f.toml", "--out", "out"]
    process = subprocess.Popen(arguments, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 30
    while not pids.exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=40)
    assert process.returncode in (130, 3), err  # 3: it had found by then that this is no server to measure
    assert all(gone(int(line)) for line in pids.read_text().split())
    assert (tmp_path / "out" / "arms.json").exists()
