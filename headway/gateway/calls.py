"""Small requests of the gateway's own: pieces, /tokenize, /metrics. A whole answer in memory, bounded, aborted on cancel."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headway.gateway.transport.interface import Dialer, LostReason, RequestHead, ResponseHead, UpstreamLost

LARGEST = 64 * 1024 * 1024
"""Bytes of an answer: /tokenize of a million tokens is about 10 MB."""


@dataclass(slots=True)
class Reply:
    status: int
    body: bytes


@dataclass(slots=True)
class _Collector:
    done: asyncio.Future[Reply]
    status: int = 0
    size: int = 0
    parts: list[bytes] = field(default_factory=list)

    def head(self, head: ResponseHead) -> None:
        self.status = head.status

    def data(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= LARGEST:
            self.parts.append(data)
        elif not self.done.done():
            self.done.set_exception(UpstreamLost(LostReason.PROTOCOL, f"an answer of more than {LARGEST} bytes"))

    def eof(self) -> None:
        if not self.done.done():
            self.done.set_result(Reply(self.status, b"".join(self.parts)))

    def lost(self, error: UpstreamLost) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def fetch(dialer: Dialer, head: RequestHead, body: bytes = b"", timeout: float | None = None) -> Reply:
    """Send and wait. Raises UpstreamLost or TimeoutError; cancelling it closes the upstream connection at once."""
    done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    call = dialer.send(head, body, _Collector(done))
    try:
        async with asyncio.timeout(timeout):
            return await done
    finally:
        call.abort()
