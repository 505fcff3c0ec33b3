"""580 runs of stock vLLM 0.22.1 over token budgets of 512 to 16,384, on RTX 5090, A100 and H100
(TimoSaemann/ppas-vllm, Apache-2.0).

Each run is a fresh server and one trace: Poisson arrivals with a rate for each of five phases of ten seconds, from a seed, of
prompts of one length that share nothing. Only means and 95th percentiles over a run's requests were published.

Calibrated on: where six budgets were run, budgets 512, 2,048 and 8,192 at rates of 0.8 and 1.2 with seeds 0 and 2, for prompts
of 20,000 and 25,000 tokens and answers of 32; everything else there (budgets 1,024, 4,096 and 16,384, prompts of 30,000, answers
of 16 and 64, other rates and seeds) is predicted.
Where two budgets were run, seeds 0 and 2 of both; seeds 1, 3 and 4 are predicted.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.lab.fidelity.fit import Point
from headway.lab.fidelity.play import FIGURES, Job, Served, play, with_figures
from headway.simulator.engine import EngineSettings
from headway.simulator.holdings import CacheLayout
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.steps import StepModel


@dataclass(frozen=True, slots=True)
class Run:
    """Times in seconds; `rate` of requests a second in the two busy phases."""

    rig: str
    prompt: int
    output: int
    rate: float
    seed: int
    budget: int
    ttft: float
    ttft_p95: float
    tpot: float
    tpot_p95: float

    @property
    def jobs(self) -> list[Job]:
        return [Job(at, self.prompt, self.output) for at in arrivals(self.rate, self.seed)]


def arrivals(rate: float, seed: int) -> list[float]:
    """Seconds. Five phases of ten seconds, 0.2 requests a second in the first, third and fifth, exponential gaps from one
    generator, a new gap begun with each phase: gives back the count and the most in one second of all 50 published traces."""
    source = random.Random(seed)
    out = []
    for phase, speed in enumerate((0.2, rate, 0.2, rate, 0.2)):
        at = 10.0 * phase
        while (at := at + source.expovariate(speed)) < 10.0 * (phase + 1):
            out.append(at)
    return out


def load(path: Path) -> list[Run]:
    with path.open() as lines:
        return [
            Run(
                row["rig"], int(row["prompt"]), int(row["output"]), float(row["rate"]), int(row["seed"]), int(row["budget"]),
                float(row["ttft"]), float(row["ttft_p95"]), float(row["tpot"]), float(row["tpot_p95"]),
            )
            for row in csv.DictReader(lines)
        ]  # fmt: skip


def is_calibration(run: Run, budgets: set[int]) -> bool:
    """`budgets`: all that were run on this rig."""
    if run.seed not in (0, 2) or run.output != 32:
        return False
    return len(budgets) < 3 or (run.budget in (512, 2048, 8192) and run.rate in (0.8, 1.2) and run.prompt <= 25_000)


def settings(budget: int, steps: StepModel) -> EngineSettings:
    """Room in the cache does not bound these runs and no prompt shares a block with another, so that the blocks' size is of no
    account; few large ones are made sooner."""
    return EngineSettings(
        version="0.22.1",
        layout=CacheLayout(blocks=10_000, block_size=1024, caching=False, max_model_len=32_768),
        scheduler=SchedulerSettings(max_num_batched_tokens=budget, max_num_seqs=256),
        steps=steps,
    )


START = {
    "a": 4e-3, "a_ctx": 6e-9, "a_seq": 1e-5, "p": 5e-4, "p_ctx": 1.2e-6, "b": 28e-6, "b_slope": 1.5e-9, "e": 1e-3,
    "front_s": 0.03,
}  # fmt: skip
"""Where a fit begins, by the plateaus of the RTX 5090's runs; work is scaled to the rig."""
SCALED = ("p_ctx", "b", "b_slope")


def begin(runs: Sequence[Run]) -> dict[str, float]:
    """START for this rig: its quickest run beside what START gives a prompt of that length alone."""
    quickest = min(runs, key=lambda run: run.ttft)
    alone = quickest.prompt * (START["b"] + START["b_slope"] * quickest.prompt / 2) + START["front_s"]
    scale = 0.8 * quickest.ttft / alone
    return {name: value * scale if name in SCALED else value for name, value in START.items()}


def predict(run: Run, figures: dict[str, float]) -> list[Served]:
    """`figures`: those of the step model, and `front_s`."""
    steps = {name: value for name, value in figures.items() if name != "front_s"}
    base = settings(run.budget, StepModel(a=0.0, b=0.0))
    return play(with_figures(base, steps), run.jobs, front_s=figures.get("front_s", 0.0))


def points(run: Run, figures: dict[str, float]) -> list[Point]:
    """Mean TTFT and mean time a token of a run, for a fit of `figures`."""
    served = predict(run, figures)
    n = len(served)

    def by(name: str, of_first: bool) -> float:
        if name == "front_s":
            return 1.0 if of_first else 0.0
        i = FIGURES.index(name)
        if of_first:
            return sum(one.by_first[i] for one in served) / n
        return sum(_between(one, i) for one in served) / n

    ttft, tpot = sum(one.ttft for one in served) / n, sum(one.tpot for one in served) / n
    return [
        Point(ttft, run.ttft, tuple(by(name, True) for name in figures)),
        Point(tpot, run.tpot, tuple(by(name, False) for name in figures)),
    ]


def _between(one: Served, i: int) -> float:
    return (one.by_last[i] - one.by_first[i]) / (one.job.output - 1)
