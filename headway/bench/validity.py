"""What a whole measurement proves about itself. Pure: the document's runs in, findings out.

`failures` say that figures do not mean what they claim, and end the command with exit code 1; `warnings` say how much they
are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.bench.context import Settings
from headway.bench.mixed import SATURATED
from headway.bench.verdict import CACHED_AT_MOST
from headway.bench.window import median

ENOUGH = 5  # repetitions, below which a spread says little
ENOUGH_GAPS = 100  # below it a p99 is the longest gap
ENOUGH_TOKENS = 20  # that the victim alone would have had in the window: below it a share is coarse
CONTROL_FAILS, CONTROL_WARNS = 0.5, 0.8  # share of the victim beside a short neighbour
QUIET = 1.3  # longest over shortest time of the intruder alone
BESIDE = ("overlap-after", "overlap-together", "mixed", "newcomer")
SALTED = {"intruder-alone": "intruder", "overlap-after": "intruder", "overlap-together": "intruder", "serialized": "intruder",
          "newcomer": "intruder", "burst": "intruder", "mixed": "intruder", "multi-turn": "turn 1"}  # fmt: skip

Runs = Sequence[dict[str, Any]]


def validity(runs: Runs, settings: Settings, reps: int) -> dict[str, Any]:
    beside = [run for run in runs if run["scenario"] in BESIDE]
    found: dict[str, Any] = {
        "overlap": {"runs": len(beside), "valid": sum(not run["void"] for run in beside)},
        "control_share": _control(runs), "cache_defeated": _cache(runs, settings), "text": _text(runs),
        "lag_p99_s": max((run["lag_p99_s"] for run in runs), default=None),
        "lag_max_s": max((run["lag_max_s"] for run in runs), default=None), "lag_limit_s": settings.lag_limit_s,
        "saturation": max((run["saturation"] for run in runs if run["saturation"] is not None), default=None),
        "warm_up_rounds": settings.warmup, "cool_down_s": settings.cooldown_s,
        "void_runs": sum(bool(run["void"]) for run in runs),
    }  # fmt: skip
    found["failures"] = list(_failures(found))
    found["warnings"] = list(_warnings(runs, found, reps))
    return found


def _failures(found: dict[str, Any]) -> list[str]:
    out, overlap, control = [], found["overlap"], found["control_share"]
    if overlap["runs"] and not overlap["valid"]:
        out.append(f"overlap: none of {overlap['runs']} runs is valid; the reasons stand with them")
    if control is not None and control < CONTROL_FAILS:
        out.append(f"control: beside a short neighbour the victim keeps only {control:.0%}: the prefill is not what slows it")
    if found["cache_defeated"] is False:
        out.append("prefix cache: salted prompts were found in it, so prefills were not measured")
    if found["text"] == "corrupt":
        out.append("text: DIFFERS beside the long prefill and never beside a short neighbour: suspect corruption")
    return out


def _warnings(runs: Runs, found: dict[str, Any], reps: int) -> list[str]:
    out: list[str] = []
    control, load = found["control_share"], found["saturation"]
    if reps < ENOUGH:
        out.append(f"{reps} repetitions: too few to call a difference; {ENOUGH} or more are better")
    if control is not None and CONTROL_FAILS <= control < CONTROL_WARNS:
        out.append(f"control: a short neighbour alone leaves the victim {control:.0%} of its rate")
    alone = [run["figures"]["t0_s"] for run in runs if run["scenario"] == "intruder-alone" and not run["void"]]
    if alone and max(alone) > QUIET * min(alone):
        out.append(f"the intruder alone took {min(alone):.2f} to {max(alone):.2f} s: the server was not quiet")
    if load is not None and load >= SATURATED:
        out.append(f"SATURATED: {load:.2f} seconds of prefill arrive a second; from 1 on no schedule helps, queues only grow")
    counts = [count for run in runs if not run["void"] and (count := run["figures"].get("gaps")) is not None]
    few = [count for count in counts if count < ENOUGH_GAPS]
    if few:
        out.append(f"p99 of gaps: {len(few)} runs have under {ENOUGH_GAPS} gaps (one only {min(few):.0f}): read the longest gap")
    out += _coarse(runs)
    if found["text"] == "batch":
        out.append(
            "text: differs beside a short neighbour too, so batch shapes change it here; nothing can be said of corruption"
        )
    return out


def _coarse(runs: Runs) -> list[str]:
    pace = median(
        [run["figures"]["victim_tokens_per_s"] for run in runs if run["scenario"] == "victim-alone" and not run["void"]]
    )
    sizes = [run["figures"]["window_s"] for run in runs if run["scenario"] in BESIDE[:2] and run["figures"].get("window_s")]
    usual = median(sizes)
    if pace is None or usual is None or pace * usual >= ENOUGH_TOKENS:
        return []
    return [
        f"the window is {usual:.2f} s, {pace * usual:.0f} tokens of the victim alone: its share is coarse; lengthen --intruder-in"
    ]


def _control(runs: Runs) -> float | None:
    return median([
        run["figures"]["share"] for run in runs
        if run["scenario"] == "overlap-control" and not run["void"] and run["figures"].get("share") is not None
    ])  # fmt: skip


def _cache(runs: Runs, settings: Settings) -> bool | None:
    """None: the server reports no cached tokens, or a gateway's own pieces are what it reports."""
    known, all_known = [], True
    for run in runs:
        for stream in run["streams"]:
            if stream["class"] == SALTED.get(run["scenario"]) and not stream.get("error"):
                usage = stream.get("usage") or {}
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
                all_known &= isinstance(cached, int)
                known.append((cached or 0) <= CACHED_AT_MOST * (usage.get("prompt_tokens") or 0))
    return None if settings.pieces or not known or not all_known else all(known)


def _text(runs: Runs) -> str | None:
    """same | corrupt (differs beside the prefill, never beside a short neighbour) | batch (differs there too) | unknown."""
    control = {run["text"] for run in runs if run["scenario"] == "overlap-control" and run["text"] and not run["void"]}
    beside = {run["text"] for run in runs if run["scenario"] in BESIDE[:2] and run["text"] and not run["void"]}
    if not beside:
        return None
    if "differs" not in beside:
        return "same" if beside == {"same"} else "unknown"
    if "differs" in control:
        return "batch"
    return "corrupt" if "same" in control else "unknown"
