"""What to do, for every verdict and version: at most three actions that it can do, each with its price or why it has none."""

from __future__ import annotations

import re

import pytest

from headway.advisor.derived import derive
from headway.advisor.diagnose import diagnose_report
from headway.advisor.reading import read_facts
from headway.advisor.remedies import choose
from headway.advisor.rules import KNOWN_SINCE
from headway.advisor.verdicts import RULES
from headway.advisor.versions import Range, parse_version

VERDICTS = sorted({rule.verdict for rule in RULES})
VLLM = ["0.19.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.30.0", "0.32.0", "0.33.0"]
ENGINES = [
    *(f"vllm {v}" for v in VLLM),
    *(f"vllm {v} hybrid align, block 1568" for v in VLLM),
    "vllm",
    "sglang 0.5.16",
    "llama.cpp b7079",
    "own engine",
]
SEEN = {
    "solo_tps": 66.2,
    "overlap_tps": 2.6,
    "longest_gap_ms": 743,
    "intruder_tokens": 28623,
    "ttft_s": 2.9,
    "ttft_alone_s": 2.75,
}
CONFIG = {"max_num_batched_tokens": 8192}
STALLS = ("chunk-arithmetic", "prefill-first", "running-order", "no-op-option", "mixed-step-cost")


def actions(verdict: str, engine: str, config: dict | None = None) -> list[dict]:
    told = dict(CONFIG if config is None else config)
    if "block" in engine:
        told["block_size"] = 1568
    facts = read_facts({"engine": engine, "given": {"config": told, "observed": SEEN}})
    return choose(verdict, facts, derive(facts))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_in_every_version(verdict: str, engine: str) -> None:
    do = actions(verdict, engine)
    assert 1 <= len(do) <= 3
    assert len({step["what"] for step in do}) == len(do)
    version = parse_version(engine) if engine.startswith("vllm ") else None
    for step in do:
        predicted = step["predicted"]
        assert set(predicted) == {"share", "gap_s", "ttft_s"} and step["basis"]
        assert predicted["share"] is None or 0 <= predicted["share"] <= 1
        assert all(value is None or value >= 0 for value in predicted.values())
        if not engine.startswith("vllm"):
            assert "--max-num-batched-tokens" not in step["what"] and "--prefill-schedule-interval" not in step["what"]
        told = step["what"]
        if version and not told.startswith("upgrade") and "put headway" not in told:
            for option, since, until in KNOWN_SINCE:
                if "--" + option.replace("_", "-") in told:
                    assert Range(since, until).holds(version), told
        if version and "set --prefill-schedule-interval" in told and not told.startswith("upgrade"):
            assert version >= (0, 33)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("verdict", STALLS)
def test_stalls_are_priced_in_full_and_in_order(verdict: str, engine: str) -> None:
    do = actions(verdict, engine)
    assert all(value is not None for value in do[0]["predicted"].values()), do[0]
    assert "headway in front" in do[0]["what"] or "interval" in do[0]["what"] or "pace" in do[0]["what"]
    if verdict != "mixed-step-cost":
        shares = [s["predicted"]["share"] for s in do if s["predicted"]["share"] is not None and "`hold`" not in s["what"]]
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("version", VLLM)
def test_a_chunk_is_never_put_into_the_trap(version: str) -> None:
    """No advice sets a budget from the block to the block and its decodes, nor below the block where that is refused."""
    for verdict in VERDICTS:
        for step in actions(verdict, f"vllm {version} hybrid align, block 1568"):
            for told in re.findall(r"--max-num-batched-tokens (\d+)", step["what"]):
                assert int(told) >= 1568 + 64


def test_advice_behind_a_gateway_does_not_offer_the_gateway() -> None:
    do = actions("chunk-arithmetic", "vllm 0.25.1", CONFIG | {"gateway": "headway pace"})
    assert "already in front" in " ".join(s["what"] for s in do) or "in front already" in " ".join(s["what"] for s in do)
    assert not any("put headway in front" in s["what"] for s in do)


def test_an_inert_option_names_what_works_instead() -> None:
    found = diagnose_report(
        {"engine": "vllm 0.30, one engine", "given": {"config": CONFIG | {"prefill_schedule_interval": 4}, "observed": SEEN}}
    )
    assert found.verdict == "no-op-option"
    assert any("instead: vLLM 0.33" in line for line in found.evidence)
    assert any("upgrade to vLLM 0.33" in step["what"] for step in found.do)
