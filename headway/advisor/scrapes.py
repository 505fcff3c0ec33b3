"""One or two scrapes of /metrics (vLLM, SGLang, llama.cpp's server) to a report: what moved between them, or since the start.

Gaps come from the inter-token histogram and are upper bounds of its buckets.

`vllm:iteration_tokens_total` is filled once for each engine step that puts out a token. V1 (0.8.5 to 0.32.0 read: the statistics
take a prompt's tokens from its first output) counts a chunked prompt whole, in the step that finishes it, so its buckets do not
show the chunk. Its *count* is a count of steps: while a stream decodes beside one long prompt, prompt tokens over steps is
the chunk. V0 (pages with `vllm:num_requests_swapped`) counted the tokens of each chunk: there the largest bucket is the bound.
llama.cpp counts its decode calls, `llamacpp:n_decode_total`, which serve the same purpose.
"""

from __future__ import annotations

import re
from typing import Any

from headway.errors import UsageError

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+([-+\w.]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: Hits near 0 prove a cold cache only over this many requests: a few new prompts hit nothing, and rightly.
MANY = 20

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Samples of a Prometheus text page; lines that are not samples are skipped."""
    found: Series = {}
    for line in text.splitlines():
        hit = _LINE.match(line.strip())
        if hit and not line.startswith("#"):
            labels = tuple(sorted(_LABEL.findall(hit.group(2) or "")))
            try:
                found[(hit.group(1), labels)] = float(hit.group(3))
            except ValueError:
                continue
    return found


def total(series: Series, *names: str) -> float | None:
    """Sum over all engines of the first metric that is there, with or without the `_total` suffix."""
    for name in names:
        for spelled in (name, f"{name}_total"):
            values = [value for (metric, _), value in series.items() if metric == spelled]
            if values:
                return sum(values)
    return None


def buckets(series: Series, name: str) -> list[tuple[float, float]]:
    """(upper bound, count in this bucket), summed over engines, in order."""
    sums: dict[float, float] = {}
    for (metric, labels), value in series.items():
        if metric == f"{name}_bucket":
            bound = float(dict(labels).get("le", "inf").replace("+Inf", "inf"))
            sums[bound] = sums.get(bound, 0.0) + value
    ordered, before, rows = sorted(sums.items()), 0.0, []
    for bound, count in ordered:
        rows.append((bound, count - before))
        before = count
    return rows


def _largest(rows: list[tuple[float, float]]) -> float | None:
    finite = [bound for bound, count in rows if count > 0 and bound != float("inf")]
    return finite[-1] if finite else None


def _median(rows: list[tuple[float, float]]) -> float | None:
    whole = sum(count for _, count in rows)
    seen = 0.0
    for bound, count in rows:
        seen += count
        if whole and seen >= whole / 2:
            return bound
    return None


#: Engine -> what is asked -> names of its samples; the first that is there counts. Sources: vLLM v1/metrics/loggers.py, SGLang
#: docs "Production Metrics", llama.cpp tools/server/README.md.
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "preemptions": ("vllm:num_preemptions",),
        "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        "hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        "prompt_tokens": ("vllm:prompt_tokens",),
        "requests": ("vllm:request_prefill_time_seconds_count",),
        "prefill_s": ("vllm:request_prefill_time_seconds_sum",),
        "steps": ("vllm:iteration_tokens_total_count",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "preemptions": ("sglang:num_retracted_requests", "sglang:num_retracted_reqs"),
        "kv_usage": ("sglang:token_usage",),
        "hits": ("sglang:cached_tokens",),
        "prompt_tokens": ("sglang:prompt_tokens",),
        "requests": ("sglang:time_to_first_token_seconds_count", "sglang:num_requests"),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    },
    "llama.cpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_usage": ("llamacpp:kv_cache_usage_ratio",),
        "prompt_tokens": ("llamacpp:prompt_tokens",),
        "prefill_s": ("llamacpp:prompt_seconds",),
        "steps": ("llamacpp:n_decode",),
    },
}
_PREFIX = {"vllm": "vllm:", "sglang": "sglang:", "llama.cpp": "llamacpp:"}
#: Retractions are a gauge of the last step in SGLang's older releases, so a delta of it would mean nothing.
_GAUGES = (
    "num_requests",
    "usage",
    "_info",
    "num_running",
    "num_queue",
    "requests_processing",
    "requests_deferred",
    "num_retracted_reqs",
)


def engine_of(series: Series) -> str | None:
    """The engine that the samples are from, or None."""
    return next((name for name, prefix in _PREFIX.items() if any(metric.startswith(prefix) for metric, _ in series)), None)


def ask(series: Series, what: str) -> float | None:
    """One of the quantities of NAMES, summed over engines and ranks; None when the page does not have it."""
    engine = engine_of(series)
    names = NAMES[engine].get(what, ()) if engine else ()
    return next((value for name in names if (value := total(series, name)) is not None), None)


def moved(before: Series | None, after: Series) -> Series:
    """`after` with the counters' growth since `before`; a counter that fell was started anew."""
    if before is None:
        return after
    return {
        key: value if any(word in key[0] for word in _GAUGES) or value < before.get(key, 0.0) else value - before.get(key, 0.0)
        for key, value in after.items()
    }


def slow_steps(series: Series, limit: float) -> float | None:
    """Gaps above `limit` seconds in the engine's own histogram of them; None when the page has none.

    While one stream runs, a gap is a step. The engine takes the times, so a client that lags and gets several tokens in one piece
    does not change the count.
    """
    engine = engine_of(series)
    rows = next((rows for name in NAMES[engine or "vllm"].get("itl", ()) if (rows := buckets(series, name))), [])
    if not rows:
        return None
    lower = [0.0, *(bound for bound, _ in rows)]
    return sum(count for least, (_, count) in zip(lower, rows, strict=False) if least >= limit)


def _config(series: Series) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, labels in series:
        if name == "vllm:cache_config_info":
            told = dict(labels)
            if told.get("block_size", "").isdigit():
                config["block_size"] = int(told["block_size"])
            if told.get("enable_prefix_caching"):
                config["enable_prefix_caching"] = told["enable_prefix_caching"] == "True"
    return config


def read_metrics(*pages: str) -> dict[str, Any]:
    """Report of one page (since the start) or of two (what moved); UsageError when no engine's samples are in the last."""
    scrapes = [parse(page) for page in pages]
    engine = engine_of(scrapes[-1])
    if engine is None:
        raise UsageError("metrics: no vllm:, sglang: or llamacpp: sample in it")
    series = moved(scrapes[0] if len(scrapes) > 1 else None, scrapes[-1])
    config = _config(scrapes[-1])
    itl = next((rows for name in NAMES[engine].get("itl", ()) if (rows := buckets(series, name))), [])
    told = {
        "preemptions": ask(series, "preemptions"),
        "running": ask(series, "running"),
        "waiting": ask(series, "waiting"),
        "normal_gap_s": _median(itl),
        "longest_gap_s": _largest(itl),
    }
    observed: dict[str, Any] = {key: value for key, value in told.items() if value is not None}
    steps = buckets(series, "vllm:iteration_tokens_total")
    old = any(name == "vllm:num_requests_swapped" for name, _ in scrapes[-1])
    if largest := _largest(steps):
        observed["chunk_by_steps" if old else "largest_prompt_finished"] = largest
    asked, hit, prompts = ask(series, "queries"), ask(series, "hits"), ask(series, "prompt_tokens")
    requests, spent = ask(series, "requests"), ask(series, "prefill_s")
    if engine == "sglang":
        asked = prompts
    if asked and hit is not None and requests and requests >= MANY:
        observed["hit_rate"] = hit / asked
    if spent and prompts:
        observed["prefill_tps"] = (prompts - (hit or 0)) / spent
    if prompts and requests:
        observed["prompt_tokens"] = prompts / requests
    name = {"vllm": "vllm v0" if old else "vllm"}.get(engine, engine)
    if config.get("block_size", 0) > 256:
        name += " hybrid"
    return {"engine": name, "given": {"config": config, "observed": observed}}
