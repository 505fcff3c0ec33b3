"""One H200 with vLLM 0.25.1: a victim that decodes, an intruder with a long prompt, and 19 ways to serve both.

Two engines: `compiled` (torch.compile, 66.2 tokens/s alone) and `eager` (mode 0, CUDA graphs for decodes only, 53.8).
Calibrated on two arms of the first and three of the second, all without any pacing; the other arms are predicted, among them
paced ones, other budgets and a scheduler class. One arm is left out of all figures: its longest gap is below what its
own chunk takes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

from headway.bench.tables import markdown
from headway.lab.fidelity.fit import Point, fit
from headway.lab.fidelity.play import FIGURES, NOTHING, Vector, multiplicands, with_figures
from headway.simulator.engine import Engine, EngineSettings
from headway.simulator.profiles import H200
from headway.simulator.request import Request

VICTIM, AFTER = 38, 16
"""Tokens of the victim's prompt, and of its answer after which the intruder comes."""
FIXED = {"compiled": {"a": 1 / 66.2}, "eager": {"a": 1 / 53.8}}
START = {
    "compiled": {"b": 8e-5, "e": 0.01, "front_s": 0.05},
    "eager": {"b": 8e-5, "b_slope": 0.5e-9, "e": 0.01, "front_s": 0.05},
}
PIECE_S = 0.04
"""What a piece over HTTP lasts beyond the engine's part of it: the 70 to 100 ms that were measured, less the step it finds under
way and its own second step."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Measured rates in tokens/s, gaps and TTFT in seconds, each as a range over the runs of the arm."""

    engine: str
    name: str
    part: str
    budget: int
    kind: str
    piece: int
    amount: float
    intruder: int
    victim_out: int
    rate: tuple[float, float]
    gap: tuple[float, float]
    ttft: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Told:
    rate: float
    gap: float
    ttft: float
    by_gap: Vector
    by_ttft: Vector


@dataclass(frozen=True, slots=True)
class Compared:
    arm: Arm
    told: Told


def load(path: Path) -> list[Arm]:
    def pair(row: dict[str, str], name: str) -> tuple[float, float]:
        return float(row[f"{name}_low"]), float(row[f"{name}_high"])

    with path.open() as lines:
        return [
            Arm(
                row["engine"], row["name"], row["part"], int(row["budget"]), row["kind"], int(row["piece"] or 0),
                float(row["amount"] or 0), int(row["intruder"]), int(row["victim_out"]),
                pair(row, "rate"), pair(row, "gap"), pair(row, "ttft"),
            )
            for row in csv.DictReader(lines)
        ]  # fmt: skip


def settings(arm: Arm, figures: dict[str, float]) -> EngineSettings:
    base = H200.engine
    layout = replace(base.layout, caching=arm.kind != "uncached")
    if "bf16" in arm.kind:
        layout = replace(layout, block_size=784, blocks=2400)
    scheduler = replace(base.scheduler, max_num_batched_tokens=arm.budget, max_num_seqs=1 if arm.kind == "one" else 256)
    steps = {name: value for name, value in figures.items() if name != "front_s"}
    return with_figures(replace(base, layout=layout, scheduler=scheduler), steps)


