"""`headway bench arms` on a real vLLM on this CPU, small: two settings, the gateway and a refusal, with pages and pictures.

Bounds are wide: this machine may be busy.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.test_bench_command import command

pytestmark = pytest.mark.vllm

FILE = """
reps = 1
[vars]
budget = 2048
streams = 8
[server]
command = '''headway lab serve --model next-tiny --port {port} --enable-prefix-caching
--max-num-batched-tokens {budget} --max-num-seqs {streams}'''
ready_s = 300
[client]
intruder_in = 6000
intruder_out = 8
victim_out = 160
[[arm]]
name = "2048"
[[arm]]
name = "one at a time"
vars = { streams = 1 }
client = { kept_back = true }
[[arm]]
name = "pace 0.5"
gateway = { policy = "pace", share = 0.5, gap = 0.15 }
[[arm]]
name = "refused by the engine"
vars = { budget = 4 }
"""


@pytest.mark.timeout(1500)
def test_the_report_on_a_real_engine(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(FILE)
    out = tmp_path / "out"
    code, _, err = command("arms", str(tmp_path / "f.toml"), "--out", str(out))
    document = json.loads((out / "arms.json").read_text())
    arms = {arm["name"]: arm for arm in document["arms"]}
    assert code == 3  # the last arm: lint does not know what `headway lab serve` starts, so vLLM itself refuses it
    states = {name: arm["state"] for name, arm in arms.items()}
    assert states.pop("refused by the engine") == "failed" and set(states.values()) == {"done"}, err
    (failure,) = document["failures"]
    assert failure["stage"] == "start" and failure["arm"] == "refused by the engine"
    assert "max_num_batched_tokens (4)" in failure["reason"]
    assert all(arm["versions"] for arm in arms.values() if arm["state"] == "done")
    share = {name: arm["summary"].get("overlap-after", {}).get("share", {}).get("median") for name, arm in arms.items()}
    assert share["2048"] is None or share["2048"] < 0.4
    assert share["one at a time"] is None or share["one at a time"] > 0.8
    assert share["pace 0.5"] is None or share["2048"] is None or share["pace 0.5"] > share["2048"]
    assert any(value is not None for value in share.values())
    assert {"report.html", "timeline.svg", "report.md"} <= {path.name for path in out.iterdir()}
