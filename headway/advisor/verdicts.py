"""The table of verdicts: which facts prove which cause.

A rule looks at the facts and at what follows from them (derived.py, series.py) and answers with its
evidence, or None. They are asked in order; the first answer is the verdict. Specific causes stand before
general ones: a cause that the report measures (preemptions, hits, copies) explains a stall without any
arithmetic, and the arithmetic of chunks is what is left when the numbers fit it. No rule fires on the
engine's name alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.advisor import arithmetic, counted
from headway.advisor.derived import Derived
from headway.advisor.evidence import Evidence
from headway.advisor.facts import Facts
from headway.advisor.series import Outcome

Test = Callable[[Facts, Derived, Outcome | None], Evidence | None]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    verdict: str
    test: Test
    source: str


RULES: tuple[Rule, ...] = (
    Rule("text-changes", "corruption", counted.corrupt, "no schedule changes a token"),
    Rule("copies", "resend", counted.resent, "https://github.com/vllm-project/vllm/issues/20520"),
    Rule("evictions", "preemption", counted.preempted, "https://docs.vllm.ai/en/latest/configuration/optimization.html"),
    Rule("no-free-slot", "no-overlap", counted.no_slot, "two requests that never ran together"),
    Rule("budget-under-block", "serialised-trap", counted.serialised, "https://github.com/vllm-project/vllm-ascend/issues/16916"),
    Rule("no-hits", "cache-miss", counted.cache_missed, "https://github.com/vllm-project/vllm/issues/36010"),
    Rule("host-starved", "host", counted.host, "gaps grow while the prefill's time does not"),
    Rule("only-decodes", "decode-concurrent", counted.only_decodes, "no prefill tokens, no prefill interference"),
    Rule("inert-option", "no-op-option", counted.inert, "inert.py"),
    Rule("newcomer-pays", "overshoot", counted.overshot, "T = W/(1-f) has no bound as f nears 1"),
    Rule("tried-order", "running-order", arithmetic.tried_order, "the cure was a cap a request, the freeze many steps long"),
    Rule("tried-alternate", "prefill-first", arithmetic.tried_alternate, "https://github.com/sgl-project/sglang/pull/35017"),
    Rule("tried-chunk", "chunk-arithmetic", arithmetic.tried, "gap = a + e + b chunk"),
    Rule("missed-steps", "running-order", arithmetic.unfair, "a mixed step gives each running decode a token"),
    Rule("excess", "mixed-step-cost", arithmetic.costly_mix, "(T/T0)(1-f) > 1.15"),
    Rule("short-behind-long", "running-order", arithmetic.behind, "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/110"),
    Rule("in-turn", "prefill-first", arithmetic.alternates, "https://github.com/sgl-project/sglang/issues/32549"),
    Rule("gap-is-chunk", "chunk-arithmetic", arithmetic.one_chunk, "gap = a + e + b chunk"),
    Rule("gap-times-rate", "chunk-arithmetic", arithmetic.gap_times_rate, "gap = a + e + b chunk"),
    Rule("interval-averages", "chunk-arithmetic", arithmetic.log_line, "tokens a step = streams x prompt rate / generation rate"),
    Rule("told-chunk", "chunk-arithmetic", arithmetic.told_chunk, "https://github.com/ggml-org/llama.cpp/issues/4216"),
    Rule("mixed-engine", "chunk-arithmetic", arithmetic.known_mixed, "gap = a + e + b chunk"),
    Rule("self-made-overlap", "chunk-arithmetic", arithmetic.self_made, "one client, two requests, one engine"),
    Rule("inert-only", "no-op-option", counted.inert_only, "inert.py"),
    Rule("resend-told", "resend", counted.resend_told, "the client's limit"),
)  # fmt: skip
