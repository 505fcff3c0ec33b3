"""Fields that belong to one connection stay on it; everything else passes unchanged, in order and in case."""

from __future__ import annotations

import pytest

from headway.gateway.transport.framing import HOP_BY_HOP, end_to_end, mirrored
from headway.gateway.transport.interface import ResponseHead
from tests.gateway.transport.peers import raw_client, read_request, relaying


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_dropped_in_any_case(name):
    for spelling in (name, name.upper(), name.title()):
        assert end_to_end([(b"A", b"1"), (spelling, b"x"), (b"B", b"2")]) == [(b"A", b"1"), (b"B", b"2")]


def test_fields_named_by_connection_are_dropped():
    headers = [
        (b"X-Private", b"1"),
        (b"connection", b"keep-alive, X-Private"),
        (b"X-Kept", b"2"),
        (b"Connection", b" x-ALSO ,"),
        (b"X-Also", b"3"),
    ]
    assert end_to_end(headers) == [(b"X-Kept", b"2")]


def test_the_rest_keeps_order_case_and_repetition():
    headers = [(b"Set-Cookie", b"a"), (b"x-b", b""), (b"SET-cookie", b"b"), (b"Authorization", b"Bearer s")]
    assert end_to_end(headers) == headers


def test_mirrored_keeps_the_framing():
    for headers, expected in [
        ([(b"Content-Length", b"3")], [(b"Content-Length", b"3")]),
        (
            [(b"transfer-encoding", b"chunked"), (b"A", b"1")],
            [(b"A", b"1"), (b"Transfer-Encoding", b"chunked")],
        ),
        ([(b"Connection", b"close")], []),
    ]:
        head = mirrored(ResponseHead(200, b"OK", headers))
        assert (head.status, head.reason, list(head.headers)) == (200, b"OK", expected)


def test_through_the_wire(run):
    """Only the named framing fields differ between what one side sent and the other received."""

    async def scenario():
        seen = []

        async def upstream(reader, writer, _):
            seen.append(await read_request(reader))
            writer.write(
                b"HTTP/1.1 200 Fine\r\nserver: uvicorn\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
                b"Keep-Alive: timeout=5\r\nx-Request-ID: 7\r\nDate: now\r\ncontent-length: 2\r\n\r\nok"
            )
            await reader.read()

        async with relaying(upstream) as listener, raw_client(listener.port) as client:
            client.send(
                b"POST /p HTTP/1.1\r\nhost: A\r\nConnection: keep-alive, x-mine\r\n"
                b"X-Mine: 1\r\nTE: trailers\r\n"
                b"Proxy-Connection: x\r\nUpgrade: h2c\r\nAuthorization: Bearer x\r\nX-Case: Kept\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
            )
            head = await client.until(b"\r\n\r\n")
            assert await client.reader.readexactly(2) == b"ok"
            assert head == (b"HTTP/1.1 200 Fine\r\nserver: uvicorn\r\nx-Request-ID: 7\r\nDate: now\r\ncontent-length: 2\r\n\r\n")
            assert seen == [
                (
                    b"POST /p HTTP/1.1\r\nhost: A\r\nAuthorization: Bearer x\r\nX-Case: Kept\r\nContent-Length: 2\r\n\r\n",
                    b"ab",
                )
            ]

    run(scenario)
