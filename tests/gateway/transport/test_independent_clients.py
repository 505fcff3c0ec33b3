"""Whole stacks that others wrote, at both ends: http.client, aiohttp and the openai client."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl

import aiohttp
import openai
from aiohttp import web

from headway.gateway.transport.dialer import HttpDialer
from headway.gateway.transport.interface import LostReason
from tests.gateway.transport.peers import dialing, echo, fetch, listening, scripted
from tests.gateway.transport.relay import relay


class Upstream:
    """aiohttp server: echo, and an OpenAI-like stream."""

    async def __aenter__(self) -> int:
        async def echo_back(request: web.Request) -> web.Response:
            return web.Response(body=await request.read(), headers={"X-Method": request.method})

        async def chat(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for word in ("to", "be", "or"):
                chunk = {
                    "id": "c",
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "m",
                    "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
                }
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                await asyncio.sleep(0.01)
            await response.write(b"data: [DONE]\n\n")
            return response

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_route("*", "/{path:.*}", echo_back)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return self.runner.addresses[0][1]

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()


def test_aiohttp_client_and_server(run):
    async def scenario():
        async with (
            Upstream() as up,
            dialing(up) as dialer,
            listening(relay(dialer), max_body=10_000_000) as listener,
            aiohttp.ClientSession(f"http://127.0.0.1:{listener.port}") as session,
        ):

            async def pieces():
                for n in range(10):
                    yield b"%d" % n * 1000

            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                async with session.request(method, "/x", data=b"body" if method != "GET" else None) as response:
                    assert response.headers["X-Method"] == method
                    assert await response.read() == (b"" if method == "GET" else b"body")
            async with session.post("/x", data=pieces()) as response:
                assert await response.read() == b"".join([piece async for piece in pieces()])
            async with session.post("/x", data=b"z" * 3_000_000, expect100=True) as response:
                assert await response.read() == b"z" * 3_000_000
            async with session.head("/x") as response:
                assert response.status == 200
            many = await asyncio.gather(*(session.post("/x", data=b"%d" % n) for n in range(100)))
            assert [await response.read() for response in many] == [b"%d" % n for n in range(100)]

    run(scenario)


def test_openai_client_streams_unchanged(run):
    async def scenario():
        async with (
            Upstream() as up,
            dialing(up) as dialer,
            listening(relay(dialer)) as listener,
            openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{listener.port}/v1", api_key="k", max_retries=0) as client,
        ):
            stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}], stream=True)
            assert [chunk.choices[0].delta.content async for chunk in stream] == ["to", "be", "or"]

    run(scenario)


def test_http_client_reuses_its_connection(run):
    async def scenario():
        async with listening(echo) as listener:

            def blocking() -> list[bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=5)
                answers = []
                for n in range(3):
                    connection.request("POST", "/x", body=b"%d" % n)
                    answers.append(connection.getresponse().read())
                    connection.request("PUT", "/x", body=iter([b"a", b"b"]), encode_chunked=True)
                    answers.append(connection.getresponse().read())
                connection.close()
                return answers

            assert await asyncio.to_thread(blocking) == [b"0", b"ab", b"1", b"ab", b"2", b"ab"]

    run(scenario)


def test_tls_failure_is_a_connect_failure(run):
    async def scenario():
        async def plain(reader, writer, _):
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with scripted(plain) as port:
            dialer = HttpDialer("127.0.0.1", port, ssl.create_default_context(), 2.0, 8, 4.0)
            record = await fetch(dialer)
            assert record.error.reason is LostReason.CONNECT
            assert "TLS" in record.error.detail
            await dialer.close()

    run(scenario)
