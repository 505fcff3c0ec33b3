"""vLLM's /metrics page: the few values that Headway reads (names as of 0.19 to 0.33)."""

from __future__ import annotations

from headway.engines.metrics import EngineMetrics, series, started

SUMMED = ("num_requests_running", "num_requests_waiting", "prefix_cache_hits", "prefix_cache_queries")
STATES = {"none": False, "align": True, "all": True}
"""mamba_cache_mode -> whether recurrent states are cached."""


def parse(page: str) -> EngineMetrics | None:
    """The values, summed over engines; None when the page is not vLLM's."""
    sums: dict[str, float] = {}
    info: dict[str, str] = {}
    blocks, engines = 0, set()
    for name, labels, value in series(page, "vllm:"):
        if name in SUMMED:
            sums[name] = sums.get(name, 0.0) + value
        if name == "num_requests_running":
            engines.add(labels.get("engine", ""))
        elif name == "cache_config_info":
            info = labels
            count = labels.get("num_gpu_blocks", "")
            blocks += int(count) if count.isdigit() else 0
    if "num_requests_running" not in sums:
        return None
    size = info.get("block_size", "")
    caching = info.get("enable_prefix_caching")
    return EngineMetrics(
        running=sums["num_requests_running"],
        waiting=sums.get("num_requests_waiting", 0.0),
        hits=sums.get("prefix_cache_hits"),
        queries=sums.get("prefix_cache_queries"),
        block_size=int(size) if size.isdigit() else None,
        match_unit=int(unit) if (unit := info.get("prefix_match_unit", "")).isdigit() else None,
        prefix_caching=None if caching is None else caching == "True",
        blocks=blocks or None,
        engines=max(1, len(engines)),
        states=STATES.get(info.get("mamba_cache_mode", "")),
        started=started(page),
    )
