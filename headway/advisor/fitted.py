"""Numbers that fit one cause: what the step model or a comparison in the report leaves over. Tests of hints.py.

Each answers with its line of evidence, or None. Seconds, tokens, tokens a second.
"""

from __future__ import annotations

import re

from headway.advisor.derived import SLOWEST_PREFILL, Derived
from headway.advisor.evidence import POOL_FULL, SHOWS, STARVED, UNDISTURBED, Evidence
from headway.advisor.facts import Facts, numeric
from headway.advisor.series import STILL
from headway.advisor.vocabulary import option_kind

#: Part of a time that one number has to be of another to be called the same.
NEAR = (0.7, 1.4)
#: What a change of the host can be felt by.
_FELT = (
    "itl",
    "normal_gap",
    "longest_gap",
    "seconds_per_token",
    "rate",
    "generation_rate",
    "overlap_rate",
    "aggregate_rate",
    "ttft",
)


def _near(a: float | None, b: float | None) -> bool:
    return bool(a and b and NEAR[0] <= a / b <= NEAR[1])


def _grows_with(sizes: list[float], times: list[float]) -> bool:
    """Times that are a rate times the sizes, within a factor of 2, over sizes that differ by at least as much."""
    if len(sizes) != len(times) or len(sizes) < 2 or min([*sizes, *times]) <= 0 or max(sizes) < 1.5 * min(sizes):
        return False
    rates = [size / time for size, time in zip(sizes, times, strict=True)]
    return max(rates) <= 2 * min(rates)


def gap_grows_with_prompt(f: Facts, d: Derived) -> Evidence | None:
    """With chunks the longest gap is a chunk's; a gap as long as the prompt's size says is the whole prefill's."""
    sizes = f.numbers.get("intruder_tokens", [])
    for name in ("freeze", "longest_gap"):
        gaps = f.numbers.get(name, [])
        shows = d.solo is None or (bool(gaps) and max(gaps) * d.solo >= SHOWS)
        if _grows_with(sizes, gaps) and shows and not (f.chunk and f.chunk < min(sizes)):
            return [*f.cite(name, "intruder_tokens"), "the gap grows with the whole prompt"]
    return None


def gap_is_whole_prefill(f: Facts, d: Derived) -> Evidence | None:
    told = f.high("freeze") or f.high("longest_gap")
    work = d.work or (f.high("ttft") if f.has("intruder_tokens") else None)
    if f.engine.schedule == "mixed" or (f.chunk and d.gap_in_steps is not None and d.gap_in_steps < 2):
        return None
    return (
        [*f.cite("freeze", "longest_gap", "ttft_alone", "ttft"), "the gap lasts as long as the whole prefill"]
        if _near(told, work)
        else None
    )


def mixed_step_has_extra(f: Facts, d: Derived) -> Evidence | None:
    """What a mixed step takes beyond a decode step and its tokens' own time."""
    mixed, decode, rate = f.low("mixed_step"), f.low("normal_gap") or (1 / d.solo if d.solo else None), d.prefill_rate
    if not mixed or not decode or not f.chunk or not rate:
        return None
    extra = mixed - decode - f.chunk / rate
    if extra < decode or extra < 0.3 * mixed:
        return None
    return [*f.cite("mixed_step", "normal_gap", "prefill_rate"), f"{extra:.3g} s of a mixed step are neither decode nor chunk"]


def turns_stay_cold(f: Facts, d: Derived) -> Evidence | None:
    """A conversation whose time to first token grows with all of the prompt: only the new part should cost."""
    cached = any("cach" in key and value in (True, 1, "true") for key, value in f.options.items())
    turns = bool(re.search(r"\b(turns?|conversation|multi[- ]turn|repeat\w*|same prompt)\b", f"{f.fields} {f.words}"))
    sizes, times = f.numbers.get("intruder_tokens", []), f.numbers.get("ttft", [])
    if (cached or turns) and len(sizes) >= 3 and _grows_with(sizes, times):
        return [*f.cite("intruder_tokens", "ttft"), "every turn costs its whole prompt"]
    return None


def pool_full(f: Facts, d: Derived) -> Evidence | None:
    return f.cite("kv_usage", "running", "waiting") if (f.high("kv_usage") or 0) >= POOL_FULL else None


def collapsed(f: Facts, d: Derived) -> Evidence | None:
    """Streams lost most of their rate and nothing speaks of a prompt."""
    return (
        f.cite("solo_rate", "overlap_rate", "generation_rate")
        if d.share is not None and d.share < STARVED and not f.prefill_seen
        else None
    )


def cores_cured(f: Facts, d: Derived) -> Evidence | None:
    """Only the host was changed (cores, binding, what stands before the engine), and rates or gaps moved."""
    tried = {
        key: numeric(value)
        for key, value in f.options.items()
        if re.search(r"cpu|core|thread|numa|pin|tokeni[sz]|preprocess|front_?end|http", key)
    }
    tried["cpu_cores"] = f.numbers.get("cpu_cores", [])
    option = next((key for key, values in tried.items() if len(set(values)) >= 2), None)
    for name in _FELT if option else ():
        values = f.numbers.get(name, [])
        if len(values) == len(tried[option or ""]) and min(values) > 0 and max(values) / min(values) >= STILL:
            return [f"only {option} was changed", *f.cite(name)]
    return None


def nothing_overlapped(f: Facts, d: Derived) -> Evidence | None:
    return f.cite("overlap_time") if f.high("overlap_time") == 0 else None


def newcomer_pays_all(f: Facts, d: Derived) -> Evidence | None:
    """The streams lost nothing under an option that holds prefills back, and the newcomer waited."""
    held = any(option_kind(key) == "interval" and value not in (0, False, None, "") for key, value in f.options.items())
    wait = f.high("newcomer_wait") or f.high("ttft")
    kept = d.share is not None and d.share >= UNDISTURBED
    size = f.high("newcomer_tokens") or f.high("intruder_tokens")
    work = d.work or (size / SLOWEST_PREFILL if size else None)
    late = wait is not None and work is not None and wait > 3 * work
    return (
        [*f.cite("newcomer_wait", "ttft", "overlap_rate"), "streams lost nothing, the newcomer paid"]
        if held and kept and late
        else None
    )


def answers_match_less(f: Facts, d: Derived) -> Evidence | None:
    share = f.low("match_rate")
    return f.cite("match_rate") if share is not None and share < 0.99 else None
