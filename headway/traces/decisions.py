"""The gateway's decision log (docs/decision-log.md): its records, and the requests in it as a trace.

Sizes are the latest that the gateway knew: exact where a prompt was rendered, its estimate elsewhere. What a prompt shared with
earlier ones is what the gateway took to be cached; that text is looked for among the client's own earlier prompts. A request that
came when no earlier one of its client was open any more is taken to have waited for the one before it: it goes into that one's
thread. Memory holds the requests that are open, and those that ended beside an older one.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headway.core.journal import SCHEMA, NotARecord, Record
from headway.errors import UsageError
from headway.traces.branches import Branches
from headway.traces.record import Call
from headway.traces.rows import open_bytes

BLOCK = 16  # tokens: divides the block sizes of engines, so that no whole engine block of a hit is lost


def records(paths: Iterable[Path]) -> Iterator[tuple[str, Record]]:
    """(place, record) of each line of these files, oldest first; place is `file:line`. A line that is cut short is passed over
    where a gateway broke off in it: before a `begin`, or at a file's end. Raises UsageError."""
    cut = ""
    for place, line in _lines(paths):
        record = _decoded(line)
        if record is None:
            cut = cut or place
            continue
        if cut and record["e"] not in ("begin", "continues"):
            raise UsageError(f"{cut}: not a record of a decision log ({SCHEMA})")
        cut = ""
        yield place, record


def calls(path: Path) -> Iterator[Call]:
    """The requests of a log in order of arrival; seconds since the first of them."""
    reader = _Reader()
    for place, record in records([path]):
        try:
            reader.feed(record)
        except NotARecord as error:
            raise UsageError(f"{place}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{place}: event {record['e']!r}: {type(error).__name__}: {error}") from None
        yield from reader.ready()
    reader.end()
    yield from reader.ready()


def _lines(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        try:
            with open_bytes(path) as file:
                for number, line in enumerate(file, 1):
                    yield f"{path}:{number}", line
        except (OSError, EOFError) as error:  # a broken gzip too
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _decoded(line: bytes) -> Record | None:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) and "e" in record else None


@dataclass(slots=True)
class _Open:
    """A request between its arrival and its end; times in seconds of the trace."""

    at: float
    uncached: int
    cached: int
    client: str
    lane: int
    klass: str
    granted: float | None = None
    first_output: float | None = None
    streams: bool = True
    outputs: int = 0


@dataclass
class _Reader:
    _clocks: dict[str, float] = field(default_factory=dict)
    """By upstream: what to add to `t` for seconds of the trace."""
    _zero: float | None = None
    _latest: float = 0.0
    _open: dict[tuple[str, str], _Open] = field(default_factory=dict)
    _ended: list[tuple[float, int, _Open, int]] = field(default_factory=list)
    _number: int = 0
    _lanes: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By client: threads that wait for nothing, the one that ended last at the end."""
    _branches: Branches = field(default_factory=lambda: Branches(BLOCK))
    _streamed: float = 0.0
    _streamed_tokens: int = 0
    _first: float | None = None
    _emitted: float = 0.0

    def feed(self, record: Record) -> None:
        event, upstream = record["e"], str(record.get("u", ""))
        if event == "begin":
            self._begin(record, upstream)
        elif event == "continues":
            return
        elif upstream not in self._clocks:
            if event != "lost":
                raise NotARecord("the log does not begin with a 'begin': put the earlier file before it")
        elif event in _EVENTS:
            self._latest = max(self._latest, self._clocks[upstream] + record["t"] / 1e6)
            _EVENTS[event](self, record, upstream)

    def ready(self) -> Iterator[Call]:
        """Calls that no open one precedes."""
        first = next(iter(self._open.values())).at if self._open else float("inf")
        while self._ended and self._ended[0][0] <= first:
            _, _, one, output = heapq.heappop(self._ended)
            tokens = one.uncached + one.cached
            blocks = self._branches.ids(one.client, tokens, one.cached)
            # Clocks of two upstreams may differ by microseconds, and the time of day may be set back between two runs.
            self._first = one.at if self._first is None else self._first
            self._emitted = max(self._emitted, one.at - self._first)
            yield Call(self._emitted, tokens, output, one.client, str(one.lane), BLOCK, blocks, one.klass)

    def end(self) -> None:
        for key in list(self._open):
            self._close(key, self._latest)

    # -- events -------------------------------------------------------------------------------------

    def _begin(self, record: Record, upstream: str) -> None:
        if record["schema"] != SCHEMA:
            raise NotARecord(f"schema {record['schema']!r}, this version reads {SCHEMA!r}")
        for key in [key for key in self._open if key[0] == upstream]:
            self._close(key, self._latest)  # the gateway ended with it
        at = record["t"] / 1e6
        day = float(record.get("unix", at))
        self._zero = day if self._zero is None else self._zero
        self._clocks[upstream] = day - self._zero - at

    def _arrive(self, record: Record, upstream: str) -> None:
        if not record.get("prefills", True):
            return
        client = str(record.get("client", ""))
        free = self._lanes[client]
        lane = free.pop() if free else self._number
        self._number += 1
        sizes = max(int(record["uncached"]), 1), int(record.get("cached", 0))
        one = _Open(self._latest, *sizes, client, lane, str(record.get("klass", "")), streams=bool(record.get("streams", True)))
        self._open[upstream, str(record["id"])] = one

    def _measured(self, record: Record, upstream: str) -> None:
        if (one := self._open.get((upstream, str(record["id"])))) is not None:
            one.uncached, one.cached = max(int(record["uncached"]), 1), int(record["cached"])

    def _decide(self, record: Record, upstream: str) -> None:
        for decision in record["decisions"]:
            one = self._open.get((upstream, str(decision["id"])))
            if one is not None and one.granted is None and decision["do"] != "expire":
                one.granted = self._latest

    def _streams(self, record: Record, upstream: str) -> None:
        if (one := self._open.get((upstream, str(record["id"])))) is not None:
            one.streams = bool(record["streams"])

    def _first_output(self, record: Record, upstream: str) -> None:
        if (one := self._open.get((upstream, str(record["id"])))) is not None:
            one.first_output, one.outputs = self._latest, 1

    def _outputs(self, record: Record, upstream: str) -> None:
        for id, _, tokens in record["of"]:
            if (one := self._open.get((upstream, str(id)))) is not None:
                one.outputs += int(tokens)

    def _leave(self, record: Record, upstream: str) -> None:
        self._close((upstream, str(record["id"])), self._latest)

    def _close(self, key: tuple[str, str], now: float) -> None:
        one = self._open.pop(key, None)
        if one is None:
            return
        self._lanes[one.client].append(one.lane)
        output = one.outputs
        if one.first_output is not None and one.streams:
            self._streamed += now - one.first_output
            self._streamed_tokens += output - 1
        elif one.first_output is not None and one.granted is not None and self._streamed > 0:
            # Its length is not in the log: as many tokens as streams had in that time.
            output = max(1, round((now - one.granted) * self._streamed_tokens / self._streamed))
        heapq.heappush(self._ended, (one.at, self._number, one, output))
        self._number += 1


_EVENTS: dict[str, Any] = {
    "arrive": _Reader._arrive,
    "measured": _Reader._measured,
    "decide": _Reader._decide,
    "streams": _Reader._streams,
    "first_output": _Reader._first_output,
    "outputs": _Reader._outputs,
    "leave": _Reader._leave,
}
