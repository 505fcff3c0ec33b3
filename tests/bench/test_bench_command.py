"""`headway bench` from the outside: its document, its lines and its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headway.bench.compare import Side, compare, side
from headway.bench.differences import interval
from headway.bench.record import restore
from headway.bench.suite import SCHEMA
from headway.bench.window import gaps
from headway.cli import main
from tests.bench.stub import Stub, serve, size_plan

SMALL = (
    "--reps", "1", "--intruder-in", "900", "--intruder-out", "4", "--victim-out", "60", "--after", "8",
    "--streams", "2", "--cooldown", "0", "--lag-limit", "10",  # a busy test machine must not void these runs
)  # fmt: skip
VICTIM = [0.008] * 18 + [0.2] + [0.008] * 60
INTRUDER = [0.25, 0.01, 0.01, 0.01]


def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `headway bench ARGUMENTS`, in this process: starting another takes longer."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["headway", "bench", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            main()
    finally:
        sys.argv = before
    code = stopped.value.code
    assert code is None or isinstance(code, int)
    return code or 0, out.getvalue(), err.getvalue()


def against(stub: Stub, *arguments: str) -> tuple[int, str, str]:
    """The stub serves from a thread of its own, the command has the main one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = serve(stub)
    try:
        asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result(10)
        return command(stub.url, *arguments)
    finally:
        asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[int, str, str], Path]:
    file = tmp_path_factory.mktemp("bench") / "a.json"
    stub = Stub(plan=size_plan(VICTIM, INTRUDER), continuous=True)
    page = str(file.with_suffix(".md"))
    return against(stub, *SMALL, "--scenario", "long-prefill-overlap", "--json", str(file), "--markdown", page), file


def test_a_measurement_is_a_document(measured: tuple[tuple[int, str, str], Path]) -> None:
    (code, out, err), file = measured
    assert code == 0, err
    document = json.loads(file.read_text())
    assert document["schema"] == SCHEMA == "headway.bench/1"
    assert document["error"] is None
    names = [run["scenario"] for run in document["runs"]]
    assert names.count("intruder-alone") == 3
    assert {"victim-alone", "overlap-control", "overlap-after", "overlap-together"} <= set(names)
    figures = next(run["figures"] for run in document["runs"] if run["scenario"] == "overlap-after")
    assert figures["longest_gap_s"] == pytest.approx(0.2, abs=0.02)
    assert document["summary"]["intruder-alone"]["t0_s"]["median"] == pytest.approx(0.25, abs=0.04)
    validity = document["validity"]
    assert validity["cache_defeated"] is True
    assert validity["overlap"] == {"runs": 2, "valid": 2} and validity["void_runs"] == 0
    assert any("too few" in text for text in validity["warnings"])
    assert "overlap-after" in out and "prefix cache defeated: yes" in out
    assert "| overlap-after |" in file.with_suffix(".md").read_text()


def test_figures_can_be_computed_again_from_the_events(measured: tuple[tuple[int, str, str], Path]) -> None:
    _, file = measured
    document = json.loads(file.read_text())
    lines = [json.loads(line) for line in Path(f"{file}.events.jsonl").read_text().splitlines()]
    index = next(i for i, run in enumerate(document["runs"]) if run["scenario"] == "overlap-after")
    streams: dict[str, Any] = {}
    for name in ("victim", "intruder"):
        events = [line for line in lines if line["run"] == index and line["class"] == name]
        streams[name] = [event["at_s"] for event in events]
    assert len(streams["victim"]) == 60
    longest = max(b - a for a, b in zip(streams["victim"], streams["victim"][1:], strict=False))
    assert longest == pytest.approx(document["runs"][index]["figures"]["longest_gap_s"], abs=1e-4)


