"""Interruptions, changes, refusals and failures: what is done again, what is kept and what is said."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.bench.arms import runner as runner_module
from headway.bench.arms.document import compose
from headway.bench.arms.file import parse
from headway.bench.arms.ledger import Ledger
from headway.bench.arms.plan import Plan
from headway.bench.arms.progress import Lines, Table
from headway.bench.arms.report import remarks
from headway.bench.arms.runner import Runner
from headway.errors import ServerError, UsageError
from tests.bench.arms.test_server import FAKE

FILE = f"""
reps = 2
aa = false
[vars]
how = ""
[server]
command = "{sys.executable} {FAKE} {{port}} {{how}}"
ready_s = 20
[[arm]]
name = "a"
[[arm]]
name = "b"
client = {{ intruder_in = 100 }}
"""
QUIET = {"lag_p99_s": 0.0, "lag_max_s": 0.0, "saturation": None, "text": "same"}
Hook = Callable[[str, int], None]


class FakeSuite:
    """Measures nothing; `hook(url, rep)` may raise in the middle of a repetition."""

    hook: Hook = staticmethod(lambda url, rep: None)  # type: ignore[assignment]
    made: list[tuple[int, int]] = []  # noqa: RUF012

    def __init__(self, url: str, settings: Any, names: Any, reps: int, seed: int, *, alone: int, first_rep: int) -> None:
        self.url, self.settings, self.rep, self.events = url, settings, first_rep, [{"run": 0, "at_s": 0.5}]
        runs = [self._run("intruder-alone", {"t0_s": 2.0})]
        self.document: dict[str, Any] = {"runs": runs, "error": None, "server": {"model": "m", "version": "1"}}

    def _run(self, name: str, figures: dict[str, float]) -> dict[str, Any]:
        return {"scenario": name, "rep": self.rep, "void": None, "notes": [], "figures": figures, "streams": [], **QUIET}

    async def run(self, model: str | None, key: str | None, say: Any, keep: Any) -> None:
        try:
            FakeSuite.hook(self.url, self.rep)
        except ServerError as error:
            self.document["error"] = str(error)
            raise
        share = 0.5 if self.settings.intruder_in == 100 else 0.1
        figures = {"share": share, "intruder_ttft_s": 4.0, "stretch": 1.0, "longest_gap_s": 0.1}
        self.document["runs"].append(self._run("overlap-after", figures))
        FakeSuite.made.append((self.settings.intruder_in, self.rep))


@pytest.fixture(autouse=True)
def fake_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "Suite", FakeSuite)
    monkeypatch.setattr(FakeSuite, "hook", staticmethod(lambda url, rep: None))
    monkeypatch.setattr(FakeSuite, "made", [])


def go(text: str, folder: Path) -> tuple[Runner, dict[str, Any]]:
    plan: Plan = parse(text, "f.toml")
    ledger = Ledger(folder)
    with ledger.held():
        runner = Runner(plan, ledger, Lines())
        runner.check()
        try:
            asyncio.run(runner.run())
        except KeyboardInterrupt:
            runner.notes.append("interrupted")
    document = compose(
        plan, runner.finished, refused=runner.refused, failures=runner.failures, traps=runner.traps, notes=runner.notes,
        started_unix=0.0,
    )  # fmt: skip
    return runner, document


def states(document: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {arm["name"]: (arm["state"], arm["repetitions"]) for arm in document["arms"]}


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    seen: list[int] = []

    def stop_in_the_third(url: str, rep: int) -> None:
        seen.append(rep)
        if len(seen) == 3:
            raise KeyboardInterrupt

    FakeSuite.hook = staticmethod(stop_in_the_third)  # type: ignore[assignment]
    runner, document = go(FILE, tmp_path)
    assert "interrupted" in runner.notes and len(FakeSuite.made) == 2
    assert "unfinished" in {state for state, _ in states(document).values()}
    first = list(FakeSuite.made)
    FakeSuite.hook = staticmethod(lambda url, rep: None)  # type: ignore[assignment]
    _, document = go(FILE, tmp_path)
    assert sorted(FakeSuite.made) == [(100, 0), (100, 1), (28623, 0), (28623, 1)]
    assert not set(first) & set(FakeSuite.made[2:])
    assert states(document) == {"a": ("done", 2), "b": ("done", 2)}
    go(FILE, tmp_path)
    assert len(FakeSuite.made) == 4
    go(FILE.replace("reps = 2", "reps = 3"), tmp_path)
    assert sorted(FakeSuite.made[4:]) == [(100, 2), (28623, 2)]


def test_an_arm_that_changed_is_run_again_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(FILE, tmp_path)
    FakeSuite.made.clear()
    _, document = go(FILE.replace("intruder_in = 100", "intruder_in = 200"), tmp_path)
    assert sorted(FakeSuite.made) == [(200, 0), (200, 1)]
    assert "arm 'b' has changed in the arm file: its 2 finished repetitions are done again" in capsys.readouterr().err
    assert states(document)["b"] == ("done", 2)
    assert len(list((tmp_path / "replaced").rglob("*.json"))) == 2
    FakeSuite.made.clear()
    _, document = go(FILE.split('[[arm]]\nname = "b"')[0], tmp_path)
    assert FakeSuite.made == [] and list(states(document)) == ["a"]
    assert "arm 'b' is not in the arm file (any more): its 2 repetitions are left out" in document["notes"]


def test_a_half_written_repetition_is_done_again(tmp_path: Path) -> None:
    go(FILE, tmp_path)
    FakeSuite.made.clear()
    (tmp_path / "runs" / "a-1.json").write_text('{"schema": "headway.arms-run/1", "arm"')
    (tmp_path / "events" / "b-2.jsonl").unlink()
    _, document = go(FILE, tmp_path)
    assert sorted(FakeSuite.made) == [(100, 1), (28623, 0)]
    assert states(document) == {"a": ("done", 2), "b": ("done", 2)}


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path).held(), pytest.raises(UsageError, match="another headway bench arms is writing there"):
        go(FILE, tmp_path)


REFUSED = '[[arm]]\nname = "1024"\nserver = { engine_version = "0.25.1", command = "vllm serve Qwen/Qwen3.6-27B --kv-cache-dtype fp8 --enable-prefix-caching --max-num-batched-tokens 1024" }\n'  # noqa: E501


def test_an_arm_that_the_engine_would_refuse_is_not_started_and_the_others_go_on(tmp_path: Path) -> None:
    runner, document = go(FILE + REFUSED, tmp_path)
    assert states(document) == {"a": ("done", 2), "b": ("done", 2), "1024": ("refused", 0)}
    assert "block_size (1568) must be <= max_num_batched_tokens (1024)" in document["arms"][2]["refused"]
    assert runner.failures == []
    with pytest.raises(UsageError, match="every arm is refused"):
        go("aa = false\n" + REFUSED, tmp_path / "other")


@pytest.mark.parametrize(
    ("server", "stage"),
    [('command = "no-such-command"', "command"), (f'command = "{sys.executable} {FAKE} {{port}} die"', "start")],
)
def test_a_server_that_does_not_start_leaves_the_other_arms_alone(server: str, stage: str, tmp_path: Path) -> None:
    runner, document = go(FILE + f'[[arm]]\nname = "c"\n[arm.server]\n{server}\n', tmp_path)
    assert states(document) == {"a": ("done", 2), "b": ("done", 2), "c": ("failed", 0)}
    assert [(failure["arm"], failure["stage"]) for failure in runner.failures] == [("c", stage)]  # not tried again


def test_a_gateway_that_does_not_start_is_its_arms_failure(tmp_path: Path) -> None:
    runner, document = go(FILE + '[[arm]]\nname = "c"\ngateway = { policy = "magic" }\n', tmp_path)
    assert states(document) == {"a": ("done", 2), "b": ("done", 2), "c": ("failed", 0)}
    assert runner.failures[0]["stage"] == "gateway" and "magic" in runner.failures[0]["reason"]


def test_a_server_that_dies_in_a_repetition_is_started_once_more(tmp_path: Path) -> None:
    import urllib.error
    import urllib.request

    seen: list[int] = []

    def crash(url: str, rep: int) -> None:
        seen.append(rep)
        if len(seen) == 1:
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                urllib.request.urlopen(url + "/die").read()
                urllib.request.urlopen(url + "/health")
            raise ServerError("the connection broke")

    FakeSuite.hook = staticmethod(crash)  # type: ignore[assignment]
    runner, document = go(FILE, tmp_path)
    assert states(document) == {"a": ("done", 2), "b": ("done", 2)}
    assert [failure["stage"] for failure in runner.failures] == ["run"]
    assert "ended with exit code 7" in runner.failures[0]["reason"]
    (kept,) = (tmp_path / "broken").glob("*.json")
    assert json.loads(kept.read_text())["document"]["runs"][0]["scenario"] == "intruder-alone"


def test_an_arm_that_keeps_failing_is_given_up(tmp_path: Path) -> None:
    def fail(url: str, rep: int) -> None:
        raise ServerError("no usage")

    FakeSuite.hook = staticmethod(fail)  # type: ignore[assignment]
    runner, document = go(FILE.replace("reps = 2", "reps = 9"), tmp_path)
    assert states(document) == {"a": ("failed", 0), "b": ("failed", 0)}
    assert len(runner.failures) == 4


def test_the_figures_of_a_gateway_arm_are_against_the_engines_own_t0(tmp_path: Path) -> None:
    _, document = go(FILE.replace("intruder_in = 100", "pieces = true"), tmp_path)
    run = next(run for run in document["runs"] if run["scenario"] == "overlap-after")
    assert run["figures"]["stretch"] == 2.0 and run["figures"]["excess"] == pytest.approx(2.0 * 0.9)
    assert document["arms"][0]["t0_s"] == 2.0 and document["arms"][0]["t0_of"] == "a"


def test_the_live_table_says_what_each_arm_is_doing(tmp_path: Path) -> None:
    from rich.console import Console
    from rich.live import Live

    text = io.StringIO()
    plan = parse(FILE.replace("reps = 2", "reps = 1") + REFUSED, "f.toml")
    with Live(console=Console(file=text, force_terminal=True, width=140), auto_refresh=False) as live, Ledger(tmp_path).held():
        table = Table(plan, live)
        runner = Runner(plan, Ledger(tmp_path), table)
        runner.check()
        asyncio.run(runner.run())
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    last = seen[seen.rindex("repetitions") :]
    assert re.search(r"│ a +│ +1/1 │ done +│ +0\.10 │ +100 ms │ +4\.00 s │", last)
    assert re.search(r"│ 1024 +│ +0/1 │ refused", last)
    assert "starting" in seen


def test_an_arm_whose_runs_mean_nothing_is_said_to_be_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUIET, "text", "differs")
    plain = FakeSuite._run
    monkeypatch.setattr(
        FakeSuite,
        "_run",
        lambda self, name, figures: {**plain(self, name, figures), "void": "void: no" if "over" in name else None},
    )
    _, document = go(FILE, tmp_path)
    assert document["arms"][0]["validity"]["failures"] == ["overlap: none of 2 runs is valid; the reasons stand with them"]
    told = remarks(document)
    assert "INVALID: overlap: none of 2 runs is valid; the reasons stand with them (a, b)" in told
    assert "overlap-after: void: no (a 2x, b 2x)" in told
