"""Logs and metrics pages as people save them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from headway.advisor.diagnose import diagnose_report
from headway.advisor.logs import read_log
from headway.advisor.scrapes import moved, parse, read_metrics, slow_steps
from headway.errors import UsageError

DATA = Path(__file__).parent / "data"


def test_vllm_log_in_a_container() -> None:
    report = read_log((DATA / "vllm.log").read_text())
    assert report["engine"] == "vllm 0.25.1, hybrid"
    assert report["given"]["config"]["block_size"] == 1568
    assert report["given"]["observed"]["gen_tps"] == 0.3
    assert report["given"]["observed"]["solo_tps"] == 28.1
    assert diagnose_report(report).verdict == "chunk-arithmetic"


def test_vllm_log_without_prefixes_is_the_same() -> None:
    bare = "\n".join(line.split("] ", 1)[1] for line in (DATA / "vllm.log").read_text().splitlines())
    assert diagnose_report(read_log(bare)).verdict == "chunk-arithmetic"


def test_two_decoders_and_no_prompt() -> None:
    line = "INFO 03-18 09:04:46 [metrics.py:481] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.4 tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 0.6%, CPU KV cache usage: 0.0%."  # noqa: E501
    assert diagnose_report(read_log(line)).verdict == "decode-concurrent"


def test_preemptions_in_a_log() -> None:
    text = (DATA / "vllm.log").read_text() + "WARNING scheduler.py Preempting request cmpl-abc: 480 computed tokens lost\n" * 3
    found = diagnose_report(read_log(text))
    assert found.verdict == "preemption" and "preemptions = 3" in found.evidence


def test_sglang_log() -> None:
    found = diagnose_report(read_log((DATA / "sglang.log").read_text()))
    assert found.verdict == "prefill-first"
    assert any("--prefill-decode-interval" in step["what"] for step in found.do)


def test_sglang_retraction() -> None:
    text = (
        DATA / "sglang.log"
    ).read_text() + "[2026-05-24 03:51:46 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1\n"
    assert diagnose_report(read_log(text)).verdict == "preemption"


def test_llama_log() -> None:
    found = diagnose_report(read_log((DATA / "llama.log").read_text()))
    assert found.verdict == "chunk-arithmetic"
    assert any("-b 512" in step["what"] for step in found.do)


def test_llama_reprocessing() -> None:
    line = "slot update_slots: id 0 | forcing full prompt re-processing due to lack of cache data\n"
    text = line * 3 + "prompt eval time = 9000.0 ms / 9000 tokens\n eval time = 3000.0 ms / 90 tokens\n"
    assert diagnose_report(read_log(text)).verdict == "cache-miss"


def test_a_foreign_log_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="log"):
        read_log("hello\n")


def page(itl: dict[str, int], steps: dict[str, int], **counters: float) -> str:
    lines = [f'vllm:inter_token_latency_seconds_bucket{{le="{k}",model_name="m"}} {v}' for k, v in itl.items()]
    lines += [f'vllm:iteration_tokens_total_bucket{{le="{k}",model_name="m"}} {v}' for k, v in steps.items()]
    lines += [f'vllm:{name}{{model_name="m"}} {value}' for name, value in counters.items()]
    return "\n".join(["# HELP x y", 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True"} 1.0', *lines])


BEFORE = page(
    {"0.02": 100, "0.75": 100, "+Inf": 100},
    {"1": 100, "+Inf": 100},
    num_preemptions_total=2,
    prompt_tokens_total=0,
)
AFTER = page(
    {"0.02": 400, "0.75": 420, "+Inf": 420},
    {"1": 400, "32768": 401, "+Inf": 401},
    num_preemptions_total=2,
    prompt_tokens_total=30000,
    request_prefill_time_seconds_sum=3.0,
    request_prefill_time_seconds_count=1,
)


def test_two_scrapes_give_the_gap_and_from_it_the_chunk() -> None:
    """iteration_tokens_total counts a prompt whole, so it is not taken for the chunk."""
    report = read_metrics(BEFORE, AFTER)
    assert "max_num_batched_tokens" not in report["given"]["config"]
    assert report["given"]["observed"]["longest_gap_s"] == 0.75
    assert report["given"]["observed"]["preemptions"] == 0
    found = diagnose_report(report)
    assert found.verdict == "chunk-arithmetic"
    assert found.numbers["chunk_seen"] == pytest.approx((0.75 - 0.02) * 10_000)


def test_steps_that_carried_a_chunk_are_counted_from_the_engine_s_own_gaps() -> None:
    assert slow_steps(moved(parse(BEFORE), parse(AFTER)), 0.02) == 20
    assert slow_steps(parse("vllm:num_requests_running 1"), 0.02) is None


def test_a_few_new_prompts_are_not_a_cold_cache() -> None:
    few = "\nvllm:prefix_cache_queries_total 30000\nvllm:prefix_cache_hits_total 0"
    assert diagnose_report(read_metrics(BEFORE + few.replace("30000", "0"), AFTER + few)).verdict == "chunk-arithmetic"


def test_preemptions_between_scrapes() -> None:
    later = AFTER.replace('num_preemptions_total{model_name="m"} 2', 'num_preemptions_total{model_name="m"} 9')
    assert diagnose_report(read_metrics(BEFORE, later)).verdict == "preemption"


def test_a_page_of_something_else() -> None:
    with pytest.raises(UsageError, match="vllm:"):
        read_metrics("up 1\n")


COLOUR = "\x1b[0;36m(EngineCore pid=374)\x1b[0;0m "


def test_a_coloured_log_is_the_same() -> None:
    lines = (DATA / "vllm.log").read_text().splitlines()
    text = "\n".join(f"\x1b[32m2026-09-07T06:30:01Z\x1b[0m {COLOUR}{line}\x1b[0m" for line in lines)
    assert read_log(text) == read_log((DATA / "vllm.log").read_text())


@pytest.mark.parametrize("width", [90, 120, 160, 200])
@pytest.mark.parametrize("name", ["vllm.log", "sglang.log"])
def test_a_wrapped_log_is_the_same(name: str, width: int) -> None:
    text = (DATA / name).read_text()
    wrapped = "\n".join(textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())
    assert read_log(wrapped) == read_log(text)


def test_ranks_of_one_interval_are_added_up() -> None:
    """Two data-parallel engines: the interval's rates are the sum, so half of it is not taken for a stall."""

    def line(rank: int, prompt: float, made: float, running: int) -> str:
        return f"INFO 09-07 06:34:00 [loggers.py:259] Engine {rank:03d}: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {made} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%"  # noqa: E501

    text = "\n".join([line(0, 0, 30, 1), line(1, 0, 32, 1), line(0, 4000, 0.5, 2), line(1, 0, 30.0, 1)])
    observed = read_log(text)["given"]["observed"]
    assert observed["running"] == 3 and observed["gen_tps"] == 30.5 and observed["prompt_tps"] == 4000


