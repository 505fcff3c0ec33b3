"""What a server says about itself: its models, its version, the length of its context and what it runs at the moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from headway.bench.client import Target, reason
from headway.engines.vllm import metrics
from headway.errors import ServerError, UsageError


@dataclass(frozen=True)
class Server:
    target: Target
    version: str | None = None
    context: int | None = None  # tokens of prompt and answer (max_model_len)


def base_url(url: str) -> str:
    """The URL without a trailing /v1. Raises UsageError for what is no http(s) URL."""
    clean = url.rstrip("/").removesuffix("/v1")
    if not clean.startswith(("http://", "https://")) or not clean.split("://", 1)[1]:
        raise UsageError(f"{url!r} is not an http:// or https:// URL")
    return clean


async def _get(http: aiohttp.ClientSession, url: str, key: str | None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=15)) as answer:
        body = await answer.read()
        try:
            return answer.status, json.loads(body)
        except ValueError:
            return answer.status, None


async def find(http: aiohttp.ClientSession, url: str, model: str | None = None, key: str | None = None) -> Target:
    """The server at `url` with this model, or its only one. Raises ServerError or UsageError."""
    return (await look(http, url, model, key)).target


async def look(http: aiohttp.ClientSession, url: str, model: str | None = None, key: str | None = None) -> Server:
    """As `find`, with what else the server says."""
    try:
        status, page = await _get(http, url + "/v1/models", key)
    except aiohttp.ClientConnectorError as error:
        raise ServerError(f"cannot connect to {url}: {reason(error.os_error)}") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ServerError(f"cannot reach {url}: {error or type(error).__name__}") from None
    if status != 200:
        raise ServerError(f"{url}/v1/models answered HTTP {status}")
    try:
        cards = {entry["id"]: entry for entry in page["data"]}
    except (TypeError, KeyError):
        raise ServerError(f"{url}/v1/models is not a list of models") from None
    if not cards:
        raise ServerError(f"{url} serves no model")
    name = next(iter(cards)) if model is None else model
    if name not in cards:
        raise ServerError(f"{url} has no model {model!r}; it serves {', '.join(cards)}")
    length = cards[name].get("max_model_len")
    return Server(Target(url, name, key), await version(http, url), length if isinstance(length, int) else None)


async def busy(http: aiohttp.ClientSession, url: str) -> float | None:
    """Requests that the engine runs or keeps waiting, None where it has no vLLM metrics page."""
    try:
        async with http.get(url + "/metrics", timeout=aiohttp.ClientTimeout(total=5)) as answer:
            page = metrics.parse(await answer.text()) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return None
    return page.running + page.waiting if page else None


async def version(http: aiohttp.ClientSession, url: str) -> str | None:
    """What GET /version says, None where there is none."""
    try:
        status, page = await _get(http, url + "/version", None)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    found = page.get("version") if status == 200 and isinstance(page, dict) else None
    return found if isinstance(found, str) else None
