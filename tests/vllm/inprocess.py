"""vLLM's scheduler without a model: real queues, blocks and prefix cache, a fake model runner, a clock turned by hand.

Runs in vLLM's own interpreter, imported by `class_scenarios.py` and `benchmarks/scheduler_step.py`; no test of its own.
A step of p prefill tokens beside decodes takes a + e + b*p seconds of that clock.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 8192, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rope_theta": 1000000, "torch_dtype": "float32", "eos_token_id": 2,
}  # fmt: skip


class Clock:
    """Stands for the module `time` in the scheduler class."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def our_scheduler(clock: Clock | None = None) -> type:
    from headway.engines.vllm import scheduler

    if clock is not None:
        scheduler.time = clock
    return scheduler.HeadwayScheduler


def stock(asynchronous: bool) -> type:
    return AsyncScheduler if asynchronous else Scheduler


def build(
    cls: type,
    *,
    asynchronous: bool = False,
    budget: int = 2048,
    seqs: int = 64,
    block: int = 16,
    blocks: int = 20_000,
    hybrid: bool = False,
    policy: str = "fcfs",
    speculative: int = 0,
    headway: dict[str, float] | None = None,
) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=1, max_model_len=131072)
        scheduler_config = SchedulerConfig(
            max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=131072, enable_chunked_prefill=True,
            is_encoder_decoder=False, policy=policy, async_scheduling=asynchronous,
        )  # fmt: skip
        cache = CacheConfig(block_size=block, enable_prefix_caching=True)
        extra: dict[str, Any] = {}
        if speculative:
            extra["speculative_config"] = SpeculativeConfig(
                method="ngram", num_speculative_tokens=speculative, prompt_lookup_max=3, prompt_lookup_min=2
            )
        config = VllmConfig(scheduler_config=scheduler_config, model_config=model, cache_config=cache, **extra)
    config.additional_config = {"headway": headway or {}}
    attention = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["attention"], attention)]
    if hybrid:
        cache.mamba_cache_mode = "align"
        state = MambaSpec(
            block_size=block, shapes=((block, 2),), dtypes=(torch.float32,), mamba_cache_mode="align",
            num_speculative_blocks=speculative,
        )  # fmt: skip
        groups.append(KVCacheGroupSpec(["state"], state))
    cache.num_gpu_blocks = blocks
    scheduler_config.async_scheduling = asynchronous  # 0.2x turns it off for a CPU
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block,
        log_stats=True,
    )


@dataclass
class Job:
    id: str
    arrives: float
    prompt: list[int]
    outputs: int
    priority: int = 0
    times: list[float] = field(default_factory=list)
    begun: float | None = None


class Harness:
    def __init__(
        self, scheduler: Any, clock: Clock, *, asynchronous: bool, block: int, a: float = 0.015, e: float = 0.003, b: float = 1e-4
    ) -> None:
        init_none_hash(sha256)
        self.scheduler, self.clock = scheduler, clock
        self.depth = 2 if asynchronous else 1
        self.costs = (a, e, b)
        self.hasher = get_request_block_hasher(block, sha256)
        self.jobs: dict[str, Job] = {}
        self.prefilling: set[str] = set()
        self.flight: deque[tuple[Any, set[str], int, int]] = deque()
        self.free_at = clock.now
        self.trace: list[tuple[float, int, int]] = []
        """(time scheduled, turns, prefill tokens) of each step that carried anything."""
        self.random = random.Random(1)
        self.preempted = 0

    def add(self, job: Job) -> None:
        params = SamplingParams(max_tokens=job.outputs, ignore_eos=True, temperature=0.0)
        params.update_from_generation_config({}, 2)
        request = Request(
            request_id=job.id, prompt_token_ids=job.prompt, sampling_params=params, pooling_params=None,
            arrival_time=self.clock.now, priority=job.priority, block_hasher=self.hasher,
        )  # fmt: skip
        self.jobs[job.id] = job
        self.prefilling.add(job.id)
        self.scheduler.add_request(request)

    def run(self, jobs: list[Job], until: float = 1e12, steps: int = 200_000) -> None:
        coming = deque(sorted(jobs, key=lambda job: job.arrives))
        start = self.clock.now
        for job in coming:
            job.arrives += start
        idle = 0
        while (coming or self.scheduler.has_unfinished_requests() or self.flight) and self.clock.now < start + until:
            steps -= 1
            if steps < 0:
                raise RuntimeError("no end")
            while coming and coming[0].arrives <= self.clock.now:
                self.add(coming.popleft())
            moved = False
            if self.scheduler.has_requests() and len(self.flight) < self.depth:
                moved = self._schedule()
                if moved and len(self.flight) < self.depth:
                    continue
            if self.flight:
                self._complete()
                idle = 0
            elif coming and not self.scheduler.has_unfinished_requests():
                self.clock.now = max(self.clock.now, coming[0].arrives)
            else:
                idle += not moved
                self.clock.now += 1e-3
                if idle > 5000:
                    raise RuntimeError("stalled")

    def _schedule(self) -> bool:
        output = self.scheduler.schedule()
        counts = output.num_scheduled_tokens
        requests = self.scheduler.requests
        # After schedule(): what is no longer a prefill chunk gives a token in this step.
        gives = {id for id in counts if not requests[id].is_prefill_chunk}
        prefill = sum(tokens for id, tokens in counts.items() if id in self.prefilling)
        turns = sum(1 for id in counts if id not in self.prefilling)
        self.prefilling -= gives
        for id in output.preempted_req_ids or ():
            self.preempted += 1
            self.prefilling.add(id)
        for id in counts:
            if self.jobs[id].begun is None:
                self.jobs[id].begun = self.clock.now
        if not counts:
            self.flight.append((output, set(), 0, 0))
            return False
        self.flight.append((output, gives, turns, prefill))
        if len(self.flight) == 1:
            self.free_at = self.clock.now + self._seconds(turns, prefill)
        self.trace.append((self.clock.now, turns, prefill))
        return True

    def _seconds(self, turns: int, prefill: int) -> float:
        a, e, b = self.costs
        return (a if turns or prefill else 0.0) + (e if turns and prefill else 0.0) + b * prefill

    def _complete(self) -> None:
        output, gives, turns, prefill = self.flight.popleft()
        if turns or prefill:
            self.clock.now = max(self.clock.now, self.free_at)
        if self.flight:
            self.free_at = self.clock.now + self._seconds(*self.flight[0][2:])
        ids = list(output.num_scheduled_tokens)
        tokens: list[list[int]] = []
        drafts: list[list[int]] = []
        for id in ids:
            accepted = self.random.randint(0, len(output.scheduled_spec_decode_tokens.get(id, ())))
            tokens.append([self.random.randint(10, 8000) for _ in range(1 + accepted)] if id in gives else [])
            drafts.append([self.random.randint(10, 8000) for _ in range(self.scheduler.num_spec_tokens)] if id in gives else [])
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index={id: n for n, id in enumerate(ids)}, sampled_token_ids=tokens)
        outputs = self.scheduler.update_from_output(output, result)
        for client in outputs.values():
            for one in client.outputs:
                self.jobs[one.request_id].times += [self.clock.now] * len(one.new_token_ids)
        if self.scheduler.num_spec_tokens and self.depth == 1:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))


def prompt(generator: random.Random, length: int) -> list[int]:
    return [generator.randint(10, 8000) for _ in range(length)]
