"""Reading a running server without disturbing it: version, options, metrics."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from headway.errors import ServerError

#: Seconds for one page.
PAGE_TIMEOUT = 10.0


async def get_with_headers(session: aiohttp.ClientSession, url: str) -> tuple[int, list[str], str]:
    """Status, names of the headers and text of a page; ServerError when the server cannot be reached."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=PAGE_TIMEOUT)) as answer:
            return answer.status, list(answer.headers), await answer.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ServerError(f"{url}: {error or type(error).__name__}") from error


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    """Status and text of a page; ServerError when the server cannot be reached."""
    status, _, text = await get_with_headers(session, url)
    return status, text


async def fetch_server_info(base: str) -> dict[str, Any]:
    """The options of a running server: /server_info, else what /version tells; ServerError when neither answers."""
    root = base.rstrip("/").removesuffix("/v1").removesuffix("/server_info")
    async with aiohttp.ClientSession() as session:
        for path in ("/server_info?config_format=json", "/get_server_info"):
            status, text = await get(session, root + path)
            if status == 200:
                try:
                    page = json.loads(text)
                except ValueError:
                    continue
                if isinstance(page, dict):
                    page.setdefault("version", await fetch_version(session, root))
                    return page
        version = await fetch_version(session, root)
    if version is None:
        raise ServerError(
            f"{root}: neither /server_info nor /version answers; vLLM shows options only with VLLM_SERVER_DEV_MODE=1"
        )
    raise ServerError(f"{root}: vLLM {version} shows no options: start it with VLLM_SERVER_DEV_MODE=1, or lint its command line")


async def fetch_version(session: aiohttp.ClientSession, root: str) -> str | None:
    """The version that /version tells, or None."""
    status, text = await get(session, f"{root}/version")
    if status != 200:
        return None
    try:
        return str(json.loads(text)["version"])
    except (ValueError, KeyError, TypeError):
        return None
