"""Runs scenarios through vLLM's own Scheduler; executed with the Python of a vLLM installation, not with
ours.

One JSON scenario a line on stdin, one JSON trace a line on stdout; everything that vLLM prints goes to
stderr. No model runs: each request that reached its last known token is given one more token, whose id
follows from its position.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

_ANSWERS = os.dup(1)
os.dup2(2, 1)

MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 1024, "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16",
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def answer_token(index: int) -> int:
    return 1000 + index % 20


def base_config(directory: str):
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig

    (Path(directory) / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(model=directory, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=65536)
    scheduler = SchedulerConfig(
        max_num_batched_tokens=2048,
        max_num_seqs=8,
        max_model_len=65536,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    return VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
        scheduler_config=scheduler,
        device_config=DeviceConfig("cpu"),
    )


def make_scheduler(config, scenario):
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.structured_output import StructuredOutputManager

    block = scenario["block_size"]
    scheduler = config.scheduler_config
    for name in ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "policy"):
        setattr(scheduler, name, scenario[name])
    cache = config.cache_config
    cache.block_size = block
    cache.num_gpu_blocks = scenario["blocks"]
    cache.enable_prefix_caching = scenario["caching"]
    align = scenario["state_groups"] > 0 and scenario["caching"]
    cache.mamba_cache_mode = "align" if align else "none"
    config.model_config.max_model_len = scenario["max_model_len"]
    full = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
    state = MambaSpec(
        block_size=block if align else scenario["max_model_len"],
        shapes=((8, 8),),
        dtypes=(torch.float32,),
        mamba_cache_mode=cache.mamba_cache_mode,
    )
    groups = [KVCacheGroupSpec(["full"], full)]
    groups += [KVCacheGroupSpec([f"state{i}"], state) for i in range(scenario["state_groups"])]
    kv = KVCacheConfig(
        num_blocks=scenario["blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=0 if scenario["sparse"] else None,
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=scenario["max_model_len"] if scenario["state_groups"] and not align else block,
        hash_block_size=block,
        log_stats=False,
    )


def run(config, scenario):
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

    init_none_hash(sha256)
    scheduler = make_scheduler(config, scenario)
    hasher = get_request_block_hasher(scenario["block_size"], sha256) if scenario["caching"] else None
    trace = []
    for number in range(scenario["steps"]):
        for arrival in scenario["arrivals"].get(str(number), ()):
            params = SamplingParams(max_tokens=arrival["max_tokens"], ignore_eos=True)
            request = Request(
                request_id=arrival["id"],
                prompt_token_ids=arrival["tokens"],
                sampling_params=params,
                pooling_params=None,
                arrival_time=float(arrival["order"]),
                priority=arrival["priority"],
                cache_salt=arrival["salt"] or None,
                block_hasher=hasher,
            )
            scheduler.add_request(request)
        leaving = [i for i in scenario["aborts"].get(str(number), ()) if i in scheduler.requests]
        if leaving:
            scheduler.finish_requests(leaving, RequestStatus.FINISHED_ABORTED)
        before = {i: r.num_preemptions for i, r in scheduler.requests.items()}
        if scenario["resets_guard"]:
            scheduler.prefill_capacity_bound = False
        output = scheduler.schedule(number in scenario["throttled"])
        preempted = sorted(i for i, r in scheduler.requests.items() if i in before and r.num_preemptions > before[i])
        starts = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        trace.append(
            {
                "chunks": [[i, n] for i, n in output.num_scheduled_tokens.items()],
                "preempted": preempted,
                "running": [r.request_id for r in scheduler.running],
                "cached": starts,
                "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            }
        )
        ids = list(output.num_scheduled_tokens)
        if not ids:
            continue
        sampled = []
        for i in ids:
            request = scheduler.requests[i]
            done = request.num_computed_tokens >= request.num_tokens
            sampled.append([answer_token(request.num_output_tokens)] if done else [])
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={i: n for n, i in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        scheduler.update_from_output(output, result)
    return trace


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, os.fdopen(_ANSWERS, "w") as answers:
        config = base_config(directory)
        for line in sys.stdin:
            try:
                answer = {"trace": run(config, json.loads(line))}
            except Exception as error:
                import traceback

                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
