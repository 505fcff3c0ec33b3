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

from headway.advisor.derived import FASTEST_PREFILL, SLOWEST_PREFILL, Derived
from headway.advisor.facts import Facts
from headway.advisor.inert import inert_options
from headway.advisor.model import EXCESS_LIMIT
from headway.advisor.series import CURED, NOISE, Outcome

Evidence = list[str]
Test = Callable[[Facts, Derived, Outcome | None], Evidence | None]

#: A gap of up to so many chunk steps is still "one chunk a step": rates fall with the position, two
#: intruders share steps.
ONE_STEP = 3.5
#: In a mixed step every decode gets one token, so lanes differ only by their starts; above this they are
#: not served alike.
UNFAIR = 4.0
#: A gap of so many decode steps shows in the text that a reader sees.
SHOWS = 5.0
#: Step bounds that engines use, tokens.
SMALLEST_CHUNK, LARGEST_CHUNK = 64, 40_000
#: A victim that kept this much was not disturbed.
UNDISTURBED = 0.9
#: Below this share of its solo rate a stream is starved by any reading.
STARVED = 0.7


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    verdict: str
    test: Test
    source: str


def _quote(f: Facts, signal: str) -> Evidence | None:
    found = f.says(signal)
    return [f"the report says: {found!r}"] if found else None


