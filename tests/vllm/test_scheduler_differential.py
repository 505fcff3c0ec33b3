"""Our scheduler against vLLM's own, live: the same arrivals, the same chunks step by step.

Compared in each step: chunks in their order, preempted requests, the running list, cached tokens at
admission and free blocks (so allocation and eviction agree too). Needs HEADWAY_VLLM_PYTHON, the Python of a
vLLM 0.32.0 installation.
"""

from __future__ import annotations

import os

import pytest

from tests.simulator.scenarios import first_difference, our_trace, scenario
from tests.vllm.driving import VARIABLE, vllm_scheduler

SCENARIOS = 600

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set"),
]


def test_chunks_are_the_same_step_by_step() -> None:
    differences = []
    with vllm_scheduler() as ask:
        for seed in range(SCENARIOS):
            one = scenario(seed)
            difference = first_difference(seed, ask(one), our_trace(one))
            if difference:
                differences.append(difference)
    assert not differences, f"{len(differences)} of {SCENARIOS}; the first:\n{differences[0]}"
