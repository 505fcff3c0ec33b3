"""From bench documents to a, e, b, c, h with intervals; files from which nothing follows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from headway.advisor.plan.estimate import ASSUMED_H, estimates
from headway.advisor.plan.measurement import measurement
from headway.advisor.plan.rig import measured, named
from headway.errors import UsageError

A, E, B, C, BUDGET = 0.015, 0.012, 80e-6, 1e-9, 4096


def run(scenario: str, void: str | None = None, **figures: float) -> dict[str, Any]:
    streams = [{"class": "intruder", "usage": {"prompt_tokens": figures.pop("tokens", 20_000)}}] if "overlap" in scenario else []
    return {"scenario": scenario, "rep": 0, "void": void, "notes": [], "figures": figures, "streams": streams}


def bench(reps: int = 6, lengths: tuple[int, ...] = (20_000,), budget: int | None = BUDGET, **changed: Any) -> dict[str, Any]:
    """What a bench of an engine with A, E, B, C would say, each figure with 1 % of noise."""
    source = random.Random(3)

    def about(value: float) -> float:
        return value * (1 + source.uniform(-0.01, 0.01))

    chunk = BUDGET - 1
    position = (20_000 // chunk - 1) * chunk
    gap = A + E + chunk * (B + C * (position + chunk / 2))
    runs = []
    for _ in range(reps):
        runs.append(run("victim-alone", victim_tokens_per_s=about(1 / A), victim_ttft_s=0.03))
        for n in lengths:
            t0 = max(0.002, ASSUMED_H - 1.5 * A) + A * -(-n // chunk) + B * n + C * n * n / 2
            runs.append(run("intruder-alone", t0_s=about(t0), prompt_tokens=n, cached_tokens=0))
        steps = -(-20_000 // chunk)
        t0 = max(0.002, ASSUMED_H - 1.5 * A) + A * steps + B * 20_000 + C * 20_000**2 / 2
        runs.append(run("overlap-after", longest_gap_s=about(gap), intruder_ttft_s=about(t0 + A / 2 + E * steps), share=0.1))
    out = {
        "schema": "headway.bench/1", "server": {"url": "http://x", "model": "m", "version": "0.32.0"},
        "settings": {"budget": budget, "intruder_in": 20_000}, "runs": runs, "summary": {},
    }  # fmt: skip
    return out | changed


def written(folder: Path, document: object, name: str = "bench.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_the_figures_and_their_intervals(tmp_path: Path) -> None:
    seen = measurement([written(tmp_path, bench(lengths=(20_000, 80_000)))])
    found = estimates(seen, BUDGET - 1)
    for name, true, within in (("a", A, 0.02), ("b", B, 0.05), ("c", C, 0.15), ("e", E, 0.7)):
        figure = found.figures[name]
        assert figure.value == pytest.approx(true, rel=within)
        assert figure.low is not None and figure.high is not None
        assert figure.low <= figure.value <= figure.high
        assert figure.low <= true * (1 + within) and figure.high >= true * (1 - within)
    assert found.figures["h"].value == ASSUMED_H and found.figures["h"].runs == 0


def test_more_repetitions_narrow_an_interval(tmp_path: Path) -> None:
    few, many = (
        estimates(measurement([written(tmp_path, bench(reps), f"{reps}.json")]), BUDGET - 1).figures["e"] for reps in (3, 60)
    )
    assert few.low is not None and few.high is not None and many.low is not None and many.high is not None
    assert many.high - many.low < 0.8 * (few.high - few.low)


def test_it_says_what_would_narrow_it(tmp_path: Path) -> None:
    two = estimates(measurement([written(tmp_path, bench(2))]), BUDGET - 1)
    assert two.figures["a"].low is None
    told = " ".join(two.measure)
    for word in ("h: 0.06 s is assumed", "a: 2 runs give no interval"):
        assert word in told
    unknown = estimates(measurement([written(tmp_path, bench(6, budget=None))]), None)
    assert any("--budget" in line for line in unknown.measure)
    assert unknown.model.e == 0.0


def test_a_budget_that_the_gap_contradicts_is_said(tmp_path: Path) -> None:
    seen = measurement([written(tmp_path, bench())])
    assert any("CONTRADICTION" in note for note in estimates(seen, 16_383).notes)
    assert not estimates(seen, BUDGET - 1).notes


def test_the_same_file_gives_the_same_intervals(tmp_path: Path) -> None:
    seen = measurement([written(tmp_path, bench())])
    assert estimates(seen, BUDGET - 1) == estimates(seen, BUDGET - 1)


def test_several_files_of_one_engine_are_put_together(tmp_path: Path) -> None:
    paths = [written(tmp_path, bench(2, lengths=(n,)), f"{n}.json") for n in (20_000, 80_000)]
    seen = measurement(paths)
    assert len(seen.solo) == 4
    assert estimates(seen, BUDGET - 1).figures["c"].value == pytest.approx(C, rel=0.3)


ALONE = [run("victim-alone", victim_tokens_per_s=60.0), run("intruder-alone", t0_s=2.0, prompt_tokens=20_000)]
VOID = run("overlap-after", void="void: the victim ended 0.10 s before the intruder's first token")


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ("{", "not JSON"),
        ([1], "names no schema"),
        ({"schema": "headway.lint/1"}, "headway.bench/1, headway.share-matrix/1, headway.cpu-overlap/1"),
        ({"schema": ["x"]}, "not a bench document"),
        ({"schema": "headway.bench/1"}, "not a whole headway.bench/1 document"),
        (bench(runs=ALONE), "no run in which a long prompt met a live answer"),
        (bench(runs=[*ALONE, VOID, VOID]), "all 2 runs with an overlap are void (void: the victim ended"),
        (bench(runs=[*ALONE[:1], run("overlap-after", longest_gap_s=1.0, intruder_ttft_s=2.0)]), "the long prompt alone"),
        (bench(runs=[*ALONE[1:], run("overlap-after", longest_gap_s=1.0, intruder_ttft_s=2.0)]), "an answer alone"),
    ],
)
def test_files_from_which_nothing_follows(document: object, word: str, tmp_path: Path) -> None:
    path = written(tmp_path, document)
    with pytest.raises(UsageError) as error:
        measurement([path])
    assert word in str(error.value) and "bench.json" in str(error.value) and "\n" not in str(error.value)


def test_two_versions_are_not_one_engine(tmp_path: Path) -> None:
    other = bench() | {"server": {"url": "http://x", "model": "m", "version": "0.33.0"}}
    with pytest.raises(UsageError, match=r"0\.33\.0.*0\.32\.0"):
        measurement([written(tmp_path, bench()), written(tmp_path, other, "other.json")])


def test_a_rig_needs_a_version_and_a_known_profile(tmp_path: Path) -> None:
    seen = measurement([written(tmp_path, bench(server={"url": "http://x", "model": "m", "version": None}))])
    with pytest.raises(UsageError, match="--engine-version"):
        measured(seen, None, None, None, None)
    assert measured(seen, "0.32.0", None, None, None).engine.version == "0.32.0"
    with pytest.raises(UsageError, match="demo"):
        measured(seen, "0.32.0", None, None, "h300")
    with pytest.raises(UsageError, match=r"h200-qwen3\.6-27b"):
        named("h300", None, None)
    with pytest.raises(UsageError, match="--engine-version"):
        named("demo", "newest", None)
    with pytest.raises(UsageError, match="max_num_seqs"):
        named("demo", None, 32)
    with pytest.raises(UsageError, match=r"--budget 1024: vLLM 0\.25\.1 does not start: In Mamba cache align mode"):
        named("h200-qwen3.6-27b", None, 1024)
