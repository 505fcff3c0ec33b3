"""The simulator against measured engines: each bound is what docs/results/fidelity.md says is reached, 5 % where nothing is said.

Runs are sampled (every so many of those that were predicted) so that this takes seconds; `python benchmarks/fidelity.py` looks at
all of them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from headway.lab.fidelity import h200, ppas, report, rtx4090
from headway.lab.fidelity.fit import Point, fit
from headway.lab.fidelity.play import FIGURES, Job, figures_of, multiplicands, play
from headway.simulator.engine import Engine
from headway.simulator.request import Request
from headway.simulator.steps import StepModel

DATA = Path(__file__).parent / "data"
REACHED = {
    # rig: median error of (mean TTFT, mean time a token) over predicted runs
    "a100 llama-3.2-3b": (0.05, 0.05),
    "a100 qwen2.5-3b": (0.05, 0.05),
    "a100 smollm3-3b": (0.05, 0.11),
    "h100 qwen2.5-3b": (0.09, 0.12),
    "rtx5090 qwen2.5-0.5b": (0.05, 0.05),
    "rtx5090 qwen2.5-3b": (0.05, 0.05),
    "rtx5090 smollm3-3b": (0.05, 0.06),
}


@pytest.fixture(scope="module")
def runs() -> list[ppas.Run]:
    return ppas.load(DATA / "ppas.csv")


@pytest.fixture(scope="module")
def held_out(runs: list[ppas.Run]) -> list[report.Error]:
    figures, chosen = report.read(DATA), []
    for mine in report.rigs(runs).values():
        budgets = {run.budget for run in mine}
        predicted = [run for run in mine if not ppas.is_calibration(run, budgets)]
        chosen += predicted[:: max(1, len(predicted) // 36)]
    return report.errors(chosen, figures, runs)


def test_the_arrivals_are_those_of_the_published_traces() -> None:
    """Counts and the most arrivals within a second, as the logs give them for some of the 50 traces."""
    for rate, seed, count, most in ((0.4, 0, 13, 2), (1.0, 2, 21, 5), (1.2, 4, 32, 5), (1.4, 1, 38, 5), (5.0, 4, 112, 11)):
        times = ppas.arrivals(rate, seed)
        assert len(times) == count
        assert max(sum(t <= other < t + 1.0 for other in times) for t in times) == most


@pytest.mark.parametrize("rig", REACHED)
def test_predicted_runs_of_a_rig(rig: str, held_out: list[report.Error]) -> None:
    mine = [one for one in held_out if one.run is not None and one.run.rig == rig]
    assert len(mine) >= 12 and not any(one.calibrated for one in mine)
    assert report.size(mine, "ttft") <= REACHED[rig][0]
    assert report.size(mine, "tpot") <= REACHED[rig][1]


def test_predicted_runs_of_all_rigs_together(held_out: list[report.Error]) -> None:
    assert report.size(held_out, "ttft") <= 0.05
    assert report.size(held_out, "tpot") <= 0.05


def test_budgets_come_out_in_the_right_order(runs: list[ppas.Run]) -> None:
    some = [
        run for run in runs if run.rig == "rtx5090 qwen2.5-3b" and run.seed == 4 and run.rate in (0.8, 1.0) and run.output == 32
    ]
    found = report.errors(some, report.read(DATA), runs)
    for name, least in (("ttft", 0.95), ("tpot", 0.9)):
        right, pairs = report.order(found, name)
        assert pairs >= 40 and right >= least * pairs


def test_a_real_engine_short_of_cache() -> None:
    found = [one for one in report.serving_errors(DATA, report.read(DATA)) if not one.calibrated]
    assert len(found) >= 195
    assert report.size(found, "ttft") <= 0.05
    assert report.size(found, "tpot") <= 0.05


def test_its_requests_start_in_the_measured_order() -> None:
    measured = rtx4090.load(DATA / "rtx4090_llama31_8b.csv")
    told = rtx4090.predict(measured, report.read(DATA)["rtx4090 llama-3.1-8b"])
    apart = [(i, j) for i in range(0, 300, 7) for j in range(i + 1, 300, 7) if abs(measured[i].first - measured[j].first) > 2.0]
    right = sum((told[i].first - told[j].first) * (measured[i].first - measured[j].first) > 0 for i, j in apart)
    assert len(apart) > 500 and right >= 0.99 * len(apart)


@pytest.fixture(scope="module")
def arms() -> list[h200.Compared]:
    return h200.compare(DATA)


def test_arms_of_the_h200(arms: list[h200.Compared]) -> None:
    predicted = [one for one in arms if one.arm.part == "predicted"]
    assert len(predicted) == 13
    # The longest gap is not within 5 %: two arms with one and the same chunks were measured 15 % apart, see the page.
    for name, bound in (("rate", 0.05), ("ttft", 0.05), ("gap", 0.09)):
        assert median(abs(h200.off(getattr(one.told, name), getattr(one.arm, name))) for one in predicted) <= bound


def test_arms_of_the_h200_in_order(arms: list[h200.Compared]) -> None:
    for name, least in (("rate", 0.97), ("ttft", 0.98), ("gap", 0.89)):
        pairs, wrong = h200.order(arms, name)
        assert pairs > 70 and len(wrong) <= (1 - least) * pairs, wrong


# -- the fit itself -----------------------------------------------------------------------------------


def test_multiplicands_give_a_steps_duration() -> None:
    steps = StepModel(a=0.01, b=5e-5, b_slope=1e-9, e=0.003, e_token=2e-6, a_ctx=1e-8, a_seq=1e-4, p=0.002, p_ctx=1e-6)
    engine = Engine(ppas.settings(512, steps))
    engine.add(Request("a", prompt_tokens=900, max_tokens=4))
    engine.add(Request("b", prompt_tokens=700, max_tokens=4))
    seen = 0
    while engine.has_work:
        step = engine.begin()
        told = sum(x * figures_of(steps)[name] for x, name in zip(multiplicands(step.chunks), FIGURES, strict=True))
        assert told == pytest.approx(step.duration, rel=1e-9)
        seen += 1
        engine.end(step)
    assert seen > 5


def test_derivatives_are_those_of_the_times() -> None:
    jobs = [Job(0.0, 4000, 8), Job(0.1, 3000, 8), Job(5.0, 2000, 8)]
    plain = StepModel(a=0.01, b=5e-5, e=0.003)
    more = StepModel(a=0.01, b=5.0001e-5, e=0.003)
    for x, y in zip(play(ppas.settings(1024, plain), jobs), play(ppas.settings(1024, more), jobs), strict=True):
        i = FIGURES.index("b")
        assert (y.first - x.first) / 1e-9 == pytest.approx(x.by_first[i], rel=1e-3)
        assert (y.last - x.last) / 1e-9 == pytest.approx(x.by_last[i], rel=1e-3)


def test_a_fit_finds_what_made_the_data() -> None:
    true, start = {"a": 0.012, "b": 6e-5, "e": 0.004, "front_s": 0.02}, {"a": 0.006, "b": 9e-5, "e": 0.001, "front_s": 0.05}
    runs = [ppas.Run("made", tokens, 32, 1.0, 0, budget, 0, 0, 0, 0) for tokens in (6000, 20_000) for budget in (512, 4096)]
    measured = {id(run): [point.predicted for point in ppas.points(run_with(run), true)] for run in runs}

    def predict(figures: dict[str, float]) -> list[Point]:
        out = []
        for run in runs:
            for point, seen in zip(ppas.points(run_with(run), figures), measured[id(run)], strict=True):
                out.append(Point(point.predicted, seen, point.by))
        return out

    found = fit(start, predict, rounds=12)
    for name in ("a", "b"):
        assert found[name] == pytest.approx(true[name], rel=0.05)


def run_with(run: ppas.Run) -> ppas.Run:
    return ppas.Run(run.rig, run.prompt, run.output, run.rate, run.seed, run.budget, 1.0, 1.0, 1.0, 1.0)
