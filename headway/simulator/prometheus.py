"""The /metrics page under vLLM's names, in Prometheus' text format."""

from __future__ import annotations

from headway.simulator.engine import ITERATION_BUCKETS, Engine


def render(engine: Engine, model: str) -> str:
    counters = engine.counters
    labels = f'engine="0",model_name="{model}"'
    lines: list[str] = []

    def metric(name: str, kind: str, help_: str, value: float, extra: str = "") -> None:
        if f"# TYPE {name} {kind}" not in lines:
            lines.extend((f"# HELP {name} {help_}", f"# TYPE {name} {kind}"))
        lines.append(f"{name}{{{labels}{extra}}} {float(value)}")

    metric("vllm:num_requests_running", "gauge", "Requests in the running list.", engine.num_running)
    metric("vllm:num_requests_waiting", "gauge", "Requests waiting to be admitted.", engine.num_waiting)
    metric("vllm:kv_cache_usage_perc", "gauge", "Blocks in use, 1 is all of them.", engine.cache.pool.usage)
    metric("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", counters.cache_queries)
    metric("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found cached.", counters.cache_hits)
    metric("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", counters.prompt_tokens)
    metric("vllm:generation_tokens_total", "counter", "Tokens generated.", counters.generation_tokens)
    metric("vllm:num_preemptions_total", "counter", "Preemptions.", counters.preemptions)
    for reason, count in counters.finished.items():
        metric(
            "vllm:request_success_total",
            "counter",
            "Finished requests.",
            count,
            f',finished_reason="{reason}"',
        )
    name = "vllm:iteration_tokens_total"
    lines.extend((f"# HELP {name} Tokens of one engine step.", f"# TYPE {name} histogram"))
    total = 0
    for bound, count in zip((*map(float, ITERATION_BUCKETS), "+Inf"), counters.iteration_buckets, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}')
    lines.append(f"{name}_count{{{labels}}} {float(counters.steps)}")
    lines.append(f"{name}_sum{{{labels}}} {float(counters.iteration_tokens)}")
    layout = engine.settings.layout
    info = {
        "block_size": layout.block_size,
        "enable_prefix_caching": layout.caching,
        "mamba_cache_mode": "align" if engine.cache.align else "none",
        "num_gpu_blocks": layout.blocks,
    }
    extra = "".join(f',{key}="{value}"' for key, value in info.items())
    metric("vllm:cache_config_info", "gauge", "The cache's configuration.", 1, extra)
    return "\n".join(lines) + "\n"
