"""Scenarios for the scheduler class inside vLLM's interpreter: `python class_scenarios.py SCENARIO`, JSON on the last line."""

from __future__ import annotations

import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.vllm.inprocess import Clock, Harness, Job, build, our_scheduler, prompt, stock

SOLO = 0.015


def meet(asynchronous: bool, share: float, victims: int = 1, intruders: int = 1, length: int = 28_623, **options: Any) -> dict:
    """Victims decode, intruders come after 20 s; a first one comes before, so that the engine is not cold."""
    clock, generator = Clock(), random.Random(5)
    block = options.get("block", 16)
    cls = our_scheduler(clock) if share >= 0 else stock(asynchronous)
    settings = {"share": max(share, 0.0), "gap": 0.25}
    engine = build(cls, asynchronous=asynchronous, budget=8192, headway=settings, **options)
    harness = Harness(engine, clock, asynchronous=asynchronous, block=block)
    answers = [Job(f"v{n}", 0.0, prompt(generator, 38), 60_000) for n in range(victims)]
    late = [Job(f"i{n}", 20.0 + n / 10, prompt(generator, length), 3) for n in range(intruders)]
    harness.run([*answers, Job("warm", 2.0, prompt(generator, 9000), 3), *late], until=120.0)
    start, end = late[0].arrives, max(job.times[0] for job in late)
    speed = 1.0
    if engine.num_spec_tokens:
        before = [sum(1 for time in job.times if start - 10.0 < time <= start) for job in answers]
        speed = sum(before) / len(before) / 10.0 * SOLO
    return {
        "class": type(engine).__name__,
        "shares": [sum(1 for time in job.times if start < time <= end) * SOLO / speed / (end - start) for job in answers],
        "ttft": end - start,
        "gap": max(gaps(harness, start, end)),
        "chunks": [prefill for at, turns, prefill in harness.trace if prefill and turns and start <= at <= end],
        "steps": "".join("C" if prefill else "d" for at, _, prefill in harness.trace if start <= at <= end),
        "line": engine._report.line() if share >= 0 else None,
    }


def gaps(harness: Harness, start: float, end: float) -> list[float]:
    ends = sorted({time for job in harness.jobs.values() if job.id.startswith("v") for time in job.times})
    return [b - a for a, b in pairwise(ends) if start <= b and a <= end]


def share() -> list[dict]:
    results = []
    for asynchronous in (False, True):
        for hybrid, block in ((False, 16), (True, 256), (True, 1568)):
            for target in (0.4, 0.5, 0.75, 0.9):
                result = meet(asynchronous, target, hybrid=hybrid, block=block)
                results.append({**result, "async": asynchronous, "block": block, "target": target})
    return results


def crowd() -> list[dict]:
    return [
        {**meet(asynchronous, 0.5, 3, 2, hybrid=hybrid, block=block), "async": asynchronous, "block": block}
        for asynchronous in (False, True)
        for hybrid, block in ((False, 16), (True, 1568))
    ]


def speculative() -> list[dict]:
    return [meet(False, 0.5, hybrid=hybrid, block=block, speculative=3) for hybrid, block in ((False, 16), (True, 256))]


def prefix() -> dict:
    """A follow-up of a conversation, nearly all of it cached, beside a long prompt and a decode."""
    clock, generator = Clock(), random.Random(6)
    engine = build(our_scheduler(clock), asynchronous=True, budget=8192, headway={"share": 0.5})
    harness = Harness(engine, clock, asynchronous=True, block=16)
    conversation = prompt(generator, 12_000)
    first = Job("first", 1.0, conversation, 3)
    follow = Job("follow", 26.0, conversation + prompt(generator, 400), 3)
    long = Job("long", 25.0, prompt(generator, 60_000), 3)
    harness.run([Job("v", 0.0, prompt(generator, 38), 60_000), first, long, follow], until=60.0)
    return {"follow": follow.times[0] - follow.arrives, "long": long.times[0] - long.arrives}


