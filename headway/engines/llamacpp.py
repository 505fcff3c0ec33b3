"""llama.cpp's server: /metrics with --metrics, /props, cached tokens in usage. Each slot keeps the prompt it served last and
continues from the longest common beginning, token by token; --parallel slots share the context.
"""

from __future__ import annotations

from typing import Any

from headway.engines.metrics import EngineMetrics, series


def parse(page: str) -> EngineMetrics | None:
    """None when the page is not llama.cpp's."""
    values = {name: value for name, _, value in series(page, "llamacpp:")}
    if "requests_processing" not in values:
        return None
    return EngineMetrics(
        running=values["requests_processing"],
        waiting=values.get("requests_deferred", 0.0),
        hits=values.get("prompt_tokens_cached"),
        block_size=1,
        states=False,
    )


def is_props(props: Any) -> bool:
    """Whether this is what /props answers."""
    return isinstance(props, dict) and "default_generation_settings" in props


def facts(props: Any) -> EngineMetrics:
    """What /props says: the context of one slot times the slots is what can be cached."""
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    slots = props.get("total_slots")
    known = isinstance(context, int) and isinstance(slots, int)
    return EngineMetrics(block_size=1, prefix_caching=True, blocks=context * slots if known else None, states=False)
