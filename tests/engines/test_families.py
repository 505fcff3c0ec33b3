"""Engines are told apart by their own pages, and what those say of the cache is read."""

from __future__ import annotations

import pytest

from headway.engines import llamacpp, sglang
from headway.engines.families import FAMILIES, by_metrics

VLLM = """
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:prefix_cache_hits_total{engine="0"} 640.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",mamba_cache_mode="align",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="1",mamba_cache_mode="align",num_gpu_blocks="100"} 1.0
process_start_time_seconds 1.7e+09
"""
SGLANG = """
# HELP sglang:num_running_reqs The number of running requests
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:max_total_num_tokens{model_name="m"} 20000.0
"""
LLAMA = """
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
llamacpp:prompt_tokens_total 12
"""


@pytest.mark.parametrize("page,name", [(VLLM, "vllm"), (SGLANG, "sglang"), (LLAMA, "llama.cpp")])
def test_family_by_metrics(page: str, name: str) -> None:
    family = by_metrics(page)
    assert family is FAMILIES[name]
    assert [other.name for other in FAMILIES.values() if other.metrics(page) is not None] == [name]


def test_no_family_in_other_pages() -> None:
    assert by_metrics("go_goroutines 7\nprocess_start_time_seconds 1\n") is None
    assert by_metrics("") is None


def test_values() -> None:
    vllm = FAMILIES["vllm"].metrics(VLLM)
    assert vllm is not None
    assert (vllm.running, vllm.waiting, vllm.hits, vllm.block_size, vllm.blocks, vllm.engines) == (3, 3, 640, 16, 200, 2)
    assert vllm.states and vllm.prefix_caching and vllm.started == 1.7e9
    other = sglang.parse(SGLANG)
    assert other is not None and (other.running, other.waiting, other.blocks, other.block_size) == (2, 1, 20000, 1)
    llama = llamacpp.parse(LLAMA)
    assert llama is not None and (llama.running, llama.waiting) == (1, 0)


def test_pages_of_the_configuration() -> None:
    info = {
        "chunked_prefill_size": 8192,
        "page_size": 64,
        "max_total_num_tokens": 6400,
        "dp_size": 2,
        "disable_radix_cache": False,
    }
    facts = sglang.facts(info)
    assert sglang.is_server_info(info) and not sglang.is_server_info({"version": "1"}) and not sglang.is_server_info([])
    assert (facts.block_size, facts.blocks, facts.engines, facts.prefix_caching) == (64, 100, 2, True)
    assert sglang.facts({"disable_radix_cache": True}).prefix_caching is False
    props = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2}
    assert llamacpp.is_props(props) and llamacpp.facts(props).blocks == 8192
    assert llamacpp.facts({"default_generation_settings": None}).blocks is None
    vllm = FAMILIES["vllm"]
    assert vllm.is_page({"version": "0.32.0"}) and not vllm.is_page({"version": "0.1", "more": 1}) and not vllm.is_page(None)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "openai"])
@pytest.mark.parametrize("page", ["", "\0\0", "vllm: {", "sglang:num_running_reqs NaN", "x" * 10_000, 'vllm:a{b="c" 1'])
def test_pages_that_make_no_sense(name: str, page: str) -> None:
    assert FAMILIES[name].metrics(page) is None
