"""What the engine will refuse anyway must not be prefilled first."""

from __future__ import annotations

from tests.gateway.support import chat, engine, gateway, metric, post, run, teach, text


def test_a_prompt_longer_than_the_model_takes_is_not_paced() -> None:
    async def main() -> None:
        async with engine(max_model_len=4096) as server, gateway(server.url) as served:
            teach(served)
            answer = await post(served.front.port, "/v1/chat/completions", chat(text(6000)))
            assert answer.status == 400
            assert metric(served, "headway_pieces_total") == 0
            assert metric(served, 'headway_unpaced_total{reason="render"}') == 1

    run(main())


def test_a_path_encoded_over_and_over_is_refused_at_once() -> None:
    async def main() -> None:
        async with engine() as server, gateway(server.url) as served:
            answer = await post(served.front.port, "/v1/" + "%25" * 5 + "2e", {})
            assert answer.status in (400, 404)
            path = "/v1/%" + "25" * 20_000 + "2e%2e/sleep"
            assert (await post(served.front.port, path, {})).status == 404

    run(main())
