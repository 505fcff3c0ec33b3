"""Any body, framed and cut in any way, through listener, relay and dialer, comes out byte for byte.

The peers share nothing with the transport: h11 reads and writes both ends.
"""

from __future__ import annotations

import asyncio

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.transport.peers import raw_client, relaying

bodies = st.one_of(st.binary(max_size=300), st.binary(min_size=1, max_size=40).map(lambda seed: seed * 3000))
cuts = st.lists(st.integers(1, 5000), max_size=12)
token = st.text("abcXYZ019-_", min_size=1, max_size=12).map(lambda text: ("x-" + text).encode())
value = st.text("abc XYZ=;,\"'/%", max_size=30).map(lambda text: text.strip().encode())
fields = st.lists(st.tuples(token, value), max_size=6)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in [*pieces, data] if piece]


async def h11_message(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[object, bytes]:
    head, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return head, body
        elif isinstance(event, h11.InformationalResponse):
            continue
        else:
            assert not isinstance(event, h11.ConnectionClosed), "closed before a message"
            head = event


def write_message(connection, head, body, sizes, wire_sizes):
    raw = connection.send(head)
    for piece in cut(body, sizes):
        raw += connection.send(h11.Data(piece))
    raw += connection.send(h11.EndOfMessage())
    return cut(raw, wire_sizes)


def framing(kind: str, body: bytes) -> list[tuple[bytes, bytes]]:
    if kind == "length":
        return [(b"Content-Length", str(len(body)).encode())]
    return [(b"Transfer-Encoding", b"chunked")] if kind == "chunked" else []


def custom(headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers.raw_items() if name.startswith(b"x-")]


message = st.tuples(fields, bodies, cuts, cuts)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    exchanges=st.lists(
        st.tuples(
            message,
            st.sampled_from(["length", "chunked"]),
            message,
            st.sampled_from(["length", "chunked", "close"]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_round_trip(run, exchanges):
    async def scenario():
        script = iter(exchanges)
        received = []

        async def upstream(reader, writer, _):
            connection = h11.Connection(h11.SERVER)
            while True:
                head, body = await h11_message(connection, reader)
                received.append((head.method, head.target, custom(head.headers), body))
                _, _, (headers, answer, sizes, wire_sizes), kind = next(script)
                response = h11.Response(status_code=200, reason=b"OK", headers=headers + framing(kind, answer))
                if kind == "close":  # h11 would make it chunked
                    raw = b"".join(b"%b: %b\r\n" % field for field in headers)
                    pieces = cut(b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (raw, answer), wire_sizes)
                else:
                    pieces = write_message(connection, response, answer, sizes, wire_sizes)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if kind == "close":
                    return
                connection.start_next_cycle()

        async with relaying(upstream) as listener:
            for number, (sent, kind, answered, answer_kind) in enumerate(exchanges):
                headers, body, sizes, wire_sizes = sent
                async with raw_client(listener.port) as client:
                    connection = h11.Connection(h11.CLIENT)
                    target = b"/%d?q=%%20" % number
                    request = h11.Request(
                        method="POST",
                        target=target,
                        headers=[(b"Host", b"a"), *headers, *framing(kind, body)],
                    )
                    for piece in write_message(connection, request, body, sizes, wire_sizes):
                        client.send(piece)
                        await asyncio.sleep(0)
                    head, answer = await h11_message(connection, client.reader)
                    assert received[number] == (b"POST", target, headers, body)
                    assert (head.status_code, bytes(head.reason)) == (200, b"OK")
                    assert custom(head.headers) == answered[0]
                    assert answer == answered[1]
                    names = {bytes(name).lower() for name, _ in head.headers}
                    assert (b"content-length" in names) == (answer_kind == "length")
                    assert (b"transfer-encoding" in names) == (answer_kind == "chunked")

    run(scenario)


@pytest.mark.parametrize("seed", [b"\r\n", b"0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"\0\xff"])
def test_bodies_that_look_like_framing(run, seed):
    body = seed * 50_000

    async def scenario():
        async def upstream(reader, writer, _):
            connection = h11.Connection(h11.SERVER)
            while True:
                _, got = await h11_message(connection, reader)
                response = h11.Response(status_code=200, headers=framing("chunked", got))
                for piece in write_message(connection, response, got, [1, 2, 3], [1] * 300):
                    writer.write(piece)
                connection.start_next_cycle()

        async with relaying(upstream) as listener, raw_client(listener.port) as client:
            for kind in ("length", "chunked"):
                connection = h11.Connection(h11.CLIENT)
                request = h11.Request(method="POST", target=b"/", headers=[(b"Host", b"a"), *framing(kind, body)])
                for piece in write_message(connection, request, body, [1, 2, 3], [1] * 300):
                    client.send(piece)
                _, answer = await h11_message(connection, client.reader)
                assert answer == body

    run(scenario)
