"""Asks an engine, once for each start of it, whether it was configured to pace prefill by itself (engines/selfpacing.py).

Invariant: an engine that does not have these pages, answers late or answers nonsense is one that does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headway.engines.selfpacing import by_sglang_config, by_vllm_config
from headway.gateway.calls import fetch
from headway.gateway.transport.interface import UpstreamLost

if TYPE_CHECKING:
    from headway.gateway.upstream import Upstream

PATIENCE_S = 5.0
"""Seconds that each page may take."""


async def configured_pacing(upstream: Upstream) -> str:
    """Why it paces by itself, in words; empty where it does not, or does not say."""
    sglang = await page_of(upstream, b"/get_server_info")
    if sglang is not None and (why := by_sglang_config(as_json(sglang))):
        return why
    vllm = await page_of(upstream, b"/server_info?config_format=text")
    if vllm is None:
        return ""
    version = as_json(await page_of(upstream, b"/version") or b"")
    known = version.get("version") if isinstance(version, dict) else None
    return by_vllm_config(vllm.decode("utf-8", "replace"), str(known or "0"))


async def page_of(upstream: Upstream, path: bytes) -> bytes | None:
    """A page of the engine; None where it has none."""
    try:
        reply = await fetch(upstream.dialer, upstream.head(b"GET", path), timeout=PATIENCE_S)
    except (UpstreamLost, TimeoutError):
        return None
    return reply.body if reply.status == 200 else None


def as_json(body: bytes) -> object:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
