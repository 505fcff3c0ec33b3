"""What follows from numbers: units, physics, prices, and what is left open."""

from __future__ import annotations

import pytest

from headway.advisor.diagnose import diagnose_report
from headway.advisor.reading import read_facts
from headway.core import frontier
from headway.core.steps import StepModel
from headway.errors import UsageError


def report(engine: str, config: dict, **observed: object) -> dict:
    return {"engine": engine, "given": {"config": config, "observed": observed}}


H200 = report(
    "vllm 0.25.1 hybrid align",
    {"max_num_batched_tokens": 8192, "block_size": 1568},
    solo_tps=66.2,
    overlap_tps=2.6,
    longest_gap_ms=743,
    intruder_tokens=28623,
    ttft_s=2.9,
    ttft_alone_s=2.75,
)


def test_the_measured_h200_is_chunk_arithmetic() -> None:
    found = diagnose_report(H200)
    assert found.verdict == "chunk-arithmetic"
    assert found.numbers["share"] == pytest.approx(0.0393, abs=1e-3)
    assert found.numbers["excess"] == pytest.approx(1.01, abs=0.01)
    assert found.contradictions == []


def test_three_actions_for_this_version_with_prices() -> None:
    do = diagnose_report(H200).do
    assert len(do) == 3
    assert "headway in front" in do[0]["what"]
    assert do[0]["predicted"] == {"share": 0.5, "gap_s": 0.335, "ttft_s": 5.5}
    assert "upgrade to vLLM 0.33" in do[1]["what"] and "0.25.1" in do[1]["what"]
    assert "budget equal to the block silently serialises" in do[2]["what"]
    assert "--max-num-batched-tokens 2048" in do[2]["what"]
    # Measured with budget 2048: share 0.10, gap 183 ms, TTFT 3.0 to 3.3 s.
    assert do[2]["predicted"]["gap_s"] == pytest.approx(0.2, abs=0.03)
    assert do[2]["predicted"]["share"] == pytest.approx(0.07, abs=0.03)
    assert do[2]["predicted"]["ttft_s"] == pytest.approx(3.0, abs=0.3)


def test_newer_engine_gets_its_own_option() -> None:
    do = diagnose_report(H200 | {"engine": "vllm 0.33.0 hybrid"}).do
    assert any(step["what"].startswith("set --prefill-schedule-interval 8") for step in do)
    assert not any("upgrade" in step["what"] for step in do)


def test_excess_is_not_tuned_away() -> None:
    found = diagnose_report(
        report(
            "vllm",
            {"max_num_batched_tokens": 8192},
            solo_tps=272.6,
            overlap_tps=6.62,
            ttft_s=16.47,
            ttft_alone_s=9.35,
        )
    )
    assert found.verdict == "mixed-step-cost"
    assert any("1.72" in line for line in found.evidence)
    assert "hold" in found.do[0]["what"]


@pytest.mark.parametrize("chunk", [2048, 8192])
def test_plain_overlap_needs_no_excess(chunk: int) -> None:
    """The same frontier at any chunk: T = W/(1-f) is arithmetic, not a fault."""
    a, b, work = 0.02, 1e-4, 3.0
    m = StepModel(a=a, e=0.0, b=b)
    share = frontier.share_of_cycle(a, m.gap(chunk))
    ttft = frontier.ttft(work, share)
    assert ttft is not None
    seen = report(
        "vllm 0.30", {"max_num_batched_tokens": chunk},
        solo_tps=1 / a, overlap_tps=share / a, longest_gap_s=m.gap(chunk), ttft_s=ttft, ttft_alone_s=work, intruder_tokens=30000,
    )  # fmt: skip
    found = diagnose_report(seen)
    assert found.verdict == "chunk-arithmetic"
    assert found.numbers["excess"] == pytest.approx(1.0, abs=1e-3)
    assert frontier.excess(work, ttft, share) == pytest.approx(1.0)


def test_nothing_told_is_undetermined_with_what_to_measure() -> None:
    found = diagnose_report(report("vllm 0.30", {}, text="it is sometimes slow"))
    assert found.verdict == "undetermined" and found.do == []
    assert len(found.measure) >= 5


def test_a_single_prefill_is_no_overlap_problem() -> None:
    """One running request that prefills generates nothing, and that is right."""
    assert diagnose_report(report("vllm 0.30", {}, gen_tps=0.0, prompt_tps=2000, running=1)).verdict == "undetermined"


def test_denied_causes_do_not_count() -> None:
    text = "no preemptions, no CPU load; all streams slow down to a crawl while one prompt is prefilled"
    seen = report(
        "vllm 0.30",
        {"max_num_batched_tokens": 8192},
        solo_tps=55,
        overlap_tps=1.1,
        prefix_hit_rate=0,
        text=text,
    )
    assert diagnose_report(seen).verdict == "chunk-arithmetic"


def test_contradiction_is_reported() -> None:
    """Budget 8192, a token every 0.3 s and 100 tokens/s of prefill: a step cannot have carried 8,192."""
    seen = report(
        "vllm 0.25.1",
        {"max_num_batched_tokens": 8192},
        solo_tps=48,
        overlap_tps=3.3,
        prefill_tps=116,
        intruder_tokens=28623,
    )
    assert any("tokens fit" in line for line in diagnose_report(seen).contradictions)


@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("worst_gap_ms", 652, "longest_gap", 0.652),
        ("freeze_s", [440, 20], "freeze", 440),
        ("solo_tok_s", 30, "solo_rate", 30),
        ("decode_tps_during_prefill", 6.6, "overlap_rate", 6.6),
        ("avg_prompt_throughput", 0.0, "prompt_rate", 0.0),
        ("kvCacheUsagePct", 97, "kv_usage", 0.97),
        ("cached_tokens", 0, "cached_tokens", 0),
    ],
)
def test_fields_as_people_name_them(field: str, value: object, name: str, expected: float) -> None:
    assert read_facts(report("vllm", {}, **{field: value})).high(name) == pytest.approx(expected)


def test_facts_without_groups_are_read() -> None:
    assert read_facts({"engine": "vllm", "solo_tps": 20}).high("solo_rate") == 20


def test_empty_facts_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing to judge"):
        read_facts({})


def test_the_block_of_a_known_model_follows_from_its_shapes() -> None:
    """Qwen3.6-27B: a block of 1,568 with fp8 keys and values, 784 with bf16 (blocks.py)."""
    told = {"victim_share": 0.98, "ttft_s": 22, "ttft_alone_s": 3}
    fp8 = report("vllm 0.25.1, Qwen3.6-27B hybrid", {"max_num_batched_tokens": 1568, "kv_cache_dtype": "fp8"}, **told)
    assert diagnose_report(fp8).verdict == "serialised-trap"
    fp8["given"]["config"]["kv_cache_dtype"] = "auto"
    assert diagnose_report(fp8).verdict != "serialised-trap"
