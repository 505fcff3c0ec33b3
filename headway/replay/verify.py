"""A decision log read back through the controller: the same events must give the same decisions (`headway.replay-verify/1`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.core.journal import NotARecord, Replayer
from headway.errors import UsageError
from headway.traces.decisions import records

SCHEMA = "headway.replay-verify/1"
SHOWN = 20
"""Differences of an upstream that the document has."""


def read_back(paths: Sequence[Path]) -> dict[str, Replayer]:
    """Make the log's decisions again, by upstream. Raises UsageError, with the place, for what cannot be read."""
    replayers: dict[str, Replayer] = {}
    for place, record in records(paths):
        if record["e"] == "continues":
            if not replayers:
                raise UsageError(f"{place}: this file continues an earlier one: give that first")
            continue
        replayer = replayers.setdefault(str(record.get("u", "")), Replayer())
        try:
            replayer.feed(record)
        except NotARecord as error:
            raise UsageError(f"{place}: {error}") from None
    if not replayers:
        raise UsageError(f"{', '.join(map(str, paths))}: no record of a decision log in it")
    return replayers


def document(log: Path, replayers: dict[str, Replayer]) -> dict[str, Any]:
    upstreams = {
        upstream: {
            "turns": one.turns,
            "decisions": one.decisions,
            "differing_turns": len(one.differences),
            "lost": one.lost,
            "differences": [asdict(difference) for difference in one.differences[:SHOWN]],
        }
        for upstream, one in replayers.items()
    }
    return {"schema": SCHEMA, "log": str(log), "upstreams": upstreams}