SGLANG = """sglang:num_running_reqs{model_name="m"} 2.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:num_retracted_requests_total{model_name="m"} %d
sglang:prompt_tokens_total{model_name="m"} %d
sglang:cached_tokens_total{model_name="m"} %d
sglang:time_to_first_token_seconds_count{model_name="m"} %d
sglang:inter_token_latency_seconds_bucket{le="0.02"} %d
sglang:inter_token_latency_seconds_bucket{le="4.0"} %d
sglang:inter_token_latency_seconds_bucket{le="+Inf"} %d
"""


def test_scrapes_of_sglang() -> None:
    before, after = SGLANG % (1, 100, 0, 5, 100, 100, 100), SGLANG % (1, 200_100, 0, 9, 900, 910, 910)
    report = read_metrics(before, after)
    assert report["engine"] == "sglang" and report["given"]["observed"]["longest_gap_s"] == 4.0
    assert diagnose_report(report).verdict == "prefill-first"
    assert (
        diagnose_report(
            read_metrics(before, after.replace('requests_total{model_name="m"} 1', 'requests_total{model_name="m"} 7'))
        ).verdict
        == "preemption"
    )
    many = SGLANG % (1, 2_000_100, 100, 105, 900, 910, 910)
    assert read_metrics(before, many)["given"]["observed"]["hit_rate"] < 0.001


def test_scrapes_of_llama_cpp() -> None:
    page = "llamacpp:prompt_tokens_total 16185\nllamacpp:prompt_seconds_total 13.6\nllamacpp:n_decode_total 125\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 3\n"  # noqa: E501
    report = read_metrics(page)
    assert report["engine"] == "llama.cpp" and report["given"]["observed"]["prefill_tps"] == pytest.approx(16185 / 13.6)
    assert report["given"]["observed"]["waiting"] == 3


def test_v0_counts_chunks_in_its_histogram() -> None:
    """Only pages of V0 (with swapped requests) show the chunk in iteration_tokens_total."""
    old = AFTER + "\nvllm:num_requests_swapped 0"
    assert read_metrics(BEFORE, old)["given"]["observed"]["chunk_by_steps"] == 32768
    assert "chunk_by_steps" not in read_metrics(BEFORE, AFTER)["given"]["observed"]


def test_a_counter_that_was_reset_is_taken_as_new() -> None:
    later = AFTER.replace('num_preemptions_total{model_name="m"} 2', 'num_preemptions_total{model_name="m"} 1')
    assert read_metrics(BEFORE, later)["given"]["observed"]["preemptions"] == 1
