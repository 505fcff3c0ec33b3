"""Must: a held client is kept waiting by the wall clock, then has its answer byte for byte, or an error that it understands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anthropic
import openai
import pytest

from headway.gateway.server import Gateway
from tests.gateway.support import (
    ManualClock,
    Message,
    chat,
    close,
    engine,
    gateway,
    idle,
    metric,
    now,
    post,
    raw_request,
    read_message,
    run,
    scripted,
    teach,
    text,
    until,
)

SIX_MINUTES = 360.0
COMMENT = b": headway\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
BODIES = {
    "/v1/chat/completions": chat("hi", stream=True, max_tokens=3),
    "/v1/completions": {"model": "m", "prompt": "hi", "stream": True, "max_tokens": 3},
    "/v1/responses": {"model": "m", "input": "hi", "stream": True, "max_output_tokens": 3},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 3},
}


class Hold:
    """A gateway under `serialize` whose one place is taken until `free`."""

    def __init__(self, served: Gateway, clock: ManualClock) -> None:
        self.served, self.clock = served, clock

    async def block(self) -> None:
        body = chat("block", stream=True, max_tokens=30_000)
        self._blocker = asyncio.ensure_future(post(self.served.front.port, "/v1/chat/completions", body))
        await until(lambda: now(self.served)["in_engine"] == 1, what="the blocker")

    async def waiting(self) -> None:
        await until(lambda: now(self.served)["queued"] == 1, what="the held request")

    async def pass_time(self, seconds: float) -> None:
        """A beat at a time, so that the client reads each."""
        for _ in range(int(seconds // 15)):
            self.clock.advance(15)
            await asyncio.sleep(0)

    async def free(self) -> None:
        self._blocker.cancel()
        await asyncio.gather(self._blocker, return_exceptions=True)


@asynccontextmanager
async def holding(url: str, **options: object) -> AsyncIterator[Hold]:
    clock = ManualClock()
    async with gateway(url, "serialize", clock, **{"wait": 100.0, **options}) as served:
        hold = Hold(served, clock)
        await hold.block()
        try:
            yield hold
        finally:
            await hold.free()
            await until(lambda: idle(served))
            assert clock.pending == 0, "a timer outlived its request"


async def ask(port: int, path: str, body: object, headers: list[tuple[str, str]] | None = None) -> Message:
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw_request("POST", path, data, [("Content-Type", "application/json"), *(headers or [])]))
        return await read_message(reader)
    finally:
        await close(writer)


@pytest.mark.parametrize("path", BODIES)
def test_six_minutes_held_then_the_bytes_of_the_engine(path: str) -> None:
    body = BODIES[path]

    async def main() -> None:
        async with engine() as server, holding(server.url) as hold:
            direct = await ask(server.port, path, body, [("X-Request-Id", "1")])
            held = asyncio.ensure_future(ask(hold.served.front.port, path, body, [("X-Request-Id", "1")]))
            await hold.waiting()
            await hold.pass_time(SIX_MINUTES)
            await hold.free()
            got = await held
            beats = (PING if path == "/v1/messages" else COMMENT) * 24
            assert got.complete and got.status == 200 and got.body.startswith(beats)
            kept = ("created", "created_at", "item_id")  # what differs between two runs of the engine itself
            assert strip(got.body[len(beats) :], kept) == strip(direct.body, kept)
            assert got.get(b"content-type") == direct.get(b"content-type")
            assert got.get(b"x-request-id") == b"1"
            assert metric(hold.served, "headway_keepalives_total") == 24

    run(main())


def strip(body: bytes, names: tuple[str, ...]) -> list[object]:
    def clean(value: object) -> object:
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items() if key not in names}
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    lines = body.split(b"\n")
    return [clean(json.loads(line[6:])) if line.startswith(b"data: {") else line for line in lines]


def test_held_for_less_the_upstreams_own_head_arrives() -> None:
    async def main() -> None:
        async with engine() as server, holding(server.url) as hold:
            held = asyncio.ensure_future(ask(hold.served.front.port, "/v1/chat/completions", chat("hi", model="other")))
            await hold.waiting()
            hold.clock.advance(14)
            await hold.free()
            got = await held
            assert got.status == 404 and got.body and COMMENT not in got.body

    run(main())


def test_sent_on_at_once_nothing_is_touched() -> None:
    """However long the engine is silent: what was not held is the engine's own answer to the last byte."""

    async def answer(request: Message, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: 1\n\n")

    release = asyncio.Event()

    async def main() -> None:
        clock = ManualClock()
        async with scripted(answer) as (upstream, url), gateway(url, "serialize", clock) as served:
            asked = asyncio.ensure_future(ask(served.front.port, "/v1/chat/completions", chat("hi", stream=True)))
            await until(lambda: len(upstream.requests) == 1)
            assert clock.pending == 0
            clock.advance(SIX_MINUTES)
            release.set()
            assert (await asked).body == b"data: 1\n\n"

    run(main())


def test_errors_after_the_early_head() -> None:
    async def main() -> None:
        async with engine() as server, holding(server.url) as hold:
            port = hold.served.front.port
            for path, body in BODIES.items():
                held = asyncio.ensure_future(ask(port, path, {**body, "model": "other"}))
                await hold.waiting()
                hold.clock.advance(15)
                await hold.free()
                got = await held
                await until(lambda: idle(hold.served))
                hold._blocker = asyncio.ensure_future(
                    post(port, "/v1/chat/completions", chat("b", stream=True, max_tokens=30_000))
                )
                await until(lambda: now(hold.served)["in_engine"] == 1)
                assert got.complete and got.status == 200 and b"other" in got.body and b"error" in got.body
            assert metric(hold.served, "headway_late_errors_total") == len(BODIES)

    run(main())


def test_our_own_errors_after_the_early_head() -> None:
    async def main() -> None:
        async with engine() as server, holding(server.url, wait=0.4) as hold:
            held = asyncio.ensure_future(ask(hold.served.front.port, "/v1/messages", BODIES["/v1/messages"]))
            await hold.waiting()
            hold.clock.advance(15)
            got = await held  # --wait has passed, by the event loop's clock
            assert got.status == 200 and got.body.startswith(PING + b"event: error\n") and b"--wait" in got.body
            assert metric(hold.served, 'headway_requests_total{outcome="wait_expired"}') == 1
            held = asyncio.ensure_future(ask(hold.served.front.port, "/v1/chat/completions", chat("hi", stream=True)))
            await hold.waiting()
            hold.clock.advance(15)
            await server.kill()
            got = await held
            assert got.complete and b'"api_error"' in got.body and got.body.endswith(b"data: [DONE]\n\n")
            assert metric(hold.served, 'headway_requests_total{outcome="upstream_lost"}') == 2

    run(main())


def test_leaving_while_kept_waiting() -> None:
    async def main() -> None:
        async with engine() as server, holding(server.url) as hold:
            reader, writer = await asyncio.open_connection("127.0.0.1", hold.served.front.port)
            writer.write(raw_request("POST", "/v1/chat/completions", json.dumps(chat("hi", stream=True)).encode()))
            await hold.waiting()
            hold.clock.advance(15)
            assert b"200 OK" in await reader.readuntil(COMMENT)
            await close(writer)
            await until(lambda: now(hold.served)["queued"] == 0, 1.0)
            assert hold.clock.pending == 0

    run(main())


def test_an_old_client_and_a_browser() -> None:
    async def main() -> None:
        async with engine() as server, holding(server.url) as hold:
            reader, writer = await asyncio.open_connection("127.0.0.1", hold.served.front.port)
            data = json.dumps(chat("hi", stream=True)).encode()
            head = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(data)
            writer.write(head + data)
            await hold.waiting()
            hold.clock.advance(15)
            got = await reader.readuntil(COMMENT)
            assert b"chunked" not in got
            await close(writer)
            await until(lambda: now(hold.served)["queued"] == 0)
            # A page of an origin whose answers were not seen yet: it could not read an early head.
            origin = [("Origin", "http://page.test")]
            asked = asyncio.ensure_future(ask(hold.served.front.port, "/v1/chat/completions", chat("hi", stream=True), origin))
            await hold.waiting()
            assert hold.clock.pending == 0
            asked.cancel()

    run(main())


def test_pieces_are_no_reason_to_be_silent() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with engine() as server, gateway(server.url, "pace", clock, gap=0.03) as served:
            teach(served)
            body = chat(text(20_000), stream=True, max_tokens=3)
            asked = asyncio.ensure_future(ask(served.front.port, "/v1/chat/completions", body))
            await until(lambda: metric(served, "headway_pieces_total") >= 2)
            clock.advance(45)
            got = await asked
            assert got.status == 200 and got.body.startswith(COMMENT * 3 + b"data: ") and got.body.endswith(b"[DONE]\n\n")
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


# -- clients ---------------------------------------------------------------------------------------------

Use = Callable[[str, Hold], Awaitable[None]]


def held_client(use: Use, **options: object) -> None:
    async def main() -> None:
        async with engine() as server, holding(server.url, **options) as hold:
            await use(hold.served.url, hold)

    run(main())


async def six_minutes(hold: Hold) -> None:
    await hold.waiting()
    await hold.pass_time(SIX_MINUTES)
    await hold.free()


def test_openai_python() -> None:
    async def use(url: str, hold: Hold) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            waiting = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=messages, max_tokens=3, stream=True)
            )  # type: ignore
            await six_minutes(hold)
            parts = [event.choices[0].delta.content or "" async for event in await waiting]
            assert len("".join(parts)) == 12

    held_client(use)


