"""An upstream that costs next to nothing: python -m benchmarks.overhead_peers.upstream. Prints its port.

A chat completion is answered at once; with `"stream": true` by EVENTS events, EVERY_S apart, the first at once.
"""

from __future__ import annotations

import asyncio
import json

EVENTS = 64
EVERY_S = 0.002


def _event(content: str) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": None}
    body = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    data = b"data: " + json.dumps(body).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 400}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "total_tokens": 108, "completion_tokens": 8},
    }
).encode()
_MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}], "status": "ok", "model_path": "m"}).encode()
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def _plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = bytearray()
        self.timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if b"transfer-encoding: chunked" in head:
                done = self.buffer.find(b"0\r\n\r\n", end + 4)
                if done < 0:
                    return
                length = done + 5 - end - 4
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get /metrics"):
            self.transport.write(_plain(b"", b"404 Not Found"))
        elif not head.startswith(b"post"):
            self.transport.write(_plain(_MODELS))
        elif b'"stream":true' in body[-4000:].replace(b" ", b"") or b'"stream":true' in body[:300].replace(b" ", b""):
            self.transport.write(_STREAM)
            self.more(0)
        else:
            self.transport.write(_plain(_ANSWER))

    def more(self, number: int) -> None:
        if number == EVENTS:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        self.transport.write(_event(f"word{number}"))
        self.timer = self.loop.call_later(EVERY_S, self.more, number + 1)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
