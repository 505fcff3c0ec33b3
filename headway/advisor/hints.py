"""Partial evidence: what speaks for a verdict and what speaks against it, added up where no single fact proves one.

Each row weighs what one fact or statement is worth. SIGN: it is what the cause looks like, and by itself leaves one cause.
HINT: it fits the cause and also others. AGAINST: it excludes the cause. A verdict needs one SIGN or two HINTs, and more than any
other verdict has; a tie is no verdict. Nothing is told by the engine's name alone.
"""

# ruff: noqa: E501  (one row of a table a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.advisor import compared, fitted, told
from headway.advisor.derived import Derived
from headway.advisor.evidence import Evidence
from headway.advisor.facts import Facts

SIGN, HINT, AGAINST = 2, 1, -3
#: What a verdict has to reach.
ENOUGH = 2

Test = Callable[[Facts, Derived], Evidence | None]


@dataclass(frozen=True, slots=True)
class Sign:
    """`verdicts`: all that the fact speaks for (or, with AGAINST, excludes)."""

    verdicts: tuple[str, ...]
    worth: int
    test: Test
    source: str


_PREFILLS = ("chunk-arithmetic", "prefill-first", "running-order", "mixed-step-cost", "overshoot")

SIGNS: tuple[Sign, ...] = (
    Sign(("running-order",), SIGN, told.prompt_waits_for_prompt, "https://github.com/vllm-project/vllm/issues/57413"),
    Sign(("running-order",), SIGN, compared.cap_freed_the_short, "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/110"),
    Sign(("running-order",), SIGN, compared.short_is_late, "a short prompt's own work does not last that long"),
    Sign(("running-order",), SIGN, told.lost_race, "https://github.com/antirez/ds4/pull/601"),
    Sign(("overshoot",), SIGN, told.prompt_waits_for_decodes, "T = W/(1-f) has no bound as f nears 1"),
    Sign(("overshoot",), SIGN, told.decode_always_wins, "https://github.com/lablup/mlxcel/issues/1011"),
    Sign(("overshoot",), SIGN, compared.prefill_stands, "decode steps counted, prefill chunks not"),
    Sign(("prefill-first",), SIGN, told.decode_waits_for_prefill_in_turn, "https://github.com/sgl-project/sglang/issues/32549"),
    Sign(("prefill-first",), SIGN, told.no_decode_between, "https://github.com/tenstorrent/vllm-tt-plugin/issues/109"),
    Sign(("prefill-first",), SIGN, told.prompts_go_first, "https://github.com/vllm-project/vllm/issues/11067"),
    Sign(("chunk-arithmetic",), SIGN, told.decode_waits_for_mixed_chunk, "https://github.com/ggml-org/llama.cpp/issues/4216"),
    Sign(("chunk-arithmetic", "prefill-first"), HINT, told.decode_waits_for_prefill, "which of the two needs the schedule"),
    Sign(("prefill-first",), SIGN, fitted.gap_grows_with_prompt, "with chunks the gap is a chunk's, whatever the prompt"),
    Sign(("prefill-first",), SIGN, fitted.gap_is_whole_prefill, "https://github.com/ddalcu/mlx-serve/pull/205"),
    Sign(("mixed-step-cost",), SIGN, fitted.mixed_step_has_extra, "t = a + b p, and e"),
    Sign(("mixed-step-cost",), SIGN, compared.small_mixed_step_is_long, "the chunk's own work is b x tokens"),
    Sign(("decode-concurrent",), SIGN, compared.crowd_gains_nothing, "a decode step grows slowly with its batch"),
    Sign(("no-overlap",), SIGN, compared.full_and_calm, "two requests that never ran together"),
    Sign(("no-overlap",), SIGN, told.waits_for_slot, "two requests that never ran together"),
    Sign(("no-overlap",), SIGN, told.one_after_another, "two requests that never ran together"),
    Sign(("no-overlap",), SIGN, compared.one_at_a_time, "two requests that never ran together"),
    Sign(("cache-miss",), SIGN, compared.repeat_is_cold, "a hit leaves only the suffix to compute"),
    Sign(("cache-miss",), SIGN, told.front_changes, "a hit ends where the prompts differ"),
    Sign(("cache-miss",), SIGN, told.never_hits, "the report says so"),
    Sign(("cache-miss",), SIGN, compared.cache_cured, "only the cache was changed"),
    Sign(("cache-miss",), SIGN, fitted.turns_stay_cold, "a hit leaves only the suffix to compute"),
    Sign(("preemption",), HINT, fitted.pool_full, "the next token may find no block"),
    Sign(("preemption", "decode-concurrent"), HINT, fitted.collapsed, "no prompt is told"),
    Sign(("preemption",), SIGN, told.waits_for_memory, "https://docs.vllm.ai/en/latest/configuration/optimization.html"),
    Sign(("preemption",), SIGN, told.work_thrown_away, "https://github.com/vllm-project/vllm/issues/25538"),
    Sign(("resend",), SIGN, told.cut_and_sent_again, "https://github.com/vllm-project/vllm/issues/20520"),
    Sign(("resend",), HINT, compared.limit_before_the_answer, "the client's limit ends before the prefill"),
    Sign(("host",), SIGN, compared.throttled, "https://www.kernel.org/doc/html/latest/scheduler/sched-bwc.html"),
    Sign(("host",), SIGN, compared.host_takes_its_share, "time in front of the engine is nobody's prefill"),
    Sign(("host",), SIGN, told.disk_in_the_loop, "https://github.com/ggml-org/llama.cpp/pull/753"),
    Sign(("host",), SIGN, told.waits_for_host, "the report says so"),
    Sign(("host",), SIGN, fitted.cores_cured, "only the host was changed"),
    Sign(("host",), HINT, compared.gpu_idles, "the accelerator waits for something"),
    Sign(("no-overlap",), SIGN, fitted.nothing_overlapped, "two requests that never ran together"),
    Sign(("overshoot",), SIGN, fitted.newcomer_pays_all, "T = W/(1-f) has no bound as f nears 1"),
    Sign(("corruption",), SIGN, fitted.answers_match_less, "no schedule changes a token"),
    Sign(("corruption",), SIGN, told.answers_worsen, "no schedule changes a token"),
    Sign(("corruption",), SIGN, compared.answers_differ, "no schedule changes a token"),
    Sign(("no-op-option",), SIGN, told.set_but_not_used, "the report says so"),
    Sign(_PREFILLS, AGAINST, compared.no_prompt_tokens, "no prefill, no prefill interference"),
    Sign(("decode-concurrent",), AGAINST, compared.prompt_tokens, "a prefill ran meanwhile"),
    Sign(("preemption",), AGAINST, compared.no_evictions, "the counter stayed at 0"),
    Sign(("cache-miss",), AGAINST, compared.hits, "most prompt tokens were found"),
    Sign(("chunk-arithmetic", "prefill-first", "mixed-step-cost", "host"), AGAINST, compared.undisturbed, "the stream kept its rate"),
)  # fmt: skip


def weigh(f: Facts, d: Derived) -> tuple[str, Evidence] | None:
    """The verdict that most speaks for, with its evidence; None when nothing is enough or two are equal."""
    sums: dict[str, int] = {}
    lines: dict[str, Evidence] = {}
    for sign in SIGNS:
        if (found := sign.test(f, d)) is None:
            continue
        for verdict in sign.verdicts:
            sums[verdict] = sums.get(verdict, 0) + sign.worth
            if sign.worth > 0:
                lines.setdefault(verdict, []).extend(found)
    ranked = sorted(((worth, verdict) for verdict, worth in sums.items() if worth >= ENOUGH), reverse=True)
    if not ranked or (len(ranked) > 1 and ranked[0][0] == ranked[1][0]):
        return None
    best = ranked[0][1]
    return best, list(dict.fromkeys(lines[best]))
