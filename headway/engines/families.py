"""The engine families: one row each, and how one is told from another.

To add one: a module with its `parse` (and `facts`, where a page describes its configuration), and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.engines import llamacpp, sglang
from headway.engines.metrics import EngineMetrics
from headway.engines.vllm import metrics as vllm


@dataclass(slots=True, frozen=True)
class Family:
    name: str
    renders: bool
    """/tokenize gives a chat's token ids, and /v1/completions takes ids: pieces are cut by token. Elsewhere by text."""
    metrics: Callable[[str], EngineMetrics | None] = lambda page: None
    """The /metrics page, read; None when it is another engine's."""
    page: bytes = b""
    """A page that only this family has."""
    is_page: Callable[[Any], bool] = lambda body: False
    """Whether the page, decoded from JSON, is that."""
    facts: Callable[[Any], EngineMetrics | None] = lambda body: None
    """What that page says of the cache."""


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("vllm", True, vllm.parse, b"/version", lambda body: isinstance(body, dict) and set(body) == {"version"}),
        Family("sglang", False, sglang.parse, b"/get_server_info", sglang.is_server_info, sglang.facts),
        Family("llama.cpp", False, llamacpp.parse, b"/props", llamacpp.is_props, llamacpp.facts),
        Family("openai", False),
    )
}
"""In the order in which their pages are asked for. `openai`: any server with that API."""

GENERIC = FAMILIES["openai"]


def by_metrics(page: str) -> Family | None:
    """Which family a /metrics page is of."""
    return next((family for family in FAMILIES.values() if family.metrics(page) is not None), None)
