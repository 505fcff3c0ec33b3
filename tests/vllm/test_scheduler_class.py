"""The scheduler class in a real vLLM: its own queues, blocks and prefix cache, a fake model runner and a clock turned by hand.

Needs vLLM's interpreter: HEADWAY_VLLM_PYTHON, or .venv-vllm/bin/python.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("HEADWAY_VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"))

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: set HEADWAY_VLLM_PYTHON, or make test-vllm"),
]


def vllm(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=380,
    )


@cache
def scenario(name: str) -> Any:
    done = vllm(str(ROOT / "tests/vllm/class_scenarios.py"), name)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_share_gap_and_ttft_on_target_sync_and_async_dense_and_hybrid() -> None:
    results = scenario("share")
    assert {result["class"] for result in results} == {"HeadwayScheduler", "HeadwaySyncScheduler"}
    alone = 28_623 * 1e-4 + 4 * 0.015
    for result in results:
        target, where = result["target"], (result["async"], result["block"], result["target"])
        assert target - 0.02 <= result["shares"][0] <= target + 0.08, where
        factor = 1.10 + len(result["chunks"]) * 0.003 / (28_623 * 1e-4)
        assert result["ttft"] <= factor * alone / (1.0 - target), where
        assert result["gap"] <= 0.25 * 1.1, where


def test_step_trace_of_one_decode_and_a_long_prompt() -> None:
    """Decode-only time before each chunk, which is the largest within the gap target, in whole blocks."""
    (hybrid,) = [r for r in scenario("share") if (r["async"], r["block"], r["target"]) == (True, 1568, 0.5)]
    assert hybrid["chunks"][:-1] == [1568] * 18 and hybrid["chunks"][-1] == 28_623 - 18 * 1568
    runs = [len(run) for run in hybrid["steps"].split("C")]
    assert all(8 <= run <= 11 for run in runs[:-2]), hybrid["steps"]


def test_three_answers_and_two_long_prompts() -> None:
    for result in scenario("crowd"):
        assert all(0.48 <= share <= 0.58 for share in result["shares"]), result
        assert result["gap"] <= 0.25 * 1.1


def test_speculative_decoding_keeps_its_share() -> None:
    for result in scenario("speculative"):
        assert 0.46 <= result["shares"][0] <= 0.60, result


def test_a_cached_follow_up_does_not_wait_for_a_long_prompt() -> None:
    result = scenario("prefix")
    assert result["follow"] < 1.0
    assert result["long"] < 1.1 * 2 * 60_000 * 1e-4 + 0.5


def test_a_better_priority_is_prefilled_first() -> None:
    result = scenario("priority")
    assert result["better"] < result["worse"]


def test_every_request_of_200_random_workloads_ends() -> None:
    """Both engines, dense and hybrid, with preemption, priorities, shared prefixes, speculation and extreme targets."""
    result = scenario("liveness")
    assert result["failed"] == []
    assert result["preempted"] > 0 and result["held"] > 0 and result["sync"] == result["async"] == 100


def test_limits_are_put_back() -> None:
    assert scenario("reset") == {"budget": 2048, "threshold": 0, "watching": False}


@pytest.mark.parametrize("version", ["0.23.1", "0.34.0", "1.0.0", "dev"])
def test_an_unknown_version_is_refused_in_one_line(version: str) -> None:
    done = vllm("-c", f"import vllm; vllm.__version__ = {version!r}; import headway.engines.vllm.scheduler")
    last = done.stderr.splitlines()[-1]
    assert done.returncode != 0
    assert "headway knows vLLM 0.24 to 0.33" in last and version in last


def test_nothing_but_the_core_and_the_standard_library_is_imported() -> None:
    code = (
        "import sys; import headway.engines.vllm.scheduler; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] == 'headway' and sys.modules[m].__name__.count('.') >= 1))"
    )
    done = vllm("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    names = done.stdout.splitlines()[-1]
    for other in ("gateway", "bench", "simulator", "lab", "commands", "advisor", "core.controller"):
        assert f"headway.{other}" not in names
