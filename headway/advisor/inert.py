"""Options that people set against this problem and that do nothing, by engine and version.

One table for both commands: lint names them before the start, diagnose when the symptom is there all the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.advisor.engine import Engine
from headway.advisor.versions import Range


@dataclass(frozen=True, slots=True)
class Inert:
    """`option` with a value above `floor` (or equal to `value`) does nothing while `condition` holds."""

    option: str
    family: str
    versions: Range
    why: str
    instead: str
    source: str
    floor: float = 0
    value: str | None = None
    condition: str = "always"


INERT: tuple[Inert, ...] = (
    Inert(
        "prefill_schedule_interval",
        "vllm",
        Range("0.24", "0.33"),
        "before 0.33 only the data-parallel engine loop reads it; with one engine it is accepted and never used",
        "vLLM 0.33, or the headway scheduler class, or headway in front",
        "https://github.com/vllm-project/vllm/pull/54627",
        floor=1,
        condition="one-engine",
    ),
    Inert(
        "max_num_partial_prefills",
        "vllm",
        Range(None, "0.27"),
        "the V1 scheduler never reads it; releases that were opened (0.19.1 to 0.26) refuse any value but 1",
        "long_prefill_token_threshold bounds one request's part of a step",
        "https://github.com/vllm-project/vllm/issues/14003",
        floor=1,
    ),
    Inert(
        "max_long_partial_prefills",
        "vllm",
        Range(None, "0.27"),
        "the V1 scheduler never reads it; releases that were opened (0.19.1 to 0.26) refuse any value but 1",
        "long_prefill_token_threshold bounds one request's part of a step",
        "https://github.com/vllm-project/vllm/issues/14003",
        floor=1,
    ),
    Inert(
        "scheduling_policy",
        "vllm",
        Range(),
        "priority orders the waiting queue and picks who is evicted; it neither reorders the running list nor cuts a chunk",
        "a smaller chunk, decode-only steps between chunks, or headway in front",
        "https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py",
        value="priority",
    ),
    Inert(
        "enable_mixed_chunk",
        "sglang",
        Range(),
        "mixed chunks are switched off under speculative decoding, so decoding waits for whole prefill batches",
        "--prefill-decode-interval, or no speculation",
        "https://github.com/sgl-project/sglang/issues/32549",
        condition="speculative",
    ),
)


def _condition(name: str, engine: Engine, options: Mapping[str, Any]) -> bool:
    if name == "speculative":
        return engine.speculative or any("spec" in key or "draft" in key for key in options)
    if name == "one-engine":
        return int(options.get("data_parallel_size") or options.get("dp") or 1) <= 1
    return True


def inert_options(engine: Engine, options: Mapping[str, Any]) -> list[Inert]:
    """The options set in `options` that are known to do nothing in exactly this engine and version."""
    found = []
    for entry in INERT:
        set_to = options.get(entry.option)
        if set_to is None or set_to is False or entry.family != engine.family or not entry.versions.holds(engine.version):
            continue
        if entry.value is not None:
            fits = str(set_to).lower() == entry.value
        else:
            values = set_to if isinstance(set_to, list) else [set_to]
            fits = any(float(v) > entry.floor for v in values if isinstance(v, int | float))
        if fits and _condition(entry.condition, engine, options):
            found.append(entry)
    return found
