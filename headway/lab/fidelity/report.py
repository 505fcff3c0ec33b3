"""The page docs/results/fidelity.md: errors on what was calibrated on and on what was predicted, rig by rig."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from headway.bench.tables import markdown
from headway.lab.fidelity import ppas, rtx4090
from headway.lab.fidelity.fit import fit

FIGURES = "fitted.json"
APART = 0.05
"""Two measured arms whose times differ by less are not taken for ordered: runs scatter by that much."""

Figures = dict[str, float]
Map = Callable[..., Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Error:
    """Logarithms of predicted over measured: mean TTFT and mean time a token of a run, or of a request."""

    run: ppas.Run | None
    calibrated: bool
    ttft: float
    tpot: float


def read(data: Path) -> dict[str, Figures]:
    found: dict[str, Figures] = json.loads((data / FIGURES).read_text())
    return found


def rigs(runs: Sequence[ppas.Run]) -> dict[str, list[ppas.Run]]:
    out: dict[str, list[ppas.Run]] = {}
    for run in runs:
        out.setdefault(run.rig, []).append(run)
    return out


def calibrate(data: Path, each: Map = map) -> dict[str, Figures]:
    """Fits every rig to its part for calibration; `each` may be a pool's map."""
    out = {}
    for rig, mine in rigs(ppas.load(data / "ppas.csv")).items():
        budgets = {run.budget for run in mine}
        part = [run for run in mine if ppas.is_calibration(run, budgets)]

        def predict(figures: Figures, part: list[ppas.Run] = part) -> list[Any]:
            return [point for some in each(points_of, [(run, figures) for run in part]) for point in some]

        out[rig] = fit(ppas.begin(mine), predict)
    measured = rtx4090.load(data / "rtx4090_llama31_8b.csv")
    out["rtx4090 llama-3.1-8b"] = fit(rtx4090.START, lambda figures: rtx4090.points(measured, figures), rounds=7)
    return {rig: {name: float(f"{value:.4g}") for name, value in figures.items()} for rig, figures in out.items()}


def points_of(job: tuple[ppas.Run, Figures]) -> list[Any]:
    return ppas.points(*job)


def errors(runs: Sequence[ppas.Run], figures: dict[str, Figures], every: Sequence[ppas.Run], each: Map = map) -> list[Error]:
    """Of `runs`, which are some of `every`."""
    budgets = {rig: {run.budget for run in mine} for rig, mine in rigs(every).items()}
    told = each(points_of, [(run, figures[run.rig]) for run in runs])
    return [
        Error(run, ppas.is_calibration(run, budgets[run.rig]), *(log(point.predicted / point.measured) for point in points))
        for run, points in zip(runs, told, strict=True)
    ]


def serving_errors(data: Path, figures: dict[str, Figures]) -> list[Error]:
    measured = rtx4090.load(data / "rtx4090_llama31_8b.csv")
    told = rtx4090.predict(measured, figures["rtx4090 llama-3.1-8b"])
    return [
        Error(None, i < rtx4090.CALIBRATED, log(max(x.ttft, 1e-3) / y.ttft), log(x.tpot / y.tpot))
        for i, (x, y) in enumerate(zip(told, measured, strict=True))
        if y.job.output > 1
    ]


def size(found: Sequence[Error], name: str) -> float:
    """Median of the relative errors' sizes."""
    return exp(median(abs(getattr(one, name)) for one in found)) - 1


def order(found: Sequence[Error], name: str) -> tuple[int, int]:
    """(pairs of budgets in the right order, pairs): of runs that differ in nothing but the budget and are measurably apart."""
    arms: dict[tuple[Any, ...], list[Error]] = {}
    for one in found:
        if one.run is not None:
            key = (one.run.rig, one.run.prompt, one.run.output, one.run.rate, one.run.seed)
            arms.setdefault(key, []).append(one)
    right = pairs = 0
    for some in arms.values():
        for x, y in combinations(some, 2):
            measured = log(getattr(x.run, name) / getattr(y.run, name))
            if abs(measured) > APART:
                pairs += 1
                right += (measured + getattr(x, name) - getattr(y, name)) * measured > 0
    return right, pairs


def table(found: dict[str, list[Error]]) -> str:
    head = ["runs", "part", "n", "TTFT, median error", "bias", "time a token, median error", "bias"]
    rows = []
    for name, some in found.items():
        for part, wanted in (("calibrated on", True), ("predicted", False)):
            mine = [one for one in some if one.calibrated is wanted]
            if mine:
                cells = [f"{size(mine, f):.1%}" for f in ("ttft", "tpot")]
                bias = [f"{exp(median(getattr(one, f) for one in mine)) - 1:+.1%}" for f in ("ttft", "tpot")]
                rows.append([name, part, str(len(mine)), cells[0], bias[0], cells[1], bias[1]])
    return markdown(head, rows)


def slices(found: Sequence[Error]) -> dict[str, list[Error]]:
    """The rig with six budgets, cut by what was held out."""
    out: dict[str, list[Error]] = {}
    for one in found:
        run = one.run
        if run is not None and run.rig == "rtx5090 qwen2.5-3b":
            shape = f"prompt {run.prompt:,}, answer {run.output}"
            for name in (f"budget {run.budget:,}", shape, f"{run.rate} requests/s"):
                out.setdefault(name, []).append(one)
    return dict(sorted(out.items()))
