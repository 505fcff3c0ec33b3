"""The table of lint rules: what is refused, what does nothing and what is a trap, by engine and version.

A rule's `when` looks at one deployment and answers with the words for its text, or None. Ranges were read
in the released packages (docs/lint.md says which and how); what a range means for an unknown version is
decided in lint.py, not here.
"""

# ruff: noqa: E501  (one row of a table a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.advisor.deployment import Deployment
from headway.advisor.versions import Range

Words = dict[str, Any]
When = Callable[[Deployment], Words | None]

VLLM = "https://github.com/vllm-project/vllm"
SCHEDULER = f"{VLLM}/blob/main/vllm/v1/core/sched/scheduler.py"
#: A chunk from here on gives gaps that readers notice on most single GPUs (0.3 s at 13,000 tokens/s).
LARGE_CHUNK = 4096
#: A step holds this many tokens when llama.cpp is not told otherwise.
LLAMA_BATCH, LLAMA_UBATCH = 2048, 512


@dataclass(frozen=True, slots=True)
class LintRule:
    """`level`: error (refused, or breaks the service), warning (does nothing, or a trap), note (worth knowing)."""

    id: str
    name: str
    engine: str
    versions: Range
    level: str
    what: str
    why: str
    fix: str
    source: str
    when: When


def _given(*names: str) -> When:
    def when(x: Deployment) -> Words | None:
        found = [n for n in names if n in x.options]
        return {"option": found[0], "value": x.options[found[0]]} if found else None

    return when


def _above(name: str, floor: float) -> When:
    def when(x: Deployment) -> Words | None:
        value = x.number(name)
        return {"option": name, "value": int(value)} if value is not None and value > floor else None

    return when


def _interval_alone(x: Deployment) -> Words | None:
    ranks = x.number("data_parallel_size") or 1
    return _above("prefill_schedule_interval", 1)(x) if ranks <= 1 else None


def _budget_below_block(x: Deployment) -> Words | None:
    budget, block = x.number("max_num_batched_tokens"), x.block
    return (
        {"option": "max_num_batched_tokens", "budget": int(budget), "block": block}
        if budget and block and budget < block
        else None
    )


def _budget_at_block(x: Deployment) -> Words | None:
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


def _threshold_below_block(x: Deployment) -> Words | None:
    cap, block = x.number("long_prefill_token_threshold"), x.block
    return (
        {"option": "long_prefill_token_threshold", "value": int(cap), "block": block}
        if cap and block and 0 < cap < block
        else None
    )


def _threshold_idle(x: Deployment) -> Words | None:
    cap, budget = x.number("long_prefill_token_threshold"), x.number("max_num_batched_tokens")
    return (
        {"option": "long_prefill_token_threshold", "value": int(cap), "budget": int(budget)}
        if cap and budget and cap >= budget
        else None
    )


def _budget_below_seqs(x: Deployment) -> Words | None:
    budget, seqs = x.number("max_num_batched_tokens"), x.number("max_num_seqs")
    return (
        {"option": "max_num_seqs", "budget": int(budget), "seqs": int(seqs)}
        if budget and seqs and budget < seqs
        else None
    )