def _corrupt(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    return _quote(f, "corrupt")


def _resent(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    copies, limit, after = f.high("copies"), f.high("client_timeout"), f.high("answer_after")
    if copies and copies >= 2:
        return [*f.cite("copies", "client_timeout", "answer_after"), *(_quote(f, "resend") or [])]
    if limit and after and after > limit:
        return [*f.cite("client_timeout", "answer_after"), "the client's limit ends before the answer comes"]
    return _quote(f, "resend") if f.has("answer_after") or copies else None


def _resend_told(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    return _quote(f, "resend") if d.share is None and d.unfairness is None and o is None else None


def _preempted(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    count = f.high("preemptions")
    if count is not None:
        return (
            [*f.cite("preemptions", "kv_usage", "running"), "evicted requests are prefilled again"]
            if count > 0
            else None
        )
    return _quote(f, "preempted")


def _cache_missed(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    rate, cached, prompt = f.high("hit_rate"), f.high("cached_tokens"), f.high("intruder_tokens")
    if d.share is not None and d.share < STARVED:
        return None  # a cold prompt is why the prefill is long, not why the stream beside it stands still
    if rate is not None and rate > 1:
        rate /= 100
    told = _quote(f, "cache_missed")
    if rate is not None:
        return [*f.cite("hit_rate", "intruder_tokens", "ttft"), *(told or [])] if rate < 0.05 else None
    if cached is not None and prompt:
        return (
            [*f.cite("cached_tokens", "intruder_tokens"), *(told or [])] if cached < 0.05 * prompt else None
        )
    if cached == 0:
        return [*f.cite("cached_tokens"), *(told or [])]
    return told


def _no_slot(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    slots, live = f.low("slots"), f.high("victims") or f.high("running")
    calm = (d.share is not None and d.share >= UNDISTURBED) or f.high("freeze") == 0 or d.gap == 0
    if (
        slots is not None
        and (slots == 1 or (live is not None and live >= slots))
        and (calm or f.high("waiting"))
    ):
        return [
            *f.cite("slots", "victims", "running", "waiting", "freeze"),
            "no slot was free, so prefill and decode never met",
        ]
    told = _quote(f, "one_after_another")
    return [*told, *f.cite("slots")] if told and (calm or slots == 1) else None


def _block(f: Facts) -> float | None:
    import re

    for key in ("block_size", "block", "attention_block_size", "mamba_block_size", "align_block"):
        value = f.options.get(key)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    named = re.search(r"block(?:[ _]size)?\D{0,4}(\d{2,5})", f.words)
    return float(named.group(1)) if named else None


def _serialised(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    budget, block = f.options.get("max_num_batched_tokens"), _block(f)
    if not isinstance(budget, int | float) or not block or f.engine.family != "vllm":
        return None
    aligned = f.engine.hybrid or block > 256
    decodes = max(f.high("victims") or f.high("running") or 1, 1)
    if aligned and 0 <= budget - block < decodes:
        return [
            f"budget {budget:g} less {decodes:g} decode token(s) leaves less than one block of {block:g}, so the chunk rounds down to 0",  # noqa: E501
            *f.cite("victim_share", "ttft", "ttft_alone", "victim_wall"),
        ]
    return None


def _host(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    told = _quote(f, "host")
    cores, steady = f.low("cpu_cores"), f.high("ttft_change")
    same_ttft = steady is not None and abs(steady) < 0.1
    prefilling = f.has("intruder_tokens") and d.gap_in_steps is not None and d.gap_in_steps < ONE_STEP
    if f.high("swap_used"):
        return [*f.cite("swap_used"), *(told or [])]
    if (told or (cores is not None and cores <= 2)) and not prefilling:
        return [*(told or []), *f.cite("cpu_cores", "cpu_usage", "itl", "longest_gap", "ttft_change")]
    return f.cite("ttft_change", "itl", "longest_gap") if same_ttft else None


def _only_decodes(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    prompts, live = f.high("prompt_rate"), f.high("running") or f.high("victims")
    if prompts == 0 and (live is None or live >= 2) and not f.high("waiting"):
        return [
            *f.cite("prompt_rate", "generation_rate", "running"),
            "no prompt token is computed, so no prefill disturbs",
        ]
    if f.high("prefill_batches") == 0 and f.has("decode_batches"):
        return f.cite("prefill_batches", "decode_batches")
    return _quote(f, "only_decodes") if prompts is None else None


def _inert(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if o is not None and not o.flat:
        return None
    known = inert_options(f.engine, f.options)
    if o is not None and o.kind == "chunk" and not known:
        return None
    if known and (_symptom(f, d) or f.says("no_effect")):
        return [f"{e.option} is set; {e.why} ({e.source})" for e in known] + f.cite(
            "prefill_batches", "decode_batches", "overlap_rate", "longest_gap"
        )
    if o is not None and o.flat:
        return [f"{o.option} was changed and nothing moved by more than {NOISE - 1:.0%}"]
    return _quote(f, "no_effect")


def _inert_only(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """Nothing was measured, but the option that was meant to help is known to do nothing here."""
    return [f"{e.option} is set; {e.why} ({e.source})" for e in inert_options(f.engine, f.options)] or None


def _symptom(f: Facts, d: Derived) -> bool:
    """Something suffers at all."""
    prefills, decodes = f.high("prefill_batches"), f.high("decode_batches")
    return bool(
        (d.share is not None and d.share < STARVED)
        or (prefills and decodes is not None and prefills > 4 * decodes)
        or (d.gap is not None and d.gap > 0.5)
        or f.says("slows_others")
        or f.says("whole_prefill")
        or f.says("newcomer_starves")
    )


def _overshot(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if (
        o
        and o.kind == "interval"
        and not (o.gain and o.gain >= CURED)
        and ((o.wait or 1) >= NOISE or (o.total or 1) <= 1 / NOISE)
    ):
        return [
            f"{o.option}: newcomer's time x {o.wait or 1:.2f}, total rate x {o.total or 1:.2f}, no gain measured for the victims"  # noqa: E501
        ]
    if o and o.kind == "interval" and o.wait and o.gain and o.wait > 2 * o.gain:
        return [f"{o.option}: newcomer's time x {o.wait:.2f} for a gain of x {o.gain:.2f}"]
    wait, told = f.high("newcomer_wait"), f.says("protects_decodes")
    size = f.high("newcomer_tokens") or f.high("intruder_tokens")
    protected = d.share is not None and d.share >= UNDISTURBED
    if told and wait and (not size or size / wait < SLOWEST_PREFILL):
        return [
            *f.cite("newcomer_wait", "newcomer_tokens"),
            f"decodes are protected ({told!r}) without a bound for newcomers",
        ]
    late = f.high("ttft")
    if (told or protected) and late and d.work and late > 3 * d.work and protected:
        return [
            *f.cite("ttft", "ttft_alone", "victim_share"),
            "victims lost nothing and the newcomer waited for all of them",
        ]
    if told and f.says("newcomer_starves"):
        return [*(_quote(f, "newcomer_starves") or []), *(_quote(f, "protects_decodes") or [])]
    return None


def _tried(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """The report changed a setting and its victims were cured: the cause is what the setting bounds."""
    if o is None or not o.gain or o.gain < CURED or not (o.follows_size or _at_solo(d, o)):
        return None
    return [
        f"{o.option}: victims gained x {o.gain:.1f}, newcomer's time x {o.wait or 1:.2f}",
        *f.cite("overlap_rate", "longest_gap", "freeze", "ttft"),
    ]


def _at_solo(d: Derived, o: Outcome) -> bool:
    return bool(d.solo and o.best_rate and o.best_rate >= STARVED * d.solo)


def _tried_alternate(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    return _tried(f, d, o) if f.engine.schedule == "alternate" else None


def _tried_order(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    found = _tried(f, d, o)
    slow = _missed_steps(f, d)
    return [*found, *slow] if found and slow and f.engine.schedule != "alternate" else None


def _missed_steps(f: Facts, d: Derived) -> Evidence | None:
    """The gap is many chunk steps long, so the stream got nothing in most of them."""
    if d.gap_in_steps and d.gap_in_steps > 2 * ONE_STEP:
        return [
            f"a gap of {d.gap:.3g} s is {d.gap_in_steps:.0f} steps of {d.step:.2g} s: the stream got nothing in them"  # noqa: E501
        ]
    if d.step is None and d.implied_rate and d.implied_rate < SLOWEST_PREFILL:
        return [
            f"a chunk of {f.chunk:g} tokens in a gap of {d.gap:.3g} s would be {d.implied_rate:.1f} tokens/s: many chunks passed in it"  # noqa: E501
        ]
    return None


def _unfair(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if d.unfairness and d.unfairness >= UNFAIR:
        return [
            *f.cite("lane_min", "lane_max", "preemptions"),
            f"streams differ by x {d.unfairness:.0f}, but a mixed step serves all alike",
        ]
    missed = _missed_steps(f, d)
    if missed and f.engine.schedule == "mixed":
        return [*missed, *f.cite("freeze", "longest_gap", "intruder_tokens")]
    told = _quote(f, "unfair")
    if told and f.engine.schedule != "alternate":
        return told
    return None


def _behind(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """A short newcomer that waits as long as someone else's whole prefill."""
    wait, size = f.high("newcomer_wait"), f.high("newcomer_tokens")
    if wait and size and size / wait < SLOWEST_PREFILL:
        return [
            *f.cite("newcomer_wait", "newcomer_tokens"),
            "a short prompt waits for work that is not its own",
        ]
    told = _quote(f, "queued_behind")
    return [*told, *f.cite("newcomer_wait")] if told else None


def _costly_mix(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if d.excess is not None and d.excess > EXCESS_LIMIT:
        return [
            *f.cite("ttft", "ttft_alone", "solo_rate", "overlap_rate"),
            f"(T/T0)(1-f) = {d.excess:.2f}, above {EXCESS_LIMIT}",
        ]
    if o and o.kind == "chunk" and o.gain is not None and not (o.follows_size or _at_solo(d, o)):
        return [f"{o.option}: a chunk {o.span:.0f} times smaller gave the victims only x {o.gain:.2f}"]
    if f.says("small_prefills") and (d.share is None or d.share < STARVED):
        return [
            *(_quote(f, "small_prefills") or []),
            *f.cite("rate", "overlap_rate"),
            "the count of interruptions costs, not their size",
        ]
    return _quote(f, "mixed_is_costly")


def _alternates(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    prefills, decodes = f.high("prefill_batches"), f.high("decode_batches")
    if prefills and decodes is not None and prefills > 4 * max(decodes, 1):
        return f.cite("prefill_batches", "decode_batches")
    generated, prompts, live = f.low("generation_rate"), f.high("prompt_rate"), f.high("running")
    modern = f.engine.family == "vllm" and f.engine.schedule == "mixed" and f.engine.version is not None
    if generated == 0 and prompts and not modern and (live is None or live >= 2):
        return [
            *f.cite("generation_rate", "prompt_rate", "running"),
            "prompts are computed and nothing is generated",
        ]
    if f.engine.schedule == "alternate" and _symptom(f, d):
        return [
            f"{f.engine.title} runs prefill and decode in turn",
            *f.cite("freeze", "longest_gap", "stalls", "step_time", "overlap_rate", "intruder_tokens"),
        ]
    told = _quote(f, "whole_prefill")
    return told if told and f.engine.schedule != "mixed" else None


def _one_chunk(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if d.gap_in_steps is not None and 1 / ONE_STEP <= d.gap_in_steps <= ONE_STEP:
        return [
            f"the gap of {d.gap:.3g} s is {d.gap_in_steps:.1f} chunk steps of {d.step:.3g} s",
            *f.cite("overlap_rate", "seconds_per_token", "solo_rate"),
        ]
    suffers = d.share is None or d.share < STARVED
    if d.step is None and d.implied_rate and SLOWEST_PREFILL <= d.implied_rate <= FASTEST_PREFILL and suffers:
        return [
            f"a chunk of {f.chunk:g} tokens in the gap of {d.gap:.3g} s is {d.implied_rate:.0f} tokens/s, a plausible prefill rate"  # noqa: E501
        ]
    return None


def _gap_times_rate(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """The step bound is not told: gap x prefill rate is the chunk, if the prompt is longer than that."""
    prompt, seen = f.high("intruder_tokens"), d.chunk_seen
    if f.engine.schedule != "mixed" or f.chunk or not seen or not prompt or not d.solo or not d.gap:
        return None
    if d.gap * d.solo < SHOWS or not SMALLEST_CHUNK <= seen <= LARGEST_CHUNK or prompt < 1.2 * seen:
        return None
    return [
        f"a gap of {d.gap:.3g} s at {d.prefill_rate:.0f} tokens/s is about {seen:.0f} prefill tokens a step",
        *f.cite("solo_rate", "overlap_rate", "longest_gap", "intruder_tokens"),
    ]


def _log_line(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """From one interval's averages: streams x prompt rate / generation rate = prefill tokens a step."""
    generated, prompts, live = f.low("generation_rate"), f.high("prompt_rate"), f.high("running")
    if not (generated and prompts and live and live >= 2):
        return None
    tokens = prompts * (live - 1) / generated
    if tokens < 64:
        return None
    return [
        *f.cite("generation_rate", "prompt_rate", "running"),
        f"about {tokens:.0f} prefill tokens for each decode step",
    ]


def _told_chunk(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    told = _quote(f, "follows_chunk")
    if told and f.chunk and f.engine.schedule != "alternate":
        return [*told, f"step bound of {f.chunk:g} tokens"]
    return None


def _known_mixed(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """A mixed engine, a starved stream beside a long prompt, and no sign of anything else."""
    if f.engine.schedule != "mixed" or d.share is None or d.share >= STARVED:
        return None
    prefill = f.has("intruder_tokens") or f.high("prompt_rate") or f.says("slows_others") or f.chunk
    return (
        [
            *f.cite("solo_rate", "overlap_rate", "intruder_tokens"),
            "every step of this engine carries a prefill chunk",
        ]
        if prefill
        else None
    )


def _self_made(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if (told := _quote(f, "simultaneous")) and (f.high("slower") or 0) > NOISE:
        return [*told, *f.cite("slower", "models")]
    return None


RULES: tuple[Rule, ...] = (
    Rule("text-changes", "corruption", _corrupt, "PHYSICS: a schedule cannot change a token"),
    Rule("copies", "resend", _resent, "https://github.com/vllm-project/vllm/issues"),
    Rule("evictions", "preemption", _preempted, "https://docs.vllm.ai/en/latest/configuration/optimization.html"),
    Rule("no-free-slot", "no-overlap", _no_slot, "two requests that never ran together"),
    Rule("budget-under-block", "serialised-trap", _serialised, "https://github.com/vllm-project/vllm-ascend/issues/16916"),
    Rule("no-hits", "cache-miss", _cache_missed, "https://github.com/vllm-project/vllm/issues/36010"),
    Rule("host-starved", "host", _host, "gaps grow while the prefill's time does not"),
    Rule("only-decodes", "decode-concurrent", _only_decodes, "no prefill tokens, no prefill interference"),
    Rule("inert-option", "no-op-option", _inert, "inert.py"),
    Rule("newcomer-pays", "overshoot", _overshot, "T = W/(1-f) has no bound as f nears 1"),
    Rule("tried-order", "running-order", _tried_order, "the cure was a cap a request, the freeze many steps long"),  # noqa: E501
    Rule("tried-alternate", "prefill-first", _tried_alternate, "https://github.com/sgl-project/sglang/pull/35017"),
    Rule("tried-chunk", "chunk-arithmetic", _tried, "gap = a + e + b chunk"),
    Rule("missed-steps", "running-order", _unfair, "a mixed step gives each running decode a token"),
    Rule("excess", "mixed-step-cost", _costly_mix, "(T/T0)(1-f) > 1.15"),
    Rule("short-behind-long", "running-order", _behind, "https://github.com/MiaAI-Lab"),
    Rule("in-turn", "prefill-first", _alternates, "https://github.com/sgl-project/sglang/issues/32549"),
    Rule("gap-is-chunk", "chunk-arithmetic", _one_chunk, "gap = a + e + b chunk"),
    Rule("gap-times-rate", "chunk-arithmetic", _gap_times_rate, "gap = a + e + b chunk"),
    Rule("interval-averages", "chunk-arithmetic", _log_line, "tokens a step = streams x prompt rate / generation rate"),  # noqa: E501
    Rule("told-chunk", "chunk-arithmetic", _told_chunk, "https://github.com/ggml-org/llama.cpp/issues/4216"),
    Rule("mixed-engine", "chunk-arithmetic", _known_mixed, "gap = a + e + b chunk"),
    Rule("self-made-overlap", "chunk-arithmetic", _self_made, "one client, two requests, one engine"),
    Rule("inert-only", "no-op-option", _inert_only, "inert.py"),
    Rule("resend-told", "resend", _resend_told, "the client's limit"),
)  # fmt: skip
