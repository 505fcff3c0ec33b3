"""Upstreams that die, lie or do not answer: each call ends exactly once, with the reason, and a request is
sent a second time only in the keep-alive race."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headway.gateway.transport import dialer as dialer_module
from headway.gateway.transport.interface import LostReason
from tests.gateway.transport.peers import (
    Record,
    dialing,
    eventually,
    fetch,
    raw_client,
    read_request,
    relaying,
    request,
    scripted,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_connection_refused(run):
    async def scenario():
        port = free_port()
        async with dialing(port) as dialer:
            record = await fetch(dialer)
            assert record.events == ["lost"]
            assert record.error.reason is LostReason.CONNECT
            assert record.error.detail == f"connection refused by 127.0.0.1:{port}"

    run(scenario)


def test_no_such_host(run):
    async def scenario():
        dialer = dialer_module.dial("no-such-host.invalid", 80)
        record = await fetch(dialer)
        assert record.error.reason is LostReason.CONNECT
        assert "no-such-host.invalid:80" in record.error.detail
        await dialer.close()

    run(scenario)


def full_backlog() -> tuple[socket.socket, list[socket.socket]]:
    """A listening socket that accepts nothing more: connecting to it hangs."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    fill = []
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(server.getsockname())
        fill.append(sock)
    return server, fill


def test_connect_timeout(run):
    async def scenario():
        server, fill = full_backlog()
        async with dialing(server.getsockname()[1], connect_timeout_s=0.1) as dialer:
            record = await fetch(dialer)
            assert record.error.reason is LostReason.TIMEOUT
            assert "within 0.1 s" in record.error.detail
        for sock in (server, *fill):
            sock.close()

    run(scenario)


def test_abort_while_connecting(run):
    async def scenario():
        server, fill = full_backlog()
        async with dialing(server.getsockname()[1], connect_timeout_s=0.2) as dialer:
            record = Record()
            call = dialer.send(request(), b"", record)
            await asyncio.sleep(0.05)
            call.abort()
            call.abort()
            await asyncio.sleep(0.3)
            assert record.events == []
        for sock in (server, *fill):
            sock.close()

    run(scenario)


def test_abort_in_the_same_tick(run):
    async def scenario():
        seen = []

        async def upstream(reader, writer, _):
            seen.append(await reader.read())

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = Record()
            dialer.send(request(), b"", record).abort()
            await asyncio.sleep(0.05)
            assert record.events == []
            assert seen in ([], [b""])

    run(scenario)


def test_abort_at_every_moment_of_connecting(run):
    """uvloop reports no loss of a connection cancelled between `connection_made` and the end of connect."""

    async def scenario():
        async def upstream(reader, writer, _):
            await read_request(reader)
            await reader.read()

        async with scripted(upstream) as port, dialing(port) as dialer:
            records = []
            for ticks in range(12):
                for _ in range(5):
                    records.append(Record())
                    call = dialer.send(request(), b"", records[-1])
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    call.abort()
            await eventually(lambda: not dialer._open and not dialer._connecting)
            assert all(record.events == [] for record in records)

    run(scenario)


ENDINGS = {
    "before anything": b"",
    "inside the head": b"HTTP/1.1 200 OK\r\nContent-",
    "content-length cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "chunk cut short": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "last chunk without its end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
    "only an interim response": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_cut_short(run, ending):
    async def scenario():
        connections = []

        async def upstream(reader, writer, number):
            connections.append(number)
            await read_request(reader)
            writer.write(ENDINGS[ending])

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer)
            assert record.error.reason is LostReason.CLOSED
            assert record.events == (["head", "data", "lost"] if b"abc" in ENDINGS[ending] else ["lost"])
            assert record.body == (b"abc" if "data" in record.events else b"")
            assert connections == [0]  # a fresh connection: never sent twice

    run(scenario)


def test_reset_in_the_middle_of_a_body_that_ends_with_the_connection(run):
    async def scenario():
        async def upstream(reader, writer, _):
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
            await asyncio.sleep(0.05)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer)
            assert record.events == ["head", "data", "lost"]
            assert record.error.reason is LostReason.CLOSED

    run(scenario)


NOT_HTTP = {
    "rubbish": b"SSH-2.0-OpenSSH_9.2\r\n",
    "length and chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "head without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
}


@pytest.mark.parametrize("answer", NOT_HTTP)
def test_not_http(run, answer):
    async def scenario():
        gone = asyncio.Event()

        async def upstream(reader, writer, _):
            await read_request(reader)
            writer.write(NOT_HTTP[answer])
            try:
                await reader.read()
            finally:
                gone.set()

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer)
            assert record.events[-1] == "lost"
            assert record.error.reason is LostReason.PROTOCOL
            assert record.body == (b"abc" if answer == "bad chunk" else b"")
            await asyncio.wait_for(gone.wait(), 1)

    run(scenario)


