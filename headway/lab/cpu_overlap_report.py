"""What the overlap suite's runs say: medians, spread, and each bound with its figure and whether it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.bench.tables import markdown, number, seconds
from headway.bench.window import median

TTFT_FACTORS = {0.5: 1.2, 0.75: 1.35}
PASSTHROUGH_SHARE = 0.2
SHARE_BELOW, SHARE_ABOVE = 0.02, 0.10
GAP_FACTOR = 1.25
ALONE_FACTOR = 1.15
TURN_FACTOR = 1.10
PIECE_FACTOR = 1.25  # a piece at the end of a long prompt attends to more than the one that was timed

Run = dict[str, Any]


@dataclass(frozen=True)
class Bound:
    part: str
    arm: str
    what: str
    limit: str
    value: float | None  # the median over the repetitions that are not void
    low: float | None
    high: float | None
    runs: int
    holds: bool | None  # None: no run to judge by

    def line(self) -> list[str]:
        verdict = {True: "pass", False: "**FAIL**", None: "no run"}[self.holds]
        spread = f"{number(self.low, 3)} .. {number(self.high, 3)}"
        return [self.part, self.arm, self.what, self.limit, number(self.value, 3), spread, str(self.runs), verdict]


def _bound(
    runs: list[Run], what: str, limit: str, figure: Callable[[Run], float | None], holds: Callable[[float], bool]
) -> Bound:
    values = [value for run in runs if (value := figure(run)) is not None]
    middle = median(values)
    part, arm = (runs[0]["part"], runs[0]["arm"]) if runs else ("", "")
    ok = None if middle is None else holds(middle)
    return Bound(part, arm, what, limit, middle, min(values, default=None), max(values, default=None), len(values), ok)


def valid(document: Run, part: str, arm: str) -> list[Run]:
    return [run for run in document["runs"] if run["part"] == part and run["arm"] == arm and not run["void"]]


def bounds(document: Run) -> list[Bound]:
    out: list[Bound] = []
    gap = document["gap_s"]
    for part in dict.fromkeys(run["part"] for run in document["runs"]):
        if part == "turn2":
            out.append(_turn(document))
            continue
        if runs := valid(document, part, "passthrough"):
            limit = f"< {PASSTHROUGH_SHARE}"
            if part != "order":  # the victim that comes second is not starved but shut out: its TTFT tells
                out.append(_bound(runs, "share", limit, lambda r: r["share"], lambda v: v < PASSTHROUGH_SHARE))
        for share in document["shares"]:
            out += _pace(document, part, share, gap)
    return out


def _pace(document: Run, part: str, share: float, gap: float) -> list[Bound]:
    arm = f"pace {share:g}"
    runs = valid(document, part, arm)
    if not runs:
        return [Bound(part, arm, "share", "", None, None, None, 0, None)]
    low, high, factor = share - SHARE_BELOW, share + SHARE_ABOVE, TTFT_FACTORS.get(share, 1.35)
    out = [
        _bound(runs, "share", f"{low:.2f} .. {high:.2f}", lambda r: r["share"], lambda v: low <= v <= high),
        _bound(
            runs, "TTFT·(1-s)/T0", f"<= {factor}",
            lambda r: r["intruder_ttft_s"] * (1 - share) / r["t0_s"], lambda v: v <= factor,
        ),
        _bound(
            runs, "longest gap, s", f"< {GAP_FACTOR * gap:.3f}", lambda r: r["longest_gap_s"],
            lambda v: v < GAP_FACTOR * gap,
        ),
        _bound(
            runs, "T0 / T0 direct", f"<= {ALONE_FACTOR}", lambda r: r["t0_s"] / r["t0_direct_s"],
            lambda v: v <= ALONE_FACTOR,
        ),
    ]  # fmt: skip
    if part == "order":
        out.append(
            _bound(
                runs, "victim's TTFT / (solo TTFT + one piece)", f"<= {PIECE_FACTOR}",
                lambda r: r["victim_ttft_s"] / (r["solo_ttft_s"] + r["piece_s"]) if r["piece_s"] else None,
                lambda v: v <= PIECE_FACTOR,
            )
        )  # fmt: skip
    return out


def _turn(document: Run) -> Bound:
    direct = {run["rep"]: run["turn2_ttft_s"] for run in valid(document, "turn2", "direct")}
    paced = [run for run in document["runs"] if run["part"] == "turn2" and run["arm"] != "direct"]
    return _bound(
        paced, "turn 2 TTFT / direct", f"<= {TURN_FACTOR}",
        lambda r: r["turn2_ttft_s"] / direct[r["rep"]] if r["rep"] in direct else None, lambda v: v <= TURN_FACTOR,
    )  # fmt: skip


def spread(values: list[float], show: Callable[[float | None], str]) -> str:
    if not values:
        return "-"
    return f"{show(median(values))} ({show(min(values))} .. {show(max(values))})"


def report(document: Run) -> str:
    """Markdown: medians with smallest and largest, then the bounds."""
    engine = document["engine"]
    voids = [run for run in document["runs"] if run["void"]]
    lines = [
        "# Victim and intruder through the gateway, on a real engine",
        "",
        f"vLLM {engine['version']} on a CPU, model `{engine['model']}` with random weights, `{' '.join(engine['arguments'])}`. "
        f"Victim {document['victim_tokens']} tokens in, intruder {document['intruder_tokens']:,} in, both as chat requests "
        f"with a salt of their own; `--gap {document['gap_s']:g}`. {document['reps']} repetitions; solo and the intruder "
        "alone (T0, through the same gateway) were measured in each of them. Median (smallest .. largest).",
        "",
    ]
    head = ["part, arm", "victim tokens/s", "share", "longest gap", "intruder's TTFT", "T0", "victim's TTFT", "valid"]
    rows = []
    for part, arm in dict.fromkeys((run["part"], run["arm"]) for run in document["runs"] if run["part"] != "turn2"):
        runs, every = valid(document, part, arm), [r for r in document["runs"] if (r["part"], r["arm"]) == (part, arm)]
        rows.append([
            f"{part}, {arm}",
            spread([r["victim_tokens_per_s"] for r in runs], lambda v: number(v, 1)),
            *(
                spread([r[key] for r in runs if r[key] is not None], show)
                for key, show in (
                    ("share", number), ("longest_gap_s", seconds), ("intruder_ttft_s", seconds),
                    ("t0_s", seconds), ("victim_ttft_s", seconds),
                )
            ),
            f"{len(runs)} of {len(every)}",
        ])  # fmt: skip
    if rows:
        lines += [markdown(head, rows), ""]
    if turns := [run for run in document["runs"] if run["part"] == "turn2"]:
        rows = []
        for arm in dict.fromkeys(run["arm"] for run in turns):
            runs = [run for run in turns if run["arm"] == arm]
            cached = [run["turn2_cached_tokens"] for run in runs if run["turn2_cached_tokens"] is not None]
            rows.append([
                arm, spread([r["turn1_ttft_s"] for r in runs], seconds), spread([r["turn2_ttft_s"] for r in runs], seconds),
                spread(cached, lambda v: number(v, 0)),
            ])  # fmt: skip
        lines += [markdown(["conversation, arm", "turn 1 TTFT", "turn 2 TTFT", "cached in turn 2"], rows), ""]
    lines += ["## Bounds", ""]
    head = ["part", "arm", "figure", "bound", "median", "spread", "runs", "verdict"]
    lines += [markdown(head, [bound.line() for bound in bounds(document)]), ""]
    if voids:
        lines += ["## Void runs", ""]
        lines += [f"- {run['part']}, {run['arm']}, repetition {run['rep'] + 1}: {run['void']}" for run in voids] + [""]
    lines.append("Every event of every stream stands in the JSON beside this page.")
    return "\n".join(lines) + "\n"
