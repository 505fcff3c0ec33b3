"""Peers that share no code with the transport: raw sockets and scripted servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from headway.gateway.transport.dialer import dial
from headway.gateway.transport.interface import (
    Dialer,
    Downstream,
    Handler,
    Listener,
    RequestHead,
    ResponseHead,
    UpstreamLost,
)
from headway.gateway.transport.listener import listen
from tests.gateway.transport.relay import answer, relay

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]
"""Serves one connection; the number counts connections from 0."""


class RawClient:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def rest(self) -> bytes:
        """All that comes until the end of the connection."""
        return await self.reader.read(-1)

    async def until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """One response framed by Content-Length."""
        head = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in head[1:] if line)}
        body = await self.reader.readexactly(int(fields.get("content-length", 0)))
        return int(head[0].split()[1]), fields, body

    def close(self) -> None:
        self.writer.close()

    def half_close(self) -> None:
        self.writer.write_eof()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(port: int, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    client = RawClient(*await asyncio.open_connection(sock=sock, limit=receive_buffer or 65536))
    try:
        yield client
    finally:
        client.close()
        with suppress(OSError):
            await client.writer.wait_closed()


@asynccontextmanager
async def listening(handler: Handler, **options: float) -> AsyncIterator[Listener]:
    options.setdefault("max_body", 1 << 20)
    listener = await listen("127.0.0.1", 0, handler, **options)  # type: ignore[arg-type]
    try:
        yield listener
    finally:
        await listener.close(0)


@asynccontextmanager
async def dialing(port: int, **options: float) -> AsyncIterator[Dialer]:
    dialer = dial("127.0.0.1", port, **options)  # type: ignore[arg-type]
    try:
        yield dialer
    finally:
        await dialer.close()


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[int]:
    """An upstream that does what `script` says; yields its port."""
    count = 0
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        task = asyncio.current_task()
        tasks.add(task)
        number, count = count, count + 1
        try:
            await script(reader, writer, number)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except RuntimeError as error:  # uvloop, for a write between the end of a connection and its notice
            assert "handler is closed" in str(error)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0.01)


@asynccontextmanager
async def relaying(script: Script, **options: float) -> AsyncIterator[Listener]:
    """client -> listener -> relay -> dialer -> scripted upstream"""
    async with (
        scripted(script) as port,
        dialing(port) as dialer,
        listening(relay(dialer), **options) as listener,
    ):
        yield listener


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request framed by Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head, await reader.readexactly(length)


class Record:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.response: ResponseHead | None = None
        self.body = b""
        self.error: UpstreamLost | None = None
        self.over = asyncio.Event()
        self.begun = asyncio.Event()

    def head(self, head: ResponseHead) -> None:
        self.events.append("head")
        self.response = head
        self.begun.set()

    def data(self, data: bytes) -> None:
        assert data
        self.events.append("data")
        self.body += data

    def eof(self) -> None:
        self.events.append("eof")
        self.over.set()

    def lost(self, error: UpstreamLost) -> None:
        self.events.append("lost")
        self.error = error
        self.over.set()


def request(method: bytes = b"POST", target: bytes = b"/", *headers: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead(method, target, [(b"Host", b"up"), *headers])


async def fetch(dialer: Dialer, head: RequestHead | None = None, body: bytes = b"{}") -> Record:
    record = Record()
    dialer.send(head or request(), body, record)
    await record.over.wait()
    return record


async def echo(down: Downstream) -> None:
    """Answers with the request's body, and its target in a field."""
    answer(down, 200, await down.body(), (b"X-Target", down.request.target))


async def eventually(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < end, "condition did not come true"
        await asyncio.sleep(0.002)