@pytest.mark.parametrize(
    ("stub", "words"),
    [
        (Stub(plan=lambda body: [0.0] * 4, models=("a", "b")), "has no model 'm'; it serves a, b"),
        (Stub(plan=lambda body: [0.0] * 4, streams=False), "did not stream"),
        (Stub(plan=lambda body: [0.01] * 4, garbage_after=1), "not a JSON object"),
        (Stub(plan=lambda body: [0.01] * 4, usage=False), "sends no usage"),
    ],
)
def test_an_unusable_server_is_one_line_and_three(stub: Stub, words: str) -> None:
    code, _, err = against(stub, "--model", "m")
    assert code == 3
    assert words in last_line(err) and last_line(err).startswith("headway: ")
    assert "Traceback" not in err


def test_nobody_there_is_three() -> None:
    code, _, err = command("http://127.0.0.1:9")
    assert (code, last_line(err)) == (3, "headway: cannot connect to http://127.0.0.1:9: Connection refused")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("not-a-url",), "'not-a-url' is not an http:// or https:// URL"),
        (("http://h", "--scenario", "x"), "--scenario 'x' is unknown"),
        (("http://h", "--reps", "0"), "--reps 0"),
        (("http://h", "--victim-out", "10"), "--victim-out 10 must be above after 16: no overlap is possible"),
        (("http://h", "--json", "/nowhere/a.json"), "--json /nowhere/a.json: there is no folder"),
        (("compare", "/nowhere/a", "/nowhere/b"), "/nowhere/a: No such file"),
    ],
)
def test_an_unusable_command_line_is_one_line_and_two(arguments: tuple[str, ...], words: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert words in last_line(err)


def test_what_was_measured_before_the_server_broke_is_kept(tmp_path: Path) -> None:
    seen = {"long": 0}
    file = tmp_path / "partial.json"

    def plan(body: dict[str, Any]) -> list[float]:
        if len(str(body)) > 4000 and body["max_tokens"] == 4:
            seen["long"] += 1
            stub.garbage_after = 1 if seen["long"] > 2 else None
        return ([0.05] if len(str(body)) > 2000 else [0.01]) + [0.01] * (body["max_tokens"] - 1)

    stub = Stub(plan=plan, continuous=True)
    code, out, err = against(stub, *SMALL, "--scenario", "serialized", "--json", str(file))
    assert code == 3, err
    document = json.loads(file.read_text())
    assert "not a JSON object" in document["error"]
    assert document["runs"][0]["scenario"] == "intruder-alone" and document["runs"][0]["void"] is None
    assert "STOPPED" in out and "intruder-alone" in out


def test_runs_without_overlap_fail_the_check() -> None:
    stub = Stub(plan=size_plan([0.005] * 60, [0.35, 0.01, 0.01, 0.01]), continuous=True)
    code, out, err = against(stub, *SMALL, "--victim-out", "24", "--scenario", "long-prefill-overlap")
    assert code == 1
    assert "make it longer" in out
    assert "overlap: none of 6 runs is valid" in last_line(err)  # each order was tried again, longer


def _document(values: list[float]) -> Side:
    runs = [{"scenario": "overlap-after", "rep": i, "void": None, "figures": {"share": value}} for i, value in enumerate(values)]
    return side({"runs": runs})


def test_a_difference_is_called_only_above_the_noise() -> None:
    low, high, noisy = [0.10, 0.11, 0.10, 0.12, 0.11], [0.50, 0.52, 0.51, 0.49, 0.50], [0.09, 0.13, 0.10, 0.12, 0.11]
    (difference,) = compare(_document(low), _document(high))
    assert difference.called == "higher" and difference.low is not None and difference.low > 0.3
    assert compare(_document(high), _document(low))[0].called == "lower"
    assert compare(_document(low), _document(noisy))[0].called == "no difference seen"
    assert compare(_document(low[:2]), _document(high))[0].called == "too few runs"
    assert interval(low, low) is not None


def test_a_recorded_stream_gives_its_gaps_back() -> None:
    data = {"submitted_s": 1.0, "ended_s": 2.0, "at": [0.1, 0.2, 0.7], "tokens": [1, 2, 1]}
    answer = restore(data)
    assert [round(gap.seconds, 6) for gap in gaps(answer.events)] == [0.1, 0.5]
    assert answer.tokens == 4
