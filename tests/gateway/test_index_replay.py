"""The prefix index judged as benchmarks/index_replay.py judges it, small: agents' conversations on the embedded engine, with a KV
cache too small for all of them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headway.traces.record import Call


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "index_replay.py"
    spec = importlib.util.spec_from_file_location("index_replay", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["index_replay"] = module
    spec.loader.exec_module(module)
    return module


def calls(sessions: int, turns: int) -> list[Call]:
    """Conversations that begin at 300 blocks of 64 tokens and grow by 10 a turn, in turns of two, three, ... of them."""
    blocks = {s: tuple(range(s * 10_000, s * 10_000 + 300 + 10 * turns)) for s in range(sessions)}
    return [
        Call(float(n), 64 * (300 + 10 * turn), 4, session=f"s{s}", block_size=64, blocks=blocks[s][: 300 + 10 * turn])
        for n, (turn, s) in enumerate((turn, (turn + s) % sessions) for turn in range(turns) for s in range(1 + turn % sessions))
    ]


@pytest.mark.parametrize("era", ["sparse", "full-attention"])
def test_predicted_uncached_tokens_are_right(bench: ModuleType, era: str) -> None:
    row = next(row for row in bench.ERAS if row.name == era)
    some = calls(4, 12)
    result = asyncio.run(bench.replay("embedded", row, some, 8.0, 0.5, "passthrough"))
    assert result["calls"] == len(some) == 30
    assert result["turns_that_found_less_than_their_session_had"] >= 1, "nothing was evicted"
    assert result["right"] >= 0.85 > result["right_without_index"], result