def _large_chunk(x: Deployment) -> Words | None:
    budget, cap = x.number("max_num_batched_tokens"), x.number("long_prefill_token_threshold")
    chunk = min(budget, cap) if budget and cap else budget
    if not chunk or chunk < LARGE_CHUNK:
        return None
    block = x.block
    whole = int(chunk // block * block if block else chunk)
    return {"option": "max_num_batched_tokens", "chunk": whole, "fast": whole / 10_000, "slow": whole / 2_000}


def _cache_off_by_default(x: Deployment) -> Words | None:
    return (
        {"option": "enable_prefix_caching"}
        if x.hybrid and x.options.get("enable_prefix_caching") is None
        else None
    )


def _cache_off(x: Deployment) -> Words | None:
    return {"option": "enable_prefix_caching"} if x.options.get("enable_prefix_caching") is False else None


def _sparse_states(x: Deployment) -> Words | None:
    sparse = x.number("prefix_cache_retention_interval") in (None, 0)
    if x.hybrid and x.prefix_caching and x.speculative_tokens and sparse:
        return {"option": "speculative_config", "tokens": x.speculative_tokens}
    return None


def _match_unit(x: Deployment) -> Words | None:
    unit, block = x.number("prefix_match_unit"), x.block
    return (
        {"option": "prefix_match_unit", "value": int(unit), "block": block}
        if unit and block and block % unit
        else None
    )


def _unchunked(x: Deployment) -> Words | None:
    return {"option": "enable_chunked_prefill"} if x.options.get("enable_chunked_prefill") is False else None


def _second_runner(x: Deployment) -> Words | None:
    on = x.environment.get("VLLM_USE_V2_MODEL_RUNNER") in ("1", "true", "True")
    return {"option": "VLLM_USE_V2_MODEL_RUNNER"} if on and x.hybrid and x.prefix_caching else None


def _all_mode(x: Deployment) -> Words | None:
    return {"option": "mamba_cache_mode"} if x.options.get("mamba_cache_mode") == "all" else None


def _priority(x: Deployment) -> Words | None:
    return {"option": "scheduling_policy"} if x.options.get("scheduling_policy") == "priority" else None


def _mixed_chunk(x: Deployment) -> Words | None:
    return (
        {"option": "enable_mixed_chunk"}
        if x.options.get("enable_mixed_chunk") and x.speculative_tokens
        else None
    )


def _sglang_whole(x: Deployment) -> Words | None:
    size = x.number("chunked_prefill_size")
    return {"option": "chunked_prefill_size"} if size is not None and size <= 0 else None


def _sglang_interval(x: Deployment) -> Words | None:
    mixed = x.options.get("enable_mixed_chunk") and not x.speculative_tokens
    return None if mixed or x.number("prefill_decode_interval") else {"option": "prefill_decode_interval"}


def _llama_batch(x: Deployment) -> Words | None:
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


def _llama_default(x: Deployment) -> Words | None:
    slots = x.number("parallel")
    if not slots or slots < 2 or x.number("batch_size"):
        return None
    return {
        "option": "batch_size",
        "batch": LLAMA_BATCH,
        "ubatch": int(x.number("ubatch_size") or LLAMA_UBATCH),
    }


#: Options and the releases whose parser knows them (read in the packages; see docs/lint.md).
KNOWN_SINCE: tuple[tuple[str, str | None, str | None], ...] = (
    ("prefill_schedule_interval", "0.24", None),
    ("prefix_match_unit", "0.26", None),
    ("prefix_cache_retention_interval", "0.29", None),
    ("max_num_queued_reqs", "0.29", None),
    ("max_num_queued_tokens", "0.29", None),
    ("long_prefill_token_threshold_adaptive", "0.31", None),
    ("max_num_active_seqs", "0.31", None),
    ("max_num_partial_prefills", None, "0.27"),
    ("max_long_partial_prefills", None, "0.27"),
)


def _unknown_rules() -> list[LintRule]:
    """One rule for each option and end of its range: outside of it the parser refuses the command line."""
    found = []
    for number, (option, since, until) in enumerate(KNOWN_SINCE):
        flag = "--" + option.replace("_", "-")
        found.append(
            LintRule(
                f"HV1{number:02d}",
                f"unknown-{option.replace('_', '-')}",
                "vllm",
                Range(None, since) if since else Range(until, None),
                "error",
                f"{flag} is unknown to this version, which does not start",
                f"the option came with vLLM {since}" if since else f"the option was removed in vLLM {until}",
                "remove it"
                + (
                    f", or use vLLM {since} or later"
                    if since
                    else "; long_prefill_token_threshold bounds one request's part of a step"
                ),
                f"{VLLM}/blob/main/vllm/engine/arg_utils.py",
                _given(option),
            )
        )
    return found


RULES: tuple[LintRule, ...] = (
    LintRule("HV001", "budget-below-block", "vllm", Range(None, "0.27"), "error",
        "max_num_batched_tokens {budget} is less than the block of {block} tokens, which this version refuses",
        "in align mode a chunk has to hold a whole block, and the start asserts it", "use at least {block} plus the tokens of the running streams, e.g. 2048",
        f"{VLLM}/blob/v0.26.0/vllm/config/vllm.py", _budget_below_block),
    LintRule("HV002", "budget-at-block", "vllm", Range(), "error",
        "max_num_batched_tokens {budget} leaves less than one block of {block} tokens beside {streams} running stream(s): long prompts wait until the streams end",
        "chunks are rounded down to whole blocks, so what is left beside the decode tokens rounds to 0; measured: the newcomer was shut out for the whole answer",
        "use {enough} or more; from 0.27 on a budget below the block works too", SCHEDULER, _budget_at_block),
    LintRule("HV003", "threshold-below-block", "vllm", Range(None, "0.27"), "error",
        "long_prefill_token_threshold {value} is less than the block of {block} tokens, which this version refuses",
        "in align mode a chunk has to hold a whole block, and the start asserts it", "remove it, or use vLLM 0.27 or later",
        f"{VLLM}/blob/v0.26.0/vllm/config/vllm.py", _threshold_below_block),
    LintRule("HV004", "interval-without-ranks", "vllm", Range("0.24", "0.33"), "warning",
        "prefill_schedule_interval {value} does nothing on one engine in this version",
        "before 0.33 only the data-parallel loop reads it; it is accepted and never used", "use vLLM 0.33, headway's scheduler class, or headway in front",
        f"{VLLM}/pull/54627", _interval_alone),
    LintRule("HV005", "partial-prefills-refused", "vllm", Range(None, "0.27"), "error",
        "{option} {value} is refused: \"Concurrent Partial Prefill is not supported\"",
        "the V1 engine checks for it at start and its scheduler never had it", "remove it; long_prefill_token_threshold bounds one request's part of a step",
        f"{VLLM}/blob/v0.26.0/vllm/engine/arg_utils.py", lambda x: _above("max_num_partial_prefills", 1)(x) or _above("max_long_partial_prefills", 1)(x)),
    LintRule("HV006", "priority-is-no-cure", "vllm", Range(), "warning",
        "scheduling_policy priority does not keep a running answer from stalling",
        "it orders the waiting queue and chooses who is evicted; running prefills keep their chunk and their place", "bound the chunk or pace the prefill; keep priority only for the queue",
        SCHEDULER, _priority),
    LintRule("HV007", "threshold-ignored-alone", "vllm", Range("0.31"), "note",
        "long_prefill_token_threshold {value} is not applied while the prompt is the only request",
        "a prompt that starts alone takes whole budgets; a stream that arrives then waits for the step under way", "bound the budget too if the first gap matters",
        SCHEDULER, _above("long_prefill_token_threshold", 0)),
    LintRule("HV008", "threshold-idle", "vllm", Range(), "warning",
        "long_prefill_token_threshold {value} does nothing: the budget of {budget} is not larger",
        "the cap applies to one request a step, and the budget already ends it", "set it below the budget, or remove it", SCHEDULER, _threshold_idle),
    LintRule("HV009", "hybrid-cache-off", "vllm", Range(None, "0.26"), "warning",
        "prefix caching is off: this version switches it off for hybrid models unless told otherwise",
        "every turn of a conversation is then prefilled whole, and headway cannot pace through the cache", "add --enable-prefix-caching",
        f"{VLLM}/blob/v0.25.1/vllm/config/model.py", _cache_off_by_default),
    LintRule("HV010", "cache-switched-off", "vllm", Range(), "note",
        "prefix caching is switched off",
        "every turn is prefilled whole, and headway cannot pace through the cache; the chunk, and so the gap, stays the same (measured)", "add --enable-prefix-caching",
        "https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html", _cache_off),
    LintRule("HV011", "sparse-states-with-drafts", "vllm", Range("0.30", "0.33"), "warning",
        "with speculation ({tokens} draft tokens) and the default retention of 0 most prefixes of a hybrid model are not found again",
        "only the last state of a prompt is kept, and the lookup drops the last block for the drafter, so they miss each other", "set --prefix-cache-retention-interval to the block, or use 0.33",
        f"{VLLM}/pull/52216", _sparse_states),
    LintRule("HV012", "match-unit-divides", "vllm", Range("0.26"), "error",
        "prefix_match_unit {value} does not divide the block of {block} tokens",
        "hits are counted in units inside a block", "use a divisor of the block, e.g. 16", f"{VLLM}/blob/main/vllm/config/cache.py", _match_unit),
    LintRule("HV013", "all-mode-removed", "vllm", Range("0.32"), "error",
        "mamba_cache_mode all is refused: it was removed", "only align and none are left", "use align", f"{VLLM}/blob/main/vllm/config/cache.py", _all_mode),
    LintRule("HV014", "second-runner-with-align", "vllm", Range("0.24", "0.26"), "error",
        "VLLM_USE_V2_MODEL_RUNNER with a hybrid model and prefix caching is refused", "the second model runner does not know align mode in this version", "unset it, or use 0.26",
        f"{VLLM}/blob/v0.24.0/vllm/config/vllm.py", _second_runner),
    LintRule("HV015", "budget-below-seqs", "vllm", Range(), "error",
        "max_num_batched_tokens {budget} is less than max_num_seqs {seqs}, which is refused", "each running stream takes a token of the budget", "raise the budget or lower max_num_seqs",
        f"{VLLM}/blob/main/vllm/config/scheduler.py", _budget_below_seqs),
    LintRule("HV016", "whole-prefills", "vllm", Range(), "warning",
        "chunked prefill is switched off: a long prompt runs as one step", "every running answer stands still for the whole prefill", "remove --no-enable-chunked-prefill",
        "https://docs.vllm.ai/en/latest/configuration/optimization.html", _unchunked),
    LintRule("HV017", "large-chunk", "vllm", Range(), "note",
        "beside a long prompt every step carries up to {chunk} prompt tokens: running answers get one token a step",
        "longest gap = decode step + {chunk} / prefill rate: {fast:.1f} s at 10,000 tokens/s, {slow:.1f} s at 2,000", "put headway in front (`headway plan` gives the price), or lower the budget",
        "https://docs.vllm.ai/en/latest/configuration/optimization.html", _large_chunk),
    *_unknown_rules(),
    LintRule("HS001", "mixed-chunk-under-drafts", "sglang", Range(), "warning",
        "enable_mixed_chunk does nothing under speculative decoding", "the engine switches it off, so decoding waits for whole prefill batches", "use --prefill-decode-interval, or no speculation",
        "https://github.com/sgl-project/sglang/issues/32549", _mixed_chunk),
    LintRule("HS002", "whole-prefills", "sglang", Range(), "warning",
        "chunked_prefill_size of -1: a long prompt runs as one batch", "prefill runs first, so every running answer stands still for the whole prompt", "set it to 2048 to 8192",
        "https://docs.sglang.ai/advanced_features/server_arguments.html", _sglang_whole),
    LintRule("HS003", "no-decode-interval", "sglang", Range(), "note",
        "no prefill_decode_interval: while prompts come in, running answers get nothing", "the engine runs prefill first and in turn with decode", "set --prefill-decode-interval 4 or 8 where the release has it",
        "https://github.com/sgl-project/sglang/pull/35017", _sglang_interval),
    LintRule("HL001", "batch-for-all-slots", "llama.cpp", Range(), "warning",
        "-b {batch} is {times} times -ub {ubatch}: with {slots} slots a generating slot waits for the whole batch of a new prompt",
        "a batch is not shared out by slot: prompt tokens fill it up to -b, and tokens are sampled only after all of it", "set -b to -ub ({ubatch}) and measure the prefill rate",
        "https://github.com/ggml-org/llama.cpp/issues/4216", _llama_batch),
    LintRule("HL002", "default-batch", "llama.cpp", Range(), "note",
        "-b is {batch} by default: a generating slot waits for a whole batch of a new prompt", "tokens are sampled only after all of the batch", "set -b {ubatch} if the gaps matter",
        "https://github.com/ggml-org/llama.cpp/issues/4216", _llama_default),
)  # fmt: skip
