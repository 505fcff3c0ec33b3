"""Writes tests/simulator/data/vllm_0.32.0_traces.json.gz: `HEADWAY_VLLM_PYTHON=... python -m
tests.vllm.record_traces`.
"""

from __future__ import annotations

import gzip
import json

from tests.simulator.scenarios import scenario
from tests.simulator.test_recorded_traces import RECORDED
from tests.vllm.driving import vllm_scheduler

FIRST, COUNT = 10_000, 200


def main() -> None:
    with vllm_scheduler() as ask:
        records = [{"scenario": one, "trace": ask(one)} for one in (scenario(FIRST + n) for n in range(COUNT))]
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_bytes(gzip.compress(json.dumps(records, separators=(",", ":")).encode(), mtime=0))
    print(f"{RECORDED}: {len(records)} traces, {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
