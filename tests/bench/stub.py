"""A server whose answers are known to the millisecond: what it planted is what the benchmark must report.

It writes down when it wrote each event, on the clock that the client reads, so that a busy machine cannot turn a
correct report into a failed test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Plan = Sequence[float]  # seconds before each token; the first one is the time to first token


@dataclass
class Stub:
    """`plan(body)` gives the delays of an answer. The flags are ways to be a bad server."""

    plan: Callable[[dict[str, Any]], Plan]
    usage: bool = True
    continuous: bool = False
    streams: bool = True
    garbage_after: int | None = None
    break_after: int | None = None
    error_after: int | None = None
    tokenizes: bool = True
    models: tuple[str, ...] = ("m",)
    per_event: int = 1
    cached: int = 0
    corrupts: str | None = None  # "long": text differs while a long prompt is there; "any": while any other is
    url: str = ""
    written: list[list[float]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    live: list[int] = field(default_factory=list)  # prompt tokens of the requests under way

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["model"] not in self.models:
            return web.json_response({"error": {"message": f"no model {body['model']}"}}, status=404)
        self.bodies.append(body)
        plan = self.plan(body)
        prompt_tokens = count(body)
        usage = {"prompt_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": self.cached}}
        if not self.streams:
            return web.json_response({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
        times: list[float] = []
        self.written.append(times)
        self.live.append(prompt_tokens)
        try:
            return await self._stream(request, plan, usage, times)
        finally:
            self.live.remove(prompt_tokens)

    def _word(self, i: int) -> str:
        others = sorted(self.live)[1:] if self.corrupts == "any" else [size for size in self.live if size > 400]
        return f"{'T' if self.corrupts and others else 't'}{i} "

    async def _stream(self, request: web.Request, plan: Plan, usage: dict[str, Any], times: list[float]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        due = time.monotonic()
        for i, delay in enumerate(plan):
            due += delay
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            if i == self.break_after:
                assert request.transport is not None
                request.transport.abort()
                return answer
            done = i == len(plan) - 1
            event: dict[str, Any] = {
                "choices": [{"index": 0, "delta": {"content": self._word(i)}, "finish_reason": "length" if done else None}]
            }
            if self.continuous:
                event["usage"] = {**usage, "completion_tokens": (i + 1) * self.per_event}
            data = json.dumps(event).encode()
            if i == self.garbage_after:
                data = b"{not json"
            if i == self.error_after:
                data = json.dumps({"error": {"message": "out of memory", "code": 500}}).encode()
            times.append(time.monotonic())
            await answer.write(b"data: " + data + b"\n\n")
        if self.usage:
            tail = {"choices": [], "usage": {**usage, "completion_tokens": len(plan) * self.per_event}}
            await answer.write(b"data: " + json.dumps(tail).encode() + b"\n\n")
        await answer.write(b"data: [DONE]\n\n")
        return answer


def count(body: dict[str, Any]) -> int:
    """One token a word and four a message."""
    return sum(4 + len(str(message.get("content") or "").split()) for message in body["messages"])


def size_plan(victim: Plan, intruder: Plan, border: int = 400) -> Callable[[dict[str, Any]], Plan]:
    """Prompts longer than `border` tokens are intruders; answers end at `max_tokens`."""

    def plan(body: dict[str, Any]) -> Plan:
        whole = intruder if count(body) > border else victim
        return whole[: body.get("max_tokens", len(whole))]

    return plan


@asynccontextmanager
async def serve(stub: Stub) -> AsyncIterator[Stub]:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in stub.models]})

    async def tokenize(request: web.Request) -> web.Response:
        return web.json_response({"count": count(await request.json())})

    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", stub.chat)
    if stub.tokenizes:
        app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    stub.url = f"http://127.0.0.1:{port}"
    try:
        yield stub
    finally:
        await runner.cleanup()
