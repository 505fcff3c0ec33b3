"""Must: every decision is a JSON line without text of a prompt, and the log gives back the same decisions; the loop never waits
for the disk, and the file may be rotated.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from headway.core.journal import Replayer
from headway.errors import UsageError
from headway.gateway import decisions as module
from headway.gateway.decisions import DecisionLog
from headway.replay.verify import read_back as replay
from headway.traces.decisions import records as read
from tests.gateway.support import chat, engine, gateway, metric, now, post, read_stream, run, session, teach, text, until

CLASSES = [{"name": "interactive", "targets": {}, "protected": True, "exempt": False}]


async def traffic(path: Path, policy: str) -> float:
    """Two long prompts, a short one and a client that leaves, beside a live answer. Returns the pieces sent."""
    async with engine() as server, gateway(server.url, policy, decision_log=path, wait=2.0) as served, session() as http:
        teach(served)
        victim = asyncio.ensure_future(read_stream(http, served.url, chat("hello", stream=True, max_tokens=5000)))
        await until(lambda: now(served)["live"] == 1, what="a live victim")
        await asyncio.sleep(0.3)
        longs = [
            asyncio.ensure_future(read_stream(http, served.url, chat(text(2500, f"secret {n}"), stream=True, max_tokens=3)))
            for n in range(2)
        ]
        await asyncio.sleep(0.1)
        left = asyncio.ensure_future(read_stream(http, served.url, chat(text(4000, "left"), stream=True)))
        await post(served.front.port, "/v1/chat/completions", chat(text(40, "short")))
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await asyncio.gather(*longs)
        victim.cancel()
        await asyncio.gather(victim, return_exceptions=True)
        return metric(served, "headway_pieces_total")


@pytest.mark.parametrize("policy", ["pace", "hold", "serialize", "passthrough"])
def test_a_gateways_log_gives_back_the_same_decisions(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "decisions.jsonl"

    async def main() -> None:
        pieces = await traffic(path, policy)
        (replayer,) = replay([path]).values()
        assert replayer.differences == []
        assert replayer.decisions >= 4
        records = [record for _, record in read([path])]
        assert records[0]["policy"] == policy and records[0]["schema"] == "headway.decisions/1"
        made = [decision for record in records if record["e"] == "decide" for decision in record["decisions"]]
        assert sum(1 for decision in made if decision["do"] == "piece") == pieces
        assert "secret" not in path.read_text() and "ships" not in path.read_text()

    run(main())


def test_a_changed_decision_is_found(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    run(traffic(path, "pace"))
    lines = path.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"do":"piece"' in line)
    record = json.loads(lines[at])
    record["decisions"][0]["tokens"] += 1
    lines[at] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")
    (replayer,) = replay([path]).values()
    assert len(replayer.differences) == 1


def test_a_rotated_log_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    log = DecisionLog(path)
    record = {"t": 1, "u": "", "e": "forget"}
    begin = {"t": 0, "u": "", "e": "begin", "schema": "headway.decisions/1", "policy": "pace", "targets": {}, "classes": CLASSES}
    log(begin)
    wait_for(lambda: path.read_bytes().count(b"\n") == 1)
    path.rename(old)
    log(record)
    wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") == 2)
    log.close()
    (replayer,) = replay([old, path]).values()
    assert replayer.controller is not None and not replayer.lost
    with pytest.raises(UsageError, match="log:1: this file continues an earlier one"):
        replay([path])


def test_a_slow_disk_costs_records_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    write = DecisionLog._write
    monkeypatch.setattr(DecisionLog, "_write", lambda self, data: (free.wait(10), write(self, data))[1])
    monkeypatch.setattr(module, "LINGER_S", 0.0)
    lost: list[int] = []
    log = DecisionLog(tmp_path / "log", lambda: lost.append(1), room=10)
    begun = time.monotonic()
    for n in range(1000):
        log({"t": n, "u": "", "e": "forget"})
    assert time.monotonic() - begun < 5.0 and len(lost) > 900
    free.set()
    wait_for(lambda: log._queue.qsize() == 0)
    log({"t": 1000, "u": "", "e": "forget"})
    log.close()
    records = [record for _, record in read([tmp_path / "log"])]
    assert [record["records"] for record in records if record["e"] == "lost"] == [len(lost)]
    assert len(records) == 1001 - len(lost) + 1


def test_after_a_loss_nothing_is_compared_until_the_next_start() -> None:
    replayer = Replayer()
    begin = {"t": 0, "u": "", "e": "begin", "schema": "headway.decisions/1", "policy": "pace", "targets": {}, "classes": CLASSES}
    turn = {"t": 5, "u": "", "e": "decide", "decisions": [{"do": "go", "id": "9", "waited": 0.0}]}
    for record in (begin, {"t": 1, "u": "", "e": "lost", "records": 3}, {"t": 4, "e": "leave", "id": "7"}, turn):
        replayer.feed(record)
    assert replayer.lost and replayer.differences == []
    replayer.feed(begin)
    replayer.feed(turn)
    assert not replayer.lost and len(replayer.differences) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"e": "leave", "id": "7", "t": 1}\n', "log:1: the log does not begin with a 'begin'"),
        ('{"e": "begin", "schema": "other/1", "t": 0}\n', "log:1: schema 'other/1'"),
        ('{"e": "begin", "t": 0}\n', "log:1: event 'begin': KeyError: 'schema'"),
        ("nonsense\n" + '{"e": "forget", "t": 0}\n', "log:1: not a record of a decision log"),
        ("", "log: no record of a decision log"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        replay([path])
    assert message in str(raised.value)


def test_a_line_that_a_crash_cut_short_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        '{"t":0,"u":"","e":"begin","schema":"headway.decisions/1","policy":"pace","targets":{},"classes":[]}\n{"t":1,"u":"","e":"le'
    )
    log = DecisionLog(path)
    log({"t": 0, "u": "", "e": "begin", "schema": "headway.decisions/1", "policy": "hold", "targets": {}, "classes": CLASSES})
    log.close()
    (replayer,) = replay([path]).values()
    assert replayer.controller is not None and replayer.controller.policy == "hold"


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--decision-log .*: Is a directory"):
        DecisionLog(tmp_path)


def wait_for(condition: object, limit_s: float = 5.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)
