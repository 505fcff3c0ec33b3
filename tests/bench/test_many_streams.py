"""A freeze in one of a thousand streams: which one, when, how long. Command, load generator and server are three processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.planted import planted
from tests.bench.test_bench_command import command

STREAMS, TOKENS, CADENCE, FROZEN, AT, FREEZE = 1000, 16, 0.5, 613, 5, 2.0


@pytest.mark.timeout(200)
def test_a_freeze_in_one_of_a_thousand_streams_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with planted(TOKENS, CADENCE, FROZEN, AT, FREEZE) as (url, server):
        code, out, err = command(
            url, "--scenario", "decode-concurrent", "--reps", "1", "--streams", str(STREAMS), "--victim-out", str(TOKENS),
            "--after", "4", "--ramp", "0.003", "--intruder-in", "100", "--intruder-out", "9", "--cooldown", "0",
            "--lag-limit", "60", "--json", str(file),
        )  # fmt: skip
        assert server.stdout is not None
        frozen_at = float(server.stdout.readline().split()[1])
    assert code == 0, err
    document = json.loads(file.read_text())
    run = next(run for run in document["runs"] if run["scenario"] == "decode-concurrent")
    assert run["void"] is None and len(run["streams"]) == STREAMS
    worst, lag = run["stalls"][0], run["lag_max_s"]
    assert run["streams"][worst["stream"]]["usage"]["prompt_tokens"] == 1000 + FROZEN  # the server's own word for it
    assert CADENCE + FREEZE - 0.002 - lag < worst["seconds"] < 1.02 * (CADENCE + FREEZE) + 0.002 + lag + 1.0
    others = [stall["seconds"] for stall in run["stalls"][1:]]
    assert max(others, default=0.0) < worst["seconds"]
    began = run["streams"][worst["stream"]]["submitted_s"]
    assert began < worst["at_s"] and frozen_at > 0
    assert f"stream {worst['stream']} (victim) stood still for 2." in out
