"""A cheap server of very many streams, in a process of its own, that freezes one of them and says which.

    python -m tests.bench.planted TOKENS CADENCE FROZEN AT SECONDS FIRST

It writes one canned chunk a token and parses nothing. Request number N (in order of arrival) is told apart by its prompt tokens,
which are 1000 + N. FIRST: seconds before its first token. Prints its URL, then a line when the freeze begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(message: object) -> bytes:
    return chunk(b"data: " + json.dumps(message).encode() + b"\n\n")


def token(part: dict[str, object], reason: str | None) -> bytes:
    return event({"choices": [{"index": 0, **part, "finish_reason": reason}]})


PATHS: dict[bytes, dict[str, object]] = {
    b"/v1/chat/completions": {"delta": {"content": " x"}},
    b"/v1/completions": {"text": " x"},
}
TOKENS = {path: (token(part, None), token(part, "length")) for path, part in PATHS.items()}


@dataclass
class Plan:
    tokens: int
    cadence_s: float
    frozen: int  # which of the requests that ask for `tokens` tokens, from 0
    at: int  # before this token
    seconds: float
    first_s: float = 0.0
    seen: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
            if head.startswith(b"GET /v1/models"):
                answer = b'{"data": [{"id": "m"}]}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(answer), answer))
            elif head.startswith(b"POST /tokenize"):
                answer = json.dumps({"count": len(body.split())}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(answer), answer))
            elif (chunks := TOKENS.get(head.split(b" ", 2)[1])) is not None:
                await self._stream(json.loads(body)["max_tokens"], chunks, writer)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

    async def _stream(self, tokens: int, chunks: tuple[bytes, bytes], writer: asyncio.StreamWriter) -> None:
        number = -1
        if tokens == self.tokens:
            number, self.seen = self.seen, self.seen + 1
        cadence = self.cadence_s if number >= 0 else 0.01
        writer.write(HEAD)
        due = time.monotonic() + self.first_s
        for i in range(tokens):
            due += cadence
            if number == self.frozen and i == self.at:
                print(f"frozen {time.monotonic()}", flush=True)
                due += self.seconds
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            writer.write(chunks[i == tokens - 1])
        usage = {"prompt_tokens": 1000 + number, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 0}}
        writer.write(event({"choices": [], "usage": usage}) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tokens, cadence, frozen, at, seconds, first = sys.argv[1:]
    plan = Plan(int(tokens), float(cadence), int(frozen), int(at), float(seconds), float(first))
    server = await asyncio.start_server(plan.serve, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def planted(
    tokens: int, cadence: float, frozen: int = -2, at: int = 0, seconds: float = 0.0, first: float = 0.0
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The server's URL and its process, whose output has the line of the freeze."""
    command = [sys.executable, "-m", "tests.bench.planted", *map(str, (tokens, cadence, frozen, at, seconds, first))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(main())
