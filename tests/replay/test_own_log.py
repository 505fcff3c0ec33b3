"""Must: a gateway's decision log is a trace: what went through the gateway comes out of it, and `headway replay` takes it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UsageError
from headway.traces import Call, read
from tests.gateway.support import chat, engine, gateway, now, post, read_stream, run, session, teach, text, until


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "headway", "replay", *arguments], capture_output=True, text=True, timeout=100)


async def traffic(path: Path) -> None:
    """A stream of 400 tokens; beside it a long prompt, then its continuation; and an answer without a stream."""
    async with engine() as server, gateway(server.url, "pace", decision_log=path) as served, session() as http:
        teach(served)
        victim = asyncio.ensure_future(read_stream(http, served.url, chat("hello", stream=True, max_tokens=400)))
        await until(lambda: now(served)["live"] == 1, what="a live victim")
        long = chat(text(2500, "long"), stream=True, max_tokens=3)
        await read_stream(http, served.url, long)
        await read_stream(http, served.url, long)
        await post(served.front.port, "/v1/chat/completions", chat(text(40, "short"), max_tokens=20))
        await victim


def test_a_gateways_log_is_replayed(tmp_path: Path) -> None:
    log, out = tmp_path / "decisions.jsonl", tmp_path / "r.json"
    run(traffic(log))
    victim, long, again, short = read(log)
    assert (victim.output_tokens, long.output_tokens, again.output_tokens) == (400, 3, 3)
    assert 0 == victim.arrival < long.arrival < again.arrival < short.arrival
    assert long.input_tokens == again.input_tokens > 2000
    assert long.named_tokens > 0 and long.blocks[:50] == again.blocks[:50] != victim.blocks[:50]
    assert short.output_tokens >= 1 and short.klass == "interactive"
    assert victim.thread != long.thread == again.thread == short.thread  # one after the other, beside the victim

    done = replay(str(log), "--policy", "passthrough,pace", "--json", str(out))
    assert done.returncode == 0, done.stderr
    for case in json.loads(out.read_text())["cases"]:
        assert case["classes"]["all"]["answered"] == 4
        assert case["hit_share"] > 0.2  # the long prompt came twice

    verified = replay(str(log), "--verify", "--json", str(out))
    assert verified.returncode == 0, verified.stderr
    (upstream,) = json.loads(out.read_text())["upstreams"].values()
    assert upstream["decisions"] >= 4 and upstream["differing_turns"] == 0

    lines = log.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"do":"piece"' in line)
    record = json.loads(lines[at])
    record["decisions"][0]["tokens"] += 1
    log.write_text("\n".join([*lines[:at], json.dumps(record), *lines[at + 1 :]]) + "\n")
    changed = replay(str(log), "--verify", "--json", str(out))
    assert changed.returncode == 1
    assert "the log decided [{'do': 'piece'" in changed.stderr and "Traceback" not in changed.stderr
    (upstream,) = json.loads(out.read_text())["upstreams"].values()
    assert upstream["differing_turns"] == 1 == len(upstream["differences"])


def line(e: str, t: float, **values: Any) -> str:
    return json.dumps({"t": round(t * 1e6), "u": "http://a", "e": e, **values}) + "\n"


def begin(t: float, unix: float) -> str:
    return line("begin", t, schema="headway.decisions/1", policy="pace", targets={}, classes=[], unix=unix)


def log_of(path: Path, *lines: str) -> list[Call]:
    path.write_text("".join(lines))
    return list(read(path))


def test_what_a_log_says_of_a_request(tmp_path: Path) -> None:
    made = log_of(
        tmp_path / "log",
        begin(100, 5000),
        line("arrive", 101, id="1", uncached=900, cached=0, client="a", klass="agent", streams=True, prefills=True),
        line("arrive", 101.5, id="h", uncached=1, cached=0, client="a", streams=False, prefills=False),  # a health check
        line("measured", 102, id="1", uncached=1600, cached=0, paceable=True),
        line("arrive", 103, id="2", uncached=10, cached=0, client="b", streams=False, prefills=True),
        line("decide", 103, decisions=[{"do": "go", "id": "1", "waited": 2.0}, {"do": "go", "id": "2", "waited": 0.0}]),
        line("first_output", 104, id="1"),
        line("outputs", 104.1, of=[["1", 0, 1], ["1", 100000, 98]]),
        line("leave", 108, id="1"),  # 100 tokens: 99 in 4 s
        line("first_output", 113, id="2"),
        line("leave", 113, id="2"),  # 10 s in the engine
        line("arrive", 114, id="3", uncached=4, cached=1600, client="a", streams=True, prefills=True),
        line("leave", 115, id="3"),  # its client left without an answer
        line("arrive", 116, id="4", uncached=7, cached=0, client="c", streams=True, prefills=True),
        # the gateway ended here, and another one began 84 s later
        begin(7, 5100),
        line("arrive", 8, id="1", uncached=5, cached=0, client="a", streams=True, prefills=True),
        line("leave", 9, id="1"),
    )
    assert [(call.arrival, call.input_tokens, call.output_tokens) for call in made] == [
        (0.0, 1600, 100), (2.0, 10, 248), (13.0, 1604, 0), (15.0, 7, 0), (100.0, 5, 0),
    ]  # fmt: skip
    assert made[0].klass == "agent"
    assert made[2].blocks == made[0].blocks and len(made[0].blocks) == 100
    assert made[2].thread == made[0].thread != made[1].thread


def test_two_of_a_client_at_once_are_two_threads(tmp_path: Path) -> None:
    def arrive(t: float, id: str) -> str:
        return line("arrive", t, id=id, uncached=5, cached=0, client="a", streams=True, prefills=True)

    made = log_of(
        tmp_path / "log", begin(0, 0), arrive(1, "1"), arrive(2, "2"), line("leave", 3, id="2"), arrive(4, "3"),
        line("leave", 5, id="1"), line("leave", 6, id="3"),
    )  # fmt: skip
    assert [call.arrival for call in made] == [0, 1, 3]
    first, second, third = (call.thread for call in made)
    assert first != second == third


@pytest.mark.parametrize(
    "lines,said",
    [
        ([line("arrive", 1, id="1", schema=0, uncached=5)], "log:1: the log does not begin with a 'begin'"),
        ([begin(0, 0), "no\n", line("leave", 1, id="1")], "log:2: not a record of a decision log"),
        ([begin(0, 0), line("arrive", 1, id="1", uncached="much")], "log:2: event 'arrive': ValueError"),
        ([begin(0, 0), line("arrive", 1, id="1")], "log:2: event 'arrive': KeyError: 'uncached'"),
        ([begin(0, 0).replace("decisions/1", "decisions/9")], "log:1: schema 'headway.decisions/9'"),
    ],
)
def test_bad_logs_are_named(tmp_path: Path, lines: list[str], said: str) -> None:
    path = tmp_path / "log"
    path.write_text("".join(lines))
    with pytest.raises(UsageError) as raised:
        list(read(path))
    assert said in str(raised.value)
    done = replay(str(path), "--policy", "pace")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_verifying_something_else_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n")
    done = replay(str(path), "--verify")
    assert done.returncode == 2 and "trace.csv" in done.stderr and "Traceback" not in done.stderr
