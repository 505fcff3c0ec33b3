"""Responses as upstreams send them, and the pool of idle connections behind them."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.transport.interface import LostReason, RequestHead
from tests.gateway.transport.peers import Record, dialing, eventually, fetch, read_request, request, scripted

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answering(*answers: bytes, piece: int | None = None, end: bool = False):
    """Answers the n-th request of a connection with the n-th answer, in pieces of `piece` bytes."""
    seen: list[tuple[int, bytes, bytes]] = []

    async def upstream(reader, writer, number):
        for answer in answers:
            head, body = await read_request(reader)
            seen.append((number, head, body))
            for at in range(0, len(answer), piece or len(answer)):
                writer.write(answer[at : at + (piece or len(answer))])
                await writer.drain()
                if piece:
                    await asyncio.sleep(0)
        if not end:
            await reader.read()

    return upstream, seen


RESPONSES = {
    "content-length": (OK, b"ok"),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
        b"abc",
    ),
    "trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n2\r\nab\r\n0\r\nT: v\r\n\r\n",
        b"ab",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b""),
    "continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
    "hints first": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 P\r\n\r\n" + OK, b"ok"),
}


@pytest.mark.parametrize("piece", [None, 1])
@pytest.mark.parametrize("name", RESPONSES)
def test_response_and_reuse(run, name, piece):
    raw, body = RESPONSES[name]

    async def scenario():
        upstream, seen = answering(raw, OK, piece=piece)
        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer)
            assert record.body == body
            assert record.events[0] == "head"
            assert record.events[-1] == "eof"
            if piece is None:
                assert record.events.count("data") <= 1  # one read, one piece
            assert (await fetch(dialer)).body == b"ok"
            assert [number for number, _, _ in seen] == [0, 0]

    run(scenario)


def test_head_is_passed_raw(run):
    async def scenario():
        raw = (
            b"HTTP/1.1 299 Rather  Odd \xe9\r\nx-B: 1\r\nSet-Cookie: a\r\nX-b:2\r\nset-cookie: b\r\n"
            b"Empty:\r\nContent-length: 0\r\n\r\n"
        )
        upstream, _ = answering(raw, piece=3)
        async with scripted(upstream) as port, dialing(port) as dialer:
            response = (await fetch(dialer)).response
            assert (response.status, response.reason) == (299, b"Rather  Odd \xe9")
            assert list(response.headers) == [
                (b"x-B", b"1"),
                (b"Set-Cookie", b"a"),
                (b"X-b", b"2"),
                (b"set-cookie", b"b"),
                (b"Empty", b""),
                (b"Content-length", b"0"),
            ]

    run(scenario)


def test_request_is_sent_as_given(run):
    async def scenario():
        upstream, seen = answering(OK, OK, OK)
        async with scripted(upstream) as port, dialing(port) as dialer:
            fields = [
                (b"hOst", b"h"),
                (b"Content-Length", b"999"),
                (b"transfer-encoding", b"chunked"),
                (b"A", b"1"),
            ]
            await fetch(dialer, RequestHead(b"POST", b"/p?q=%20", fields), b"body")
            await fetch(dialer, RequestHead(b"GET", b"/g", fields), b"")
            await fetch(dialer, RequestHead(b"POST", b"/e", fields), b"")
            assert [head + body for _, head, body in seen] == [
                b"POST /p?q=%20 HTTP/1.1\r\nhOst: h\r\nA: 1\r\nContent-Length: 4\r\n\r\nbody",
                b"GET /g HTTP/1.1\r\nhOst: h\r\nA: 1\r\n\r\n",
                b"POST /e HTTP/1.1\r\nhOst: h\r\nA: 1\r\nContent-Length: 0\r\n\r\n",
            ]

    run(scenario)


@pytest.mark.parametrize("field", [(b"X", b"a\r\nY: b"), (b"X", b"a\nb"), (b"X\r", b"a")])
def test_request_that_would_split_is_refused(run, field):
    async def scenario():
        async with dialing(9) as dialer:
            with pytest.raises(ValueError, match="line break"):
                dialer.send(request(b"GET", b"/", field), b"", Record())

    run(scenario)


def test_head_request_ignores_the_announced_length(run):
    async def scenario():
        upstream, seen = answering(
            b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            OK,
        )
        async with scripted(upstream) as port, dialing(port) as dialer:
            for _ in range(2):
                assert (await fetch(dialer, request(b"HEAD"), b"")).events == ["head", "eof"]
            assert (await fetch(dialer)).body == b"ok"
            assert [number for number, _, _ in seen] == [0, 0, 0]

    run(scenario)


@pytest.mark.parametrize("raw", [b"HTTP/1.1 200 OK\r\n\r\nabc", b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nabc"])
def test_body_that_ends_with_the_connection(run, raw):
    async def scenario():
        upstream, _ = answering(raw, piece=5, end=True)
        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer)
            assert (record.body, record.events[-1]) == (b"abc", "eof")

    run(scenario)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\n",  # more than was asked for
        OK + b"rubbish",
    ],
)
def test_connection_that_cannot_be_reused_is_closed(run, raw):
    async def scenario():
        upstream, seen = answering(raw, OK)
        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer)
            assert (record.body, record.events[-1]) == (b"ok", "eof")
            assert (await fetch(dialer)).body == b"ok"
            assert [number for number, _, _ in seen] == [0, 1]

    run(scenario)


def test_last_used_is_first_reused(run):
    async def scenario():
        used = []

        async def upstream(reader, writer, number):
            while True:
                _, body = await read_request(reader)
                used.append(number)
                await asyncio.sleep(float(body))
                writer.write(OK)

        async with scripted(upstream) as port, dialing(port) as dialer:
            await asyncio.gather(*(fetch(dialer, body=b"%.2f" % (0.02 * n)) for n in (1, 3, 2)))
            last = used[1]
            await fetch(dialer, body=b"0")
            await fetch(dialer, body=b"0")
            assert used[3:] == [last, last]

    run(scenario)


def test_idle_connection_closed_by_the_upstream_is_forgotten(run):
    async def scenario():
        close = asyncio.Event()
        count = []

        async def upstream(reader, writer, number):
            count.append(number)
            await read_request(reader)
            writer.write(OK)
            await close.wait()

        async with scripted(upstream) as port, dialing(port) as dialer:
            await fetch(dialer)
            assert len(dialer._idle) == 1
            close.set()
            await eventually(lambda: not dialer._idle and not dialer._open)
            assert (await fetch(dialer)).body == b"ok"
            assert count == [0, 1]

    run(scenario)


def test_unsolicited_bytes_on_an_idle_connection_close_it(run):
    async def scenario():
        go = asyncio.Event()

        async def upstream(reader, writer, number):
            await read_request(reader)
            writer.write(OK)
            await go.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await reader.read()

        async with scripted(upstream) as port, dialing(port) as dialer:
            await fetch(dialer)
            go.set()
            await eventually(lambda: not dialer._open)

    run(scenario)


def test_idle_close_after_a_time_and_above_a_number(run):
    async def scenario():
        upstream, _ = answering(OK, OK, OK)
        async with scripted(upstream) as port, dialing(port, max_idle=2, max_idle_s=0.15) as dialer:
            await asyncio.gather(*(fetch(dialer) for _ in range(5)))
            await eventually(lambda: len(dialer._open) == 2)
            await fetch(dialer)
            assert len(dialer._open) == 2
            await eventually(lambda: not dialer._open, 1)

    run(scenario)


def test_paused_call_reads_nothing_and_loses_nothing(run):
    async def scenario():
        total = 8_000_000
        sent = 0

        async def upstream(reader, writer, _):
            nonlocal sent
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
            while sent < total:
                writer.write(b"x" * 100_000)
                sent += 100_000
                await writer.drain()
            await read_request(reader)
            writer.write(OK)
            await reader.read()

        async with scripted(upstream) as port, dialing(port) as dialer:

            class Pausing(Record):
                def data(self, data):
                    super().data(data)
                    if len(self.body) == len(data):
                        call.pause()

            record = Pausing()
            call = dialer.send(request(), b"", record)
            await record.begun.wait()
            await asyncio.sleep(0.1)
            held = len(record.body)
            assert held < 1_000_000
            assert sent < total
            await asyncio.sleep(0.05)
            assert len(record.body) == held
            call.resume()
            await record.over.wait()
            assert len(record.body) == total
            assert (await fetch(dialer)).body == b"ok"

    run(scenario)


def test_paused_before_connected(run):
    async def scenario():
        upstream, _ = answering(OK, OK)
        async with scripted(upstream) as port, dialing(port) as dialer:
            record = Record()
            call = dialer.send(request(), b"", record)
            call.pause()
            await asyncio.sleep(0.05)
            assert record.events == []
            call.resume()
            await record.over.wait()
            assert record.body == b"ok"

    run(scenario)


def test_ended_while_paused_is_reusable(run):
    async def scenario():
        upstream, seen = answering(OK, OK)
        async with scripted(upstream) as port, dialing(port) as dialer:

            class Pausing(Record):
                def head(self, head):
                    super().head(head)
                    call.pause()

            record = Pausing()
            call = dialer.send(request(), b"", record)
            await record.over.wait()
            assert (await fetch(dialer)).body == b"ok"
            assert [number for number, _, _ in seen] == [0, 0]

    run(scenario)


def test_early_answer_to_a_large_body(run):
    """An upstream that answers without reading: the answer counts, the connection is not used again."""

    async def scenario():
        count = []

        async def upstream(reader, writer, number):
            count.append(number)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            await asyncio.sleep(0.2)

        async with scripted(upstream) as port, dialing(port) as dialer:
            record = await fetch(dialer, body=b"x" * 20_000_000)
            assert (record.response.status, record.body) == (413, b"no")
            assert not dialer._idle

    run(scenario)


def test_close_ends_calls_and_connections(run):
    async def scenario():
        upstream, _ = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
        async with scripted(upstream) as port, dialing(port) as dialer:
            running = Record()
            dialer.send(request(), b"", running)
            await running.begun.wait()
            connecting = Record()
            dialer.send(request(), b"", connecting)
            await dialer.close()
            late = await fetch(dialer)
            for record in (running, connecting, late):
                assert record.events[-1] == "lost"
                assert record.error.reason is LostReason.CLOSED
            assert not dialer._open

    run(scenario)
