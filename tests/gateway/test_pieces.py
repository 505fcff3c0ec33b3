"""Pieces carry what decides over the prefix cache and nothing else; whatever goes wrong with one, the request goes on whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from headway.gateway.pieces import GrowingList
from tests.gateway.support import Message, chat, gateway, idle, metric, now, post, run, scripted, teach, text, until

BLOCK = 64
TOKENS = 4000
IDS = list(range(1000, 1000 + TOKENS))


def answer(body: object, status: int = 200) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)


def completion(prompt: int, cached: int | None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": details}
    return answer({"choices": [{"index": 0, "text": "x"}], "usage": usage})


class FakeEngine:
    """Renders every prompt to IDS and remembers the longest prefix that it was sent. `fault` may answer in its place."""

    def __init__(self, fault: Callable[[Message, int], bytes | Awaitable[bytes] | None] = lambda request, piece: None) -> None:
        self.fault = fault
        self.cached = 0
        self.token_s = 0.0
        self.pieces: list[Message] = []
        self.by_text: list[Message] = []
        self.whole: list[Message] = []

    async def __call__(self, request: Message, writer: asyncio.StreamWriter) -> None:
        body = json.loads(request.body)
        piece = request.target == b"/v1/completions" and isinstance(body["prompt"], list) and body["max_tokens"] == 1
        if piece:
            self.pieces.append(request)
        elif request.target != b"/tokenize":
            (self.by_text if body["max_tokens"] == 1 else self.whole).append(request)
        faulty = self.fault(request, len(self.pieces) if piece else 0)
        if isinstance(faulty, Awaitable):
            faulty = await faulty
        if faulty is not None:
            writer.write(faulty)
        elif request.target == b"/tokenize":
            writer.write(answer({"count": TOKENS, "max_model_len": 9999, "tokens": IDS}))
        elif piece:
            hit = min(self.cached, (len(body["prompt"]) - 1) // BLOCK * BLOCK)
            self.cached = max(self.cached, (len(body["prompt"]) - 1) // BLOCK * BLOCK)
            await asyncio.sleep(self.token_s * (len(body["prompt"]) - hit))
            writer.write(completion(len(body["prompt"]), hit))
        elif self.by_text and self.by_text[-1] is request:
            tokens, hit = len(body["messages"][0]["content"]) // 4, self.cached
            self.cached = tokens // BLOCK * BLOCK
            writer.write(completion(tokens, hit))
        else:
            writer.write(completion(TOKENS, self.cached))


def big(**more: object) -> dict[str, object]:
    return chat(text(TOKENS), **more)  # type: ignore[arg-type]


def counts(served: object) -> dict[str, float]:
    names = ("no_cache", "missed", "render", "piece_failed", "dialect", "short")
    return {n: v for n in names if (v := metric(served, f'headway_unpaced_total{{reason="{n}"}}'))}  # type: ignore[arg-type]


def test_what_a_piece_carries() -> None:
    headers = [("Authorization", "Bearer k"), ("X-Session-Id", "7"), ("X-Request-Id", "one"), ("Accept-Encoding", "gzip")]

    async def main() -> None:
        fake = FakeEngine()
        async with scripted(fake) as (upstream, url), gateway(url, gap=0.03) as served:
            teach(served)
            body = big(cache_salt="s", priority=3, temperature=0.7, seed=1, stop=["x"])
            assert (await post(served.front.port, "/v1/chat/completions", body, headers)).status == 200
            tokenize = json.loads(upstream.requests[0].body)
            assert tokenize == {"model": "m", "messages": body["messages"]}
            ends = []
            for request in fake.pieces:
                got = json.loads(request.body)
                ids = got.pop("prompt")
                assert ids == IDS[: len(ids)] and len(ids) % BLOCK == 1
                ends.append(len(ids))
                assert got == {
                    "model": "m", "cache_salt": "s", "priority": 3, "max_tokens": 1, "temperature": 0, "stream": False
                }  # fmt: skip
                assert request.get(b"authorization") == b"Bearer k" and request.get(b"x-session-id") == b"7"
                assert request.get(b"x-request-id") is None and request.get(b"accept-encoding") is None
            assert len(ends) >= 2 and ends == sorted(set(ends))
            assert ends[-1] == (TOKENS - 1) // BLOCK * BLOCK + 1  # the last whole block before the prompt's end
            assert json.loads(fake.whole[0].body) == body
            assert counts(served) == {}

    run(main())


def test_completion_with_ids_is_not_rendered() -> None:
    async def main() -> None:
        fake = FakeEngine()
        async with scripted(fake) as (upstream, url), gateway(url, gap=0.03) as served:
            teach(served)
            body = {"model": "m", "prompt": IDS, "max_tokens": 7}
            assert (await post(served.front.port, "/v1/completions", body)).status == 200
            assert b"/tokenize" not in [request.target for request in upstream.requests]
            assert len(fake.pieces) >= 2 and len(fake.whole) == 1

    run(main())


TOKENIZE = {
    "is not there": answer({}, 404),
    "says nonsense": answer({"tokens": "x"}),
    "gives ids below 0": answer({"tokens": [-1] * 3000}),
    "says no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
    "breaks off": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("what", TOKENIZE)
@pytest.mark.parametrize("stream", [False, True])
def test_where_a_prompt_cannot_be_rendered_its_text_is_cut(what: str, stream: bool) -> None:
    async def main() -> None:
        fake = FakeEngine(lambda request, piece: TOKENIZE[what] if request.target == b"/tokenize" else None)
        async with scripted(fake) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            body = big(stream=stream)
            got = await asyncio.wait_for(post(served.front.port, "/v1/chat/completions", body), 10)
            assert got.status == 200
            assert [json.loads(request.body) for request in fake.whole] == [body]
            assert len(fake.by_text) >= 3 and not fake.pieces
            assert counts(served) == {}
            assert metric(served, 'headway_requests_total{outcome="paced"}') == 1

    run(main())


FAULTS: dict[str, tuple[Callable[[Message, int], bytes | None], str]] = {
    "the prompt is too long": (
        lambda r, n: answer({"count": TOKENS, "max_model_len": 100, "tokens": IDS}) if r.target == b"/tokenize" else None,
        "render",
    ),
    "the first piece is refused": (lambda r, n: answer({}, 400) if n == 1 else None, "piece_failed"),
    "the second piece is refused": (lambda r, n: answer({}, 500) if n == 2 else None, "piece_failed"),
    "the second piece breaks off": (lambda r, n: b"nonsense\r\n\r\n" if n == 2 else None, "piece_failed"),
    "the second piece finds nothing": (lambda r, n: completion(9, 0) if n == 2 else None, "missed"),
    "the second piece finds half": (lambda r, n: completion(9, 64) if n == 2 else None, "missed"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("stream", [False, True])
def test_whatever_goes_wrong_the_request_goes_whole(name: str, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    fault, reason = FAULTS[name]

    async def main() -> None:
        fake = FakeEngine(fault)
        async with scripted(fake) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            body = big(stream=stream)
            got = await asyncio.wait_for(post(served.front.port, "/v1/chat/completions", body), 10)
            assert got.status == 200
            assert [json.loads(request.body) for request in fake.whole] == [body]
            assert counts(served) == {reason: 1}
            assert metric(served, 'headway_requests_total{outcome="whole"}') == 1
            assert any("sent whole, not paced" in record.getMessage() for record in caplog.records)
            await until(lambda: idle(served))
            assert metric(served, "headway_pieces_total") == len(fake.pieces)

    run(main())


def test_after_a_failed_piece_no_further_one_is_in_the_books() -> None:
    """The turn that a failed piece gives must be for the whole request: its tokens are in flight, not a piece's."""
    seen: dict[str, int] = {}

    async def main() -> None:
        def fault(request: Message, piece: int) -> bytes | Awaitable[bytes] | None:
            if piece == 2:
                return answer({}, 500)
            if request.target == b"/v1/chat/completions":
                return look()
            return None

        async def look() -> bytes:
            seen.update(now(served))
            return completion(TOKENS, 0)

        async with scripted(FakeEngine(fault)) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            assert (await post(served.front.port, "/v1/chat/completions", big(stream=True))).status == 200
            assert seen["pieces"] == 0 and seen["prefill_tokens_in_flight"] > 2000

    run(main())


