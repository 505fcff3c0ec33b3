"""The table of lint rules: what is refused, what does nothing and what is a trap, by engine and version.

A rule's `when` looks at one deployment and answers with the words for its text, or None. Ranges were read
in the released packages (docs/lint.md says which and how); what a range means for an unknown version is
decided in lint.py, not here.
"""

# ruff: noqa: E501  (one row of a table a line)

from __future__ import annotations

from dataclasses import dataclass

from headway.advisor import conditions
from headway.advisor.conditions import When
from headway.advisor.versions import Range

VLLM = "https://github.com/vllm-project/vllm"
SCHEDULER = f"{VLLM}/blob/main/vllm/v1/core/sched/scheduler.py"


@dataclass(frozen=True, slots=True)
class LintRule:
    """`level`: error (refused, or breaks the service), warning (does nothing, or a trap), note (worth knowing).

    `refusal`: None where the engine starts; else what it says when it does not, empty where its words are not known here.
    """

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
    refusal: str | None = None


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
                conditions.given(option),
                refusal=f"unrecognized arguments: {flag}",
            )
        )
    return found


RULES: tuple[LintRule, ...] = (
    LintRule("HV001", "budget-below-block", "vllm", Range(None, "0.27"), "error",
        "max_num_batched_tokens {budget} is less than the block of {block} tokens, which this version refuses",
        "in align mode a chunk has to hold a whole block, and the start asserts it", "use at least {block} plus the tokens of the running streams, e.g. 2048",
        f"{VLLM}/blob/v0.26.0/vllm/config/vllm.py", conditions.budget_below_block, refusal="In Mamba cache align mode, block_size ({block}) must be <= max_num_batched_tokens ({budget})."),
    LintRule("HV002", "budget-at-block", "vllm", Range(), "error",
        "max_num_batched_tokens {budget} leaves less than one block of {block} tokens beside {streams} running stream(s): long prompts wait until the streams end",
        "chunks are rounded down to whole blocks, so what is left beside the decode tokens rounds to 0; measured: the newcomer was shut out for the whole answer",
        "use {enough} or more; from 0.27 on a budget below the block works too", SCHEDULER, conditions.budget_at_block),
    LintRule("HV003", "threshold-below-block", "vllm", Range(None, "0.27"), "error",
        "long_prefill_token_threshold {value} is less than the block of {block} tokens, which this version refuses",
        "in align mode a chunk has to hold a whole block, and the start asserts it", "remove it, or use vLLM 0.27 or later",
        f"{VLLM}/blob/v0.26.0/vllm/config/vllm.py", conditions.threshold_below_block, refusal=""),
    LintRule("HV004", "interval-without-ranks", "vllm", Range("0.24", "0.33"), "warning",
        "prefill_schedule_interval {value} does nothing on one engine in this version",
        "before 0.33 only the data-parallel loop reads it; it is accepted and never used", "use vLLM 0.33, headway's scheduler class, or headway in front",
        f"{VLLM}/pull/54627", conditions.interval_alone),
    LintRule("HV005", "partial-prefills-refused", "vllm", Range(None, "0.27"), "error",
        "{option} {value} is refused: \"Concurrent Partial Prefill is not supported\"",
        "the V1 engine checks for it at start and its scheduler never had it", "remove it; long_prefill_token_threshold bounds one request's part of a step",
        f"{VLLM}/blob/v0.26.0/vllm/engine/arg_utils.py", lambda x: conditions.above("max_num_partial_prefills", 1)(x) or conditions.above("max_long_partial_prefills", 1)(x), refusal="Concurrent Partial Prefill is not supported"),
    LintRule("HV006", "priority-is-no-cure", "vllm", Range(), "warning",
        "scheduling_policy priority does not keep a running answer from stalling",
        "it orders the waiting queue and chooses who is evicted; running prefills keep their chunk and their place", "bound the chunk or pace the prefill; keep priority only for the queue",
        SCHEDULER, conditions.priority),
    LintRule("HV007", "threshold-ignored-alone", "vllm", Range("0.31"), "note",
        "long_prefill_token_threshold {value} is not applied while the prompt is the only request",
        "a prompt that starts alone takes whole budgets; a stream that arrives then waits for the step under way", "bound the budget too if the first gap matters",
        SCHEDULER, conditions.above("long_prefill_token_threshold", 0)),
    LintRule("HV008", "threshold-idle", "vllm", Range(), "warning",
        "long_prefill_token_threshold {value} does nothing: the budget of {budget} is not larger",
        "the cap applies to one request a step, and the budget already ends it", "set it below the budget, or remove it", SCHEDULER, conditions.threshold_idle),
    LintRule("HV009", "hybrid-cache-off", "vllm", Range(None, "0.26"), "warning",
        "prefix caching is off: this version switches it off for hybrid models unless told otherwise",
        "every turn of a conversation is then prefilled whole, and headway cannot pace through the cache", "add --enable-prefix-caching",
        f"{VLLM}/blob/v0.25.1/vllm/config/model.py", conditions.cache_off_by_default),
    LintRule("HV010", "cache-switched-off", "vllm", Range(), "note",
        "prefix caching is switched off",
        "every turn is prefilled whole, and headway cannot pace through the cache; the chunk, and so the gap, stays the same (measured)", "add --enable-prefix-caching",
        "https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html", conditions.cache_off),
    LintRule("HV011", "sparse-states-with-drafts", "vllm", Range("0.30", "0.33"), "warning",
        "with speculation ({tokens} draft tokens) and the default retention of 0 most prefixes of a hybrid model are not found again",
        "only the last state of a prompt is kept, and the lookup drops the last block for the drafter, so they miss each other", "set --prefix-cache-retention-interval to the block, or use 0.33",
        f"{VLLM}/pull/52216", conditions.sparse_states),
    LintRule("HV012", "match-unit-divides", "vllm", Range("0.26"), "error",
        "prefix_match_unit {value} does not divide the block of {block} tokens",
        "hits are counted in units inside a block", "use a divisor of the block, e.g. 16", f"{VLLM}/blob/main/vllm/config/cache.py", conditions.match_unit),
    LintRule("HV013", "all-mode-removed", "vllm", Range("0.32"), "error",
        "mamba_cache_mode all is refused: it was removed", "only align and none are left", "use align", f"{VLLM}/blob/main/vllm/config/cache.py", conditions.all_mode, refusal=""),
    LintRule("HV014", "second-runner-with-align", "vllm", Range("0.24", "0.26"), "error",
        "VLLM_USE_V2_MODEL_RUNNER with a hybrid model and prefix caching is refused", "the second model runner does not know align mode in this version", "unset it, or use 0.26",
        f"{VLLM}/blob/v0.24.0/vllm/config/vllm.py", conditions.second_runner, refusal=""),
    LintRule("HV015", "budget-below-seqs", "vllm", Range(), "error",
        "max_num_batched_tokens {budget} is less than max_num_seqs {seqs}, which is refused", "each running stream takes a token of the budget", "raise the budget or lower max_num_seqs",
        f"{VLLM}/blob/main/vllm/config/scheduler.py", conditions.budget_below_seqs, refusal=""),
    LintRule("HV016", "whole-prefills", "vllm", Range(), "warning",
        "chunked prefill is switched off: a long prompt runs as one step", "every running answer stands still for the whole prefill", "remove --no-enable-chunked-prefill",
        "https://docs.vllm.ai/en/latest/configuration/optimization.html", conditions.unchunked),
    LintRule("HV017", "large-chunk", "vllm", Range(), "note",
        "beside a long prompt every step carries up to {chunk} prompt tokens: running answers get one token a step",
        "longest gap = decode step + {chunk} / prefill rate: {fast:.1f} s at 10,000 tokens/s, {slow:.1f} s at 2,000", "put headway in front (`headway plan` gives the price), or lower the budget",
        "https://docs.vllm.ai/en/latest/configuration/optimization.html", conditions.large_chunk),
    *_unknown_rules(),
    LintRule("HS001", "mixed-chunk-under-drafts", "sglang", Range(), "warning",
        "enable_mixed_chunk does nothing under speculative decoding", "the engine switches it off, so decoding waits for whole prefill batches", "use --prefill-decode-interval, or no speculation",
        "https://github.com/sgl-project/sglang/issues/32549", conditions.mixed_chunk),
    LintRule("HS002", "whole-prefills", "sglang", Range(), "warning",
        "chunked_prefill_size of -1: a long prompt runs as one batch", "prefill runs first, so every running answer stands still for the whole prompt", "set it to 2048 to 8192",
        "https://docs.sglang.ai/advanced_features/server_arguments.html", conditions.sglang_whole),
    LintRule("HS003", "no-decode-interval", "sglang", Range(), "note",
        "no prefill_decode_interval: while prompts come in, running answers get nothing", "the engine runs prefill first and in turn with decode", "set --prefill-decode-interval 4 or 8 where the release has it",
        "https://github.com/sgl-project/sglang/pull/35017", conditions.sglang_interval),
    LintRule("HL001", "batch-for-all-slots", "llama.cpp", Range(), "warning",
        "-b {batch} is {times} times -ub {ubatch}: with {slots} slots a generating slot waits for the whole batch of a new prompt",
        "a batch is not shared out by slot: prompt tokens fill it up to -b, and tokens are sampled only after all of it", "set -b to -ub ({ubatch}) and measure the prefill rate",
        "https://github.com/ggml-org/llama.cpp/issues/4216", conditions.llama_batch),
    LintRule("HL002", "default-batch", "llama.cpp", Range(), "note",
        "-b is {batch} by default: a generating slot waits for a whole batch of a new prompt", "tokens are sampled only after all of the batch", "set -b {ubatch} if the gaps matter",
        "https://github.com/ggml-org/llama.cpp/issues/4216", conditions.llama_default),
)  # fmt: skip
