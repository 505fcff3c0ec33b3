"""What a running server says of itself: engine, version, options, counters, and whether headway stands in front of it.

A headway gateway relays no /metrics; it answers foreign paths with its own error (header `X-Headway-Outcome`) and has a status
page one port above. When that page can be read, the engine behind is read directly, else the gateway's own count is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from headway.advisor.scrapes import ask, engine_of, parse
from headway.advisor.server import fetch_version, get, get_with_headers
from headway.advisor.sources import server_info
from headway.errors import ServerError, UsageError

#: Options that a verdict or its advice can rest on; the rest of a configuration is left out of the report.
RELEVANT = (
    "max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "prefill_schedule_interval", "scheduling_policy",
    "enable_chunked_prefill", "enable_prefix_caching", "block_size", "mamba_cache_mode", "data_parallel_size", "kv_cache_dtype",
    "num_speculative_tokens", "chunked_prefill_size", "enable_mixed_chunk", "prefill_decode_interval", "max_running_requests",
    "speculative_algorithm", "n_batch", "n_ubatch", "parallel",
)  # fmt: skip


@dataclass
class Target:
    """`root` is where requests go; `engine_root` where the engine's own pages are (the same without a gateway)."""

    root: str
    engine_root: str
    engine: str | None = None
    version: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    gateway: dict[str, Any] | None = None
    status_url: str | None = None

    @property
    def title(self) -> str:
        parts = [self.engine or "server", self.version]
        return " ".join(part for part in parts if part)

    async def page(self, session: aiohttp.ClientSession) -> str | None:
        """The engine's /metrics, or None when it has none."""
        try:
            status, text = await get(session, f"{self.engine_root}/metrics")
        except ServerError:
            return None
        return text if status == 200 and engine_of(parse(text)) else None

    async def busy(self, session: aiohttp.ClientSession, page: str | None) -> float | None:
        """Requests that run or wait there, ours included; None when nothing shows it."""
        if page is not None:
            series = parse(page)
            return (ask(series, "running") or 0) + (ask(series, "waiting") or 0)
        if self.status_url:
            status = await _status(session, self.status_url)
            return float(status["now"]["requests"]) if status else None
        return None


async def look(session: aiohttp.ClientSession, root: str) -> Target:
    """The server at `root`; ServerError when it cannot be reached."""
    target = Target(root, root)
    status, headers, text = await get_with_headers(session, f"{root}/metrics")
    if status != 200 and any(name.lower() == "x-headway-outcome" for name in headers):
        await _behind(session, target)
    elif status == 200:
        target.engine = engine_of(parse(text))
    target.version = await fetch_version(session, target.engine_root)
    await _options(session, target)
    if target.engine is None and target.version:
        target.engine = "vllm"
    return target


async def _behind(session: aiohttp.ClientSession, target: Target) -> None:
    target.gateway = {}
    parts = urlsplit(target.root)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    url = urlunsplit((parts.scheme, f"{parts.hostname}:{port + 1}", "/status", "", ""))
    status = await _status(session, url)
    if status is None:
        return
    target.gateway = {"policy": status["policy"], "targets": status.get("targets"), "upstream": status["upstream"]["url"]}
    target.status_url = url
    engine_root = str(status["upstream"]["url"]).rstrip("/").removesuffix("/v1")
    try:
        code, text = await get(session, f"{engine_root}/metrics")
    except ServerError:
        return
    if code == 200 and (engine := engine_of(parse(text))):
        target.engine_root, target.engine = engine_root, engine


async def _status(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        code, text = await get(session, url)
        page = json.loads(text) if code == 200 else None
    except (ServerError, ValueError):
        return None
    return page if isinstance(page, dict) and str(page.get("schema", "")).startswith("headway.status/") else None


async def _options(session: aiohttp.ClientSession, target: Target) -> None:
    """Options where the engine shows them: vLLM in developer mode, SGLang always, llama.cpp a few."""
    for path in ("/server_info?config_format=json", "/get_server_info", "/props"):
        try:
            code, text = await get(session, target.engine_root + path)
            page = json.loads(text) if code == 200 else None
        except (ServerError, ValueError):
            continue
        if not isinstance(page, dict):
            continue
        if path == "/props":
            target.engine = target.engine or "llama.cpp"
            target.version = target.version or str(page.get("build_info") or "") or None
            if slots := page.get("total_slots"):
                target.options["parallel"] = slots
            return
        try:
            told = server_info(page, target.root)
        except UsageError:
            continue
        target.engine = target.engine or told.engine
        target.version = target.version or (".".join(map(str, told.version)) if told.version else None)
        target.options |= {name: told.options[name] for name in RELEVANT if told.options.get(name) is not None}
        return
