"""vLLM's /metrics page: the few values that Headway reads (names as of 0.19 to 0.33)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

_LINE = re.compile(r"^((?:vllm:|process_start_time)[a-z0-9_:]+)(?:\{(.*)\})?\s+([0-9.eE+\-]+|NaN|\+Inf)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True, frozen=True)
class EngineMetrics:
    running: float = 0.0
    waiting: float = 0.0
    hits: float | None = None
    """vllm:prefix_cache_hits: tokens found in the prefix cache since the start."""
    queries: float | None = None
    block_size: int | None = None
    """As configured. Up to 0.32 this may be the size before align mode raised it: confirm it by a hit."""
    prefix_caching: bool | None = None
    blocks: int | None = None
    """Blocks of the KV cache, over all engines."""
    engines: int = 1
    """Engines (data-parallel ranks) that the page has series of."""
    states: bool | None = None
    """Whether it caches recurrent states, of which only some boundaries are kept (docs/engines.md)."""
    started: float | None = None
    """process_start_time_seconds of the server."""

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.waiting == 0


def parse(text: str) -> EngineMetrics | None:
    """The values, summed over engines; None when the page is not vLLM's."""
    sums: dict[str, float] = {}
    labels: dict[str, str] = {}
    blocks, engines, started = 0, set(), None
    for name, label_text, value in _LINE.findall(text):
        short = name.removeprefix("vllm:").removesuffix("_total")
        if short == "cache_config_info":
            labels = dict(_LABEL.findall(label_text))
            count = labels.get("num_gpu_blocks", "")
            blocks += int(count) if count.isdigit() else 0
        elif short == "process_start_time_seconds":
            started = float(value)
        elif short in ("num_requests_running", "num_requests_waiting", "prefix_cache_hits", "prefix_cache_queries"):
            number = float(value)
            if isfinite(number):
                sums[short] = sums.get(short, 0.0) + number
            if short == "num_requests_running":
                engines.add(dict(_LABEL.findall(label_text)).get("engine", ""))
    if "num_requests_running" not in sums:
        return None
    size = labels.get("block_size", "")
    caching = labels.get("enable_prefix_caching")
    return EngineMetrics(
        running=sums["num_requests_running"],
        waiting=sums.get("num_requests_waiting", 0.0),
        hits=sums.get("prefix_cache_hits"),
        queries=sums.get("prefix_cache_queries"),
        block_size=int(size) if size.isdigit() else None,
        prefix_caching=None if caching is None else caching == "True",
        blocks=blocks or None,
        engines=max(1, len(engines)),
        states={"none": False, "align": True, "all": True}.get(labels.get("mamba_cache_mode", "")),
        started=started,
    )
