"""Must: a client that sends the same again, its own limit having passed, does not multiply its load and keeps its place."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import openai
import pytest

from headway.core.resends import REMEMBERED, REMEMBERED_S, Mode, Places
from headway.gateway.resends import is_marked
from headway.gateway.server import Gateway
from headway.gateway.transport.interface import RequestHead
from tests.gateway.support import (
    Hangup,
    ManualClock,
    Message,
    chat,
    close,
    engine,
    gateway,
    idle,
    metric,
    now,
    raw_request,
    read_message,
    run,
    scripted,
    teach,
    text,
    until,
)

AGAIN = [("X-Stainless-Retry-Count", "1")]
PATH = "/v1/chat/completions"


class Sent:
    """A request on a connection of its own, which its client may leave."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, served: Gateway, body: Any, headers: list[tuple[str, str]] | None = None, path: str = PATH) -> Sent:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.front.port)
        writer.write(raw_request("POST", path, json.dumps(body).encode(), headers or []))
        return cls(reader, writer)

    async def answer(self) -> Message:
        try:
            return await asyncio.wait_for(read_message(self.reader), 15)
        finally:
            await close(self.writer)

    def leave(self) -> None:
        self.writer.transport.abort()


def arrivals(served: Gateway) -> list[float]:
    return sorted(entry.arrived for entry in served.upstream.controller.entries.values())


def test_what_says_that_it_is_a_resend() -> None:
    def head(*fields: tuple[bytes, bytes]) -> RequestHead:
        return RequestHead(b"POST", b"/", fields)

    first = head((b"Idempotency-Key", b"a"))
    assert is_marked(head((b"idempotency-key", b"a")), first)
    assert not is_marked(head((b"idempotency-key", b"b"), (b"x-stainless-retry-count", b"1")), first)
    assert is_marked(head((b"x-stainless-retry-count", b"2")), head())
    for tries in (b"0", b"", b"-1", b"x", b"\xb2"):
        assert not is_marked(head((b"x-stainless-retry-count", tries)), head())
    assert not is_marked(head(), head())


def test_places_are_kept_for_a_while_and_given_once() -> None:
    places = Places()
    places.leave(100.0, 1, 40.0)
    assert places.inherit(100.0 + REMEMBERED_S, 1) == 40.0 and places.inherit(101.0, 1) is None
    places.leave(100.0, 1, 40.0)
    assert places.inherit(100.1 + REMEMBERED_S, 1) is None and places.inherit(0.0, 2) is None
    for key in range(REMEMBERED + 10):
        places.leave(0.0, key, 0.0)
    assert len(places) == REMEMBERED


@pytest.mark.parametrize("mode", [Mode.MARKED, Mode.REPLACE, Mode.JOIN])
def test_a_client_that_gives_up_and_comes_back_keeps_its_place(mode: Mode) -> None:
    """The usual case: its limit passes, it closes the connection, and asks again. Another of its requests came in between."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize", resends=mode) as served:
            block = await Sent.of(served, chat("block", stream=True, max_tokens=30_000))
            await until(lambda: now(served)["in_engine"] == 1)
            first = await Sent.of(served, chat("the first", max_tokens=2))
            await until(lambda: now(served)["queued"] == 1)
            arrived = arrivals(served)[-1]
            between = await Sent.of(served, chat("another", max_tokens=300))
            await until(lambda: now(served)["queued"] == 2)
            first.leave()
            await until(lambda: now(served)["queued"] == 1)
            again = await Sent.of(served, chat("the first", max_tokens=2), AGAIN)
            await until(lambda: now(served)["queued"] == 2)
            assert arrivals(served)[1] == arrived, "it has the place of the first"
            block.leave()
            got = await again.answer()
            assert got.status == 200 and now(served)["requests"] >= 1, "it went before the one that came between"
            between.leave()
            await until(lambda: idle(served))

    run(main())


def test_pieces_are_inherited() -> None:
    """A client with a limit shorter than its prompt's prefill: its tries add up, nothing is prefilled twice."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, gap=0.03) as served:
            teach(served)
            victim = await Sent.of(served, chat("hello", stream=True, max_tokens=5000))
            await until(lambda: now(served)["live"] == 1)
            body = chat(text(12_000), max_tokens=2)
            tries = 0
            while True:
                tries += 1
                sent = await Sent.of(served, body, AGAIN if tries > 1 else [])
                try:
                    got = await asyncio.wait_for(read_message(sent.reader), 0.8)
                    break
                except TimeoutError:
                    sent.leave()
                    await until(lambda: now(served)["requests"] == 1)
            assert got.status == 200 and tries >= 2, tries
            tokens = metric(served, "headway_piece_tokens_total")
            assert tokens <= 12_500 + tries * 600, (tokens, tries)  # a piece under way when its client leaves is lost
            victim.leave()
            await until(lambda: idle(served))

    run(main())


