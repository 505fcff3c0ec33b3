"""What a measurement proves about itself, each finding made to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.bench.context import Settings
from headway.bench.overlap import too_late
from headway.bench.validity import validity
from tests.bench.stub import Stub, size_plan
from tests.bench.test_bench_command import INTRUDER, SMALL, VICTIM, against

OVERLAP = (*SMALL, "--scenario", "long-prefill-overlap")


def a_run(scenario: str, *, cached: int | None = 0, cls: str = "intruder", **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "scenario": scenario, "void": None, "figures": {}, "lag_p99_s": 0.001, "lag_max_s": 0.002, "saturation": None,
        "text": None, "streams": [{"class": cls, "usage": usage}], **more,
    }  # fmt: skip


def found(*runs: dict[str, Any], reps: int = 5, **settings: Any) -> dict[str, Any]:
    return validity(runs, Settings(**settings), reps)


def overlap(text: str = "same", **more: Any) -> dict[str, Any]:
    return a_run("overlap-after", text=text, figures={"share": 0.1, "window_s": 3.0, "gaps": 200}, **more)


def control(share: float = 0.97, text: str = "same") -> dict[str, Any]:
    return a_run("overlap-control", text=text, figures={"share": share})


def test_a_sound_measurement_has_nothing_to_say() -> None:
    seen = found(overlap(), control(), a_run("victim-alone", figures={"victim_tokens_per_s": 60.0}))
    assert seen["failures"] == [] and seen["warnings"] == []
    assert seen["overlap"] == {"runs": 1, "valid": 1} and seen["text"] == "same" and seen["cache_defeated"] is True


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((overlap(void="refused: no overlap"), control()), "overlap: none of 1 runs is valid"),
        ((overlap(), control(0.4)), "control: beside a short neighbour the victim keeps only 40%"),
        ((overlap(cached=900), control()), "prefix cache: salted prompts were found in it"),
        ((overlap("differs"), control()), "text: DIFFERS beside the long prefill and never beside a short neighbour"),
    ],
)
def test_what_makes_figures_mean_something_else_is_a_failure(runs: tuple[dict[str, Any], ...], words: str) -> None:
    (failure,) = found(*runs)["failures"]
    assert words in failure


@pytest.mark.parametrize(
    ("runs", "reps", "words"),
    [
        ((overlap(), control()), 2, "2 repetitions: too few"),
        ((overlap(), control(0.7)), 5, "a short neighbour alone leaves the victim 70%"),
        ((a_run("mixed", saturation=1.2),), 5, "SATURATED: 1.20 seconds of prefill arrive a second"),
        ((a_run("decode-concurrent", figures={"gaps": 40}),), 5, "p99 of gaps: 1 runs have under 100 gaps (one only 40)"),
        ((overlap("differs"), control(text="differs")), 5, "batch shapes change it here"),
        (
            (a_run("intruder-alone", figures={"t0_s": 1.0}), a_run("intruder-alone", figures={"t0_s": 1.4})), 5,
            "the intruder alone took 1.00 to 1.40 s: the server was not quiet",
        ),
        (
            (a_run("overlap-after", figures={"window_s": 0.2}), a_run("victim-alone", figures={"victim_tokens_per_s": 50.0})), 5,
            "10 tokens of the victim alone: its share is coarse",
        ),
    ],
)  # fmt: skip
def test_what_makes_figures_worth_less_is_a_warning(runs: tuple[dict[str, Any], ...], reps: int, words: str) -> None:
    seen = found(*runs, reps=reps)
    assert seen["failures"] == []
    assert any(words in text for text in seen["warnings"]), seen["warnings"]


def test_a_server_that_does_not_count_cached_tokens_proves_nothing() -> None:
    assert found(overlap(cached=None))["cache_defeated"] is None
    assert found(overlap(cached=900), pieces=True)["cache_defeated"] is None
    assert found(a_run("multi-turn", cls="turn 2", cached=900))["cache_defeated"] is None  # it is meant to be cached


def test_a_late_client_and_one_held_up_in_the_reported_gap_are_told() -> None:
    assert too_late(0.001, 0.0, 2.0, 0.02) is None
    assert "ran 30 ms late" in str(too_late(0.030, 0.0, 2.0, 0.02))
    assert "of the longest gap, 2000 ms, this client itself was held up for 1900 ms" in str(too_late(0.001, 1.9, 2.0, 0.02))
    assert too_late(0.001, 0.1, 2.0, 0.02) is None  # a twentieth of it


@pytest.mark.parametrize(
    ("corrupts", "code", "words"),
    [
        ("long", 1, "INVALID: text: DIFFERS beside the long prefill and never beside a short neighbour"),
        ("any", 0, "text of the victim at temperature 0: differs beside a short neighbour too"),
        (None, 0, "text of the victim at temperature 0: the same beside the long prefill as alone"),
    ],
)
def test_text_that_changes_beside_a_prefill_is_told_from_text_that_changes_in_a_batch(
    corrupts: str | None, code: int, words: str
) -> None:  # fmt: skip
    stub = Stub(plan=size_plan(VICTIM, INTRUDER), continuous=True, corrupts=corrupts)
    got, out, err = against(stub, *OVERLAP)
    assert got == code, err
    assert words in out


def test_a_cached_intruder_fails_the_command() -> None:
    stub = Stub(plan=size_plan(VICTIM, INTRUDER), continuous=True, cached=500)
    code, out, err = against(stub, *OVERLAP)
    assert code == 1 and "prefix cache defeated: NO" in out
    assert "prefix cache: salted prompts were found in it" in err.strip().splitlines()[-1]


def test_a_victim_that_ended_too_early_is_made_longer(tmp_path: Path) -> None:
    stub = Stub(plan=size_plan([0.01] * 400, [0.35, 0.01, 0.01, 0.01]), continuous=True)
    file = tmp_path / "a.json"
    code, _, err = against(stub, *OVERLAP, "--victim-out", "20", "--json", str(file))
    assert code == 0, err
    runs = [run for run in json.loads(file.read_text())["runs"] if run["scenario"] == "overlap-after"]
    assert [bool(run["void"]) for run in runs] == [True, True, False]
    assert "the victim is made 40 tokens long and the run done again" in runs[0]["notes"]


def test_steps_that_contradict_the_budget_are_told(tmp_path: Path) -> None:
    stub = Stub(plan=size_plan(VICTIM, INTRUDER), continuous=True)
    code, out, err = against(stub, *OVERLAP, "--budget", "64")
    assert code == 0, err
    assert "CONTRADICTION: the longest gap has time for" in out and "the budget allows 64" in out
