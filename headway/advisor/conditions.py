"""What a lint rule looks for in a deployment: the words for its text, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.advisor.deployment import Deployment

Words = dict[str, Any]
When = Callable[[Deployment], Words | None]

#: A chunk from here on gives gaps that readers notice on most single GPUs (0.3 s at 13,000 tokens/s).
LARGE_CHUNK = 4096
#: A step holds this many tokens when llama.cpp is not told otherwise.
LLAMA_BATCH, LLAMA_UBATCH = 2048, 512


def given(*names: str) -> When:
    def when(x: Deployment) -> Words | None:
        found = [n for n in names if n in x.options]
        return {"option": found[0], "value": x.options[found[0]]} if found else None

    return when


def above(name: str, floor: float) -> When:
    def when(x: Deployment) -> Words | None:
        value = x.number(name)
        return {"option": name, "value": int(value)} if value is not None and value > floor else None

    return when


def interval_alone(x: Deployment) -> Words | None:
    ranks = x.number("data_parallel_size") or 1
    return above("prefill_schedule_interval", 1)(x) if ranks <= 1 else None


def budget_below_block(x: Deployment) -> Words | None:
    budget, block = x.number("max_num_batched_tokens"), x.block
    return (
        {"option": "max_num_batched_tokens", "budget": int(budget), "block": block}
        if budget and block and budget < block
        else None
    )


def budget_at_block(x: Deployment) -> Words | None:
    budget, block = x.number("max_num_batched_tokens"), x.block
    if not budget or not block or budget < block:
        return None
    streams = int((budget - block) // x.decode_tokens) + 1
    if streams > min(x.number("max_num_seqs") or 256, 64):
        return None
    enough = block + x.decode_tokens * int(min(x.number("max_num_seqs") or 64, 256))
    return {
        "option": "max_num_batched_tokens",
        "budget": int(budget),
        "block": block,
        "streams": streams,
        "enough": enough,
    }


def threshold_below_block(x: Deployment) -> Words | None:
    cap, block = x.number("long_prefill_token_threshold"), x.block
    return (
        {"option": "long_prefill_token_threshold", "value": int(cap), "block": block}
        if cap and block and 0 < cap < block
        else None
    )


def threshold_idle(x: Deployment) -> Words | None:
    cap, budget = x.number("long_prefill_token_threshold"), x.number("max_num_batched_tokens")
    return (
        {"option": "long_prefill_token_threshold", "value": int(cap), "budget": int(budget)}
        if cap and budget and cap >= budget
        else None
    )


def budget_below_seqs(x: Deployment) -> Words | None:
    budget, seqs = x.number("max_num_batched_tokens"), x.number("max_num_seqs")
    return {"option": "max_num_seqs", "budget": int(budget), "seqs": int(seqs)} if budget and seqs and budget < seqs else None


def large_chunk(x: Deployment) -> Words | None:
    budget, cap = x.number("max_num_batched_tokens"), x.number("long_prefill_token_threshold")
    chunk = min(budget, cap) if budget and cap else budget
    if not chunk or chunk < LARGE_CHUNK:
        return None
    block = x.block
    whole = int(chunk // block * block if block else chunk)
    return {"option": "max_num_batched_tokens", "chunk": whole, "fast": whole / 10_000, "slow": whole / 2_000}


def cache_off_by_default(x: Deployment) -> Words | None:
    return {"option": "enable_prefix_caching"} if x.hybrid and x.options.get("enable_prefix_caching") is None else None


def cache_off(x: Deployment) -> Words | None:
    return {"option": "enable_prefix_caching"} if x.options.get("enable_prefix_caching") is False else None


def sparse_states(x: Deployment) -> Words | None:
    sparse = x.number("prefix_cache_retention_interval") in (None, 0)
    if x.hybrid and x.prefix_caching and x.speculative_tokens and sparse:
        return {"option": "speculative_config", "tokens": x.speculative_tokens}
    return None


def match_unit(x: Deployment) -> Words | None:
    unit, block = x.number("prefix_match_unit"), x.block
    return {"option": "prefix_match_unit", "value": int(unit), "block": block} if unit and block and block % unit else None


def unchunked(x: Deployment) -> Words | None:
    return {"option": "enable_chunked_prefill"} if x.options.get("enable_chunked_prefill") is False else None


def second_runner(x: Deployment) -> Words | None:
    on = x.environment.get("VLLM_USE_V2_MODEL_RUNNER") in ("1", "true", "True")
    return {"option": "VLLM_USE_V2_MODEL_RUNNER"} if on and x.hybrid and x.prefix_caching else None


def all_mode(x: Deployment) -> Words | None:
    return {"option": "mamba_cache_mode"} if x.options.get("mamba_cache_mode") == "all" else None


def priority(x: Deployment) -> Words | None:
    return {"option": "scheduling_policy"} if x.options.get("scheduling_policy") == "priority" else None


def mixed_chunk(x: Deployment) -> Words | None:
    return {"option": "enable_mixed_chunk"} if x.options.get("enable_mixed_chunk") and x.speculative_tokens else None


def sglang_whole(x: Deployment) -> Words | None:
    size = x.number("chunked_prefill_size")
    return {"option": "chunked_prefill_size"} if size is not None and size <= 0 else None


def sglang_interval(x: Deployment) -> Words | None:
    mixed = x.options.get("enable_mixed_chunk") and not x.speculative_tokens
    return None if mixed or x.number("prefill_decode_interval") else {"option": "prefill_decode_interval"}


def llama_batch(x: Deployment) -> Words | None:
    slots, batch, ubatch = (
        x.number("parallel"),
        x.number("batch_size"),
        x.number("ubatch_size") or LLAMA_UBATCH,
    )
    if not slots or slots < 2 or not batch or batch <= ubatch:
        return None
    return {
        "option": "batch_size",
        "batch": int(batch),
        "ubatch": int(ubatch),
        "slots": int(slots),
        "times": int(batch // ubatch),
    }


def llama_default(x: Deployment) -> Words | None:
    slots = x.number("parallel")
    if not slots or slots < 2 or x.number("batch_size"):
        return None
    return {
        "option": "batch_size",
        "batch": LLAMA_BATCH,
        "ubatch": int(x.number("ubatch_size") or LLAMA_UBATCH),
    }