def test_a_marked_resend_replaces_the_first() -> None:
    """Its connection is still open: behind a proxy that does not close it, or from a machine that vanished."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize") as served:
            block = await Sent.of(served, chat("block", stream=True, max_tokens=30_000))
            await until(lambda: now(served)["in_engine"] == 1)
            first = await Sent.of(served, chat("x", max_tokens=2))
            await until(lambda: now(served)["queued"] == 1)
            arrived = arrivals(served)[-1]
            await asyncio.sleep(0.05)
            again = await Sent.of(served, chat("x", max_tokens=2), AGAIN)
            told = await first.answer()
            assert told.status == 409 and "--resends" in told.json["error"]["message"]
            assert told.get(b"x-headway-outcome") == b"replaced"
            await until(lambda: now(served)["queued"] == 1)
            assert arrivals(served)[-1] == arrived
            block.leave()
            assert (await again.answer()).status == 200
            assert metric(served, 'headway_requests_total{outcome="replaced"}') == 1
            await until(lambda: idle(served))

    run(main())


def test_replaced_while_it_answers_or_is_kept_waiting() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with engine() as server, gateway(server.url, "serialize", clock) as served:
            first = await Sent.of(served, chat("x", stream=True, max_tokens=30_000))
            await first.reader.readuntil(b"data: ")
            again = await Sent.of(served, chat("x", stream=True, max_tokens=30_000), AGAIN)
            broken = await asyncio.wait_for(first.reader.read(), 5)
            assert not broken.endswith(b"0\r\n\r\n"), "it must not look like a whole answer"
            await close(first.writer)
            await until(lambda: now(served)["in_engine"] == 1)
            held = await Sent.of(served, chat("y", stream=True))
            await until(lambda: now(served)["queued"] == 1)
            clock.advance(15)
            over = await Sent.of(served, chat("y", stream=True), AGAIN)
            told = await held.answer()
            assert told.status == 200 and b"--resends" in told.body and told.body.endswith(b"[DONE]\n\n")
            for sent in (again, over):
                sent.leave()
            await until(lambda: idle(served))
            assert clock.pending == 0

    run(main())


def test_equal_requests_that_do_not_say_so_are_two() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url) as served:
            sent = [await Sent.of(served, chat("sample me", max_tokens=20)) for _ in range(4)]
            assert [(await one.answer()).status for one in sent] == [200] * 4
            assert metric(served, 'headway_requests_total{outcome="passed"}') == 4

    run(main())


def test_whose_request_it_is() -> None:
    """Another key, another path or another body is another request."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize", resends=Mode.REPLACE) as served:
            block = await Sent.of(served, chat("block", stream=True, max_tokens=30_000))
            await until(lambda: now(served)["in_engine"] == 1)
            sent = [
                await Sent.of(served, chat("x", max_tokens=2), [("Authorization", "Bearer a")]),
                await Sent.of(served, chat("x", max_tokens=2), [("Authorization", "Bearer b")]),
                await Sent.of(served, chat("x", max_tokens=3), [("Authorization", "Bearer a")]),
                await Sent.of(served, chat("x", max_tokens=2), [("Authorization", "Bearer a")], PATH + "?a=1"),
            ]
            await until(lambda: now(served)["queued"] == 4)
            twin = await Sent.of(served, chat("x", max_tokens=2), [("Authorization", "Bearer a")])
            assert (await sent[0].answer()).status == 409
            block.leave()
            assert [(await one.answer()).status for one in (*sent[1:], twin)] == [200] * 4
            await until(lambda: idle(served))

    run(main())


def test_off() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize", resends=Mode.OFF) as served:
            block = await Sent.of(served, chat("block", stream=True, max_tokens=30_000))
            await until(lambda: now(served)["in_engine"] == 1)
            sent = [await Sent.of(served, chat("x", max_tokens=2), AGAIN) for _ in range(3)]
            await until(lambda: now(served)["queued"] == 3)
            block.leave()
            assert [(await one.answer()).status for one in sent] == [200] * 3

    run(main())


# -- join ------------------------------------------------------------------------------------------------


def joining(main: Any) -> None:
    async def whole() -> None:
        clock = ManualClock()
        async with engine() as server, gateway(server.url, "serialize", clock, resends=Mode.JOIN, wait=50.0) as served:
            block = await Sent.of(served, chat("block", stream=True, max_tokens=30_000))
            await until(lambda: now(served)["in_engine"] == 1)
            await main(served, block, clock)
            block.leave()
            await until(lambda: idle(served) and served.front.live == 0)
            assert not served.front._handler._resends._flights and clock.pending == 0  # type: ignore[attr-defined]

    run(whole())


@pytest.mark.parametrize("stream", [True, False])
def test_joined_both_have_the_whole_answer_of_one_request(stream: bool) -> None:
    async def main(served: Gateway, block: Sent, clock: ManualClock) -> None:
        body = chat("x", stream=stream, max_tokens=5)
        first = await Sent.of(served, body)
        await until(lambda: now(served)["queued"] == 1)
        if stream:
            clock.advance(30)  # an early head and two comments are out to the first
        again = await Sent.of(served, body)
        await until(lambda: served.front.live == 3)
        await asyncio.sleep(0.05)
        assert now(served)["queued"] == 1
        block.leave()
        one, two = await asyncio.gather(first.answer(), again.answer())
        assert one.status == two.status == 200 and one.complete and two.complete
        assert one.body.removeprefix(b": headway\n\n" * 2) == two.body
        assert metric(served, 'headway_requests_total{outcome="joined"}') == 1

    joining(main)


