"""Step times as recorded inside vLLM on an H200, against what the client of the live answer saw in the same run."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from headway.core.targets import Targets
from headway.engines.vllm.cadence import StepPacer
from headway.engines.vllm.chunks import ChunkRule

RECORD = Path(__file__).parent / "data" / "h200-class-steps.csv"
SOLO = 0.0183
"""Seconds of a decode-only step, as the client saw them before the prompt came."""
SEEN_BY_CLIENT = [0.552 + 0.202, 0.586 + 0.220, 0.626 + 0.241]
"""The two gaps around each chunk, seconds: the token of the step before it came late, the chunk's own soon after."""


def test_chunks_take_what_the_client_saw() -> None:
    pacer = StepPacer(Targets(share=0.9), ChunkRule(8192, 1568, align=True, sub_block=False))
    for _ in range(8):
        pacer.fit.solo(SOLO)
    timed: list[tuple[int, float]] = []
    pacer.fit.mixed = lambda tokens, seconds: timed.append((tokens, seconds))  # type: ignore[method-assign]
    with RECORD.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            now, key = float(row["seconds"]), int(row["key"])
            if row["kind"] == "S":
                pacer.scheduled(now, key, ["answer"] * int(row["turns"]), int(row["prefill_tokens"]))
            else:
                pacer.completed(now, key, busy=True)
    assert [tokens for tokens, _ in timed] == [7840, 7840, 7840]
    for (_, seconds), seen in zip(timed, SEEN_BY_CLIENT, strict=True):
        assert seconds == pytest.approx(seen - SOLO, abs=0.01)
