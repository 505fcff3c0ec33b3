"""One or two scrapes of vLLM's /metrics to a report: what moved between them, or since the start.

Gaps come from the inter-token histogram and are upper bounds of its buckets. The tokens of a step are not
in the page: `vllm:iteration_tokens_total` counts a chunked prompt whole, in the step that finishes it (seen
on 0.32: prompts of 3,900 tokens in the bucket up to 4,096 under a budget of 2,048), so the chunk follows
from gap x prefill rate instead.
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


def _moved(before: Series | None, after: Series) -> Series:
    gauges = ("num_requests", "usage", "_info")
    if before is None:
        return after
    return {
        key: value if any(word in key[0] for word in gauges) else value - before.get(key, 0.0) for key, value in after.items()
    }


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


def read_metrics(*pages: str) -> dict[str, Any]:
    """Report of one page (since the start) or of two (what moved); UsageError when they are not vLLM's."""
    scrapes = [parse(page) for page in pages]
    if not any(name.startswith("vllm:") for name, _ in scrapes[-1]):
        raise UsageError("metrics: no vllm: sample in it; SGLang and llama.cpp pages are not read yet, use --log")
    series = _moved(scrapes[0] if len(scrapes) > 1 else None, scrapes[-1])
    config: dict[str, Any] = {}
    for name, labels in scrapes[-1]:
        if name == "vllm:cache_config_info":
            told = dict(labels)
            if told.get("block_size", "").isdigit():
                config["block_size"] = int(told["block_size"])
            if told.get("enable_prefix_caching"):
                config["enable_prefix_caching"] = told["enable_prefix_caching"] == "True"
    observed: dict[str, Any] = {}
    itl = buckets(series, "vllm:inter_token_latency_seconds") or buckets(series, "vllm:time_per_output_token_seconds")
    steps = buckets(series, "vllm:iteration_tokens_total")
    told_now = (
        ("preemptions", total(series, "vllm:num_preemptions")),
        ("running", total(series, "vllm:num_requests_running")),
        ("waiting", total(series, "vllm:num_requests_waiting")),
        ("normal_gap_s", _median(itl)),
        ("longest_gap_s", _largest(itl)),
    )
    observed |= {key: value for key, value in told_now if value is not None}
    if largest := _largest(steps):
        observed["largest_prompt_finished"] = largest
    asked, hit = total(series, "vllm:prefix_cache_queries"), total(series, "vllm:prefix_cache_hits")
    requests = total(series, "vllm:request_prefill_time_seconds_count")
    if asked and hit is not None and requests and requests >= MANY:
        observed["hit_rate"] = hit / asked
    spent, prompts = (
        total(series, "vllm:request_prefill_time_seconds_sum"),
        total(series, "vllm:prompt_tokens"),
    )
    if spent and prompts:
        observed["prefill_tps"] = (prompts - (hit or 0)) / spent
        observed["prompt_tokens"] = prompts / requests if requests else prompts
    name = "vllm hybrid" if config.get("block_size", 0) > 256 else "vllm"
    return {"engine": name, "given": {"config": config, "observed": observed}}