def test_the_work_ends_with_the_last_that_wants_it() -> None:
    async def main(served: Gateway, block: Sent, clock: ManualClock) -> None:
        first = await Sent.of(served, chat("x", max_tokens=5))
        await until(lambda: now(served)["queued"] == 1)
        second = await Sent.of(served, chat("x", max_tokens=5))
        third = await Sent.of(served, chat("x", max_tokens=5))
        await until(lambda: served.front.live == 4)
        first.leave()
        second.leave()
        await until(lambda: served.front.live == 2)
        assert now(served)["queued"] == 1, "the third still wants it"
        block.leave()
        assert (await third.answer()).status == 200
        again = await Sent.of(served, chat("z", stream=True, max_tokens=30_000))
        await until(lambda: now(served)["in_engine"] == 1)
        twins = [await Sent.of(served, chat("w", max_tokens=5)) for _ in range(2)]
        await until(lambda: now(served)["queued"] == 1)
        for twin in twins:
            twin.leave()
        await until(lambda: now(served)["queued"] == 0, 1.0)
        again.leave()

    joining(main)


def test_an_answer_that_has_begun_is_not_joined() -> None:
    async def main(served: Gateway, block: Sent, clock: ManualClock) -> None:
        block.leave()
        first = await Sent.of(served, chat("x", stream=True, max_tokens=30_000))
        await first.reader.readuntil(b"data: ")
        again = await Sent.of(served, chat("x", stream=True, max_tokens=30_000))
        await until(lambda: now(served)["queued"] == 1)
        first.leave()
        assert b"200" in await again.reader.readuntil(b"\r\n")
        again.leave()

    joining(main)


def test_a_member_that_does_not_read_holds_back_nobody() -> None:
    size = 24 << 20

    async def script(request: Message, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            writer.write(b"x" * 65536)
            await writer.drain()

    release = asyncio.Event()

    async def main() -> None:
        async with scripted(script) as (upstream, url), gateway(url, resends=Mode.JOIN) as served:
            deaf = await Sent.of(served, chat("x"))
            await until(lambda: len(upstream.requests) == 1)
            hears = await Sent.of(served, chat("x"))
            await until(lambda: served.front.live == 2)
            await asyncio.sleep(0.05)
            release.set()
            got = await hears.answer()
            assert got.complete and len(got.body) == size and len(upstream.requests) == 1
            deaf.leave()
            await until(lambda: idle(served))

    run(main())


@pytest.mark.parametrize("mode", [Mode.MARKED, Mode.REPLACE, Mode.JOIN])
def test_storm(mode: Mode) -> None:
    """Many clients, few bodies, resends and leaving at random: every answer is whole, nothing is left."""

    async def main() -> None:
        dice = random.Random(f"{mode}")
        async with engine() as server, gateway(server.url, gap=0.05, resends=mode) as served:
            teach(served)

            async def one() -> None:
                body = chat(text(dice.choice((10, 2000)), str(dice.randrange(4))), stream=dice.random() < 0.5, max_tokens=3)
                sent = await Sent.of(served, body, AGAIN if dice.random() < 0.5 else [])
                if dice.random() < 0.4:
                    await asyncio.sleep(dice.random() * 0.1)
                    sent.leave()
                    return
                try:
                    got = await sent.answer()
                except Hangup:  # replaced before it began, in the tick in which it was broken off
                    return
                assert got.status in (200, 409)
                assert got.complete or mode is not Mode.JOIN

            await asyncio.gather(*(one() for _ in range(150)))
            await until(lambda: idle(served) and served.front.live == 0, 10)
            assert not served.front._handler._resends._flights  # type: ignore[attr-defined]
            await until(lambda: server.engine.num_running + server.engine.num_waiting == 0)

    run(main(), 60)


def test_openai_client_with_a_limit() -> None:
    """Its limit passes again and again while the engine is taken; it keeps one place and has its answer in the end."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, "serialize", wait=60.0) as served:
            block = await Sent.of(served, chat("block", stream=True, max_tokens=30_000))
            await until(lambda: now(served)["in_engine"] == 1)
            async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=20, timeout=0.3) as client:
                messages = [{"role": "user", "content": "hi"}]
                asked = asyncio.ensure_future(client.chat.completions.create(model="m", messages=messages, max_tokens=2))  # type: ignore
                await until(lambda: now(served)["queued"] == 1)
                arrived = arrivals(served)[-1]
                left = 'headway_requests_total{outcome="client_left"}'
                await until(lambda: metric(served, left) >= 2 and now(served)["queued"] == 1, 15)
                assert now(served)["requests"] == 2 and arrivals(served)[-1] == arrived
                block.leave()
                assert (await asked).choices[0].message.content
            await until(lambda: idle(served))

    run(main())