def test_prompt_that_is_rendered_otherwise_is_not_paced_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """Pieces hit each other, the request does not hit them: after two such requests prompts of that shape go whole."""

    async def main() -> None:
        fake = FakeEngine(lambda r, n: completion(TOKENS, 0) if r.target == b"/v1/chat/completions" else None)
        fake.token_s = 100e-6
        async with scripted(fake) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            for n in range(3):
                fake.cached = 0
                pieces = len(fake.pieces)
                assert (await post(served.front.port, "/v1/chat/completions", big(tool_choice="auto", user=str(n)))).status == 200
                assert (len(fake.pieces) > pieces) == (n < 2)
            assert counts(served) == {"missed": 3}
            assert any("tool_choice are not paced any more" in record.getMessage() for record in caplog.records)
            # Another shape is.
            pieces = len(fake.pieces)
            await post(served.front.port, "/v1/chat/completions", big())
            assert len(fake.pieces) > pieces

    run(main())


WHOLE = {
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": text(2000)}}]}]},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "ids with prompt_logprobs": {"messages": None, "prompt": IDS, "prompt_logprobs": 1},
    "ids with echo": {"messages": None, "prompt": IDS, "echo": True},
    "a batch of prompts": {"messages": None, "prompt": [text(1000), text(1000)]},
    "ids that no engine knows": {"messages": None, "prompt": [2**32, -5] * 1000},
}


