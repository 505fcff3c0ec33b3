"""What the scheduler class costs: seconds of schedule() + update_from_output() a step, ours and vLLM's own, side by side.

    $HEADWAY_VLLM_PYTHON benchmarks/scheduler_step.py [--decodes 1 16 64 256] [--rounds 15]

Run by vLLM's interpreter. No model is run: the fake runner's answers are made before the clock starts. Both schedulers live in
one process and take turns in short runs, so that what else the machine does meets both; a run counts with its lower quartile (a
neighbour on the core only ever adds), the ratio is the median over pairs of runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.vllm.inprocess import Clock, Harness, Job, ModelRunnerOutput, build, our_scheduler, prompt, stock

STEPS = 60


def engine(cls: type, asynchronous: bool, decodes: int) -> Any:
    """`decodes` answers under way, and nothing else."""
    generator = random.Random(1)
    built = build(cls, asynchronous=asynchronous, budget=8192, seqs=512, blocks=60_000, headway={"share": 0.5})
    harness = Harness(built, Clock(), asynchronous=False, block=16)
    for n in range(decodes):
        harness.add(Job(f"v{n}", 0.0, prompt(generator, 32), 100_000))
    for _ in range(8):
        step(built)
    return built


def step(scheduler: Any) -> float:
    start = time.perf_counter()
    output = scheduler.schedule()
    middle = time.perf_counter()
    ids = list(output.num_scheduled_tokens)
    tokens = [[] if scheduler.requests[id].is_prefill_chunk else [7] for id in ids]
    answer = ModelRunnerOutput(req_ids=ids, req_id_to_index={id: n for n, id in enumerate(ids)}, sampled_token_ids=tokens)
    again = time.perf_counter()
    scheduler.update_from_output(output, answer)
    return middle - start + time.perf_counter() - again


def compare(asynchronous: bool, decodes: int, rounds: int) -> dict[str, Any]:
    engines = {
        "headway": engine(our_scheduler(), asynchronous, decodes),
        "vllm": engine(stock(asynchronous), asynchronous, decodes),
    }
    best: dict[str, list[float]] = {name: [] for name in engines}
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        for name in list(engines) if turn % 2 else list(reversed(engines)):
            best[name].append(statistics.quantiles((step(engines[name]) for _ in range(STEPS)), n=4)[0])
    gc.enable()
    ratios = [ours / theirs for ours, theirs in zip(best["headway"], best["vllm"], strict=True)]
    return {
        "async": asynchronous, "decodes": decodes, "rounds": rounds,
        "headway_us": round(1e6 * statistics.median(best["headway"]), 1),
        "vllm_us": round(1e6 * statistics.median(best["vllm"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decodes", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    for asynchronous in (False, True):
        for decodes in arguments.decodes:
            print(json.dumps(compare(asynchronous, decodes, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
