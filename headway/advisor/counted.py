"""Causes that a report counts or states: evictions, copies, hits, slots, options, cores, changed text.

Each proof answers with its evidence, or None.
"""

from __future__ import annotations

import re

from headway.advisor.blocks import hybrid_block_size, known_config
from headway.advisor.derived import SLOWEST_PREFILL, Derived
from headway.advisor.evidence import ONE_STEP, POOL_FULL, STARVED, UNDISTURBED, Evidence, quote, symptom
from headway.advisor.facts import Facts, numeric
from headway.advisor.inert import inert_options
from headway.advisor.series import CURED, NOISE, STILL, Outcome
from headway.advisor.vocabulary import option_kind


def corrupt(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if (f.high("corrupted") or 0) > 0:
        return [*f.cite("corrupted"), *(quote(f, "corrupt") or [])]
    good, every = f.low("good_answers"), f.high("all_answers")
    if good is not None and every and good < every == f.high("good_answers"):
        return [*f.cite("good_answers", "all_answers"), "all are right under one setting and not under the other"]
    if good is not None and every and good < every and (told := quote(f, "right_alone") or quote(f, "corrupt")):
        return [*f.cite("good_answers", "all_answers"), *told]
    return quote(f, "corrupt")


def resent(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    copies, limit, after = f.high("copies"), f.high("client_timeout"), f.high("answer_after")
    if copies and copies >= 2:
        return [*f.cite("copies", "client_timeout", "answer_after"), *(quote(f, "resend") or [])]
    if limit and after and after > limit:
        return [*f.cite("client_timeout", "answer_after"), "the client's limit ends before the answer comes"]
    return quote(f, "resend") if f.has("answer_after") or copies else None


def resend_told(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    return quote(f, "resend") if d.share is None and d.unfairness is None and o is None else None


def _full_pool(f: Facts) -> Evidence | None:
    """Rates told at several KV usages: they break down where the pool is full."""
    usage = [_share(value) or 0.0 for value in f.numbers.get("kv_usage", [])]
    if len(usage) < 2 or max(usage) < POOL_FULL or min(usage) >= POOL_FULL or f.high("preemptions") == 0:
        return None
    full, free = usage.index(max(usage)), usage.index(min(usage))
    for name, worse in (
        ("seconds_per_token", 1),
        ("itl", 1),
        ("p99_gap", 1),
        ("overlap_rate", -1),
        ("generation_rate", -1),
        ("rate", -1),
    ):
        values = f.numbers.get(name, [])
        if len(values) == len(usage) and values[free] and (values[full] / values[free]) ** worse >= CURED:
            return [*f.cite("kv_usage", name), "it breaks down where the KV pool is full, and what is evicted is prefilled again"]
    return None


def preempted(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    count = f.high("preemptions")
    if count:
        return [*f.cite("preemptions", "kv_usage", "running"), "evicted requests are prefilled again"]
    if line := _full_pool(f):
        return line
    told = quote(f, "preempted") or (quote(f, "dropped_again") if re.search(r"preempt|evict|retract", f.words) else None)
    if not told and count != 0 and (f.high("kv_usage") or 0) >= POOL_FULL and re.search(r"preempt|evict|retract", f.words):
        return f.cite("kv_usage")
    # A counter of 0 stands against "evicted", not against a description of the cycle itself.
    return told if count is None or quote(f, "dropped_again") else None


def cache_missed(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    rate, cached, prompt = f.last("hit_rate"), f.high("cached_tokens"), f.high("intruder_tokens")
    if d.share is not None and d.share < STARVED:
        return None  # a cold prompt is why the prefill is long, not why the stream beside it stands still
    if f.high("prompt_rate") == 0:
        return None  # where no prompt is computed, nothing is asked of the cache
    if rate is not None and rate > 1:
        rate /= 100
    told = quote(f, "cache_missed")
    if rate is not None:
        return [*f.cite("hit_rate", "intruder_tokens", "ttft"), *(told or [])] if rate < 0.05 else None
    if cached is not None and prompt:
        missed = cached < (0.7 if told else 0.05) * prompt
        return [*f.cite("cached_tokens", "intruder_tokens"), *(told or [])] if missed else None
    if cached == 0 or (f.last("cached_tokens") == 0 and len(f.numbers["cached_tokens"]) > 1):
        return [*f.cite("cached_tokens"), *(told or [])]
    return told


def no_slot(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    slots, live = f.low("slots"), f.high("victims") or f.high("running")
    calm = (d.share is not None and d.share >= UNDISTURBED) or f.high("freeze") == 0 or d.gap == 0
    if slots is not None and (slots == 1 or (live is not None and live >= slots)) and (calm or f.high("waiting")):
        return [
            *f.cite("slots", "victims", "running", "waiting", "freeze"),
            "no slot was free, so prefill and decode never met",
        ]
    told = quote(f, "one_after_another")
    if told and (calm or slots == 1):
        return [*told, *f.cite("slots")]
    hurt = (d.share is not None and d.share < UNDISTURBED) or (d.gap or 0) > 0.5
    return None if hurt else quote(f, "not_together")


def _block(f: Facts) -> float | None:
    value = f.options.get("block_size")
    if isinstance(value, int | float) and value > 0:
        return float(value)
    named = re.search(r"block(?:[ _]size)?\D{0,4}(\d{2,5})", f.words, re.IGNORECASE)
    if named:
        return float(named.group(1))
    shapes = known_config(f.engine.name)
    dtype = str(
        f.options.get("kv_cache_dtype")
        or ("fp8" if re.search(r"fp8 kv|kv[ _-]?(cache )?fp8", f.words, re.IGNORECASE) else "auto")
    )
    return hybrid_block_size(shapes, dtype) if shapes else None


def serialised(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    budget, block = f.options.get("max_num_batched_tokens"), _block(f)
    if not isinstance(budget, int | float) or not block or f.engine.family != "vllm":
        return None
    aligned = f.engine.hybrid or block > 256
    decodes = max(f.high("victims") or f.high("running") or 1, 1)
    stuck = budget < block and f.engine.version is not None and f.engine.version < (0, 27) and f.says("never_scheduled")
    if aligned and stuck:
        return [
            f"budget {budget:g} is less than one block of {block:g}, so the chunk rounds down to 0",
            *(quote(f, "never_scheduled") or []),
        ]
    if aligned and 0 <= budget - block < decodes:
        return [
            f"budget {budget:g} less {decodes:g} decode token(s) leaves less than one block of {block:g}, so the chunk rounds down to 0",  # noqa: E501
            *f.cite("victim_share", "ttft", "ttft_alone", "victim_wall"),
        ]
    return None


#: A processor that is this busy is full; a GPU below this waits for something.
CPU_FULL, GPU_WAITS = 0.95, 0.9

#: Major page faults in one report (or a second): a host process that fits into memory has next to none.
MANY_FAULTS = 100


def _share(value: float | None) -> float | None:
    """A share that may have been told as a percentage."""
    return value / 100 if value is not None and value > 1.5 else value


def _nothing_moved(f: Facts, with_what: str) -> bool:
    """A rate or a gap told beside each value of a quantity stays what it is while the quantity grows."""
    values = f.numbers.get(with_what, [])
    for name in ("overlap_rate", "generation_rate", "rate", "itl", "longest_gap"):
        beside = f.numbers.get(name, [])
        if len(values) >= 2 and len(beside) == len(values) and min(beside) > 0 and max(beside) / min(beside) < STILL:
            return True
    return False


def host(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    told = quote(f, "host")
    cores, steady = f.low("cpu_cores"), f.high("ttft_change")
    same_ttft = steady is not None and abs(steady) < 0.1
    prefilling = f.has("intruder_tokens") and d.gap_in_steps is not None and d.gap_in_steps < ONE_STEP
    cpu, gpu = _share(f.high("cpu_usage")), _share(f.low("gpu_usage"))
    if cpu is not None and cpu >= CPU_FULL and gpu is not None and gpu < GPU_WAITS and not prefilling:
        return f.cite("cpu_usage", "gpu_usage")
    if f.high("swap_used"):
        return [*f.cite("swap_used"), *(told or [])]
    if (f.high("page_faults") or 0) >= MANY_FAULTS and not prefilling and not _nothing_moved(f, "page_faults"):
        return [*f.cite("page_faults", "longest_gap", "itl"), *(told or [])]
    if (told or (cores is not None and cores <= 2)) and not prefilling:
        return [*(told or []), *f.cite("cpu_cores", "cpu_usage", "itl", "longest_gap", "ttft_change")]
    return f.cite("ttft_change", "itl", "longest_gap") if same_ttft else None


def _crowd(f: Facts) -> Evidence | None:
    """Rates at several numbers of streams: more streams together give less than fewer did, and no prompt is computed."""
    streams = f.numbers.get("running", [])
    if f.prefill_seen or len(set(streams)) < 2:
        return None
    for name, each in (("overlap_rate", True), ("aggregate_rate", False), ("generation_rate", False), ("rate", False)):
        rates = f.numbers.get(name, [])
        if len(rates) != len(streams):
            continue
        few, many = min(zip(streams, rates, strict=True)), max(zip(streams, rates, strict=True))
        whole_few, whole_many = (r * n if each else r for n, r in (few, many))
        if whole_many < whole_few:
            return [*f.cite("running", name), f"{many[0]:g} streams together get less than {few[0]:g}, and no prompt is computed"]
    return None


def _speculation(f: Facts) -> Evidence | None:
    """Speculation switched on and off under several streams, and no prompt computed: the decode batch itself costs."""
    option = next((k for k, v in f.options.items() if re.search(r"spec|draft|mtp|verify", k) and len(set(numeric(v))) >= 2), None)
    if option is None or f.prefill_seen or (f.high("running") or 0) < 2:
        return None
    for name in ("aggregate_rate", "generation_rate", "rate", "overlap_rate"):
        rates = f.numbers.get(name, [])
        if len(rates) == len(numeric(f.options[option])) and min(rates) > 0 and max(rates) / min(rates) >= NOISE:
            return [f"{option} changed the rate of streams that only decode", *f.cite(name, "running")]
    return None


def only_decodes(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    prompts, live = f.high("prompt_rate"), f.high("running") or f.high("victims")
    if prompts == 0 and (live is None or live >= 2) and not f.high("waiting"):
        return [
            *f.cite("prompt_rate", "generation_rate", "running"),
            "no prompt token is computed, so no prefill disturbs",
        ]
    if line := _crowd(f) or _speculation(f):
        return line
    if f.high("prefill_batches") == 0 and f.has("decode_batches"):
        return f.cite("prefill_batches", "decode_batches")
    if 0 in (f.high("intruder_tokens"), f.high("intruders")) and prompts is None:
        return [
            *f.cite("intruder_tokens", "intruders", "running", "overlap_rate"),
            "no prompt is computed, so no prefill disturbs",
        ]
    return quote(f, "only_decodes") if prompts is None else None


def inert(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if o is not None and not o.flat:
        return None
    # Priority does order the queue, so by itself it proves nothing.
    known = [e for e in inert_options(f.engine, f.options) if not e.value or f.says("no_effect")]
    if o is not None and o.kind == "chunk" and not known:
        return None
    if known and (symptom(f, d) or f.says("no_effect")):
        return [f"{e.option} is set; {e.why}; instead: {e.instead} ({e.source})" for e in known] + f.cite(
            "prefill_batches", "decode_batches", "overlap_rate", "longest_gap"
        )
    if o is not None and o.flat:
        return [f"{o.option} was changed and nothing moved by more than {STILL - 1:.0%}"]
    # A smaller chunk that does not help is no inert option: the engine may run prefill first.
    chunk = (o is not None and o.kind == "chunk") or (f.series is not None and option_kind(f.series.option) == "chunk")
    chunk = chunk or bool(re.search(r"chunk", f.words))
    return None if chunk and f.says("decodes_stop") else quote(f, "no_effect")


def inert_only(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """Nothing was measured, but the option that was meant to help is known to do nothing here."""
    # `priority` does order the waiting queue, so alone it proves nothing.
    known = [e for e in inert_options(f.engine, f.options) if e.value is None]
    return [f"{e.option} is set; {e.why}; instead: {e.instead} ({e.source})" for e in known] or None


def overshot(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if (
        o
        and o.kind == "interval"
        and not (o.gain and o.gain >= CURED)
        and ((o.wait or 1) >= NOISE or (o.total or 1) <= 1 / NOISE)
    ):
        return [
            f"{o.option}: newcomer's time x {o.wait or 1:.2f}, total rate x {o.total or 1:.2f}, no gain measured for the victims"
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
    if told and protected and late and d.work and late > 3 * d.work:
        return [
            *f.cite("ttft", "ttft_alone", "victim_share"),
            "victims lost nothing and the newcomer waited for all of them",
        ]
    if told and f.says("newcomer_starves"):
        return [*(quote(f, "newcomer_starves") or []), *(quote(f, "protects_decodes") or [])]
    return None
