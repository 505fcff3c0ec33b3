"""The load: raw clients over kept connections, no HTTP library."""

from __future__ import annotations

import asyncio
import time

from benchmarks.overhead_peers.upstream import EVENTS


class Unexpected(Exception):
    """An answer that was not a 200, or was not complete."""


def _request(body: bytes) -> bytes:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\n"
    head += "Content-Type: application/json\r\nAccept: application/json\r\n"
    head += f"User-Agent: OpenAI/Python 3.57.0\r\nAuthorization: Bearer k\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise Unexpected(head[:200].decode("latin-1"))
    return head.lower()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" in head:
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)
    return await reader.readexactly(int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))


async def plain(port: int, body: bytes, requests: int, clients: int) -> list[float]:
    """Seconds of each of `requests` requests, by `clients` clients at once."""
    raw, left, seconds = _request(body), iter(range(requests)), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in left:
            begun = time.perf_counter()
            writer.write(raw)
            await _body(reader, await _head(reader))
            seconds.append(time.perf_counter() - begun)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


async def streams(port: int, body: bytes, count: int, clients: int) -> int:
    """Read `count` streams to their end, `clients` at once; events in all."""
    raw, left = _request(body), iter(range(count))
    total = 0

    async def client() -> None:
        nonlocal total
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in left:
            writer.write(raw)
            got = (await _body(reader, await _head(reader))).count(b"data: {")
            if got != EVENTS:
                raise Unexpected(f"{got} events of {EVENTS}")
            total += got
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return total


async def first_events(port: int, body: bytes, count: int) -> list[float]:
    """Seconds to the first event of each of `count` streams, one after another."""
    raw, seconds = _request(body), []
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    for _ in range(count):
        begun = time.perf_counter()
        writer.write(raw)
        head = await _head(reader)
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        await reader.readexactly(size + 2)
        seconds.append(time.perf_counter() - begun)
        await _body(reader, head)
    writer.close()
    return seconds
