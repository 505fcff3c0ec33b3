"""CSV traces. A family is told by its header; columns that a family has and we do not need are ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headway.traces.branches import Branches
from headway.traces.record import Call, TraceError
from headway.traces.rows import seconds, table, whole

BLOCK = 64  # tokens: what kv-cache-tester counts cached tokens in


def moment(path: Path, line: int | None, name: str, value: str) -> float:
    """Seconds of a calendar time, UTC where it names no zone."""
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        raise TraceError(path, line, f"{name} {value!r} is not a time") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True)
class Columns:
    """Which columns of a family hold what."""

    arrival: str
    input: str
    output: str
    clock: Callable[[Path, int | None, str, str], float] = seconds

    @property
    def needed(self) -> frozenset[str]:
        return frozenset((self.arrival, self.input, self.output))

    def sizes(self, path: Path, line: int, row: dict[str, str]) -> tuple[float, int, int]:
        """(seconds, prompt tokens, answer tokens) of a row."""
        return (
            self.clock(path, line, self.arrival, row[self.arrival]),
            whole(path, line, self.input, row[self.input], 1),
            whole(path, line, self.output, row[self.output]),
        )


AZURE = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", moment)
VIDUR = Columns("arrived_at", "num_prefill_tokens", "num_decode_tokens")
LENGTHS = Columns("arrival_s", "input_toks", "output_toks")
PLAIN = Columns("arrival_s", "input_tokens", "output_tokens")
_AGENT = Columns("t_s", "in_tokens", "out_tokens")
_AGENT_MORE = frozenset(("trace_id", "scope", "prefix_cached_tokens_est"))
AGENT = _AGENT.needed | _AGENT_MORE


def sizes_only(columns: Columns) -> Callable[[Path], Iterator[Call]]:
    """Rows that say when and how many. Optional columns `session` and `cached_tokens` say how much of a prompt its session
    had sent before.
    """

    def read(path: Path) -> Iterator[Call]:
        branches, first = Branches(BLOCK), None
        for line, row in table(path):
            at, tokens, out = columns.sizes(path, line, row)
            first = at if first is None else first
            session = row.get("session", "")
            if session and "cached_tokens" in row:
                blocks = branches.ids(session, tokens, _cached(path, line, "cached_tokens", row, tokens))
                yield Call(at - first, tokens, out, session, "", BLOCK, blocks)
            else:
                yield Call(at - first, tokens, out, session)

    return read


def _cached(path: Path, line: int, column: str, row: dict[str, str], tokens: int) -> int:
    cached = whole(path, line, column, row[column])
    if cached > tokens:
        raise TraceError(path, line, f"{column} {cached} is above the {tokens} tokens of the prompt")
    return cached


def agent_sessions(path: Path) -> Iterator[Call]:
    """kv-cache-tester as one CSV: the rows of a session stand together, its clock starts at 0. A subagent (scope `main/s1`) has
    a clock of its own, which starts when the main thread made its latest call.
    """
    branches, session, spawned, held = Branches(BLOCK), None, 0.0, list[Call]()
    for line, row in table(path):
        at, tokens, out = _AGENT.sizes(path, line, row)
        if row["trace_id"] != session:
            yield from sorted(held, key=lambda call: call.arrival)
            session, spawned, held = row["trace_id"], 0.0, []
        scope = row["scope"]
        if "/" in scope:
            at += spawned
        else:
            spawned = at
        cached = _cached(path, line, "prefix_cached_tokens_est", row, tokens)
        blocks = branches.ids(f"{session} {scope}", tokens, cached)
        held.append(Call(at, tokens, out, session, scope, BLOCK, blocks))
    yield from sorted(held, key=lambda call: call.arrival)
