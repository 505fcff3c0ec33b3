"""Must: `--shadow` relays everything at once and writes down what each policy would have done."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headway.core.forecast import forecast
from headway.core.policy import POLICIES
from headway.core.work import Work
from headway.replay.verify import read_back as replay
from headway.traces.decisions import records as read
from tests.core.test_turns import controller, live
from tests.gateway.support import chat, engine, gateway, metric, now, post, read_stream, run, session, teach, text, until


def test_everything_is_relayed_and_every_policy_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def main() -> None:
        async with (
            engine() as server,
            gateway(server.url, "passthrough", shadow=True, decision_log=path) as served,
            session() as http,
        ):
            teach(served)
            victim = asyncio.ensure_future(read_stream(http, served.url, chat("hello", stream=True, max_tokens=3000)))
            await until(lambda: now(served)["live"] == 1)
            await asyncio.sleep(0.2)
            answer = await read_stream(http, served.url, chat(text(5000), stream=True, max_tokens=2))
            await post(served.front.port, "/v1/chat/completions", chat("short"))
            victim.cancel()
            await asyncio.gather(victim, return_exceptions=True)
            assert answer.status == 200
            assert metric(served, "headway_pieces_total") == 0
            assert metric(served, 'headway_shadow_requests_total{do="pace",policy="auto"}') == 1
            assert metric(served, 'headway_shadow_requests_total{do="hold",policy="hold"}') == 1
            assert metric(served, 'headway_shadow_requests_total{do="pass",policy="passthrough"}') == 3

    run(main())
    would = [record for _, record in read([path]) if record["e"] == "would"]
    assert len(would) == 3 and all(set(record["policies"]) == set(POLICIES) for record in would)
    assert [record["policies"]["auto"]["do"] for record in would] == ["pass", "pace", "pass"]
    (replayer,) = replay([path]).values()
    assert replayer.differences == [] and replayer.decisions >= 3


def test_the_forecasts_are_the_models_arithmetic() -> None:
    made = controller("passthrough", share=0.5)
    moment = live(made, 10.0)
    entry = made.arrive(moment, Work("long", 20_000))
    made.decide(moment)
    told = forecast(made, entry)
    model = made.pacer.model
    assert model is not None
    work = model.prefill(20_000)
    assert told["pace"].do == told["auto"].do == "pace"
    assert told["pace"].ttft is not None and 2.0 <= told["pace"].ttft / work <= 2.4
    assert told["pace"].gap is not None and told["pace"].gap <= 0.1 and told["pace"].share == 0.5
    assert told["passthrough"].share is not None and told["passthrough"].share < 0.05
    assert told["passthrough"].ttft is not None and told["passthrough"].ttft < 1.1 * work
    assert (told["hold"].do, told["hold"].wait) == ("hold", 30.0)


def test_without_a_model_nothing_is_guessed() -> None:
    made = controller("passthrough")
    made.forget(1.0)
    entry = made.arrive(1.0, Work("long", 20_000))
    assert {would.ttft for would in forecast(made, entry).values()} == {None}
