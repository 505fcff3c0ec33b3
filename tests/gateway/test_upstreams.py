"""Several upstreams: each request goes to one, once; what is lost before its first byte goes to another; who is drained ends
what it has.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headway.core.health import Standing
from headway.core.targets import Targets
from headway.errors import UsageError
from headway.gateway.config import Address, Config, parse_upstream, parse_upstreams
from headway.gateway.server import Gateway, start
from headway.lab.vllm import free_port
from tests.gateway.support import (
    FAST,
    Answer,
    Message,
    chat,
    engine,
    exchange,
    metric,
    post,
    raw_request,
    read_stream,
    run,
    scripted,
    session,
    teach,
    text,
    until,
)

ROOT = str(Path(__file__).resolve().parents[2])
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def fleet(*upstreams: str, policy: str = "pace", **options: object) -> AsyncIterator[Gateway]:
    targets = Targets(gap=0.1, **{k: options.pop(k) for k in ("wait", "queue") if k in options})  # type: ignore[arg-type]
    local = Address("127.0.0.1", 0)
    served = await start(Config(parse_upstreams(list(upstreams)), local, local, policy, targets, probe=False, **options))  # type: ignore[arg-type]
    try:
        yield served
    finally:
        await served.close()
        assert not any(upstream.controller.entries for upstream in served.fleet.all)


def teach_all(served: Gateway) -> None:
    for upstream in served.fleet.members:
        teach(served, upstream=upstream)


def sent(served: Gateway) -> list[float]:
    return [upstream.gauges.sent._value.get() for upstream in served.fleet.members]


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def closing(request: Message, writer: asyncio.StreamWriter) -> None:
    """Takes the request and dies of it."""
    writer.close()


def test_conversation_stays_where_it_is_cached_and_others_spread() -> None:
    async def main() -> None:
        async with engine() as a, engine() as b, fleet(a.url, b.url) as served, session() as http:
            teach_all(served)
            first: list[dict[str, str]] = [{"role": "user", "content": text(3000, "one")}]
            more = [*first, {"role": "assistant", "content": "I see."}, {"role": "user", "content": "And then?"}]
            body = chat("", stream=True)
            for turn in (first, more, more):
                await read_stream(http, served.url, body | {"messages": turn})
            assert sorted(sent(served)) == [0, 3]
            await read_stream(http, served.url, chat(text(3000, "two"), stream=True))
            assert sorted(sent(served)) == [1, 3]

    run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_no_connection_means_another_upstream(stream: bool) -> None:
    async def main() -> None:
        async with engine() as b, fleet(nowhere(), b.url) as served:
            for n in range(6):
                got = await post(served.front.port, "/v1/chat/completions", chat(f"hi {n}", stream=stream))
                assert got.status == 200
            assert metric(served, 'headway_requests_total{outcome="passed"}') == 6
            # One refused connection is enough: later ones are not tried there.
            assert metric(served, "headway_failovers_total") <= 1
            assert served.fleet.members[0].health.at(served.upstream.desk.now) is not Standing.UP
            page = (await exchange(served.status.port, raw_request("GET", "/status"))).json
            assert [one["upstream"]["up"] for one in page["upstreams"]] == [False, True]

    run(main())


def test_connection_closed_without_an_answer_is_resent_once_and_no_more() -> None:
    async def main() -> None:
        async with scripted(closing) as (one, a), scripted(closing) as (two, b), scripted(OK) as (three, c):  # noqa: SIM117
            async with fleet(a, b, c) as served:
                got = await post(served.front.port, "/v1/chat/completions", chat("hi"))
                posts = [len([r for r in u.requests if r.start.startswith(b"POST")]) for u in (one, two, three)]
                assert sum(posts) == 2 and max(posts) == 1
                assert got.status == (200 if posts[2] else 502)
                assert metric(served, "headway_failovers_total") == 1

    run(main())


def test_what_may_have_an_effect_is_not_sent_twice() -> None:
    async def main() -> None:
        async with scripted(closing) as (_, a), scripted(OK) as (two, b), fleet(a, b) as served:
            for upstream in served.fleet.members[1:]:
                upstream.draining = True  # so that the first is taken
            got = await post(served.front.port, "/tokenize", {"prompt": "x"})
            assert got.status == 502 and not [r for r in two.requests if r.start.startswith(b"POST")]

    run(main())


PARTS = {
    "a head": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "an event": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n",
}


@pytest.mark.parametrize("part", PARTS)
def test_once_the_engine_began_to_answer_nothing_is_sent_again(part: str) -> None:
    async def breaks(request: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(PARTS[part])
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with scripted(breaks) as (_, a), scripted(OK) as (two, b), fleet(a, b) as served:
            served.fleet.members[1].draining = True
            try:
                got = await post(served.front.port, "/v1/chat/completions", chat("hi", stream=True))
                assert got.status == 502 or not got.complete
            except Exception as error:
                assert type(error).__name__ == "Hangup"
            assert not [r for r in two.requests if r.start.startswith(b"POST")]
            assert metric(served, "headway_failovers_total") == 0

    run(main())


def test_small_requests_never_go_to_bulk_and_route_sends_big_ones_there() -> None:
    async def main() -> None:
        async with engine() as a, engine() as b, session() as http:  # noqa: SIM117
            async with fleet(a.url, f"{b.url},role=bulk", policy="route") as served:
                teach_all(served)
                for n in range(4):
                    await read_stream(http, served.url, chat(f"hi {n}", stream=True))
                assert sent(served) == [4, 0]
                await asyncio.gather(*(read_stream(http, served.url, chat(text(4000, str(n)), stream=True)) for n in range(3)))
                assert sent(served) == [4, 3]
                served.fleet.members[1].draining = True
                await read_stream(http, served.url, chat(text(4000, "x"), stream=True))
                assert sent(served) == [5, 3]

    run(main())


def test_removed_upstream_ends_what_it_has_and_gets_nothing_new() -> None:
    async def main() -> None:
        async with engine() as a, engine() as b, fleet(a.url) as served, session() as http:
            answer = Answer(0, 0.0)
            old = served.upstream
            stream = asyncio.ensure_future(read_stream(http, served.url, chat("hi", stream=True, max_tokens=60), answer))
            await until(lambda: len(answer.events) > 2)
            served.fleet.change(parse_upstreams([b.url]))
            assert served.upstream is not old and old in served.fleet.all
            await read_stream(http, served.url, chat("hi", stream=True))
            assert sent(served) == [1] and not answer.done
            assert f'{{upstream="{old.target.label}"}}' in served.metrics.page().decode()
            await stream
            assert answer.done and len(answer.events) >= 60
            await until(lambda: old not in served.fleet.all)
            assert old.target.label not in served.metrics.page().decode()

    run(main())


def test_change_keeps_what_was_learned_where_the_upstream_stays() -> None:
    async def main() -> None:
        async with engine() as a, engine() as b, fleet(a.url, b.url) as served:
            teach_all(served)
            kept = served.fleet.members[1]
            served.fleet.change(parse_upstreams([f"{b.url},role=bulk"]))
            assert served.fleet.members == [kept] and kept.target.role == "bulk"
            assert kept.controller.pacer.model is not None

    run(main())


def test_requests_that_wait_for_an_upstream_that_goes_down_are_sent_to_another() -> None:
    async def main() -> None:
        async with engine(FAST) as a, engine(FAST) as b, session() as http:  # noqa: SIM117
            async with fleet(a.url, b.url, policy="hold", wait=20.0) as served:
                teach_all(served)
                first, second = served.fleet.members
                second.draining = True
                victim = asyncio.ensure_future(read_stream(http, served.url, chat("hi", stream=True, max_tokens=3000)))
                await until(lambda: first.controller.live == 1)
                held = asyncio.ensure_future(
                    post(served.front.port, "/v1/messages", {
                        "model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text(4000)}]
                    })
                )  # fmt: skip
                await until(lambda: first.controller.waiting == 1)
                second.draining = False
                await a.kill()
                await asyncio.gather(victim, return_exceptions=True)
                got = await asyncio.wait_for(held, 15)
                assert got.status == 200 and sent(served)[1] == 1

    run(main())


def test_a_model_goes_where_it_is_served() -> None:
    async def main() -> None:
        async with engine(model="one") as a, engine(model="two") as b, fleet(a.url, b.url) as served:
            await until(lambda: all(upstream.models for upstream in served.fleet.members))
            for _ in range(3):
                assert (await post(served.front.port, "/v1/chat/completions", chat("hi", model="two"))).status == 200
            assert sent(served) == [0, 3]
            assert (await post(served.front.port, "/v1/chat/completions", chat("hi", model="three"))).status == 404

    run(main())


def test_upstream_given_with_fields() -> None:
    one = parse_upstream("http://h:1,role=bulk,name=big")
    assert (one.label, one.role, one.drain, one.key) == ("big", "bulk", False, None)
    assert parse_upstream('{"url": "http://h:1", "drain": true, "key": "k,=k"}').key == "k,=k"


@pytest.mark.parametrize(
    "texts",
    [
        [], ["http://h:1,role=fast"], ["http://h:1,colour=red"], ["http://h:1,drain=perhaps"], ["http://h:1,name=a b"],
        ["http://h:1", "http://h:1/v1"], ["http://h:1,name=a", "http://h:2,name=a"], ['{"role": "bulk"}'], ['{"url": 7}'],
    ],
)  # fmt: skip
def test_upstreams_that_cannot_be(texts: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="--upstream"):
        parse_upstreams(list(texts))


def test_hangup_reads_the_table_again(tmp_path: Path) -> None:
    """SIGHUP on a real process: the table changes; a table that cannot be used changes nothing."""

    async def main() -> None:
        async with engine() as a, engine() as b:
            file = tmp_path / "headway.toml"
            file.write_text(f'listen = "127.0.0.1:0"\nprobe = false\n[[upstream]]\nurl = "{a.url}"\nname = "a"\n')
            environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY_")}
            root = ROOT
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headway", "serve", "--config", str(file),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment, "PYTHONPATH": root},
            )  # fmt: skip
            assert process.stdout is not None and process.stderr is not None
            try:
                ready = (await process.stdout.readline()).decode()
                status = ready.rsplit(" ", 1)[1].strip()

                def names() -> list[str]:
                    with urllib.request.urlopen(status + "/metrics", timeout=5) as response:
                        page = response.read().decode()
                    return [name for name in ("a", "b") if f'headway_upstream_up{{upstream="{name}"}}' in page]

                file.write_text(f'[[upstream]]\nurl = "{a.url}"\nrole = "nothing"\n')
                process.send_signal(signal.SIGHUP)
                line = b""
                while b"nothing was changed" not in line:
                    line = await asyncio.wait_for(process.stderr.readline(), 10)
                file.write_text(f'[[upstream]]\nurl = "{b.url}"\nname = "b"\n')
                process.send_signal(signal.SIGHUP)
                while b"upstream a: drained" not in line:
                    line = await asyncio.wait_for(process.stderr.readline(), 10)
                assert await asyncio.to_thread(names) == ["b"]
            finally:
                process.terminate()
                await process.wait()

    run(main())