class Overlap:
    """One arm in virtual time."""

    def __init__(self, arm: Arm, figures: dict[str, float]) -> None:
        self.arm, self.front = arm, figures["front_s"]
        self.engine = Engine(settings(arm, figures))
        self.keys = list(range(1, arm.intruder // self.engine.settings.layout.block_size + 2))
        self.now, self.held, self.chunk_s, self.decode_s = 0.0, 0, 0.0, 0.0
        self.sent: float | None = None
        self.due: list[tuple[float, Request]] = []
        self.pieces = self._pieces()

    def run(self) -> Told:
        arm = self.arm
        self.engine.add(Request("victim", prompt_tokens=VICTIM, max_tokens=arm.victim_out))
        times: list[float] = []
        works: list[Vector] = []
        work = since = NOTHING
        while True:
            while self.due and self.due[0][0] <= self.now:
                self.engine.add(self.due.pop(0)[1])
            if not self.engine.has_work:
                self.now = self.due[0][0]
                continue
            step = self.engine.begin(self._holds())
            self.now += step.duration
            self._account(step.duration, any(c.prefill and c.tokens > 1 for c in step.chunks))
            work = tuple(x + y for x, y in zip(work, multiplicands(step.chunks), strict=True))
            for output in self.engine.end(step):
                if output.request.id == "victim":
                    times.append(self.now)
                    works.append(work)
                    if len(times) == AFTER:
                        self.sent, since = self.now, work
                        if arm.kind != "held":
                            self._next(self.front)
                    elif arm.kind == "held" and output.finish_reason:
                        self._next(self.front)
                elif output.request.id == "piece":
                    self._next(0.0)
                elif output.first == 0:
                    assert self.sent is not None
                    return self._told(times, works, tuple(x - y for x, y in zip(work, since, strict=True)))

    def _pieces(self) -> Iterator[int]:
        """Prompt tokens of each request that is sent for the intruder."""
        block = self.engine.settings.layout.block_size
        if self.arm.piece:
            yield from (k + 1 for k in range(self.arm.piece, self.arm.intruder // block * block + 1, self.arm.piece))
        yield self.arm.intruder

    def _next(self, after: float) -> None:
        tokens = next(self.pieces)
        last = tokens == self.arm.intruder
        if self.arm.piece:
            after = PIECE_S / 2
            if self.due_from is not None:
                after += PIECE_S / 2 + (self.now + PIECE_S / 2 - self.due_from) * (1 / self.arm.amount - 1)
            self.due_from = self.now + after - PIECE_S / 2
        block = self.engine.settings.layout.block_size
        request = Request(
            "intruder" if last else "piece", prompt_tokens=tokens, max_tokens=16 if last else 1, keys=self.keys[: tokens // block]
        )
        self.due.append((self.now + after, request))

    due_from: float | None = None
    """When the piece under way was sent."""

    def _holds(self) -> bool:
        """The scheduler class of these arms: so many decode-only steps, or as long as a chunk lasted, between two chunks."""
        if self.arm.kind not in ("steps", "time"):
            return False
        self.engine.scheduler.capacity_bound = False
        if not self.chunk_s:
            return False
        if self.arm.kind == "steps":
            return self.held < self.arm.amount
        return self.decode_s < self.chunk_s * self.arm.amount / (1 - self.arm.amount)

    def _account(self, seconds: float, prefill: bool) -> None:
        if prefill:
            self.held, self.chunk_s, self.decode_s = 0, seconds, 0.0
        else:
            self.held, self.decode_s = self.held + 1, self.decode_s + seconds

    def _told(self, times: list[float], works: list[Vector], by_ttft: Vector) -> Told:
        assert self.sent is not None
        end = min(self.now, times[-1])
        inside = sum(self.sent < at <= end for at in times)
        gaps = [(y - x, i) for i, (x, y) in enumerate(pairwise(times)) if y > self.sent]
        gap, at = max(gaps)
        by_gap = tuple(x - y for x, y in zip(works[at + 1], works[at], strict=True))
        return Told(inside / (end - self.sent), gap, self.now - self.sent, by_gap, by_ttft)


def middle(pair: tuple[float, float]) -> float:
    return (pair[0] + pair[1]) / 2


def calibrate(arms: Sequence[Arm], engine: str) -> dict[str, float]:
    """Of a range of longest gaps the lower end is taken: what comes on top is paid once, by the first run (kernels compiled)."""
    part = [arm for arm in arms if arm.engine == engine and arm.part == "calibrated"]

    def predict(figures: dict[str, float]) -> list[Point]:
        out = []
        for arm in part:
            told = Overlap(arm, FIXED[engine] | figures).run()
            gap = tuple(0.0 if name == "front_s" else told.by_gap[FIGURES.index(name)] for name in figures)
            ttft = tuple(1.0 if name == "front_s" else told.by_ttft[FIGURES.index(name)] for name in figures)
            out += [Point(told.gap, arm.gap[0], gap), Point(told.ttft, middle(arm.ttft), ttft)]
        return out

    return FIXED[engine] | fit(START[engine], predict)


def compare(data: Path) -> list[Compared]:
    arms = load(data / "h200_arms.csv")
    figures = {engine: calibrate(arms, engine) for engine in START}
    return [Compared(arm, Overlap(arm, figures[arm.engine]).run()) for arm in arms]


def off(told: float, measured: tuple[float, float]) -> float:
    """Relative error to the nearest end of the measured range; 0 inside it."""
    return 0.0 if measured[0] <= told <= measured[1] else told / (measured[0] if told < measured[0] else measured[1]) - 1


def order(found: Sequence[Compared], name: str) -> tuple[int, list[tuple[str, str]]]:
    """(pairs of arms of one engine whose measured ranges do not touch, those of them that come out in the wrong order)."""
    pairs, wrong = 0, []
    for x, y in combinations([one for one in found if one.arm.part != "left out"], 2):
        (low_x, high_x), (low_y, high_y) = getattr(x.arm, name), getattr(y.arm, name)
        if x.arm.engine != y.arm.engine or (low_x <= 1.05 * high_y and low_y <= 1.05 * high_x):
            continue
        pairs += 1
        if (getattr(x.told, name) - getattr(y.told, name)) * (low_x - low_y) <= 0:
            wrong.append((x.arm.name, y.arm.name))
    return pairs, wrong


def table(found: Sequence[Compared]) -> str:
    def cell(told: float, measured: tuple[float, float], digits: int) -> str:
        low, high = (f"{x:.{digits}f}" for x in measured)
        return f"{told:.{digits}f} ({low if low == high else f'{low} to {high}'}; {off(told, measured):+.0%})"

    rows = [
        [
            f"{x.arm.engine}, {x.arm.name}",
            x.arm.part,
            cell(x.told.rate, x.arm.rate, 1),
            cell(x.told.gap, x.arm.gap, 3),
            cell(x.told.ttft, x.arm.ttft, 1),
        ]
        for x in found
    ]
    head = ["arm", "part", "victim tokens/s: told (measured; off)", "longest gap, s", "intruder's TTFT, s"]
    return markdown(head, rows)
