"""Partial evidence: it adds up, a contradiction takes it back, and two equal causes are no verdict."""

from __future__ import annotations

from headway.advisor.derived import derive
from headway.advisor.hints import AGAINST, ENOUGH, SIGNS, weigh
from headway.advisor.reading import read_facts
from headway.advisor.verdicts import RULES


def report(engine: str = "own engine", config: dict | None = None, **observed: object) -> dict:
    return {"engine": engine, "given": {"config": config or {}, "observed": observed}}


def weighed(told: dict) -> str | None:
    facts = read_facts(told)
    found = weigh(facts, derive(facts))
    return found[0] if found else None


def test_every_row_names_verdicts_of_the_table_and_a_source() -> None:
    known = {rule.verdict for rule in RULES}
    for sign in SIGNS:
        assert set(sign.verdicts) <= known and sign.source
        assert sign.worth == AGAINST or 0 < sign.worth <= ENOUGH


def test_one_hint_is_no_verdict_two_are() -> None:
    assert weighed(report(kv_usage=0.99)) is None
    assert weighed(report(kv_usage=0.99, solo_tps=60, loaded_tps=3)) == "preemption"


def test_a_counter_at_zero_excludes_the_cause() -> None:
    assert weighed(report(kv_usage=0.99, solo_tps=60, loaded_tps=3, preemptions=0)) is None


def test_two_equal_causes_are_no_verdict() -> None:
    text = "queued prompts are stuck behind one huge prefill. new prompts are deferred until all decodes have ended"
    assert weighed(report(text=text)) is None


def test_the_same_words_mean_what_the_engine_makes_of_them() -> None:
    told = {"text": "all running streams stop while a long prompt is prefilled"}
    assert weighed(report("sglang 0.5", **told)) == "prefill-first"
    assert weighed(report("llama.cpp server", {"n_batch": 2048}, **told)) == "chunk-arithmetic"
    assert weighed(report("vllm", **told)) is None


def test_a_gap_as_long_as_the_whole_prompt() -> None:
    assert weighed(report(stall_s=[1.0, 4.1], prompt_tokens=[8000, 32000], normal_gap_ms=14)) == "prefill-first"
    assert weighed(report(config={"chunk": 512}, stall_s=[1.0, 4.1], prompt_tokens=[8000, 32000], normal_gap_ms=14)) is None


def test_a_repeat_as_slow_as_the_first_time() -> None:
    assert weighed(report(first_ttft_s=12.8, repeated_ttft_s=12.9)) == "cache-miss"
    assert weighed(report(first_ttft_s=12.8, repeated_ttft_s=1.1)) is None


def test_only_the_cores_were_changed() -> None:
    assert weighed(report(config={"cpu_cores": [2, 6]}, itl_ms=[62, 31])) == "host"
