"""Must: relays only /v1/*, /tokenize, /detokenize, /health, /version and what --relay adds; metrics have a port of their own."""

from __future__ import annotations

import asyncio

import pytest

from headway.gateway.config import Address, Config, UpstreamConfig, parse_origin
from tests.gateway.support import Scripted, exchange, gateway, metric, now, post, raw_request, run, scripted

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

REFUSED = [
    "/", "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/metrics", "/status", "/healthz", "/docs",
    "/openapi.json", "/server_info", "/v1", "/V1/models", "/health/", "/healthx", "/invocations",
    "//sleep", "//v1/models", "/v1//models", "/v1/../sleep", "/v1/./../sleep", "/v1/..", "/v1/./models", "/v1/..;/sleep",
    "/v1/%2e%2e/sleep", "/v1/%2E%2E%2Fsleep", "/v1/.%2e/sleep", "/v1/%252e%252e/sleep", "/v1/%2f/sleep", "/v1/..%2fsleep",
    "/v1/..%5csleep", "/v1/\\..\\sleep", "/%76%31/models", "/%73leep", "/v1/x%00/../sleep", "/v1/x%3b/y", "/v1/x%3f/y",
    "/sleep?/v1/", "/sleep?x=/v1/models", "http://other.test/sleep", "http://other.test//v1/models", "*",
]  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refused(method: str) -> None:
    async def main() -> None:
        async with scripted(OK) as (upstream, url), gateway(url) as served:
            for path in REFUSED:
                got = await exchange(served.front.port, raw_request(method, path, b"{}" if method == "POST" else b""))
                assert got.status in (400, 404), path
                assert got.json["error"]["message"], path
            assert upstream.requests == []
            assert metric(served, 'headway_requests_total{outcome="refused"}') >= len(REFUSED) - 2
            assert now(served)["requests"] == 0

    run(main())


RELAYED = ["/v1/models", "/v1/models/org%2Fname", "/v1/x?y=../sleep", "/tokenize", "/detokenize", "/health", "/version?a=1"]


def test_relayed_as_sent() -> None:
    async def main() -> None:
        async with scripted(OK) as (upstream, url), gateway(url) as served:
            for path in RELAYED:
                assert (await exchange(served.front.port, raw_request("GET", path))).status == 200, path
            assert [request.target.decode() for request in upstream.requests] == RELAYED

    run(main())


def test_relay_adds_paths_and_nothing_else() -> None:
    async def main() -> None:
        async with scripted(OK) as (upstream, url), gateway(url, relay=(b"/ping", b"/score")) as served:
            for path, status in (("/ping", 200), ("/score", 200), ("/ping/x", 404), ("/sleep", 404), ("/pin%67", 404)):
                assert (await exchange(served.front.port, raw_request("GET", path))).status == status, path
            assert len(upstream.requests) == 2

    run(main())


def test_upstream_with_a_path() -> None:
    async def main() -> None:
        async with scripted(OK) as (upstream, url):
            for suffix, prefix in (("", ""), ("/", ""), ("/v1", ""), ("/engine/", "/engine"), ("/engine/v1/", "/engine")):
                upstream.requests.clear()
                async with gateway(url + suffix) as served:
                    await exchange(served.front.port, raw_request("GET", "/v1/models"))
                assert upstream.requests[0].target.decode() == prefix + "/v1/models"

    run(main())


def test_loopback_by_default() -> None:
    config = Config((UpstreamConfig(parse_origin("http://127.0.0.1:8000")),))
    assert config.listen.loopback and config.status.loopback
    assert not Address("0.0.0.0", 1).loopback and not Address("::", 1).loopback and Address("::1", 1).loopback


def test_metrics_and_status_on_their_own_port() -> None:
    async def main() -> None:
        async with scripted(OK) as (upstream, url), gateway(url) as served:
            assert served.status.port != served.front.port
            for path in ("/metrics", "/status", "/healthz"):
                assert (await exchange(served.status.port, raw_request("GET", path))).status == 200
                assert (await exchange(served.front.port, raw_request("GET", path))).status == 404
            for path in ("/v1/models", "/health", "/sleep", "/"):
                assert (await exchange(served.status.port, raw_request("GET", path))).status == 404
            assert (await post(served.status.port, "/status", {})).status in (405, 413)
            assert upstream.requests == []

    run(main())


def test_anthropic_refusals_have_the_anthropic_shape() -> None:
    async def main() -> None:
        async with scripted(OK) as (_, url), gateway(url, max_body=100) as served:
            got = await post(served.front.port, "/v1/messages", {"model": "m" * 200})
            assert got.status == 413 and got.json["type"] == "error" and "--max-body" in got.json["error"]["message"]
            got = await post(served.front.port, "/v1/responses", {"model": "m" * 200})
            assert got.status == 413 and got.json["error"]["code"] == 413

    run(main())


def test_health_never_waits() -> None:
    """A health check or a list of models behind a busy engine, policy serialize: it asks for no prefill."""

    async def answer(request: object, writer: asyncio.StreamWriter) -> None:
        target = getattr(request, "target", b"")
        if target == b"/v1/completions":
            await asyncio.sleep(30)
        writer.write(OK)

    async def main() -> None:
        async with scripted(answer, metrics=True) as (upstream, url), gateway(url, "serialize", queue=1) as served:
            assert isinstance(upstream, Scripted)
            slow = [asyncio.ensure_future(post(served.front.port, "/v1/completions", {"n": n})) for n in range(2)]
            await asyncio.sleep(0.05)
            assert now(served)["queued"] == 1
            for path in ("/health", "/version", "/v1/models"):
                got = await asyncio.wait_for(exchange(served.front.port, raw_request("GET", path)), 2)
                assert got.status == 200, path
            assert (await asyncio.wait_for(post(served.front.port, "/tokenize", {"prompt": "x"}), 2)).status == 200
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    run(main())
