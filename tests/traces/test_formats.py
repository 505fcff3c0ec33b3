"""Each format gives the same record, from small pieces of the published traces (data/SOURCES.md)."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from pathlib import Path

import pytest

from headway.traces import FORMATS, Call, Cut, TraceError, read
from headway.traces.formats import detect

DATA = Path(__file__).parent / "data"
FILES = {
    "azure_40.csv": ("azure", 40), "mooncake_60.jsonl": ("mooncake", 60), "claude_code_100.csv": ("claude-code", 100),
    "trace_0022.json": ("kv-cache-tester", None), "vidur_30.csv": ("vidur", 30), "lengths_30.csv": ("lengths", 30),
    "served_20.jsonl": ("served", 20), "simple_chain.json": ("otel", 3), "fan_in_dependencies.json": ("otel", 4),
    "decisions_4.jsonl": ("decisions", 4),
}  # fmt: skip


def shared_tokens(calls: list[Call]) -> int:
    """Leading tokens that an endless cache would have had."""
    ids: set[int] = set()
    total = 0
    for call in calls:
        for block in call.blocks:
            if block not in ids:
                break
            total += call.block_size
        ids.update(call.blocks)
    return total


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_known_by_its_marks_and_read(name: str) -> None:
    format, count = FILES[name]
    assert detect(DATA / name) == format
    calls = list(read(DATA / name))
    assert len(calls) == (count or len(json.loads((DATA / name).read_text())["requests"]))
    assert calls[0].arrival == 0
    assert all(a.arrival <= b.arrival for a, b in itertools.pairwise(calls))
    assert all(call.named_tokens <= call.input_tokens for call in calls)


def test_every_format_has_a_sample_but_the_plain_one() -> None:
    assert {format for format, _ in FILES.values()} == FORMATS.keys() - {"plain"}


def test_sizes_and_times_are_those_of_the_row() -> None:
    azure, mooncake = list(read(DATA / "azure_40.csv")), list(read(DATA / "mooncake_60.jsonl"))
    assert (azure[1].input_tokens, azure[1].output_tokens) == (3180, 8)
    assert azure[1].arrival == pytest.approx(0.052, abs=1e-6)
    assert (mooncake[0].input_tokens, mooncake[0].output_tokens, mooncake[0].block_size) == (6758, 500, 512)
    assert mooncake[0].blocks == tuple(range(14)) and mooncake[-1].arrival > 1


def test_cached_counts_become_shared_blocks() -> None:
    rows = list(csv.DictReader((DATA / "claude_code_100.csv").open()))
    calls = list(read(DATA / "claude_code_100.csv", cut=Cut(every=1e6)))
    cached = sum(int(row["prefix_cached_tokens_est"]) for row in rows)
    assert cached > 1_000_000
    assert shared_tokens(calls) == pytest.approx(cached, rel=0.002)


def test_a_subagent_has_a_thread_of_its_own_and_starts_where_it_was_spawned(tmp_path: Path) -> None:
    calls = list(read(DATA / "claude_code_100.csv"))
    assert {"main", "main/s1"} <= {call.thread for call in calls if call.session == "trace_0003"}
    header = "trace_id,scope,t_s,in_tokens,out_tokens,prefix_cached_tokens_est\n"
    file = tmp_path / "a.csv"
    file.write_text(
        header + "t,main,10,100,5,0\nt,main,50,200,5,64\nt,main/s1,0,300,5,0\nt,main/s1,8,300,5,0\nt,main,55,300,5,192\n"
    )
    assert [(call.thread, call.arrival) for call in read(file)] == [
        ("main", 10), ("main", 50), ("main/s1", 50), ("main", 55), ("main/s1", 58),
    ]  # fmt: skip


def test_nested_requests_of_a_session_file_are_a_subagents(tmp_path: Path) -> None:
    def row(t: float, *ids: int) -> dict[str, object]:
        return {"t": t, "type": "n", "in": 64 * len(ids) + 3, "out": 2, "hash_ids": list(ids)}

    page = {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [
        row(0, 1, 2), {"t": 5.0, "type": "subagent", "requests": [row(0, 1, 9), row(4, 1, 9, 10)]}, row(7, 1, 2, 3),
    ]}  # fmt: skip
    file = tmp_path / "x.json"
    file.write_text(json.dumps(page))
    calls = list(read(file))
    assert [(call.thread, call.arrival) for call in calls] == [("main", 0), ("main/s1", 5), ("main", 7), ("main/s1", 9)]
    assert calls[0].blocks[0] == calls[1].blocks[0] != 1


def test_local_hash_ids_of_two_sessions_are_not_each_others(tmp_path: Path) -> None:
    page = json.loads((DATA / "trace_0022.json").read_text())
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**page, "id": name}))
    a, b = ({i for c in read(tmp_path, cut=Cut(every=1e6)) if c.session == name for i in c.blocks} for name in ("a", "b"))
    assert a and len(a) == len(b) and not a & b
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**page, "id": name, "hash_id_scope": "global"}))
    assert len({i for c in read(tmp_path) for i in c.blocks}) == len(a)


def test_a_conversation_of_spans_shares_its_history() -> None:
    one, two, three = read(DATA / "simple_chain.json")
    assert one.blocks == two.blocks[: len(one.blocks)]
    assert two.blocks == three.blocks[: len(two.blocks)] and len(three.blocks) > 5
    assert (one.arrival, two.arrival) == (0, 3)


def test_spans_at_the_same_time_are_threads(tmp_path: Path) -> None:
    threads = [call.thread for call in read(DATA / "fan_in_dependencies.json")]
    assert len(set(threads)) > 1


def test_a_plain_table_with_sessions(tmp_path: Path) -> None:
    file = tmp_path / "p.csv.gz"
    with gzip.open(file, "wt") as out:
        out.write(SESSIONS + "100,640,5,a,0\n101,1280,5,a,640\n")
    one, two = read(file)
    assert (one.arrival, two.arrival, two.session) == (0, 1, "a")
    assert two.blocks[:10] == one.blocks and not set(two.blocks[10:]) & set(one.blocks)


GOOD = "arrival_s,input_tokens,output_tokens\n0,10,5\n"
SESSIONS = "arrival_s,input_tokens,output_tokens,session,cached_tokens\n"
ROW = '{"timestamp":0,"input_length":5,"output_length":1'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", GOOD + "1,ten,5\n", "a.csv:3: input_tokens 'ten' is not a whole number"),
        ("a.csv", GOOD + "1,0,5\n", "a.csv:3: input_tokens '0' is below 1"),
        ("a.csv", GOOD + "1,10,-5\n", "a.csv:3: output_tokens '-5' is below 0"),
        ("a.csv", GOOD + "1,10.5,5\n", "a.csv:3: input_tokens '10.5' is not a whole number"),
        ("a.csv", GOOD + "nan,10,5\n", "a.csv:3: arrival_s 'nan' is not a time"),
        ("a.csv", GOOD + "\n1,10\n", "a.csv:4: 2 fields where the header has 3"),
        ("a.csv", GOOD + "5,10,5\n3,10,5\n", "a.csv: call 3 arrives at 3 s, before the one above it (5 s): sort"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "a.csv:2: TIMESTAMP 'yesterday' is not a time"),
        ("a.csv", "a,b\n1,2\n", "a.csv: no known trace format has these columns or keys: a, b"),
        ("a.csv", "", "a.csv: the file is empty"),
        ("a.csv", SESSIONS + "0,10,5,s,11\n", "a.csv:2: cached_tokens 11 is above"),
        ("a.jsonl", ROW + '}\n{"timestamp":0,', "a.jsonl:2: not JSON"),
        ("a.jsonl", ROW + ',"hash_ids":[1,2]}', "a.jsonl:1: 2 hash_ids are more than 5"),
        ("a.jsonl", ROW + ',"hash_ids":["x"]}', "a.jsonl:1: hash_ids is not a list"),
        ("a.jsonl", ROW + "}\n[]", "a.jsonl:2: not a JSON object"),
        ("a.json", '{"id":"x","block_size":64,"requests":[{"t":0,"in":1}]}', "a.json: main requests[0].hash_ids is not a list"),
        ("a.json", '{"spans":[{"attributes":{}}]}', "a.json: spans[0] has no gen_ai.input.messages"),
        ("a.json", '{"spans":\n', "a.json: not JSON"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError) as caught:
        list(read(tmp_path / name))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(GOOD.encode() + b"\xff\xfe\n")
    (tmp_path / "b.csv.gz").write_bytes(b"not gzip")
    for path, words in (
        (tmp_path / "a.csv", "not UTF-8"), (tmp_path / "b.csv.gz", "b.csv.gz"), (tmp_path / "no", "No such file"),
    ):  # fmt: skip
        with pytest.raises(TraceError, match=words):
            list(read(path))
    with pytest.raises(TraceError, match="no format 'x'"):
        read(DATA / "azure_40.csv", "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match=r"no \*\.json file"):
        read(tmp_path / "empty")
