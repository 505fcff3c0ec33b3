"""A real vLLM 0.19.0 on one RTX 4090 with Llama-3.1-8B under 300 ShareGPT requests at 10 a second
(casys-kaist/LLMServingSim, MIT): queued, scheduled, first and last token of every request, by the engine's clock.

Its cache of 41,408 tokens is far too small for the load: requests wait for a minute and some are preempted, so that what is
tested here are the rules of admission and preemption as much as the step model. Calibrated on the first 100 requests in order of
arrival; the other 200 are predicted.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.lab.fidelity.fit import Point
from headway.lab.fidelity.play import FIGURES, Job, Served, play, with_figures
from headway.simulator.engine import EngineSettings
from headway.simulator.holdings import CacheLayout
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.steps import StepModel

CALIBRATED = 100
"""Requests, the first in order of arrival."""
START = {"a": 18e-3, "a_ctx": 1.3e-7, "a_seq": 5e-5, "p": 1e-3, "b": 1.1e-4, "b_slope": 1e-9, "e": 1e-3}
SETTINGS = EngineSettings(
    version="0.19.0",
    layout=CacheLayout(blocks=2588, block_size=16, max_model_len=32_768),
    scheduler=SchedulerSettings(max_num_batched_tokens=2048, max_num_seqs=256),
    steps=StepModel(a=0.0, b=0.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds since the first request was queued."""

    job: Job
    first: float
    last: float

    @property
    def ttft(self) -> float:
        return self.first - self.job.at

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / max(self.job.output - 1, 1)


def load(path: Path) -> list[Measured]:
    with path.open() as lines:
        return [
            Measured(Job(float(row["queued"]), int(row["prompt"]), int(row["output"])), float(row["first"]), float(row["last"]))
            for row in csv.DictReader(lines)
        ]


def predict(measured: Sequence[Measured], figures: dict[str, float], until: int | None = None) -> list[Served]:
    return play(with_figures(SETTINGS, figures), [one.job for one in measured], until=until)


def points(measured: Sequence[Measured], figures: dict[str, float]) -> list[Point]:
    """TTFT and time a token of the calibrated requests, for a fit of `figures`."""
    out = []
    for seen, told in zip(measured, predict(measured, figures, CALIBRATED), strict=False):
        first = tuple(told.by_first[FIGURES.index(name)] for name in figures)
        out.append(Point(max(told.ttft, 1e-3), max(seen.ttft, 1e-3), first))
        if told.job.output > 1:
            last = [told.by_last[FIGURES.index(name)] for name in figures]
            rate = tuple((x - y) / (told.job.output - 1) for x, y in zip(last, first, strict=True))
            out.append(Point(told.tpot, seen.tpot, rate))
    return out
