"""Must: an agent's next turn is not made slower: what the engine has confirmed as cached is not paced again."""

from __future__ import annotations

import asyncio

from tests.gateway.support import (
    Answer,
    chat,
    engine,
    gateway,
    metric,
    now,
    read_stream,
    run,
    scripted,
    session,
    teach,
    text,
    until,
)

FIRST = 3500
MORE = 200


def turns() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    first = [{"role": "system", "content": "You help."}, {"role": "user", "content": text(FIRST, "first")}]
    second = [{"role": "assistant", "content": "I see."}, {"role": "user", "content": text(MORE, "second")}]
    return first, first + second


def body(messages: list[dict[str, str]]) -> dict[str, object]:
    return {"model": "m", "messages": messages, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}


def cached(answer: Answer) -> int:
    assert answer.usage is not None
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"])


def test_second_turn_passes_at_once() -> None:
    async def main() -> None:
        first, second = turns()
        async with engine() as server, session() as http:
            await read_stream(http, server.url, body(first))
            direct = await read_stream(http, server.url, body(second))
        async with engine() as server, gateway(server.url, gap=0.1) as served, session() as http:
            teach(served)
            rendered = 0
            tokenize = server.service.text_prompt

            def counting(prompt: str) -> object:
                nonlocal rendered
                rendered += 1
                return tokenize(prompt)

            server.service.text_prompt = counting  # type: ignore[method-assign, assignment]
            answer = await read_stream(http, served.url, body(first))
            assert rendered == 2  # /tokenize and the request itself
            pieces = metric(served, "headway_pieces_total")
            assert pieces >= 2
            # The last piece primed the first turn's own request, and so the next turn.
            assert cached(answer) >= FIRST - 64

            again = await read_stream(http, served.url, body(second))
            assert rendered == 3, "the second turn was tokenised once more than it had to be"
            assert metric(served, "headway_pieces_total") == pieces
            assert metric(served, 'headway_requests_total{outcome="passed"}') == 1
            assert cached(again) == cached(direct)
            assert again.text == direct.text
            assert again.ttft < direct.ttft + 0.25  # whole, it would be 0.35 s more

    run(main())


def test_second_turn_waits_for_no_share_beside_a_victim() -> None:
    async def main() -> None:
        first, second = turns()
        async with engine() as server, gateway(server.url, gap=0.1) as served, session() as http:
            teach(served)
            victim = asyncio.ensure_future(read_stream(http, served.url, chat("hi", stream=True, max_tokens=3000)))
            await until(lambda: now(served)["live"] == 1)
            slow = await read_stream(http, served.url, body(first))
            fast = await read_stream(http, served.url, body(second))
            assert cached(fast) >= FIRST - 64
            assert slow.ttft > 0.4 and fast.ttft < 0.1 + 0.5 * slow.ttft
            victim.cancel()
            await asyncio.gather(victim, return_exceptions=True)

    run(main())


def test_other_model_salt_or_tools_share_nothing() -> None:
    """The text index never lets a prompt pass for what another seed has cached."""

    async def main() -> None:
        first, second = turns()
        async with engine() as server, gateway(server.url, gap=0.1) as served, session() as http:
            teach(served)
            await read_stream(http, served.url, body(first))
            tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
            for more in ({"cache_salt": "other"}, {"tools": tools}):
                pieces = metric(served, "headway_pieces_total")
                answer = await read_stream(http, served.url, body(second) | more)
                assert metric(served, "headway_pieces_total") > pieces, more
                assert answer.status == 200

    run(main())


def test_second_turn_of_a_dialect_that_goes_by_its_text() -> None:
    """/v1/messages and /v1/responses: what their usage confirms as cached is not paced again."""

    async def main() -> None:
        async with engine() as server, gateway(server.url, wait=1.0) as served, session() as http:
            teach(served)
            for path, field, limit in (
                ("/v1/messages", "messages", "max_tokens"),
                ("/v1/responses", "input", "max_output_tokens"),
            ):
                first, second = turns()
                seed = [{"role": "user", "content": f"by {path}"}]
                for n, messages in enumerate((seed + first[1:], seed + first[1:], seed + second[1:])):
                    ask = {"model": "m", field: messages, limit: 2, "stream": True}
                    before = metric(served, 'headway_requests_total{outcome="paced"}')
                    assert (await read_stream(http, served.url, ask, path=path)).status == 200
                    # The first is computed in pieces; the third is small by what its predecessors' usage taught.
                    paced = metric(served, 'headway_requests_total{outcome="paced"}') - before
                    assert n == 1 or paced == (1 if n < 1 else 0), (path, n)

    run(main())


def test_index_that_was_wrong_forgets() -> None:
    """An engine that dropped what it had: a turn is sent whole by the text index and one by the block index, their answers say
    that nothing was cached, and the turn after that is paced again."""

    async def main() -> None:
        first, second = turns()
        async with engine() as server, gateway(server.url, gap=0.1) as served, session() as http:
            teach(served)
            await read_stream(http, served.url, body(first))
            await until(lambda: server.engine.num_running == 0)
            assert server.engine.cache.pool.reset()
            pieces = metric(served, "headway_pieces_total")
            for _ in range(2):
                assert cached(await read_stream(http, served.url, body(second))) == 0
                assert metric(served, "headway_pieces_total") == pieces
                assert server.engine.cache.pool.reset()
            await read_stream(http, served.url, body(second))
            assert metric(served, "headway_pieces_total") > pieces

    run(main())


def test_block_index_answers_where_the_text_index_does_not() -> None:
    """Rendered, the prompt turns out to be cached: it is not big, and goes whole."""

    async def main() -> None:
        first, _ = turns()
        async with engine() as server, gateway(server.url, gap=0.03) as served, session() as http:
            teach(served)
            await read_stream(http, served.url, body(first))
            pieces = metric(served, "headway_pieces_total")
            served.upstream.texts.clear()
            assert cached(await read_stream(http, served.url, body(first))) >= FIRST - 64
            assert metric(served, "headway_pieces_total") == pieces
            assert metric(served, 'headway_unpaced_total{reason="short"}') == 1

    run(main())


def test_gateway_needs_no_engine_of_ours() -> None:
    """An upstream that is no vLLM: small requests pass, nothing of ours is asked of it but /metrics."""

    async def main() -> None:
        async with (
            scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (upstream, url),
            gateway(url, probe=True) as served,
        ):
            async with session() as http, http.post(served.url + "/v1/chat/completions", json=chat("hi")) as response:
                assert response.status == 200
            assert [request.target for request in upstream.requests] == [b"/v1/chat/completions"]

    run(main())
