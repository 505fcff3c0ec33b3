"""Random scheduling scenarios, and what our scheduler does with them, in the form that vLLM's own is asked
in.

A scenario is plain JSON. Prompts are written as [text number, length] parts, so that they are short on disk
and still share prefixes; `spelled_out` turns them into token ids for the driver
(tests/vllm/scheduler_driver.py).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from headway.simulator.cache import KVCache
from headway.simulator.holdings import CacheLayout
from headway.simulator.request import Request
from headway.simulator.rules import Rules, rules_for
from headway.simulator.scheduler import Scheduler, SchedulerSettings

STEPS = 60
VERSION = "0.32.0"


def answer_token(index: int) -> int:
    """As in the driver."""
    return 1000 + index % 20


def tokens_of(parts: list[list[int]]) -> list[int]:
    return [
        ((number + 1) * 2654435761 + position * 40503) % 65521 % 1000 for number, length in parts for position in range(length)
    ]


def scenario(seed: int) -> dict[str, Any]:
    r = random.Random(seed)
    block = r.choice([16, 32, 64, 128])
    groups = r.choice([0, 1, 3, 3])
    budget = r.choice([block * 4 + r.randrange(block), block * 2, block, r.randrange(8, block * 8), 512])
    arrivals: dict[str, list[dict[str, Any]]] = {}
    aborts: dict[str, list[str]] = {}
    for number in range(r.randrange(2, 12)):
        cut = r.choice([r.randrange(12 * block), r.randrange(12) * block, r.randrange(12) * block + 1])
        tail = r.choice([0, 1, r.randrange(3 * block)])
        parts = [[r.randrange(3), cut], [100 + number, tail]] if cut + tail else [[0, 1]]
        at = r.randrange(25)
        arrivals.setdefault(str(at), []).append(
            {
                "id": f"r{number}",
                "parts": parts,
                "max_tokens": r.choice([1, 1, 2, r.randrange(1, 40)]),
                "priority": r.choice([0, 0, 1, -1]),
                "salt": r.choice(["", "", "", "s"]),
            }
        )
        if r.random() < 0.15:
            aborts.setdefault(str(at + r.randrange(8)), []).append(f"r{number}")
    order = 0
    for at in sorted(arrivals, key=int):
        for arrival in arrivals[at]:
            arrival["order"] = order
            order += 1
    least = 16 + groups * 2 + 1
    return {
        "seed": seed,
        "block_size": block,
        "blocks": least + r.randrange(1, 12) if r.random() < 0.5 else 600,
        "state_groups": groups,
        "caching": r.random() < 0.8,
        "sparse": r.random() < 0.6,
        "max_model_len": block * 16,
        "max_num_batched_tokens": max(budget, 8),
        "max_num_seqs": r.choice([1, 2, 4, 8]),
        "long_prefill_token_threshold": r.choice([0, 0, r.randrange(1, block * 3)]),
        "policy": r.choice(["fcfs", "fcfs", "priority"]),
        "resets_guard": r.random() < 0.3,
        "throttled": [k for k in range(STEPS) if r.random() < 0.5] if r.random() < 0.5 else [],
        "steps": STEPS,
        "arrivals": arrivals,
        "aborts": aborts,
    }


def spelled_out(scenario: dict[str, Any]) -> dict[str, Any]:
    """The scenario with token ids."""
    arrivals = {at: [one | {"tokens": tokens_of(one["parts"])} for one in group] for at, group in scenario["arrivals"].items()}
    return scenario | {"arrivals": arrivals}


def rules_of(scenario: dict[str, Any]) -> Rules:
    """0.32's rules with either retention, as `--prefix-cache-retention-interval` sets it there."""
    return replace(rules_for(VERSION), sparse_retention=scenario["sparse"])


def our_trace(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """Step by step: chunks, preempted, running list, cached tokens at admission, free blocks."""
    s = scenario
    cache = KVCache(
        CacheLayout(s["blocks"], s["block_size"], s["state_groups"], s["caching"], 0, s["max_model_len"]),
        rules_of(s),
    )
    scheduler = Scheduler(
        SchedulerSettings(s["max_num_batched_tokens"], s["max_num_seqs"], s["long_prefill_token_threshold"], s["policy"]),
        cache,
    )
    trace = []
    for number in range(s["steps"]):
        for a in s["arrivals"].get(str(number), ()):
            scheduler.add(
                Request(
                    a["id"],
                    tokens=tokens_of(a["parts"]),
                    max_tokens=a["max_tokens"],
                    priority=a["priority"],
                    arrival=a["order"],
                    cache_salt=a["salt"],
                    output_token=answer_token,
                )
            )
        for name in s["aborts"].get(str(number), ()):
            scheduler.remove(name)
        if s["resets_guard"]:
            scheduler.capacity_bound = False
        step = scheduler.schedule(number in s["throttled"])
        trace.append(
            {
                "chunks": [[c.request.id, c.tokens] for c in step.chunks],
                "preempted": sorted(r.id for r in step.preempted),
                "running": [r.id for r in scheduler.running],
                "cached": {
                    c.request.id: c.start for c in step.chunks if c.request in step.admitted and c.request.preemptions == 0
                },
                "free": cache.pool.free_count,
            }
        )
        for chunk in step.chunks:
            request = chunk.request
            if request.computed >= request.num_tokens:
                request.append_outputs(1)
                if request.outputs >= request.max_tokens or request.num_tokens >= s["max_model_len"]:
                    scheduler.remove(request.id)
    return trace


def first_difference(seed: int, theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    """Empty when the traces are equal; else where they part."""
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        if their != our:
            return f"scenario {seed}, step {number}:\n  vLLM {their}\n  ours {our}"
    return ""
