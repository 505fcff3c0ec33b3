"""Targets, versions and chunk sizes of the vLLM scheduler class."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.targets import Targets
from headway.engines.vllm.cadence import StepPacer
from headway.engines.vllm.chunks import ChunkRule
from headway.engines.vllm.report import Report
from headway.engines.vllm.settings import TargetsFile, read
from headway.engines.vllm.stepfit import StepFit
from headway.engines.vllm.versions import UnknownVersion, traits


def test_targets_from_the_environment_go_before_those_of_the_config() -> None:
    additional = {"headway": {"share": 0.6, "gap": 0.1}}
    targets = read({"HEADWAY_SHARE": "0.75"}, additional)
    assert (targets.share, targets.gap, targets.wait) == (0.75, 0.1, Targets().wait)
    assert read({}, None) == Targets()
    assert read({}, {"other": 1}) == Targets()


@pytest.mark.parametrize(
    ("environment", "additional", "message"),
    [
        ({"HEADWAY_SHARE": "half"}, None, "HEADWAY_SHARE: 'half' is not a number"),
        ({"HEADWAY_SHARE": "2"}, None, "share: 2.0 is not 0..1"),
        ({}, {"headway": {"shares": 1}}, "headway.shares is not one of"),
        ({}, {"headway": 3}, "is not an object"),
        ({}, {"headway": {"gap": []}}, "headway.gap: [] is not a number"),
    ],
)
def test_what_cannot_be_used_is_named(environment: dict[str, str], additional: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        read(environment, additional)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("version", ["0.24.0", "0.25.1", "0.26.2", "0.27.1", "0.32.0+cpu", "0.33.1rc1"])
def test_known_versions(version: str) -> None:
    assert traits(version).sub_block is (version >= "0.27.1")


@pytest.mark.parametrize("version", ["0.23.9", "0.34.0", "0.1.dev5+gabc", "dev", "1.0"])
def test_unknown_versions_are_refused_unless_asked_for(version: str) -> None:
    with pytest.raises(UnknownVersion, match="headway knows vLLM"):
        traits(version)
    assert traits(version, anyway=True).sub_block is False


@given(
    budget=st.integers(256, 16_384),
    block=st.sampled_from([16, 32, 128, 256, 784, 1568]),
    align=st.booleans(),
    sub_block=st.booleans(),
    wanted=st.integers(0, 20_000),
    decodes=st.integers(0, 200),
)
def test_chunks_fit_and_make_progress(budget: int, block: int, align: bool, sub_block: bool, wanted: int, decodes: int) -> None:
    rule = ChunkRule(budget, block, align, sub_block)
    chunk = rule.fit(wanted, decodes)
    assert 0 <= chunk <= budget - decodes
    assert chunk <= max(wanted, rule.unit)
    if rule.whole_blocks:
        assert chunk % block == 0
        assert chunk > 0 or budget - decodes < block
    else:
        assert chunk > 0


def test_fit_settles_where_a_step_lasts_as_long_as_the_target() -> None:
    fit = StepFit()
    for _ in range(10):
        fit.solo(0.02)
    tokens = 256
    for _ in range(30):
        fit.mixed(tokens, 0.02 + 0.03 + 2e-4 * tokens)
        model = fit.model()
        assert model is not None
        tokens = min(model.tokens_within(0.25), 2 * tokens)
    assert abs(tokens - 1000) <= 10


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, *values: object) -> None:
        self.lines.append(message % values)

    warning = info


def test_a_budget_without_room_for_a_block_is_warned_of() -> None:
    log = Lines()
    Report(log, StepPacer(Targets(), ChunkRule(1568, 1568, True, False)), True).start("0.25.1")
    assert "share 0.50, gap 250 ms" in log.lines[0]
    assert "no room for a block of 1568" in log.lines[1]


def test_nothing_is_logged_without_an_overlap() -> None:
    log = Lines()
    report = Report(log, StepPacer(Targets(), ChunkRule(2048, 16)), False)
    report.tick(1.0)
    assert log.lines == []


def test_a_targets_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    file = TargetsFile(str(path), Targets(share=0.5))
    assert file.changed(0.0) is None  # not there yet
    path.write_text('{"share": 0.75, "gap": 0.1}')
    assert file.changed(0.5) is None  # not looked at so soon
    assert file.changed(2.0) == Targets(share=0.75, gap=0.1)
    assert file.changed(4.0) is None
    path.write_text('{"shore": 1}')
    with pytest.raises(ValueError, match="shore"):
        file.changed(6.0)
    assert file.changed(8.0) is None  # the same content is not complained about twice
    path.write_text('{"share": 2}')
    with pytest.raises(ValueError, match="share"):
        file.changed(10.0)
    path.unlink()
    with pytest.raises(ValueError, match="HEADWAY_TARGETS"):
        file.changed(12.0)
    assert file.changed(14.0) is None
