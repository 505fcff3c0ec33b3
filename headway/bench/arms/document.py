"""The result of a plan as one document, schema headway.arms/1 (docs/bench-arms.md). Pure: runs in, figures out.

T/T0, the frontier and the excess are computed against the T0 of the engine itself: all repetitions of an arm without a gateway
on the same server where there is one, else the arm's own. So what a gateway costs is not hidden in its T0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headway import __version__
from headway.bench.arms.plan import Arm, Plan
from headway.bench.compare import ARMS_SCHEMA as SCHEMA
from headway.bench.compare import FIGURES
from headway.bench.differences import Values, difference, floor, interval_of
from headway.bench.validity import validity
from headway.bench.window import median
from headway.core import frontier

ALONE = "intruder-alone"
Run = dict[str, Any]
#: Figures of which differences are given: those of `bench compare` and what this page adds.
COMPARED = (*FIGURES, "stretch", "excess")


def flat(plan: Plan, finished: Mapping[tuple[str, int], Run]) -> list[Run]:
    """One entry a scenario run, in the order of the arms; `run` is its number in the events file."""
    out: list[Run] = []
    for arm in plan.arms:
        for rep in range(plan.reps):
            if (cell := finished.get((arm.name, rep))) is None:
                continue
            for number, run in enumerate(cell["document"]["runs"]):
                own = {"rep": rep, "run": number, "events": cell["events"], "figures": dict(run["figures"])}
                out.append({"arm": arm.name, **run, **own})
    return out


def values(runs: Sequence[Run], arm: str, scenario: str, figure: str) -> dict[int, float]:
    """By repetition, valid runs only; the median where a repetition has several."""
    found: dict[int, list[float]] = {}
    for run in runs:
        value = run["figures"].get(figure)
        if run["arm"] == arm and run["scenario"] == scenario and not run["void"] and value is not None:
            found.setdefault(run["rep"], []).append(value)
    return {rep: middle for rep, several in found.items() if (middle := median(several)) is not None}


def reference(plan: Plan, arm: Arm) -> str:
    """The arm whose intruder-alone runs are this arm's T0."""
    if arm.gateway is None:
        return arm.name
    direct = (other.name for other in plan.arms if other.gateway is None and other.server == arm.server and not other.copy_of)
    return next(direct, arm.name)


def against_engine(plan: Plan, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Puts stretch, frontier_ttft_s and excess against the engine's T0 into the runs; returns T0 and its arm by arm."""
    out: dict[str, dict[str, Any]] = {}
    for arm in plan.arms:
        source = reference(plan, arm)
        alone = values(runs, source, ALONE, "t0_s")
        if not alone:  # the direct arm failed
            source, alone = arm.name, values(runs, arm.name, ALONE, "t0_s")
        t0 = median(list(alone.values()))
        out[arm.name] = {"t0_s": t0, "t0_of": source if t0 is not None else None}
        for run in runs:
            figures = run["figures"]
            late, share = figures.get("intruder_ttft_s"), figures.get("share")
            if run["arm"] == arm.name and t0 and late is not None and share is not None and "stretch" in figures:
                figures |= {
                    "stretch": late / t0, "frontier_ttft_s": frontier.ttft(t0, share),
                    "excess": frontier.excess(t0, late, share),
                }  # fmt: skip
    return out


def summary(runs: Sequence[Run], arm: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Scenario, figure: median, its 95 % interval (None under three repetitions), smallest, largest, repetitions."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for scenario in dict.fromkeys(run["scenario"] for run in runs if run["arm"] == arm):
        of = [run for run in runs if run["arm"] == arm and run["scenario"] == scenario]
        out[scenario] = {}
        for figure in dict.fromkeys(figure for run in of for figure in run["figures"]):
            found = list(values(of, arm, scenario, figure).values())
            if found:
                low, high = interval_of(found) or (None, None)
                out[scenario][figure] = {
                    "median": median(found), "low": low, "high": high, "min": min(found), "max": max(found), "n": len(found),
                }  # fmt: skip
    return out


def differences(plan: Plan, runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(floors of the A/A pair, differences of every arm from the baseline), by scenario and figure."""
    floors, out = [], []
    for scenario in dict.fromkeys(run["scenario"] for run in runs):
        for figure in COMPARED:
            base = values(runs, plan.baseline, scenario, figure)
            if not base:
                continue
            noise: float | None = None
            if plan.aa is not None:
                again = values(runs, plan.aa, scenario, figure)
                noise = floor(base, again)
                if noise is not None:
                    floors.append({"scenario": scenario, "figure": figure, "floor": noise})
            for arm in plan.arms:
                if arm.name in (plan.baseline, plan.aa):
                    continue
                own: Values = values(runs, arm.name, scenario, figure)
                found = difference(f"{arm.name}: {scenario}, {figure}", base, own, noise)
                if found is not None:
                    out.append({
                        "arm": arm.name, "scenario": scenario, "figure": figure, "baseline_median": found.a,
                        "median": found.b, "difference": found.size, "low": found.low, "high": found.high,
                        "floor": found.floor, "called": found.called,
                    })  # fmt: skip
    return floors, out


def _arm_entry(arm: Arm, plan: Plan, done: int, refused: str | None, failed: bool) -> dict[str, Any]:
    state = "refused" if refused else "done" if done == plan.reps else "failed" if failed else "unfinished"
    server = asdict(arm.server)
    del server["key_env"]
    return {
        "name": arm.name, "state": state, "repetitions": done, "refused": refused, "copy_of": arm.copy_of,
        "digest": arm.digest, "server": server, "gateway": arm.gateway, "settings": asdict(arm.settings),
        "scenarios": arm.scenarios,
    }  # fmt: skip


def compose(
    plan: Plan,
    finished: Mapping[tuple[str, int], Run],
    *,
    refused: Mapping[str, str],
    failures: Sequence[dict[str, Any]],
    traps: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    started_unix: float,
    interrupted: bool = False,
) -> dict[str, Any]:
    runs = flat(plan, finished)
    t0 = against_engine(plan, runs)
    floors, found = differences(plan, runs)
    broken = {failure["arm"] for failure in failures}
    arms = []
    for arm in plan.arms:
        cells = [finished[arm.name, rep] for rep in range(plan.reps) if (arm.name, rep) in finished]
        servers = {(cell["document"]["server"]["model"], cell["document"]["server"]["version"]) for cell in cells}
        arms.append(
            _arm_entry(arm, plan, len(cells), refused.get(arm.name), arm.name in broken)
            | t0[arm.name]
            | {"models": sorted({str(m) for m, _ in servers}), "versions": sorted({str(v) for _, v in servers if v})}
            | {"traps": list(traps.get(arm.name, ())), "summary": summary(runs, arm.name)}
            | {"validity": validity([run for run in runs if run["arm"] == arm.name], arm.settings, plan.reps) if cells else None}
        )
    return {
        "schema": SCHEMA, "headway": __version__, "title": plan.title, "started_unix": started_unix,
        "reps": plan.reps, "reps_per_start": plan.reps_per_start, "baseline": plan.baseline, "aa": plan.aa,
        "interrupted": interrupted, "arms": arms, "floors": floors, "differences": found, "runs": runs,
        "failures": list(failures), "notes": list(notes),
    }  # fmt: skip
