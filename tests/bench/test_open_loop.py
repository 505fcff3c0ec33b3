"""Load that does not wait for the server: `mixed` and `trace` on the embedded engine, and the arithmetic under them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from headway.bench.client import Event, Stream, session
from headway.bench.context import Run, Settings
from headway.bench.generator import Generator
from headway.bench.openloop import backlog, poisson, send_when_due
from headway.bench.population import Windows, kept
from headway.bench.verdict import prefill_windows
from headway.bench.window import Window
from headway.errors import UsageError
from headway.simulator.profiles import DEMO, Profile
from headway.simulator.server import start
from tests.simulator.serving import QUICK

TRACES = Path(__file__).parents[1] / "traces" / "data"
PATIENT = {"lag_limit_s": 100.0, "cooldown_s": 0.0}  # a busy test machine must not void these runs


def on_the_engine(names: tuple[str, ...], settings: Settings, profile: Profile = QUICK, **engine: Any) -> list[Run]:
    async def run() -> list[Run]:
        server = await start(profile, **engine)
        try:
            async with session() as http:
                load = Generator(http, lambda text: None)
                await load.open(server.url, None, None, settings, 1)
                return [made for name in names for made in await load.run(name, 0)]
        finally:
            await server.close()

    return asyncio.run(run())


def stream_of(times: list[float], submitted: float = 0.0) -> Stream:
    return Stream(submitted=submitted, events=[Event(at, 1) for at in times], ended=times[-1] if times else submitted)


def test_arrivals_are_seeded_and_as_many_as_the_rate_says() -> None:
    one, two = (poisson(5.0, 400.0, random.Random(3)) for _ in range(2))
    assert one == two == sorted(one)
    assert 2000 - 4 * 45 < len(one) < 2000 + 4 * 45
    assert one[-1] < 400.0


def test_no_request_waits_for_another() -> None:
    """Every answer waits until all requests were sent: a sender that waited for one of them would never end."""
    sent: set[int] = set()

    async def run() -> list[Stream]:
        all_sent = asyncio.Event()

        async def send(number: int, due: float) -> Stream:
            sent.add(number)
            if len(sent) == 20:
                all_sent.set()
            await all_sent.wait()
            return Stream(submitted=time.monotonic(), due=due)

        async with asyncio.timeout(20):
            return (await send_when_due(time.monotonic(), [0.001 * i for i in range(20)], send)).answers

    dues = [answer.due or 0.0 for answer in asyncio.run(run())]
    assert [due - dues[0] for due in dues] == pytest.approx([0.001 * i for i in range(20)], abs=1e-6)


def test_waiting_counts_from_the_moment_a_request_was_due() -> None:
    late = Stream(due=10.0, submitted=12.0, events=[Event(13.0, 1)])
    assert late.response_s == 3.0 and late.ttft == 1.0
    assert backlog([late], 11.0) == backlog([late], 12.5) == 1
    assert backlog([late], 9.0) == backlog([late], 13.5) == 0


def test_prefills_that_touch_are_one_window() -> None:
    streams = [stream_of([2.0], 1.0), stream_of([3.0], 1.5), stream_of([6.0], 5.0), stream_of([], 7.0)]
    assert [(tag.start, tag.end) for tag in prefill_windows(streams)] == [(1.0, 3.0), (5.0, 6.0)]
    times = Windows(prefill_windows(streams))
    assert times.inside(0.0, 10.0) == 3.0 and times.inside(2.5, 5.25) == 0.75 and times.inside(3.5, 4.5) == 0.0
    assert times.holds(3.0) and times.holds(5.5) and not times.holds(1.0) and not times.holds(4.0)


def test_what_streams_kept_beside_prefills() -> None:
    fast = stream_of([0.1 * i for i in range(101)])  # 10 tokens/s for 10 s
    slow = stream_of([0.1 * i for i in range(41)] + [6.0] + [6.0 + 0.1 * i for i in range(1, 41)])  # silent from 4 to 6 s
    seen = kept([[fast], [slow]], [Window(4.0, 6.0, True)], solo_rate=10.0, solo_gap_s=0.1)
    assert seen.seconds == pytest.approx(4.0) and seen.tokens == pytest.approx(21, abs=1.01)
    assert seen.worst_share == pytest.approx(0.05, abs=0.051) and seen.share == pytest.approx(0.52, abs=0.03)
    assert seen.longest_gap_s == pytest.approx(2.0) and seen.stalled_s == pytest.approx(2.0)
    assert seen.gap_p99_outside_s == pytest.approx(0.1)


def test_mixed_has_its_arrivals_its_overlap_and_its_load() -> None:
    settings = Settings(
        intruder_in=6000, intruder_out=3, victim_out=80, streams=3, duration_s=3.0, baseline_s=0.8, load=0.6, **PATIENT
    )
    alone, run = on_the_engine(("intruder-alone", "mixed"), settings, DEMO)
    assert run.void is None, run.void
    figures, t0 = run.figures, alone.figures["t0_s"] or 0.0
    intruders = [answer for name, answer in run.streams if name == "intruder"]
    assert figures["arrivals"] == len(intruders) > 1 and run.saturation == pytest.approx(0.6)
    assert len([answer for name, answer in run.streams if name == "victim"]) >= 3
    assert 0 < (figures["worst_share"] or 0) <= (figures["share"] or 0) < 0.8  # some 0.2 on a quiet machine
    assert (figures["longest_gap_s"] or 0) > 0.1  # a chunk of 1,792 tokens is 0.16 s
    assert (figures["intruder_ttft_s"] or 0) > 0.5 * t0
    assert run.windows and all(tag.end > tag.start for tag in run.windows)
    due = [answer.due or 0.0 for answer in intruders]
    assert due == sorted(due) and due[-1] - due[0] < 3.0


def test_mixed_needs_to_know_its_load() -> None:
    (run,) = on_the_engine(("mixed",), Settings(intruder_in=500, **PATIENT))
    assert run.void is not None and "give --rate" in run.void


@pytest.mark.parametrize(
    ("name", "settings", "share"),
    [
        ("trace_0022.json", {"trace_speed": 2000.0, "trace_limit": 5}, 0.78),
        ("mooncake_60.jsonl", {"trace_speed": 30.0, "trace_limit": 12, "trace_longest": 9000}, 0.05),
    ],
)
def test_a_trace_is_cached_as_far_as_it_says(name: str, settings: dict[str, Any], share: float) -> None:
    made = Settings(trace=str(TRACES / name), intruder_in=500, victim_out=60, **settings, **PATIENT)
    (run,) = on_the_engine(("trace",), made, dense=True, block_size=16, num_gpu_blocks=40_000)
    assert run.void is None, run.void
    figures = run.figures
    assert (figures["trace_cached_share"] or 0) > share
    assert figures["cached_share"] == pytest.approx(figures["trace_cached_share"], abs=0.03)
    assert abs(figures["size_error"] or 1) < 0.02
    assert figures["calls"] == len(run.streams)


def test_a_second_run_finds_nothing_of_the_first() -> None:
    async def run() -> list[Run]:
        server = await start(QUICK, dense=True, block_size=16, num_gpu_blocks=40_000)
        made = Settings(trace=str(TRACES / "trace_0022.json"), trace_limit=1, intruder_in=500, victim_out=60, **PATIENT)
        try:
            async with session() as http:
                load = Generator(http, lambda text: None)
                await load.open(server.url, None, None, made, 1)
                return [*await load.run("trace", 0), *await load.run("trace", 1)]
        finally:
            await server.close()

    assert [run.figures["cached_share"] for run in asyncio.run(run())] == [0.0, 0.0]


def test_calls_of_a_session_wait_for_the_answer_unless_told_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text(
        "arrival_s,input_tokens,output_tokens,session,cached_tokens\n0,600,100,a,0\n0.01,600,4,a,320\n0.01,600,4,b,0\n"
    )

    def submitted(open_loop: bool) -> list[Stream]:
        made = Settings(trace=str(file), trace_open=open_loop, intruder_in=500, victim_out=60, **PATIENT)
        (run,) = on_the_engine(("trace",), made, dense=True, block_size=16, num_gpu_blocks=40_000)
        return sorted((answer for _, answer in run.streams), key=lambda answer: answer.submitted)

    first, other, waited = submitted(False)
    assert other.submitted < first.ended <= waited.submitted
    first, other, same = submitted(True)
    assert max(other.submitted, same.submitted) < first.ended


def test_calls_that_the_server_cannot_hold_are_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n0,300,4\n0,90000,4\n")
    made = Settings(trace=str(file), intruder_in=500, victim_out=60, **PATIENT)
    (run,) = on_the_engine(("trace",), made, max_model_len=2000)
    assert run.void is None and run.figures["calls"] == 1
    assert "1 calls are longer than 2000 tokens and were left out" in run.notes
    file.write_text("arrival_s,input_tokens,output_tokens\n0,90000,4\n")
    with pytest.raises(UsageError, match="no call is left to send"):
        on_the_engine(("trace",), made, max_model_len=2000)


def test_a_prompt_that_does_not_fit_the_server_is_told_before_anything_is_sent() -> None:
    with pytest.raises(
        UsageError, match="--intruder-in: 5000 tokens of prompt and 58 of answer do not fit the server's context of 2000"
    ):
        on_the_engine(("burst",), Settings(intruder_in=5000, **PATIENT), max_model_len=2000)


def test_a_broken_row_ends_the_run_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"timestamp": 0, "input_length": 100, "output_length": 4}) + "\nbroken\n")
    with pytest.raises(UsageError, match=r"p\.jsonl:2: not JSON"):
        on_the_engine(("trace",), Settings(trace=str(file), intruder_in=500, victim_out=60, **PATIENT))
