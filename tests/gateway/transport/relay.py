"""The smallest relay over the transport: one upstream, back-pressure both ways, abort on leaving."""

from __future__ import annotations

import asyncio

from headway.gateway.transport.framing import end_to_end, mirrored
from headway.gateway.transport.interface import (
    BodyTooLarge,
    Call,
    Dialer,
    Downstream,
    RequestHead,
    ResponseHead,
    UpstreamLost,
)


class Pipe:
    """Sink that writes to a client."""

    def __init__(self, down: Downstream) -> None:
        self.down = down
        self.call: Call | None = None
        self.lost_with: UpstreamLost | None = None
        self.started = False
        self.over = asyncio.get_running_loop().create_future()

    def head(self, head: ResponseHead) -> None:
        self.started = True
        self.down.head(mirrored(head))

    def data(self, data: bytes) -> None:
        self.down.data(data)
        if not self.down.writable and self.call is not None:
            self.call.pause()
            self.down.on_writable = self.call.resume

    def eof(self) -> None:
        self.down.eof()
        self._end()

    def lost(self, error: UpstreamLost) -> None:
        self.lost_with = error
        if self.started:
            self.down.abort()
        else:
            answer(self.down, 502, str(error).encode())
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def answer(down: Downstream, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    down.head(ResponseHead(status, b"X", [(b"Content-Length", b"%d" % len(body)), *headers]))
    if body:
        down.data(body)
    down.eof()


def relay(dialer: Dialer):
    async def handler(down: Downstream) -> None:
        try:
            body = await down.body()
        except BodyTooLarge:
            answer(down, 413, b"too large")
            return
        request = down.request
        pipe = Pipe(down)
        head = RequestHead(request.method, request.target, end_to_end(request.headers))
        pipe.call = dialer.send(head, body, pipe)
        try:
            await pipe.over
        finally:
            pipe.call.abort()

    return handler