@pytest.mark.parametrize("name", WHOLE)
def test_prompts_that_have_no_pieces(name: str) -> None:
    async def main() -> None:
        fake = FakeEngine()
        async with scripted(fake) as (_, url), gateway(url, gap=0.03) as served:
            teach(served)
            body = {key: value for key, value in (big() | WHOLE[name]).items() if value is not None}
            path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            assert (await asyncio.wait_for(post(served.front.port, path, body), 5)).status == 200
            assert not fake.pieces and len(fake.whole) == 1
            assert counts(served) == {"dialect": 1}

    run(main())


def test_rendering_that_hangs_is_given_up() -> None:
    async def never() -> bytes:
        await asyncio.sleep(60)
        return b""

    async def main() -> None:
        fake = FakeEngine(lambda r, n: never() if r.target == b"/tokenize" else None)
        async with scripted(fake) as (_, url), gateway(url, wait=0.2) as served:
            teach(served)
            got = await asyncio.wait_for(post(served.front.port, "/v1/chat/completions", big()), 10)
            assert got.status == 200 and counts(served) == {"render": 1}

    run(main())


def test_hits_of_others_confirm_nothing() -> None:
    """By the hit counter a piece is believed only when nothing else was sent meanwhile."""

    async def main() -> None:
        hits = 0

        async def engine(request: Message, writer: asyncio.StreamWriter) -> None:
            nonlocal hits
            if request.target == b"/page":
                page = f"vllm:num_requests_running 0\nvllm:prefix_cache_hits_total {hits}\n"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page.encode()))
            elif request.target == b"/tokenize":
                writer.write(answer({"tokens": IDS}))
            elif request.target == b"/v1/completions":
                await small()
                pieces.append(request)
                if len(pieces) == 2:
                    hits += 5000  # of somebody else's prompt: this piece was computed from its beginning
                    await asyncio.sleep(0.8)
                writer.write(completion(9, None))
            else:
                writer.write(completion(TOKENS, None))

        async def small() -> None:
            assert (await post(served.front.port, "/v1/chat/completions", chat("hi"))).status == 200

        pieces: list[Message] = []
        async with scripted(engine) as (_, url), gateway(url, gap=0.2) as served:
            teach(served)
            served.upstream.engine.reports = False
            scrape = served.upstream.head
            served.upstream.head = (  # type: ignore[method-assign]
                lambda m, p, h=(): scrape(m, b"/page" if p == b"/metrics" else p, h)
            )
            assert (await post(served.front.port, "/v1/chat/completions", big())).status == 200
            assert len(pieces) == 2 and counts(served) == {"missed": 1}
            assert len(served.upstream.blocks) == 0

    run(main())


def test_json_of_a_growing_list_is_that_of_the_whole() -> None:
    ids = [7 * n % 150_000 for n in range(1000)]
    lists = GrowingList(ids)
    for count in (1, 2, 17, 500, 1000):
        assert json.loads(lists.beginning(count)) == ids[:count]
