"""Our scheduler against traces that vLLM 0.32.0's own Scheduler gave for the same scenarios.

data/vllm_0.32.0_traces.json.gz is written by `python -m tests.vllm.record_traces`; the live comparison over
more scenarios is tests/vllm/test_scheduler_differential.py.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.simulator.scenarios import first_difference, our_trace

RECORDED = Path(__file__).parent / "data" / "vllm_0.32.0_traces.json.gz"


def test_every_recorded_trace_is_ours_step_by_step() -> None:
    records = json.loads(gzip.decompress(RECORDED.read_bytes()))
    assert len(records) >= 150
    differences = [
        difference
        for record in records
        if (difference := first_difference(record["scenario"]["seed"], record["trace"], our_trace(record["scenario"])))
    ]
    assert differences == []


def test_the_recorded_traces_cover_what_can_go_wrong() -> None:
    records = json.loads(gzip.decompress(RECORDED.read_bytes()))
    steps = [step for record in records for step in record["trace"]]
    assert sum(bool(step["preempted"]) for step in steps) >= 5
    assert sum(any(step["cached"].values()) for step in steps) >= 100
    assert sum(len(step["chunks"]) > 2 for step in steps) >= 100
    for key, values in (
        ("policy", {"fcfs", "priority"}),
        ("sparse", {True, False}),
        ("state_groups", {0, 1, 3}),
    ):
        assert {record["scenario"][key] for record in records} == values