def test_openai_python_responses() -> None:
    async def use(url: str, hold: Hold) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            waiting = asyncio.ensure_future(client.responses.create(model="m", input="hi", max_output_tokens=3, stream=True))
            await six_minutes(hold)
            kinds = [event.type async for event in await waiting]
            assert kinds.count("response.output_text.delta") == 3 and kinds[-1] == "response.incomplete"

    held_client(use)


def test_openai_python_without_a_stream() -> None:
    async def use(url: str, hold: Hold) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            waiting = asyncio.ensure_future(client.chat.completions.create(model="m", messages=messages, max_tokens=3))  # type: ignore
            await six_minutes(hold)
            assert len((await waiting).choices[0].message.content) == 12

    held_client(use, keepalive_json=True)


@pytest.mark.parametrize("responses", [False, True])
def test_openai_python_is_told_of_an_error(responses: bool) -> None:
    async def use(url: str, hold: Hold) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            waiting = asyncio.ensure_future(
                client.responses.create(model="other", input="hi", stream=True)
                if responses
                else client.chat.completions.create(model="other", messages=messages, stream=True)  # type: ignore
            )
            await six_minutes(hold)
            with pytest.raises(openai.APIError) as error:
                async for _ in await waiting:
                    pass
            assert "other" in error.value.message

    held_client(use)


def test_anthropic_python() -> None:
    async def use(url: str, hold: Hold) -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:

            async def text_of(model: str) -> str:
                messages = [{"role": "user", "content": "hi"}]
                async with client.messages.stream(model=model, messages=messages, max_tokens=3) as stream:  # type: ignore
                    return await stream.get_final_text()

            waiting = asyncio.ensure_future(text_of("m"))
            await six_minutes(hold)
            assert len(await waiting) == 12

    held_client(use)


def test_anthropic_python_is_told_of_an_error() -> None:
    async def use(url: str, hold: Hold) -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            messages = [{"role": "user", "content": "hi"}]
            waiting = asyncio.ensure_future(
                client.messages.create(model="other", messages=messages, max_tokens=3, stream=True)  # type: ignore
            )
            await six_minutes(hold)
            with pytest.raises(anthropic.APIError) as error:
                async for _ in await waiting:
                    pass
            assert "other" in str(error.value)

    held_client(use)
