"""A client that reads slowly slows its own upstream down, costs bounded memory, and loses nothing."""

from __future__ import annotations

import asyncio
import hashlib

from headway.gateway.transport.interface import ResponseHead
from tests.gateway.transport.peers import eventually, listening, raw_client, read_request, relaying

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PIECE = bytes(range(256)) * 256  # 64 KiB
PIECES = 300


def test_upstream_waits_for_a_slow_reader(run):
    async def scenario():
        sent = 0

        async def upstream(reader, writer, _):
            nonlocal sent
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(PIECE) * PIECES))
            for _ in range(PIECES):
                writer.write(PIECE)
                await writer.drain()
                sent += 1

        async with relaying(upstream) as listener, raw_client(listener.port, 65536) as client:
            client.send(GET)
            await client.until(b"\r\n\r\n")
            await asyncio.sleep(0.15)
            stalled_at = sent
            assert stalled_at < PIECES  # the kernels' buffers hold the rest, not the relay
            await asyncio.sleep(0.1)
            assert sent == stalled_at
            (connection,) = listener.connections
            assert connection._transport.get_write_buffer_size() < 1_000_000
            digest = hashlib.sha256()
            left = len(PIECE) * PIECES
            while left:
                data = await client.reader.read(200_000)
                assert data
                digest.update(data)
                left -= len(data)
            assert digest.hexdigest() == hashlib.sha256(PIECE * PIECES).hexdigest()

    run(scenario)


def test_writable_and_its_callback(run):
    async def scenario():
        events = []

        async def handler(down):
            again = asyncio.Event()
            down.on_writable = again.set
            down.head(ResponseHead(200, b"OK", [(b"Transfer-Encoding", b"chunked")]))
            assert down.writable
            for _ in range(3):
                while down.writable:
                    down.data(PIECE)
                events.append("full")
                await again.wait()
                again.clear()
                assert down.writable
                events.append("again")
            down.eof()

        async with listening(handler) as listener, raw_client(listener.port, 65536) as client:
            client.send(GET)
            await eventually(lambda: bool(events))
            await asyncio.sleep(0.05)
            assert events == ["full"]
            while not (await client.reader.read(100_000)).endswith(b"\r\n0\r\n\r\n"):
                pass
            assert events == ["full", "again"] * 3

    run(scenario)


def test_reader_that_never_reads_does_not_hold_the_upstream_after_leaving(run):
    async def scenario():
        gone = asyncio.Event()

        async def upstream(reader, writer, _):
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(PIECE) * PIECES))
            try:
                for _ in range(PIECES):
                    writer.write(PIECE)
                    await writer.drain()
            finally:
                gone.set()

        async with relaying(upstream) as listener, raw_client(listener.port, 65536) as client:
            client.send(GET)
            await client.until(b"\r\n\r\n")
            await asyncio.sleep(0.1)
            assert not gone.is_set()
            client.reset()
            await asyncio.wait_for(gone.wait(), 1)

    run(scenario)


def test_finished_response_to_a_reader_that_stopped_is_given_up(run):
    async def scenario():
        async def handler(down):
            down.head(ResponseHead(200, b"OK", []))
            for _ in range(100):
                down.data(PIECE)
            down.eof()

        async with (
            listening(handler, idle_timeout_s=0.2) as listener,
            raw_client(listener.port, 65536) as client,
        ):
            client.send(GET)
            await client.until(b"\r\n\r\n")
            assert listener.connections
            await eventually(lambda: not listener.connections)

    run(scenario)
