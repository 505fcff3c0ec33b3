"""Causes that follow from numbers by the step model, or from the report's own experiment.

Each proof answers with its evidence, or None.
"""

from __future__ import annotations

from math import isfinite

from headway.advisor.derived import FASTEST_PREFILL, SLOWEST_PREFILL, Derived
from headway.advisor.evidence import (
    LARGEST_CHUNK,
    ONE_STEP,
    POOL_FULL,
    SHOWS,
    SMALLEST_CHUNK,
    STARVED,
    UNFAIR,
    Evidence,
    quote,
    symptom,
)
from headway.advisor.facts import Facts
from headway.advisor.series import CURED, NOISE, Outcome
from headway.advisor.vocabulary import option_kind
from headway.core.frontier import EXCESS_LIMIT


def tried(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """The report changed a setting and its victims were cured: the cause is what the setting bounds."""
    if o is None or not o.gain or o.gain < CURED or not (o.follows_size or _at_solo(d, o)):
        return None
    if o.kind == "interval" and (f.engine.schedule is None or f.engine.derived):
        return None  # decode-only steps help on either kind of engine
    return [
        f"{o.option}: victims gained x {o.gain:.1f}, newcomer's time x {o.wait or 1:.2f}",
        *f.cite("overlap_rate", "longest_gap", "freeze", "ttft"),
    ]


def _at_solo(d: Derived, o: Outcome) -> bool:
    return bool(d.solo and o.best_rate and o.best_rate >= STARVED * d.solo)


def tried_alternate(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    return tried(f, d, o) if f.engine.schedule == "alternate" else None


def tried_order(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    found = tried(f, d, o)
    slow = _missed_steps(f, d)
    return [*found, *slow] if found and slow and f.engine.schedule != "alternate" else None


def _missed_steps(f: Facts, d: Derived) -> Evidence | None:
    """The gap is many chunk steps long, so the stream got nothing in most of them."""
    if d.gap_in_steps and d.gap_in_steps > 2 * ONE_STEP:
        return [f"a gap of {d.gap:.3g} s is {d.gap_in_steps:.0f} steps of {d.step:.2g} s: the stream got nothing in them"]
    if d.step is None and d.implied_rate and d.implied_rate < SLOWEST_PREFILL and (f.prefill_seen or f.series):
        return [
            f"a chunk of {f.chunk:g} tokens in a gap of {d.gap:.3g} s would be {d.implied_rate:.1f} tokens/s: many chunks passed in it"  # noqa: E501
        ]
    return None


def unfair(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if d.unfairness and d.unfairness >= UNFAIR:
        return [
            *f.cite(*(("lane_min", "lane_max") if f.has("lane_max") else ("lane_rates",)), "preemptions"),
            (
                f"streams differ by x {d.unfairness:.0f}"
                if isfinite(d.unfairness)
                else "some streams get nothing at all beside others that run"
            )
            + ", but a mixed step serves all alike",
        ]
    missed = _missed_steps(f, d)
    if missed and f.engine.schedule == "mixed":
        return [*missed, *f.cite("freeze", "longest_gap", "intruder_tokens")]
    return None


def behind(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """A short newcomer that waits as long as someone else's whole prefill."""
    wait, size, long = f.high("newcomer_wait"), f.high("newcomer_tokens"), f.high("intruder_tokens")
    mixed = f.engine.schedule == "mixed"
    if mixed and wait and size and size / wait < SLOWEST_PREFILL and long and long > 4 * size:
        return [
            *f.cite("newcomer_wait", "newcomer_tokens", "intruder_tokens"),
            "a short prompt waits for work that is not its own",
        ]
    return None


def _fixed_part(f: Facts, o: Outcome | None) -> Evidence | None:
    """Step times under several chunk sizes: a straight line whose part at 0 is not the decode step is the mixed step's cost."""
    series, decode = f.series, f.low("normal_gap")
    times = next((f.numbers[n] for n in ("step_time", "longest_gap", "p99_gap") if len(f.numbers.get(n, ())) >= 2), None)
    if not (o is None or o.kind == "chunk") or series is None or option_kind(series.option) != "chunk" or not decode or not times:
        return None
    rows = [(s, t) for s, t in zip(series.settings, times, strict=False) if s > 0]
    if len(times) != len(series.settings) or len({s for s, _ in rows}) < 2:
        return None
    (low, fast), (high, slow) = min(rows), max(rows)
    slope = (slow - fast) / (high - low)
    fixed = fast - slope * low - decode
    if slope <= 0 or fixed < 2 * max(decode, slope * low):
        return None
    return [f"steps last {fast:.3g} s with {low:g} tokens, {slow:.3g} s with {high:g}: {fixed:.3g} s do not depend on the chunk"]


def costly_mix(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if d.excess is not None and d.excess > EXCESS_LIMIT:
        return [
            *f.cite("ttft", "ttft_alone", "solo_rate", "overlap_rate"),
            f"(T/T0)(1-f) = {d.excess:.2f}, above {EXCESS_LIMIT}",
        ]
    if o and o.kind == "chunk" and o.gain is not None and o.tail and not (o.follows_size or _at_solo(d, o)):
        return [f"{o.option}: a chunk {o.span:.0f} times smaller gave the victims only x {o.gain:.2f}"]
    if f.high("mixed_extra"):
        return [*f.cite("mixed_extra"), *(quote(f, "mixed_is_costly") or []), "each mixed step pays it, whatever its chunk"]
    if line := _fixed_part(f, o):
        return line
    if f.says("small_prefills") and (d.share is None or d.share < STARVED):
        return [
            *(quote(f, "small_prefills") or []),
            *f.cite("rate", "overlap_rate"),
            "the count of interruptions costs, not their size",
        ]
    return quote(f, "mixed_is_costly")


def alternates(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    prefills, decodes = f.high("prefill_batches"), f.high("decode_batches")
    if prefills and decodes is not None and prefills > 4 * max(decodes, 1):
        return f.cite("prefill_batches", "decode_batches")
    generated, prompts, live = f.low("generation_rate"), f.high("prompt_rate"), f.high("running")
    modern = f.engine.schedule == "mixed"
    if generated == 0 and prompts and not modern and (live is None or live >= 2):
        return [
            *f.cite("generation_rate", "prompt_rate", "running"),
            "prompts are computed and nothing is generated",
        ]
    # A step time that was told and fits the gap says that a decode step does come after each chunk.
    told_step = f.has("step_time") and d.gap_in_steps is not None and d.gap_in_steps <= ONE_STEP
    if f.engine.schedule == "alternate" and symptom(f, d) and f.prefill_seen and not told_step:
        return [
            f"{f.engine.title} runs prefill and decode in turn",
            *f.cite("freeze", "longest_gap", "stalls", "step_time", "overlap_rate", "intruder_tokens"),
        ]
    return None


def one_chunk(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if d.gap_in_steps is not None and 1 / ONE_STEP <= d.gap_in_steps <= ONE_STEP:
        return [
            f"the gap of {d.gap:.3g} s is {d.gap_in_steps:.1f} chunk steps of {d.step:.3g} s",
            *f.cite("overlap_rate", "seconds_per_token", "solo_rate", "chunk_counted"),
        ]
    suffers = d.share is None or d.share < STARVED
    plain = d.step is None and not f.engine.derived
    if plain and d.implied_rate and SLOWEST_PREFILL <= d.implied_rate <= FASTEST_PREFILL and suffers:
        return [
            f"a chunk of {f.chunk:g} tokens in the gap of {d.gap:.3g} s is {d.implied_rate:.0f} tokens/s, a plausible prefill rate"  # noqa: E501
        ]
    return None


def gap_times_rate(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """The step bound is not told: gap x prefill rate is the chunk, if the prompt is longer than that."""
    prompt, seen = f.high("intruder_tokens"), d.chunk_seen
    if f.engine.schedule != "mixed" or f.chunk or not seen or not prompt or not d.solo or not d.gap:
        return None
    if d.gap * d.solo < SHOWS or not SMALLEST_CHUNK <= seen <= LARGEST_CHUNK or prompt < 1.2 * seen:
        return None
    return [
        f"a gap of {d.gap:.3g} s at {d.prefill_rate:.0f} tokens/s is about {seen:.0f} prefill tokens a step",
        *f.cite("solo_rate", "overlap_rate", "longest_gap", "intruder_tokens", "chunk_counted"),
    ]


def log_line(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
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


def told_chunk(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    told = quote(f, "follows_chunk")
    if told and f.chunk and f.engine.schedule != "alternate":
        return [*told, f"step bound of {f.chunk:g} tokens"]
    return None


def known_mixed(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    """A mixed engine, a starved stream beside a long prompt, and no sign of anything else."""
    if f.engine.schedule != "mixed" or d.share is None or d.share >= STARVED:
        return None
    if (
        (f.high("kv_usage") or 0) >= POOL_FULL
        or not f.prefill_seen
        or (d.gap_in_steps is not None and d.gap_in_steps < 1 / ONE_STEP)
    ):
        return None
    return [*f.cite("solo_rate", "overlap_rate", "intruder_tokens"), "every step of this engine carries a prefill chunk"]


def self_made(f: Facts, d: Derived, o: Outcome | None) -> Evidence | None:
    if (told := quote(f, "simultaneous")) and (f.high("slower") or 0) > NOISE:
        return [*told, *f.cite("slower", "models")]
    return None
