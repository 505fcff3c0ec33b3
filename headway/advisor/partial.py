"""The tests of hints.py: one fact, number or statement each, with the line of evidence or None."""

from __future__ import annotations

import re

from headway.advisor.derived import Derived
from headway.advisor.evidence import SHOWS, UNDISTURBED, Evidence
from headway.advisor.facts import SHORT_PROMPT, Facts, numeric
from headway.advisor.relations import End
from headway.advisor.series import CURED, NOISE
from headway.advisor.vocabulary import option_kind

#: A GPU that is used less than this waits for something.
IDLE_GPU = 0.3
#: Up to so many streams a decode step reads the weights once for all: each keeps most of its rate.
SMALL_BATCH = 8
#: Part of the CPU quota's periods in which the engine was stopped, from which on it shows.
THROTTLED = 0.1


def _told(f: Facts, sufferer: tuple[End, ...], cause: tuple[End, ...]) -> Evidence | None:
    """The sentence that states this relation."""
    for (who, why), sentence in f.relations.items():
        if who in sufferer and why in cause:
            return [f"the report says: {sentence!r}"]
    return None


def _text(f: Facts, *patterns: str) -> Evidence | None:
    """Words of the whole report that carry all of the patterns."""
    hits = [re.search(pattern, f.words, re.IGNORECASE) for pattern in patterns]
    return [f"the report says: {', '.join(hit.group(0) for hit in hits if hit)!r}"] if all(hits) else None


def _pair(f: Facts, name: str) -> tuple[float, float] | None:
    values = f.numbers.get(name, [])
    return (values[0], values[-1]) if len(values) >= 2 else None


# Who waits for whom


def prompt_waits_for_prompt(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT,), (End.PREFILL,))


def prompt_waits_for_decodes(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT,), (End.DECODE,))


def decode_waits_for_prefill(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.DECODE,), (End.PREFILL,))


def decode_waits_for_prefill_in_turn(f: Facts, d: Derived) -> Evidence | None:
    own = f.engine.schedule == "alternate" or f.engine.derived or (f.engine.family == "other" and not f.chunk)
    return decode_waits_for_prefill(f, d) if own else None


def decode_waits_for_mixed_chunk(f: Facts, d: Derived) -> Evidence | None:
    own = f.engine.schedule == "mixed" and not f.engine.derived and f.chunk
    told = decode_waits_for_prefill(f, d) if own else None
    return [*told, f"{f.engine.title} gives each stream one token a step of up to {f.chunk:g} prompt tokens"] if told else None


def _own_schedule(f: Facts) -> bool:
    """Not an engine that is known to give running decodes a token in every step."""
    return f.engine.schedule != "mixed" or f.engine.derived


def no_decode_between(f: Facts, d: Derived) -> Evidence | None:
    """Steps or batches of prefill, told to have no decode in them or between them."""
    never = r"\b(no|without a?|rarely|never|seldom|hardly|not|nothing)\b[\w ]{0,16}\bdecod\w+|decod\w+[\w ]{0,16}\b(rarely|never|seldom|hardly|not)\b"
    turns = r"|(either )?prefills? (xor|or) decod\w*|prefill and decode (are separate|exclude)"
    told = next(
        (s for s in f.sentences if re.search(never + turns, s, re.I) and re.search(r"prefill|prompt|chunk", s, re.I)), None
    )
    return [f"the report says: {told.strip()!r}"] if told and _own_schedule(f) and not f.says("only_decodes") else None


def prompts_go_first(f: Facts, d: Derived) -> Evidence | None:
    told = _text(f, r"(prefills?|prompts?|new requests?)\b[\w ]{0,24}\b(first|priority|before (any )?decod\w*)\b")
    return told if told and _own_schedule(f) and decode_waits_for_prefill(f, d) else None


def lost_race(f: Facts, d: Derived) -> Evidence | None:
    """Prefill and decode compete for a lock, and decode stands for longer than a chunk."""
    told = _text(f, r"\b(lock|mutex|race)\b")
    return [*told, *f.cite("freeze", "longest_gap")] if told and (d.gap or 0) > 0.5 else None


def waits_for_memory(f: Facts, d: Derived) -> Evidence | None:
    told = _text(f, r"preempt\w*|evict\w*|retract\w*")
    full = (f.high("kv_usage") or 0) >= 0.97
    return [*told, *f.cite("kv_usage")] if told and full else _told(f, (End.PROMPT, End.REQUEST, End.DECODE), (End.MEMORY,))


