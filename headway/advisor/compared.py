"""Counts and comparisons that a report makes itself, as evidence. Tests of hints.py: each its line of evidence, or None."""

from __future__ import annotations

from headway.advisor.derived import Derived
from headway.advisor.evidence import SHOWS, UNDISTURBED, Evidence
from headway.advisor.facts import SHORT_PROMPT, Facts, numeric
from headway.advisor.series import CURED, NOISE
from headway.advisor.vocabulary import option_kind

#: A GPU that is used less than this waits for something.
IDLE_GPU = 0.3
#: Up to so many streams a decode step reads the weights once for all: each keeps most of its rate.
SMALL_BATCH = 8
#: Part of the time that the host takes for itself, from which on it is the bottleneck.
HOST_SHARE = 0.25
#: Part of the CPU quota's periods in which the engine was stopped, from which on it shows.
THROTTLED = 0.1


def _pair(f: Facts, name: str) -> tuple[float, float] | None:
    values = f.numbers.get(name, [])
    return (values[0], values[-1]) if len(values) >= 2 else None


def host_takes_its_share(f: Facts, d: Derived) -> Evidence | None:
    return f.cite("host_share") if (f.high("host_share") or 0) >= HOST_SHARE else None


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


def cache_cured(f: Facts, d: Derived) -> Evidence | None:
    """The report switched the prefix cache on, and the time to first token fell."""
    option = next((k for k, v in f.options.items() if "cach" in k and "token" not in k and set(numeric(v)) == {0.0, 1.0}), None)
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


def limit_before_the_answer(f: Facts, d: Derived) -> Evidence | None:
    limit, needs = f.low("client_timeout"), max((f.high(n) or 0 for n in ("ttft", "answer_after", "step_time")), default=0)
    needs = max(needs, d.work or 0)
    return [*f.cite("client_timeout", "ttft"), f"{needs:.0f} s are needed"] if limit and needs > limit else None


def answers_differ(f: Facts, d: Derived) -> Evidence | None:
    return f.cite("distinct_answers") if (f.high("distinct_answers") or 0) > 1 else None


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
