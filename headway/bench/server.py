"""What a server says about itself before anything is measured on it: its models and its version."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from headway.bench.client import Target, why
from headway.errors import ServerError, UsageError


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
    try:
        status, page = await _get(http, url + "/v1/models", key)
    except aiohttp.ClientConnectorError as error:
        raise ServerError(f"cannot connect to {url}: {why(error)}") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ServerError(f"cannot reach {url}: {error or type(error).__name__}") from None
    if status != 200:
        raise ServerError(f"{url}/v1/models answered HTTP {status}")
    try:
        names = [entry["id"] for entry in page["data"]]
    except (TypeError, KeyError):
        raise ServerError(f"{url}/v1/models is not a list of models") from None
    if model is None:
        if not names:
            raise ServerError(f"{url} serves no model")
        return Target(url, names[0], key)
    if model not in names:
        raise ServerError(f"{url} has no model {model!r}; it serves {', '.join(names) or 'none'}")
    return Target(url, model, key)


async def version(http: aiohttp.ClientSession, url: str) -> str | None:
    """What GET /version says, None where there is none."""
    try:
        status, page = await _get(http, url + "/version", None)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    found = page.get("version") if status == 200 and isinstance(page, dict) else None
    return found if isinstance(found, str) else None
