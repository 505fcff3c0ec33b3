"""Lint: one finding for each trap, none where there is none, from every kind of file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.advisor.blocks import KNOWN, hybrid_block_size
from headway.advisor.commandline import value_of
from headway.advisor.lint import check, check_all, failed
from headway.advisor.rules import RULES
from headway.advisor.sarif import as_sarif
from headway.advisor.sources import read_deployments
from headway.advisor.versions import Range, parse_version
from headway.errors import UsageError

DATA = Path(__file__).parent / "data"


def found(text: str, version: str | None = None) -> list[str]:
    (one,) = read_deployments(text, "test")
    one.version = parse_version(version) or one.version
    return [f"{f.rule} {f.level}" for f in check(one)]


def compose(budget: str, tag: str = "v0.25.1") -> str:
    return (DATA / "club3090.yaml").read_text().replace("${BUDGET:-1568}", budget).replace("v0.25.1", tag)


def test_the_compose_file_gets_what_a_person_would_want() -> None:
    """Serialising budget, refused threshold, idle interval, priority as a cure; nothing else."""
    assert found(compose("1568")) == ["HV002 error", "HV003 error", "HV004 warning", "HV006 warning"]


def test_the_compose_file_with_other_budgets() -> None:
    assert found(compose("1024")) == [
        "HV001 error",
        "HV003 error",
        "HV004 warning",
        "HV006 warning",
        "HV008 warning",
    ]
    assert found(compose("2048")) == ["HV003 error", "HV004 warning", "HV006 warning"]
    assert found(compose("8192")) == ["HV003 error", "HV004 warning", "HV006 warning"]


def test_the_compose_file_on_newer_engines() -> None:
    """From 0.27 chunks below the block are allowed, a budget equal to it still serialises; 0.33 makes the interval work."""
    assert found(compose("1024", "v0.30.0")) == ["HV004 warning", "HV006 warning", "HV008 warning"]
    assert found(compose("1568", "v0.33.0")) == ["HV002 error", "HV006 warning", "HV007 note"]


def test_findings_point_into_the_file() -> None:
    (one,) = read_deployments(compose("1568"), "c.yaml", file="c.yaml")
    lines = compose("1568").splitlines()
    for finding in check(one):
        assert finding.line and finding.option.replace("_", "-") in lines[finding.line - 1]
        assert finding.source.startswith("https://") and finding.fix and finding.why


HYBRID = "vllm serve Qwen/Qwen3.6-27B --kv-cache-dtype fp8 --enable-prefix-caching "
MTP = """--speculative-config '{"method":"mtp","num_speculative_tokens":2}' """


@pytest.mark.parametrize(
    ("line", "version", "expected"),
    [
        (HYBRID + "--max-num-batched-tokens 1567", "0.26.0", ["HV001 error"]),
        (HYBRID + "--max-num-batched-tokens 1567", "0.27.0", []),
        (HYBRID + "--max-num-batched-tokens 1568", "0.32.0", ["HV002 error"]),
        (HYBRID + "--max-num-batched-tokens 1600 --max-num-seqs 64", "0.25.1", ["HV002 error"]),
        (HYBRID + "--max-num-batched-tokens 1600 --max-num-seqs 16", "0.25.1", []),
        (HYBRID + "--max-num-batched-tokens 2048", "0.25.1", []),
        (HYBRID + "--max-num-batched-tokens 8192", "0.25.1", ["HV017 note"]),
        ("vllm serve Qwen/Qwen3.6-27B --max-num-batched-tokens 2048", "0.25.1", ["HV009 warning"]),
        ("vllm serve Qwen/Qwen3.6-27B --max-num-batched-tokens 2048", "0.26.0", []),
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct", "0.25.1", []),
        (HYBRID + MTP, "0.31.0", ["HV011 warning"]),
        (HYBRID + MTP, "0.33.0", []),
        (HYBRID + MTP + "--prefix-cache-retention-interval 1600", "0.31.0", []),
        ("vllm serve m --prefill-schedule-interval 4", "0.23.0", ["HV100 error"]),
        ("vllm serve m --prefill-schedule-interval 4", "0.32.0", ["HV004 warning"]),
        ("vllm serve m --prefill-schedule-interval 4 --data-parallel-size 8", "0.32.0", []),
        ("vllm serve m --prefill-schedule-interval 4", "0.33.0", []),
        ("vllm serve m --max-num-partial-prefills 4", "0.25.1", ["HV005 error"]),
        ("vllm serve m --max-num-partial-prefills 1", "0.25.1", []),
        ("vllm serve m --max-num-partial-prefills 4", "0.32.0", ["HV107 error"]),
        ("vllm serve m --prefix-cache-retention-interval 0", "0.28.0", ["HV102 error"]),
        ("vllm serve m --scheduling-policy priority", "0.30.0", ["HV006 warning"]),
        ("vllm serve m --long-prefill-token-threshold 512 --max-num-batched-tokens 2048", "0.31.0", ["HV007 note"]),
        ("vllm serve m --long-prefill-token-threshold 2048 --max-num-batched-tokens 2048", "0.28.0", ["HV008 warning"]),
        ("vllm serve m --no-enable-prefix-caching", "0.28.0", ["HV010 note"]),
        ("vllm serve m --no-enable-chunked-prefill", "0.28.0", ["HV016 warning"]),
        ("vllm serve m --max-num-batched-tokens 128 --max-num-seqs 256", "0.28.0", ["HV015 error"]),
        (HYBRID + "--mamba-cache-mode all", "0.32.0", ["HV013 error"]),
        (HYBRID + "--prefix-match-unit 100", "0.28.0", ["HV012 error"]),
        (HYBRID + "--prefix-match-unit 16", "0.28.0", []),
        ("python -m sglang.launch_server --model-path m --enable-mixed-chunk --speculative-algorithm EAGLE", None, ["HS001 warning", "HS003 note"]),  # noqa: E501
        ("python -m sglang.launch_server --model-path m --enable-mixed-chunk", None, []),
        ("python -m sglang.launch_server --model-path m --chunked-prefill-size -1 --prefill-decode-interval 4", None, ["HS002 warning"]),  # noqa: E501
        ("llama-server -m m.gguf -np 4 -b 2048 -ub 512", None, ["HL001 warning"]),
        ("llama-server -m m.gguf -np 4 -b 512 -ub 512", None, []),
        ("llama-server -m m.gguf -np 4", None, ["HL002 note"]),
        ("llama-server -m m.gguf -np 1 -b 2048", None, []),
    ],
)  # fmt: skip
def test_one_line(line: str, version: str | None, expected: list[str]) -> None:
    assert found(line, version) == expected


def test_rules_have_their_own_numbers_and_sources() -> None:
    here = Path(__file__).read_text()
    assert len({r.id for r in RULES}) == len(RULES)
    # The parser table (HV1..) is checked against engines in tests/vllm.
    assert [r.id for r in RULES if f"{r.id} " not in here and not r.id.startswith("HV1")] == []
    assert all(r.source.startswith("https://") for r in RULES)


def test_second_runner_with_align_is_refused() -> None:
    text = "[Service]\nEnvironment=VLLM_USE_V2_MODEL_RUNNER=1\nExecStart=vllm serve Qwen/Qwen3.6-27B --enable-prefix-caching\n"
    assert found(text, "0.24.0") == ["HV014 error"]
    assert found(text, "0.26.0") == []


def test_an_unknown_version_lowers_the_level_and_names_the_range() -> None:
    (one,) = read_deployments("vllm serve m --prefill-schedule-interval 4", "test")
    levels = {f.rule: f.level for f in check(one)}
    assert levels == {"HV100": "warning", "HV004": "note"}
    assert all("version is not known" in f.what for f in check(one))


def test_systemd_unit_with_variables() -> None:
    assert found((DATA / "engine.service").read_text(), "0.25.1") == ["HV001 error"]


def test_helm_values() -> None:
    (one,) = read_deployments((DATA / "values.yaml").read_text(), "values.yaml")
    assert one.version == (0, 31, 0) and one.block == 1568
    assert [f.rule for f in check(one)] == ["HV004"]


def test_kubernetes_style_values() -> None:
    text = "engine:\n  image: {repository: vllm/vllm-openai, tag: v0.28.0}\n  command: [vllm, serve]\n  args: [m, --prefill-schedule-interval=4]\n"  # noqa: E501
    assert found(text) == ["HV004 warning"]


def test_server_info() -> None:
    page = {
        "vllm_version": "0.32.0",
        "vllm_config": {"scheduler_config": {"prefill_schedule_interval": 4, "policy": "priority"}},
    }
    assert found(json.dumps(page)) == ["HV004 warning", "HV006 warning"]


def test_server_info_as_text() -> None:
    page = {"version": "0.32.0", "vllm_config": "SchedulerConfig(prefill_schedule_interval=4, policy='fcfs')"}
    assert found(json.dumps(page)) == ["HV004 warning"]


def test_values_are_read_as_the_engine_reads_them() -> None:
    assert [value_of(t) for t in ("8k", "8K", "-1", "0.9", "true", "x")] == [8000, 8192, -1, 0.9, True, "x"]
    (one,) = read_deployments(
        "vllm serve m \\\n  --max-num-batched-tokens=4k --speculative-config.method mtp --speculative-config.num_speculative_tokens 3",  # noqa: E501
        "t",
    )
    assert one.number("max_num_batched_tokens") == 4000 and one.speculative_tokens == 3 and one.model == "m"


def test_no_engine_is_a_usage_error() -> None:
    for text in (
        "hello",
        "services:\n  db:\n    image: postgres\n    command: postgres\n",
        "{not json",
        "a: [1\n",
    ):
        with pytest.raises(UsageError, match="test: "):
            read_deployments(text, "test")


def test_block_sizes() -> None:
    """784 with bf16 keys and values, 1,568 with fp8: the numbers that the engine logs."""
    config = KNOWN["qwen3.6-27b"]
    assert hybrid_block_size(config) == 784
    assert hybrid_block_size(config, "fp8") == 1568
    assert hybrid_block_size({"text_config": config}, "fp8_e4m3") == 1568
    assert hybrid_block_size(config, "fp8", speculative_tokens=2) == 1600
    assert hybrid_block_size({"num_key_value_heads": 8, "head_dim": 128}) is None


def test_ranges() -> None:
    held = Range("0.24", "0.33")
    assert [held.holds(parse_version(v)) for v in ("0.23.0", "0.24.0", "v0.32.1rc2", "0.33.0", None)] == [
        False,
        True,
        True,
        False,
        None,
    ]


def test_sarif_has_the_shape_that_code_hosts_read() -> None:
    findings = check_all(read_deployments(compose("1568"), "c.yaml", file="c.yaml"))
    sarif = as_sarif(findings)
    (run,) = sarif["runs"]
    assert sarif["version"] == "2.1.0" and len(run["results"]) == len(findings) == 4
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "c.yaml" and place["region"]["startLine"] > 1
    assert all(re.match(r"https://", rule["helpUri"]) for rule in rules)
    assert failed(findings)
