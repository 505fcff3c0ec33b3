"""The bounds of the overlap suite, judged on runs that are made up."""

from __future__ import annotations

from typing import Any

from headway.lab.cpu_overlap_report import Bound, bounds, report


def run(arm: str, rep: int = 0, part: str = "overlap", **figures: Any) -> dict[str, Any]:
    base = {
        "part": part, "rep": rep, "arm": arm, "void": None, "share": 0.5, "t0_s": 1.0, "t0_direct_s": 0.95,
        "intruder_ttft_s": 2.1, "longest_gap_s": 0.1, "victim_tokens_per_s": 50.0, "victim_ttft_s": 0.05,
        "solo_ttft_s": 0.03, "piece_s": 0.1,
    }  # fmt: skip
    return {**base, **figures}


def document(*runs: dict[str, Any]) -> dict[str, Any]:
    engine = {"version": "0.32.0", "model": "next-tiny", "arguments": []}
    return {
        "engine": engine, "gap_s": 0.1, "shares": [0.5], "intruder_tokens": 14000, "victim_tokens": 38, "reps": 3,
        "runs": list(runs),
    }  # fmt: skip


def found(made: list[Bound], what: str) -> Bound:
    return next(bound for bound in made if bound.what.startswith(what))


def test_good_runs_hold_every_bound() -> None:
    made = bounds(document(*(run("pace 0.5", rep) for rep in range(3)), run("passthrough", share=0.1)))
    assert made and all(bound.holds for bound in made)
    assert found(made, "TTFT").value == 1.05


def test_the_median_judges_and_not_the_worst() -> None:
    made = bounds(document(*(run("pace 0.5", rep, longest_gap_s=gap) for rep, gap in enumerate([0.1, 0.11, 0.9]))))
    gap = found(made, "longest gap")
    assert gap.holds and (gap.value, gap.high) == (0.11, 0.9)


def test_each_bound_can_fail() -> None:
    cases = {
        "share": {"share": 0.61}, "TTFT": {"intruder_ttft_s": 2.5}, "longest gap": {"longest_gap_s": 0.126},
        "T0": {"t0_s": 1.2, "t0_direct_s": 1.0},
    }  # fmt: skip
    for what, figures in cases.items():
        made = bounds(document(run("pace 0.5", **figures)))
        assert found(made, what).holds is False
    assert found(bounds(document(run("passthrough", share=0.25))), "share").holds is False
    late = bounds(document(run("pace 0.5", part="order", victim_ttft_s=0.5)))
    assert found(late, "victim's TTFT").holds is False


def test_void_runs_count_for_nothing_and_are_told() -> None:
    bad = run("pace 0.5", share=0.99, void="void: a burst")
    made = bounds(document(bad))
    assert [bound.holds for bound in made] == [None]
    assert "void: a burst" in report(document(bad))


def test_turn_two_is_compared_within_its_repetition() -> None:
    turns = [
        {"part": "turn2", "rep": rep, "arm": arm, "void": None, "turn1_ttft_s": 1.0, "turn2_ttft_s": ttft,
         "turn2_cached_tokens": 13824}
        for rep, direct in enumerate([0.3, 0.4, 0.5]) for arm, ttft in (("direct", direct), ("pace 0.5", direct * 1.05))
    ]  # fmt: skip
    (bound,) = bounds(document(*turns))
    assert bound.holds and bound.value is not None and abs(bound.value - 1.05) < 1e-9
    assert "13824" in report(document(*turns))