def waits_for_host(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.HOST, End.DECODE, End.PROMPT, End.REQUEST), (End.HOST,))


def waits_for_slot(f: Facts, d: Derived) -> Evidence | None:
    return _told(f, (End.PROMPT, End.REQUEST, End.DECODE), (End.SLOT,))


# A newcomer


def cap_freed_the_short(f: Facts, d: Derived) -> Evidence | None:
    """A smaller part of a step for each prompt cured what the *other* prompt waits."""
    waits = f.numbers.get("newcomer_wait", [])
    option = next(
        (k for k, v in f.options.items() if isinstance(v, list) and len(v) == len(waits) and option_kind(k) != "interval"), None
    )
    long = f.has("intruder_tokens") or f.has("intruders") or (f.series is not None and option_kind(f.series.option) == "chunk")
    if option is None or not long or len(waits) < 2 or max(waits) < CURED * min(waits):
        return None
    return [
        f"{option} {f.options[option][waits.index(min(waits))]} brought the short prompt's wait down",
        *f.cite("newcomer_wait"),
    ]


def short_is_late(f: Facts, d: Derived) -> Evidence | None:
    wait, alone = f.high("newcomer_wait"), f.low("newcomer_alone")
    late = wait and alone and wait >= SHOWS * alone
    return f.cite("newcomer_wait", "newcomer_alone", "intruder_tokens") if late and f.has("intruder_tokens") else None


def prefill_stands(f: Facts, d: Derived) -> Evidence | None:
    """Counts read twice: decode steps went on, prefill chunks did not."""
    chunks, steps = _pair(f, "prefill_batches"), _pair(f, "decode_batches")
    if chunks and steps and steps[1] > steps[0] and chunks[1] == chunks[0]:
        return f.cite("prefill_batches", "decode_batches")
    return None


# Together or not


def full_and_calm(f: Facts, d: Derived) -> Evidence | None:
    """All slots taken by the streams, whose longest gaps are those of a stream alone."""
    slots, live = f.low("slots"), f.high("victims") or f.high("running")
    tail, alone = f.high("p99_gap") or f.high("longest_gap"), f.low("normal_gap")
    if slots and live and live >= slots and tail and alone and tail < NOISE * alone:
        return f.cite("slots", "victims", "running", "p99_gap", "normal_gap")
    return None


def one_at_a_time(f: Facts, d: Derived) -> Evidence | None:
    """One request runs and others wait although none of them is evicted or out of memory."""
    if f.high("running") == 1 and (f.high("waiting") or 0) >= 1 and (f.high("kv_usage") or 0) < 0.9 and not f.has("prompt_rate"):
        return f.cite("running", "waiting", "newcomer_wait")
    return None


def crowd_gains_nothing(f: Facts, d: Derived) -> Evidence | None:
    """Rates at several numbers of streams and no prompt: the whole gets nothing from more streams."""
    streams = f.numbers.get("running") or f.numbers.get("slots") or []
    if len(set(streams)) < 2 or f.has("intruder_tokens") or f.has("prompt_rate"):
        return None
    for name, each in (("aggregate_rate", False), ("overlap_rate", True), ("generation_rate", False), ("rate", False)):
        rates = f.numbers.get(name, [])
        if len(rates) != len(streams):
            continue
        whole = [(n, r * n if each else r) for n, r in zip(streams, rates, strict=True)]
        few, rest = min(whole), [total for n, total in whole if n > min(streams)]
        most = max(whole)
        halved = most[0] <= SMALL_BATCH and most[1] / most[0] < few[1] / few[0] / 2
        if min(rest) < NOISE / 1.1 * few[1] or halved:
            return [
                *f.cite("running", name),
                f"{most[0]:g} streams together get {most[1]:.3g} tokens/s, {few[0]:g} got {few[1]:.3g}",
            ]
    return None


# Steps, caches, hosts, clients


def small_mixed_step_is_long(f: Facts, d: Derived) -> Evidence | None:
    times, size = f.high("mixed_ratio"), f.high("intruder_tokens") or f.chunk
    if times and times >= 2 and size and size <= SHORT_PROMPT:
        return [*f.cite("mixed_ratio", "intruder_tokens"), f"{size:g} prompt tokens do not make a step that much longer"]
    return None


