"""The response leaves framed as its head says; a broken promise never looks complete."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.transport.interface import ResponseHead
from tests.gateway.transport.peers import eventually, listening, raw_client

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = (b"Transfer-Encoding", b"chunked")


def responder(status, headers, *pieces, end="eof"):
    async def handler(down):
        await down.body()
        down.head(ResponseHead(status, b"Reason", headers))
        for piece in pieces:
            down.data(piece)
        getattr(down, end)()

    return handler


def wire(handler, raw=GET):
    """What a client sees from the status line to the end of the connection, or to the end of a pause."""
    seen = bytearray()
    ends = []

    async def scenario():
        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(raw)
            try:
                async with asyncio.timeout(0.1):
                    while True:
                        data = await client.reader.read(65536)
                        if not data:
                            ends.append("eof")
                            return
                        seen.extend(data)
            except TimeoutError:
                ends.append("open")
            except ConnectionResetError:
                ends.append("reset")

    return scenario, seen, ends


def check(run, handler, expected_wire, expected_end, raw=GET):
    scenario, seen, ends = wire(handler, raw)
    run(scenario)
    assert (bytes(seen), ends) == (expected_wire, [expected_end])


def test_content_length(run):
    check(
        run,
        responder(200, [(b"x-a", b"1"), (b"content-LENGTH", b"4"), (b"X-A", b"2")], b"ab", b"cd"),
        b"HTTP/1.1 200 Reason\r\nx-a: 1\r\ncontent-LENGTH: 4\r\nX-A: 2\r\n\r\nabcd",
        "open",
    )


def test_chunked_one_chunk_a_call(run):
    check(
        run,
        responder(200, [CHUNKED], b"ab", b"c" * 16),
        b"HTTP/1.1 200 Reason\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n10\r\n" + b"c" * 16 + b"\r\n0\r\n\r\n",
        "open",
    )


def test_neither_ends_with_the_connection(run):
    check(run, responder(200, [], b"ab"), b"HTTP/1.1 200 Reason\r\nConnection: close\r\n\r\nab", "eof")


def test_chunked_for_an_old_client_ends_with_the_connection(run):
    raw = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    check(
        run,
        responder(200, [CHUNKED], b"ab"),
        b"HTTP/1.1 200 Reason\r\nConnection: close\r\n\r\nab",
        "eof",
        raw,
    )


@pytest.mark.parametrize("headers", [[(b"Content-Length", b"4")], [CHUNKED]])
def test_head_has_no_body(run, headers):
    raw = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
    field = b"%b: %b\r\n" % headers[0]
    check(run, responder(200, headers, b"abcd"), b"HTTP/1.1 200 Reason\r\n" + field + b"\r\n", "open", raw)


def test_no_content_has_no_body_and_no_framing(run):
    for headers in ([(b"Content-Length", b"4")], [CHUNKED], []):
        check(run, responder(204, headers, b"abcd"), b"HTTP/1.1 204 Reason\r\n\r\n", "open")


def test_not_modified_has_no_body(run):
    check(
        run,
        responder(304, [(b"Content-Length", b"4")]),
        b"HTTP/1.1 304 Reason\r\nContent-Length: 4\r\n\r\n",
        "open",
    )


def test_upstream_connection_close_is_the_handlers_to_pass(run):
    check(
        run,
        responder(200, [(b"Connection", b"close"), (b"Content-Length", b"0")]),
        b"HTTP/1.1 200 Reason\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "eof",
    )


def test_abort_of_a_chunked_response_has_no_last_chunk(run):
    check(
        run,
        responder(200, [CHUNKED], b"ab", end="abort"),
        b"HTTP/1.1 200 Reason\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        "eof",
    )


def test_abort_of_a_response_that_ends_with_the_connection_is_a_reset(run):
    """An orderly end would make half an answer look whole."""
    scenario, _, ends = wire(responder(200, [], b"ab", end="abort"))
    run(scenario)
    assert ends == ["reset"]


def test_abort_before_the_head(run):
    async def handler(down):
        down.abort()

    check(run, handler, b"", "eof")


def test_shorter_than_promised(run, caplog):
    check(
        run,
        responder(200, [(b"Content-Length", b"4")], b"ab"),
        b"HTTP/1.1 200 Reason\r\nContent-Length: 4\r\n\r\nab",
        "eof",
    )
    assert "shorter than its Content-Length" in caplog.text


def test_longer_than_promised(run, caplog):
    scenario, seen, ends = wire(responder(200, [(b"Content-Length", b"4")], b"ab", b"cdefg", b"h"))
    run(scenario)
    assert seen.endswith(b"\r\n\r\nab")
    assert ends == ["eof"]
    assert "longer than its Content-Length" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        [(b"X", b"a\r\nSet-Cookie: b")],
        [(b"X", b"a\nb")],
        [(b"X\r\n", b"a")],
        [(b"Content-Length", b"-1")],
        [(b"Content-Length", b"1"), (b"Content-Length", b"1")],
    ],
)
def test_head_that_cannot_be_sent(run, headers, caplog):
    check(run, responder(200, headers, b"a"), b"", "eof")
    assert len(caplog.records) == 1
    assert "cannot be sent" in caplog.text or "line break" in caplog.text


def test_handler_that_raises(run, caplog):
    async def handler(down):
        down.head(ResponseHead(200, b"OK", [CHUNKED]))
        raise KeyError("boom")

    check(run, handler, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "eof")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "boom" in caplog.text


def test_handler_that_forgets_to_end(run, caplog):
    async def handler(down):
        down.head(ResponseHead(200, b"OK", [CHUNKED]))

    check(run, handler, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "eof")
    assert caplog.text.count("without ending") == 1


def test_head_leaves_at_once_without_body_bytes(run):
    async def scenario():
        async def handler(down):
            down.head(ResponseHead(200, b"OK", [CHUNKED]))
            await asyncio.sleep(60)

        async with listening(handler) as listener, raw_client(listener.port) as client:
            client.send(GET)
            assert await asyncio.wait_for(client.until(b"\r\n\r\n"), 1)
            client.close()
            await eventually(lambda: listener.live == 0)

    run(scenario)
