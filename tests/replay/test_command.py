"""`headway replay` from the outside."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = "\n".join(
    ["arrival_s,input_tokens,output_tokens", *(f"{i * 0.7:.2f},{9000 if i % 5 == 4 else 200},{120}" for i in range(20))]
)


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headway", "replay", *arguments], capture_output=True, text=True, timeout=100)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_table_json_csv_and_page(trace: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("r.json", "r.csv", "r.html")]
    done = replay(
        str(trace), "--policy", "passthrough,pace", "--gap", "0.1", "--sweep", "share=0.5,0.8", "--jobs", "2",
        "--json", str(files[0]), "--csv", str(files[1]), "--html", str(files[2]),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(files[0].read_text())
    assert document["schema"] == "headway.replay/1"
    cases = {(case["policy"], case["swept"]["share"]): case["classes"] for case in document["cases"]}
    assert list(cases) == [("passthrough", 0.5), ("pace", 0.5), ("passthrough", 0.8), ("pace", 0.8)]
    for classes in cases.values():
        assert classes["all"]["requests"] == classes["all"]["answered"] == 20
        assert classes["over 8,192"]["requests"] == 4
        assert classes["up to 1,024"]["requests"] == 16
    # A whole chunk beside an answer is longer than the target; a piece is not. And the price is the newcomer's.
    whole, paced = cases["passthrough", 0.5], cases["pace", 0.5]
    assert whole["all"]["itl_s"]["max"] > 0.15
    assert paced["all"]["itl_s"]["max"] < 0.12
    assert paced["over 8,192"]["ttft_s"]["p50"] > whole["over 8,192"]["ttft_s"]["p50"]
    assert cases["pace", 0.8]["over 8,192"]["ttft_s"]["p50"] > paced["over 8,192"]["ttft_s"]["p50"]
    rows = list(csv.DictReader(files[1].open()))
    assert len(rows) == 4 * 4 and {row["policy"] for row in rows} == {"passthrough", "pace"}
    page = files[2].read_text()
    assert page.count("<svg") >= 4 and "part of gaps that is longer" in page
    assert "over 8,192" in done.stdout and "4/4" in done.stderr


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("--policy", "faster"), "--policy: 'faster' is not one of"),
        (("--profile", "h900"), "--profile: no profile 'h900'"),
        (("--sweep", "shares=0.1"), "--sweep 'shares=0.1'"),
        (("--sweep", "share=a"), "--sweep 'share=a': 'a' is not a list of float"),
        (("--sweep", "share=0.4", "--sweep", "share=0.5"), "--sweep: share is given twice"),
        (("--sweep", "family=tgi"), "family: 'tgi' is not one of vllm, sglang, llamacpp"),
        (("--share", "3"), "share: 3.0 is not 0..1"),
        (("--classes", "5,3"), "--classes: '5,3' does not grow"),
        (("--speed", "0"), "--speed: 0 is not above 0"),
        (("--start", "9", "--end", "3"), "--end: 3 is not above --start 9"),
        (("--start", "900"), "no call is left to replay"),
        (("--format", "mooncake"), "trace.csv:1:"),
        (("--vllm-version", "banana"), "vLLM version: 'banana'"),
        (("--max-num-batched-tokens", "8"), "--max-num-batched-tokens: max_num_batched_tokens (8)"),
    ],
)
def test_what_cannot_be_used_is_one_line(trace: Path, arguments: tuple[str, ...], said: str) -> None:
    done = replay(str(trace), *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.splitlines()[-1]


def test_another_engines_scheduling(trace: Path, tmp_path: Path) -> None:
    """SGLang's prefill lets decodes stand still for a whole prompt: 9,000 tokens of 80 µs, where vLLM's chunks let them go on."""
    done = replay(str(trace), "--policy", "passthrough", "--sweep", "family=vllm,sglang", "--json", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stderr
    vllm, sglang = (case["classes"]["all"] for case in json.loads((tmp_path / "r.json").read_text())["cases"])
    assert vllm["itl_s"]["max"] < 0.3 < 0.7 < sglang["itl_s"]["max"]
    assert sglang["answered"] == 20


def test_ray_runs_the_same_cases(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    common = [str(trace), "--sweep", "share=0.4,0.6"]
    assert replay(*common, "--json", str(one)).returncode == 0
    done = replay(*common, "--ray", "local", "--json", str(other))
    assert done.returncode == 0, done.stderr
    here, there = (json.loads(path.read_text())["cases"] for path in (one, other))
    assert [case["classes"] for case in here] == [case["classes"] for case in there]


def test_no_cluster_is_one_line(trace: Path) -> None:
    pytest.importorskip("ray")
    done = replay(str(trace), "--ray", "127.0.0.1:9")
    assert done.returncode == 3
    assert "--ray 127.0.0.1:9: nothing answers there" in done.stderr.splitlines()[-1]