def repeat_is_cold(f: Facts, d: Derived) -> Evidence | None:
    """The same prompt again takes as long as the first time."""
    first, again = f.numbers.get("ttft_first", []), f.numbers.get("ttft_again", [])
    if first and len(first) == len(again) and all(b >= 0.8 * a for a, b in zip(first, again, strict=True)):
        return f.cite("ttft_first", "ttft_again")
    return None


def front_changes(f: Facts, d: Derived) -> Evidence | None:
    """The start of the prompt is another one each time, so no prefix is ever the same."""
    return _text(
        f,
        r"system prompt|prefix\w*|first line|start of the prompt|front of the prompt",
        r"\b(time|date|time ?stamp|clock|uuid|random|nonce)\b|chang\w*|differ\w*|never equal|rebuilt|dynamic",
        r"\b(each|every|all|no|never|whole|again)\b",
    )


def cache_cured(f: Facts, d: Derived) -> Evidence | None:
    """The report switched the prefix cache on, and the time to first token fell."""
    option = next((k for k, v in f.options.items() if "cach" in k and set(numeric(v)) == {0.0, 1.0}), None)
    ttft = f.numbers.get("ttft", [])
    if option is None or len(ttft) != 2:
        return None
    off, on = ttft if numeric(f.options[option]) == [0.0, 1.0] else ttft[::-1]
    return [f"{option} brought the time to first token down", *f.cite("ttft")] if off / on >= CURED else None


def throttled(f: Facts, d: Derived) -> Evidence | None:
    quota = f.low("cpu_quota")
    if (f.high("cpu_throttled") or 0) >= THROTTLED:
        return f.cite("cpu_throttled", "cpu_cores", "gpu_usage")
    used = max([*numeric(f.options.get("threads")), f.high("cpu_cores") or 0.0])
    return [*f.cite("cpu_quota"), f"{used:g} threads or cores on it"] if quota and quota > 0 and used > 2 * quota else None


def gpu_idles(f: Facts, d: Derived) -> Evidence | None:
    usage = f.low("gpu_usage")
    return f.cite("gpu_usage") if usage is not None and usage < IDLE_GPU else None


def cut_and_sent_again(f: Facts, d: Derived) -> Evidence | None:
    return _text(
        f,
        r"cancel\w*|time[- ]?outs?|timed out|gives? up|gave up|abort\w*|disconnect\w*|deadline|no response|watchdog",
        r"(same|identical) (prompt|request|body|message)\w* (is |are |comes? |was )?(sent |issued )?(again|anew)|(again|re)[- ]?(sen[dt]|submit|issue|post)\w*|retr(y|ies|ied)\b|then the same (prompt|request)|sen[dt]s? (it |them )?(again|anew|once more)",  # noqa: E501
    )


def limit_before_the_answer(f: Facts, d: Derived) -> Evidence | None:
    limit, needs = f.low("client_timeout"), max((f.high(n) or 0 for n in ("ttft", "answer_after", "step_time")), default=0)
    needs = max(needs, d.work or 0)
    return [*f.cite("client_timeout", "ttft"), f"{needs:.0f} s are needed"] if limit and needs > limit else None


def answers_differ(f: Facts, d: Derived) -> Evidence | None:
    return f.cite("distinct_answers") if (f.high("distinct_answers") or 0) > 1 else None


def set_but_not_used(f: Facts, d: Derived) -> Evidence | None:
    told = _text(f, r"\b(is|are|was|were) (not|never) (used|applied|honou?red|respected|read)|overrid\w*|\bis always \d|ignor\w*")
    return told if told and f.options else None


# Against


def no_prompt_tokens(f: Facts, d: Derived) -> Evidence | None:
    return [] if f.high("prompt_rate") == 0 else None


def prompt_tokens(f: Facts, d: Derived) -> Evidence | None:
    return [] if (f.high("prompt_rate") or 0) > 0 else None


def no_evictions(f: Facts, d: Derived) -> Evidence | None:
    return [] if f.high("preemptions") == 0 else None


def hits(f: Facts, d: Derived) -> Evidence | None:
    return [] if (f.last("hit_rate") or 0) >= 0.5 else None


def undisturbed(f: Facts, d: Derived) -> Evidence | None:
    return [] if d.share is not None and d.share >= UNDISTURBED else None
