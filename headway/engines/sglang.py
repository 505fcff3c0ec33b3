"""SGLang, by its documented protocol: /metrics with --enable-metrics, /get_server_info, cached tokens in usage with
--enable-cache-report. Its radix cache matches token by token (in pages of --page-size, 1 as a rule) and keeps all of a prompt.
"""

from __future__ import annotations

from typing import Any

from headway.engines.metrics import EngineMetrics, series, started


def parse(page: str) -> EngineMetrics | None:
    """None when the page is not SGLang's."""
    sums: dict[str, float] = {}
    ranks = set()
    for name, labels, value in series(page, "sglang:"):
        sums[name] = sums.get(name, 0.0) + value
        if name == "num_running_reqs":
            ranks.add(labels.get("dp_rank", labels.get("engine_type", "")))
    if "num_running_reqs" not in sums:
        return None
    tokens = sums.get("max_total_num_tokens")
    return EngineMetrics(
        running=sums["num_running_reqs"],
        waiting=sums.get("num_queue_reqs", 0.0),
        blocks=int(tokens) if tokens else None,
        block_size=1,
        engines=max(1, len(ranks)),
        states=False,
        started=started(page),
    )


def is_server_info(info: Any) -> bool:
    """Whether this is what /get_server_info answers."""
    return isinstance(info, dict) and "chunked_prefill_size" in info


def facts(info: Any) -> EngineMetrics:
    """What /get_server_info says where there is no /metrics."""
    page, tokens = info.get("page_size"), info.get("max_total_num_tokens")
    ranks = info.get("dp_size")
    return EngineMetrics(
        block_size=page if isinstance(page, int) and page > 0 else 1,
        prefix_caching=info.get("disable_radix_cache") is not True,
        blocks=tokens // (page if isinstance(page, int) and page > 0 else 1) if isinstance(tokens, int) else None,
        engines=ranks if isinstance(ranks, int) and ranks > 0 else 1,
        states=False,
    )
