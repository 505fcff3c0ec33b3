"""Whether an engine paces prefill by itself, told from what it says over HTTP.

Three engines can: vLLM with `--prefill-schedule-interval` (0.33 and later; before, only with data parallelism), SGLang with
`--prefill-decode-interval`, and vLLM with Headway's own scheduler class. The last shows in /metrics; the others only in pages
that describe the server's configuration, which vLLM serves in development mode alone.

Each function takes a page and returns the reason in words, or "" where the page gives none.
"""

from __future__ import annotations

import re
from typing import Any

from headway.engines.vllm.versions import parse

WORKS_ALONE = (0, 33)
"""First vLLM whose interval does anything without data parallelism."""
_SHARE = re.compile(r"^headway_scheduler_share_target(?:\{[^}]*\})?\s+([0-9.eE+-]+)", re.MULTILINE)
_NUMBER = r"['\"]?\s*[=:]\s*(\d+)"
_INTERVAL = re.compile(r"prefill_schedule_interval" + _NUMBER)
_RANKS = re.compile(r"data_parallel_size" + _NUMBER)


def by_metrics(page: str) -> str:
    """From /metrics."""
    found = _SHARE.search(page)
    return f"Headway's scheduler class in the engine keeps a share of {float(found.group(1)):g}" if found else ""


def by_vllm_config(page: str, version: str) -> str:
    """From vLLM's /server_info, text or JSON, and its version."""
    found, ranks = _INTERVAL.search(page), _RANKS.search(page)
    interval = int(found.group(1)) if found else 0
    works = parse(version)[:2] >= WORKS_ALONE or (ranks is not None and int(ranks.group(1)) > 1)
    return f"vLLM {version} has --prefill-schedule-interval {interval}" if interval > 1 and works else ""


def by_sglang_config(info: Any) -> str:
    """From SGLang's /get_server_info, decoded."""
    interval = info.get("prefill_decode_interval") if isinstance(info, dict) else None
    if isinstance(interval, int) and interval > 0:
        return f"SGLang has --prefill-decode-interval {interval}"
    return ""