def priority() -> dict:
    """A better priority that comes later is prefilled before a worse one that has begun."""
    clock, generator = Clock(), random.Random(7)
    engine = build(our_scheduler(clock), asynchronous=True, budget=8192, policy="priority", headway={"share": 0.5})
    harness = Harness(engine, clock, asynchronous=True, block=16)
    worse = Job("worse", 20.0, prompt(generator, 40_000), 3, priority=5)
    better = Job("better", 21.0, prompt(generator, 20_000), 3, priority=1)
    harness.run([Job("v", 0.0, prompt(generator, 38), 60_000), worse, better], until=60.0)
    return {"better": better.times[0], "worse": worse.times[0]}


def workload(seed: int) -> tuple[bool, bool, dict[str, Any], list[Job], dict[str, float]]:
    generator = random.Random(seed)
    asynchronous, hybrid = bool(seed & 1), bool(seed & 2)
    block = generator.choice([64, 256, 1568]) if hybrid else 16
    budget = generator.choice([b for b in (512, 2048, 8192) if b > block] or [2048])
    longest = 12_000
    options = {
        "budget": budget,
        "hybrid": hybrid,
        "block": block,
        "seqs": generator.choice([4, 16]),
        # Every third one is short of memory, so that answers are preempted.
        "blocks": (longest // block + 30) if seed % 3 == 0 else 20_000,
        "policy": generator.choice(["fcfs", "priority"]),
        "speculative": 2 if not asynchronous and seed % 5 == 0 else 0,
    }
    shared = prompt(generator, 4000)
    jobs = []
    for n in range(generator.randint(2, 12)):
        length = generator.choice([generator.randint(1, 80), generator.randint(80, 2000), generator.randint(2000, longest)])
        ids = prompt(generator, length)
        if generator.random() < 0.3:
            ids = (shared + ids)[:longest]
        jobs.append(Job(f"j{n}", generator.random() * 8, ids, generator.randint(1, 200), generator.randint(0, 3)))
    headway = {
        "share": generator.choice([0.0, 0.25, 0.5, 0.9, 1.0]), "gap": generator.choice([0.02, 0.25, 2.0]),
        "wait": generator.choice([0.0, 2.0, 30.0]),
    }  # fmt: skip
    return asynchronous, hybrid, options, jobs, headway


def liveness(count: int = 200) -> dict:
    failed, preempted, held, modes = [], 0, 0, [0, 0]
    for seed in range(count):
        asynchronous, _, options, jobs, headway = workload(seed)
        clock = Clock()
        engine = build(our_scheduler(clock), asynchronous=asynchronous, headway=headway, **options)
        harness = Harness(engine, clock, asynchronous=asynchronous, block=options["block"])
        try:
            harness.run(jobs)
        except (RuntimeError, AssertionError) as error:
            failed.append(f"seed {seed}: {error!r}")
            continue
        short = [job.id for job in jobs if len(job.times) != job.outputs]
        if short or engine.headway.debt.prefilling or engine.requests or engine._prefilling:
            failed.append(f"seed {seed}: {short or 'state left behind'}")
        preempted += harness.preempted
        held += engine.headway.tally.held
        modes[asynchronous] += 1
    return {"failed": failed, "preempted": preempted, "held": held, "sync": modes[0], "async": modes[1]}


def reset() -> dict:
    """Limits are put back after each step."""
    clock, generator = Clock(), random.Random(8)
    engine = build(our_scheduler(clock), asynchronous=False, budget=2048, headway={"share": 0.5})
    harness = Harness(engine, clock, asynchronous=False, block=16)
    harness.run([Job("v", 0.0, prompt(generator, 38), 500), Job("i", 1.0, prompt(generator, 9000), 3)])
    return {
        "budget": engine.max_num_scheduled_tokens,
        "threshold": engine.scheduler_config.long_prefill_token_threshold,
        "watching": "update_from_output" in vars(engine),
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
