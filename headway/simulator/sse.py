"""Answers on the wire: JSON bodies and server-sent events."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from aiohttp import web

#: Set on a request whose answer has begun to stream.
STREAMING = "headway.streaming"


def json_response(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def request_name(request: web.Request, prefix: str, given: str | None = None) -> str:
    """The answer's id: the client's X-Request-Id or `request_id` behind the usual prefix, else a random
    one.
    """
    own = request.headers.get("X-Request-Id") or given or secrets.token_hex(16)
    return f"{prefix}-{own}"


class EventStream:
    """A text/event-stream whose headers are sent at once."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    @classmethod
    async def open(cls, request: web.Request) -> EventStream:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        request[STREAMING] = True
        await response.prepare(request)
        return cls(response)

    async def raw(self, data: bytes) -> None:
        await self._response.write(data)

    async def data(self, body: Any) -> None:
        await self.raw(b"data: " + msgspec.json.encode(body) + b"\n\n")

    async def event(self, name: str, body: dict[str, Any]) -> None:
        await self.raw(
            b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode({"type": name} | body) + b"\n\n"
        )

    async def close(self) -> web.StreamResponse:
        await self._response.write_eof()
        return self._response