def idle_close_race(after: bytes):
    """The first connection answers once, and answers the second request with `after` and the end."""
    requests = []

    async def upstream(reader, writer, number):
        requests.append((number, await read_request(reader)))
        writer.write(OK)
        second = await read_request(reader)
        requests.append((number, second))
        if number == 0:
            writer.write(after)
            return
        writer.write(OK)
        await reader.read()

    return upstream, requests


def test_keepalive_race_is_retried_once_on_a_fresh_connection(run):
    async def scenario():
        upstream, requests = idle_close_race(b"")
        async with scripted(upstream) as port, dialing(port) as dialer:
            assert (await fetch(dialer, body=b"one")).body == b"ok"
            record = await fetch(dialer, body=b"two")
            assert record.events == ["head", "data", "eof"]
            assert [(n, body) for n, (_, body) in requests] == [(0, b"one"), (0, b"two"), (1, b"two")]

    run(scenario)


def test_no_retry_once_a_byte_has_come(run):
    async def scenario():
        upstream, requests = idle_close_race(b"H")
        async with scripted(upstream) as port, dialing(port) as dialer:
            await fetch(dialer)
            record = await fetch(dialer)
            assert record.events == ["lost"]
            assert record.error.reason is LostReason.CLOSED
            assert len(requests) == 2

    run(scenario)


def test_no_second_retry(run):
    async def scenario():
        count = []

        async def upstream(reader, writer, number):
            await read_request(reader)
            count.append(number)
            if number == 0:
                writer.write(OK)
                await read_request(reader)

        async with scripted(upstream) as port, dialing(port) as dialer:
            await fetch(dialer)
            assert (await fetch(dialer)).events == ["lost"]
            assert count == [0, 1]

    run(scenario)


def test_no_retry_of_a_request_that_the_upstream_may_have_died_of(run, monkeypatch):
    monkeypatch.setattr(dialer_module, "RACE_S", 0.05)

    async def scenario():
        count = []

        async def upstream(reader, writer, number):
            await read_request(reader)
            count.append(number)
            writer.write(OK)
            await read_request(reader)
            await asyncio.sleep(0.1)

        async with scripted(upstream) as port, dialing(port) as dialer:
            await fetch(dialer)
            record = await fetch(dialer)
            assert record.error.reason is LostReason.CLOSED
            assert count == [0]

    run(scenario)


def test_abort_closes_the_connection_at_once_and_silences_the_sink(run):
    async def scenario():
        gone = asyncio.Event()

        async def upstream(reader, writer, _):
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            try:
                for _ in range(1000):
                    writer.write(b"3\r\nabc\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.001)
            finally:
                gone.set()

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = Record()
            call = dialer.send(request(), b"", record)
            await record.begun.wait()
            call.abort()
            events = list(record.events)
            await asyncio.wait_for(gone.wait(), 1)
            assert record.events == events
            call.abort()
            call.pause()
            call.resume()

    run(scenario)


@pytest.mark.parametrize("at", ["head", "data", "eof"])
def test_abort_from_inside_a_callback(run, at):
    async def scenario():
        async def upstream(reader, writer, _):
            await read_request(reader)
            writer.write(OK)
            await reader.read()

        class Aborting(Record):
            def head(self, head):
                super().head(head)
                if at == "head":
                    call.abort()

            def data(self, data):
                super().data(data)
                if at == "data":
                    call.abort()

            def eof(self):
                super().eof()
                if at == "eof":
                    call.abort()

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = Aborting()
            call = dialer.send(request(), b"", record)
            await eventually(lambda: at in record.events)
            await asyncio.sleep(0.02)
            assert record.events[-1] == at

    run(scenario)


def test_sink_that_raises_costs_only_its_own_connection(run):
    async def scenario():
        async def upstream(reader, writer, _):
            while True:
                await read_request(reader)
                writer.write(OK)

        class Broken(Record):
            def data(self, data):
                raise KeyError("broken sink")

        async with scripted(upstream) as port, dialing(port) as dialer:
            noticed = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: noticed.append(context.get("exception")))
            broken = Broken()
            dialer.send(request(), b"", broken)
            await eventually(lambda: bool(noticed))
            assert broken.events == ["head"]
            assert (await fetch(dialer)).body == b"ok"

    run(scenario)


@pytest.mark.parametrize("started", [False, True])
def test_upstream_death_reaches_the_client(run, started):
    """Before the head: a 502 of the relay's. After it: a response that is visibly incomplete."""

    async def scenario():
        async def upstream(reader, writer, _):
            await read_request(reader)
            if started:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")

        async with relaying(upstream) as listener, raw_client(listener.port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            seen = await client.rest()
            if started:
                assert seen.endswith(b"\r\n\r\n3\r\nabc\r\n")
            else:
                assert seen.startswith(b"HTTP/1.1 502 ")

    run(scenario)
