"""Answers on the wire: JSON bodies and server-sent events."""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from headway.simulator.driver import EngineDead


def json_response(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def request_name(request: web.Request, prefix: str, given: str | None = None) -> str:
    """The answer's id: the client's X-Request-Id or `request_id` behind the usual prefix, else a random
    one.
    """
    own = request.headers.get("X-Request-Id") or given or secrets.token_hex(16)
    return f"{prefix}-{own}"


class EventStream:
    """A text/event-stream whose headers are sent at once; a context manager that ends it.

    Should the engine stop inside the block, the connection is broken off: nobody may take half an answer for
    a whole one.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})

    async def __aenter__(self) -> EventStream:
        self.response.enable_chunked_encoding()
        await self.response.prepare(self._request)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            await self.response.write_eof()
        elif isinstance(error, EngineDead):
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the engine was stopped") from error

    async def raw(self, data: bytes) -> None:
        await self.response.write(data)

    async def data(self, body: Any) -> None:
        await self.raw(b"data: " + msgspec.json.encode(body) + b"\n\n")

    async def event(self, name: str, body: dict[str, Any]) -> None:
        encoded = msgspec.json.encode({"type": name} | body)
        await self.raw(b"event: " + name.encode() + b"\ndata: " + encoded + b"\n\n")
