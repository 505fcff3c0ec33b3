"""a, e, b, c and h of a measurement, with 95 % intervals, and which measurement would narrow them.

Medians over repetitions, and a bootstrap over repetitions for the intervals: every draw takes each kind of run with replacement
and fits anew. An answer alone gives a; the long prompt alone, beside it, b. An overlap straight at the engine, the step's chunk
being known, gives e by what it adds to the prompt's time (single gaps blur two steps into each other, their sum does not), and c
by how much longer the last whole chunk takes than the mean one; two lengths alone give c better. A gateway that paced gives h.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from headway.advisor.plan.measurement import Alone, Direct, Measurement
from headway.core.linear import solve
from headway.core.steps import StepModel, quantile

T = TypeVar("T")

DRAWS = 300
AT_LEAST = 3
"""Runs below which no interval is given."""
ASSUMED_H = 0.06
"""Seconds, where no gateway measured it: 0.04 to 0.06 on one H200, 0.02 to 0.05 on a CPU (docs/results)."""
WIDE = 0.10
"""An interval wider than this part of its value is worth narrowing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds (b: a token; c: a token and a token of position). `low`, `high`: 95 %; None of too few runs. `runs` 0: assumed."""

    value: float
    low: float | None
    high: float | None
    runs: int

    @property
    def width(self) -> float | None:
        """Of the interval, as part of the value."""
        return (self.high - self.low) / self.value if self.low is not None and self.high is not None and self.value else None


@dataclass(frozen=True, slots=True)
class Estimates:
    figures: dict[str, Figure]
    model: StepModel
    overhead: float
    """Seconds that HTTP adds to a request, both ways together."""
    measure: tuple[str, ...]
    """What would narrow it, the most useful first."""
    notes: tuple[str, ...]


def estimates(seen: Measurement, chunk: int | None) -> Estimates:
    """`chunk`: most prompt tokens of one step beside an answer, where known."""
    model, overhead = _fit(seen, chunk)
    source = random.Random(0)
    draws = [_fit(_draw(seen, source), chunk)[0] for _ in range(DRAWS)]
    lengths = _by_length(seen.alone)
    direct = _runs_of_e(seen, chunk)
    counts = {
        "a": len(seen.solo), "b": max(map(len, lengths)), "c": min(map(len, lengths)) if len(lengths) > 1 else direct,
        "e": direct, "h": len(seen.learned),
    }  # fmt: skip
    figures = {}
    for name, count in counts.items():
        values = [getattr(draw, name) for draw in draws]
        low, high = (quantile(values, 0.025), quantile(values, 0.975)) if count >= AT_LEAST else (None, None)
        figures[name] = Figure(getattr(model, name), low, high, count)
    return Estimates(figures, model, overhead, tuple(_measure(seen, figures, chunk)), tuple(_notes(seen, model, chunk)))


def _fit(seen: Measurement, chunk: int | None) -> tuple[StepModel, float]:
    a = median([1 / rate for rate in seen.solo])
    h = median([one.h for one in seen.learned]) if seen.learned else ASSUMED_H
    # A piece lasts longer than its prefill by HTTP, by what is left of the step it finds under way, and by its own second step.
    overhead = max(0.002, h - 1.5 * a)
    e = c = 0.0
    if seen.direct and chunk:
        e = max(0.0, median([_added(one, seen.alone, a, chunk) for one in seen.direct]))
        c = max(0.0, median([_slope(one, seen.alone, a, e, overhead, chunk) for one in seen.direct]))
    elif seen.learned:
        e, c = median([one.e for one in seen.learned]), median([one.c for one in seen.learned])
    b, c = _work(seen.alone, a, overhead, chunk, c)
    return StepModel(a=a, e=e, b=b, h=h, c=c), overhead


def _like(direct: Direct, alone: Sequence[Alone]) -> float:
    """Seconds that a prompt as long as this one takes alone: the median of the nearest length, in proportion."""
    group = min(_by_length(alone), key=lambda group: abs(group[0].tokens - direct.tokens))
    return median([one.seconds * direct.tokens / one.tokens for one in group])


def _added(direct: Direct, alone: Sequence[Alone], a: float, chunk: int) -> float:
    """e: what an overlap adds to each of its steps, beside the half step that a newcomer finds under way."""
    return (direct.ttft - _like(direct, alone) - a / 2) / -(-direct.tokens // chunk)


def _slope(direct: Direct, alone: Sequence[Alone], a: float, e: float, overhead: float, chunk: int) -> float:
    """c, of the longest gap: the last whole chunk lies at + chunk/2 - P/2 tokens behind the mean one, and costs so much more."""
    tokens, at = _largest(direct.tokens, chunk)
    behind = at + tokens / 2 - direct.tokens / 2
    if behind < 0.1 * direct.tokens:
        return 0.0
    work = _like(direct, alone) - overhead - a * -(-direct.tokens // chunk)
    return (direct.gap - a - e - tokens * work / direct.tokens) / (tokens * behind)


def _work(alone: Sequence[Alone], a: float, overhead: float, chunk: int | None, c: float) -> tuple[float, float]:
    """(b, c) of a prompt's seconds alone: overhead + a step's a for each chunk + b*P + c*P*P/2."""
    work = [(one.tokens, max(1e-9, one.seconds - overhead - a * -(-one.tokens // (chunk or one.tokens)))) for one in alone]
    if _told_apart(alone):
        # Least squares of the relative error: seconds/P = b + c*P/2.
        rows = [(p / s, p * p / 2 / s) for p, s in work]
        table = [[sum(row[i] * row[j] for row in rows) for j in (0, 1)] for i in (0, 1)]
        solution = solve(table, [sum(row[i] for row in rows) for i in (0, 1)])
        if solution is not None and solution[0] > 0 and solution[1] >= 0:
            return solution[0], solution[1]
    per_token = median([s / p for p, s in work])
    size = median([float(p) for p, _ in work])
    c = min(c, 1.6 * per_token / size)  # a first token costs a fifth of the mean one at the least
    return per_token - c * size / 2, c


def _told_apart(alone: Sequence[Alone]) -> bool:
    """Whether two lengths were measured, so that b and c can be told apart."""
    return len(_by_length(alone)) > 1


def _largest(tokens: int, chunk: int) -> tuple[int, int]:
    """(tokens, position) of the chunk that makes the longest gap: the last whole one."""
    whole = max(1, tokens // chunk)
    return min(tokens, chunk), (whole - 1) * chunk


def _by_length(alone: Sequence[Alone]) -> list[list[Alone]]:
    """Groups of about the same length, shortest first."""
    out: list[list[Alone]] = []
    for one in sorted(alone, key=lambda one: one.tokens):
        if out and one.tokens <= 1.5 * out[-1][0].tokens:
            out[-1].append(one)
        else:
            out.append([one])
    return out


def _draw(seen: Measurement, source: random.Random) -> Measurement:
    def again(values: list[T]) -> list[T]:
        return source.choices(values, k=len(values)) if values else []

    # Each length by itself: a draw without the one long prompt could not tell b and c apart.
    alone = [one for group in _by_length(seen.alone) for one in again(group)]

    return replace(
        seen, solo=again(seen.solo), alone=alone, direct=again(seen.direct),
        learned=again(seen.learned),
    )  # fmt: skip


def _runs_of_e(seen: Measurement, chunk: int | None) -> int:
    return len(seen.direct) if seen.direct and chunk else len(seen.learned)


def _measure(seen: Measurement, figures: dict[str, Figure], chunk: int | None) -> list[str]:
    """Missing things first, then wide intervals, the widest first."""
    out = []
    if not seen.direct and not seen.learned:
        out.append("e, c: an overlap straight at the engine: headway bench URL --scenario long-prefill-overlap")
    elif seen.direct and not chunk:
        out.append("e, c: say the engine's budget (--budget): without it nobody knows what a step holds")
    if not seen.learned:
        out.append(f"h: {ASSUMED_H} s is assumed; measure through `headway serve --policy pace` (benchmarks/share_matrix.py)")
    if not _told_apart(seen.alone) and not (seen.direct and chunk):
        longest = 4 * max(one.tokens for one in seen.alone)
        out.append(f"c: the long prompt alone at another length, for instance --intruder-in {longest}")
    more = {
        "a": "answers alone, and longer ones (--victim-out)",
        "b": "the long prompt alone",
        "c": "the long prompt alone, of two lengths",
        "e": "overlaps straight at the engine",
        "h": "paced prompts through the gateway",
    }
    few = [name for name, one in figures.items() if 0 < one.runs < AT_LEAST]
    out += [f"{name}: {figures[name].runs} runs give no interval; repeat {more[name]} (--reps 5)" for name in few]
    wide = sorted(((one.width or 0.0, name) for name, one in figures.items() if (one.width or 0.0) > WIDE), reverse=True)
    out += [f"{name}: its interval is {width:.0%} of it wide; repeat {more[name]} (--reps 10)" for width, name in wide]
    return out


def _notes(seen: Measurement, model: StepModel, chunk: int | None) -> list[str]:
    out = []
    if seen.direct and chunk:
        gap = median([one.gap for one in seen.direct])
        told = replace(model, e=0.0).gap(*_largest(seen.direct[0].tokens, chunk))
        if gap < 0.7 * told:
            out.append(
                f"CONTRADICTION: a chunk of {chunk} tokens takes {told:.2f} s by the prompt alone, and the longest gap was "
                f"{gap:.2f} s: does something between client and engine pace, or is the budget another one?"
            )
    return out
