"""`headway plan` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headway.commands.plan import rate, register
from headway.errors import UsageError

H200 = Path(__file__).parents[3] / "docs" / "results" / "h200"


def headway(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway", "plan", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)


def test_a_profile_and_a_target_that_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    done = headway("demo", "--share", "0.5", "--gap", "0.1", "--prompt", "14000", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "verdict: kept" in done.stdout and "headway serve --policy pace --share 0.5 --gap 0.1" in done.stdout
    document = json.loads(file.read_text())
    assert document["schema"] == "headway.plan/1"
    assert set(document) == {
        "schema", "source", "engine", "targets", "model", "prompt", "verdict", "says", "reasons", "options", "refused", "measure",
        "notes",
    }  # fmt: skip
    assert document["options"][0]["keeps"] and document["options"][0]["policy"] == "pace"
    assert all(one["predicted"]["ttft_s"] > 0 for one in document["options"])


def test_bench_files_give_intervals_and_what_would_narrow_them() -> None:
    files = [str(H200 / "stock-8192.json"), str(H200 / "gateway-8192.json")]
    done = headway(*files, "--like", "h200-qwen3.6-27b", "--budget", "8192", "--share", "0.75")
    assert done.returncode == 0, done.stderr
    assert " runs)" in done.stdout and "would narrow it: " in done.stdout
    assert "not offered" in done.stdout and "HV004" in done.stdout


def test_saturation_is_exit_1() -> None:
    done = headway("demo", "--gap", "0.1", "--prompt", "14000", "--load", "20000t")
    assert done.returncode == 1
    assert "verdict: saturated" in done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["h300"], "profiles: h200-qwen3.6-27b"),
        (["nowhere.json"], "nowhere.json: No such file"),
        (["demo", "--share", "2"], "--share: 2.0"),
        (["demo", "--gap", "0"], "--gap: 0.0"),
        (["demo", "--prompt", "0"], "--prompt 0"),
        (["demo", "--prompt", "200000"], "--prompt 200000"),
        (["demo", "--load", "many"], "--load many"),
        (["demo", "--engine-version", "0.1"], "--engine-version"),
        (["demo", "h200-qwen3.6-27b"], "one profile at a time"),
        (["demo", "--like", "demo"], "--like"),
        (["demo", "--json", "/nowhere/plan.json"], "--json /nowhere/plan.json"),
        (["demo", str(H200 / "stock-8192.json")], "not both"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], named: str) -> None:
    app = typer.Typer()
    register(app)
    with pytest.raises(UsageError) as error:
        app(words, standalone_mode=False)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_it_is_exit_2() -> None:
    done = headway("h300")
    assert done.returncode == 2
    assert done.stderr.startswith("headway: h300: neither a file nor a profile") and done.stderr.count("\n") == 1


def test_loads() -> None:
    assert rate("0.2", 10_000) == 0.2
    assert rate("5000t", 10_000) == 0.5
    with pytest.raises(UsageError):
        rate("-1", 10_000)
