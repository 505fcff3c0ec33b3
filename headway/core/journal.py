"""What went into a controller and what came out, in order, so that the same decisions can be made from it again.

A *record* is one event as a dictionary of plain values (docs/decision-log.md has the fields); it never holds text of a prompt.
The first record of a controller is its `begin`; the others follow in the order of the events.

Invariants
----------
1. Every event that can change a decision is recorded, with its time in whole microseconds. The clock that drives a recorded
   controller ticks in microseconds too, so nothing is lost to rounding.
2. `Replayer` gives a fresh controller the same events and compares its decisions with the recorded ones; a recorded `lost`
   (records that could not be written) ends the comparison, it does not fail it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from headway.core.capability import Capability
from headway.core.classes import Classes, TrafficClass
from headway.core.controller import Controller, QueueFull
from headway.core.forecast import Forecast
from headway.core.targets import Targets
from headway.core.work import Decision, Entry, Work

SCHEMA = "headway.decisions/1"
BATCH = 256
"""Outputs that are collected into one record at most."""

Record = dict[str, Any]
Sink = Callable[[Record], None]


def ticks(now: float) -> int:
    """Whole microseconds of a time in seconds."""
    return round(now * 1e6)


def seconds(ticks: int) -> float:
    return ticks / 1e6


class RecordedController(Controller):
    """A controller that writes down what goes in and what comes out. `upstream` names it where one log holds several."""

    def __init__(
        self,
        policy: str,
        targets: Targets,
        classes: Classes | None,
        sink: Sink,
        *,
        now: float = 0.0,
        upstream: str = "",
        about: Record | None = None,
    ) -> None:
        """`about`: what the first record says beside policy, targets and classes."""
        super().__init__(policy, targets, classes)
        self._sink = sink
        self._upstream = upstream
        self._outputs: list[tuple[str, int, int]] = []
        self._first_output = 0
        self._latest_output = 0
        begin = {"schema": SCHEMA, "policy": policy, "targets": asdict(targets), **(about or {})}
        begin["classes"] = [asdict(klass) for klass in self.classes.values()]
        sink({"t": ticks(now), "u": upstream, "e": "begin", **begin})

    # -- events -----------------------------------------------------------------------------------

    def engine(self, now: float, capability: Capability) -> None:
        self._record(now, "engine", **asdict(capability))
        super().engine(now, capability)

    def timed(self, now: float, tokens: int, seconds: float, at: int = 0) -> None:
        self._record(now, "timed", tokens=tokens, seconds=seconds, at=at)
        super().timed(now, tokens, seconds, at)

    def forget(self, now: float) -> None:
        self._record(now, "forget")
        super().forget(now)

    def foreigners(self, now: float, excess: int) -> None:
        if excess or self.foreign.count:
            self._record(now, "foreigners", excess=excess)
        super().foreigners(now, excess)

    def arrive(self, now: float, work: Work) -> Entry:
        self._record(now, "arrive", **asdict(work))
        return super().arrive(now, work)

    def measured(self, now: float, id: str, uncached: int, paceable: bool, cached: int = 0) -> None:
        self._record(now, "measured", id=id, uncached=uncached, paceable=paceable, cached=cached)
        super().measured(now, id, uncached, paceable, cached)

    def release(self, now: float, id: str) -> None:
        self._record(now, "release", id=id)
        super().release(now, id)

    def prefilled(self, now: float, id: str, uncached: int, seconds: float | None) -> None:
        self._record(now, "prefilled", id=id, uncached=uncached, seconds=seconds)
        super().prefilled(now, id, uncached, seconds)

    def streams(self, now: float, id: str, streams: bool) -> None:
        self._record(now, "streams", id=id, streams=streams)
        super().streams(now, id, streams)

    def first_output(self, now: float, id: str) -> None:
        self._record(now, "first_output", id=id)
        super().first_output(now, id)

    def output(self, now: float, id: str, tokens: int = 1) -> None:
        at = ticks(now)
        if not self._outputs:
            self._first_output = self._latest_output = at
        self._outputs.append((id, at - self._latest_output, tokens))
        self._latest_output = at
        if len(self._outputs) >= BATCH:
            self._flush()
        super().output(now, id, tokens)

    def leave(self, now: float, id: str) -> None:
        self._record(now, "leave", id=id)
        super().leave(now, id)

    def decide(self, now: float) -> list[Decision]:
        decisions = super().decide(now)
        self._record(now, "decide", decisions=[as_record(decision) for decision in decisions])
        return decisions

    def would(self, now: float, id: str, forecasts: Mapping[str, Forecast]) -> None:
        """What each policy would have done with a request that has just arrived."""
        self._record(now, "would", id=id, policies={name: asdict(forecast) for name, forecast in forecasts.items()})

    # -- writing ----------------------------------------------------------------------------------

    def _record(self, now: float, event: str, **values: Any) -> None:
        if self._outputs:
            self._flush()
        self._sink({"t": ticks(now), "u": self._upstream, "e": event, **values})

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        self._sink({"t": self._first_output, "u": self._upstream, "e": "outputs", "of": outputs})


def as_record(decision: Decision) -> Record:
    """A decision as plain values; `do` is `go`, `piece` or `expire`."""
    return {"do": type(decision).__name__.lower(), **asdict(decision)}


class NotARecord(Exception):
    """A record that this version cannot read; the message says why."""


@dataclass(slots=True)
class Difference:
    """A turn in which other decisions were made than the log has."""

    at: float
    """Seconds on the log's clock."""
    recorded: list[Record]
    made: list[Record]


class Replayer:
    """Gives one controller's records to a fresh controller. `policy` and `targets`, where given, take the place of the recorded
    ones; then decisions differ, of course."""

    def __init__(self, policy: str | None = None, targets: Targets | None = None) -> None:
        self.controller: Controller | None = None
        self.turns = 0
        self.decisions = 0
        self.differences: list[Difference] = []
        self.lost = False
        """Records were lost: what follows is not compared."""
        self._policy = policy
        self._targets = targets

    def feed(self, record: Mapping[str, Any]) -> list[Decision]:
        """One record, in order. Returns the decisions that are made at it. Raises NotARecord."""
        event = record.get("e")
        try:
            return self._feed(str(event), seconds(record["t"]), record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotARecord(f"event {event!r}: {type(error).__name__}: {error}") from None

    def _feed(self, event: str, now: float, record: Mapping[str, Any]) -> list[Decision]:
        if event == "begin":
            if record["schema"] != SCHEMA:
                raise NotARecord(f"schema {record['schema']!r}, this version reads {SCHEMA!r}")
            targets = self._targets or _made(Targets, record["targets"])
            classes = None if self._targets else {row["name"]: _class(row) for row in record["classes"]}
            self.controller = Controller(self._policy or record["policy"], targets, classes)
            self.lost = False
            return []
        if event == "lost":
            self.lost = True
        if self.controller is None:
            raise NotARecord("the log does not begin with a 'begin': give the earlier files too, oldest first")
        if self.lost:
            return []  # without the events in between, ids and times no longer fit together
        if event == "decide":
            return self._decide(now, record["decisions"])
        APPLY[event](self.controller, now, record)
        return []

    def _decide(self, now: float, recorded: list[Record]) -> list[Decision]:
        assert self.controller is not None
        made = self.controller.decide(now)
        self.turns += 1
        self.decisions += len(made)
        records = [as_record(decision) for decision in made]
        if records != recorded:
            self.differences.append(Difference(now, recorded, records))
        return made


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    """A dataclass from those of `values` that are its fields: a log may have more than this version knows."""
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def _class(row: Mapping[str, Any]) -> TrafficClass:
    return _made(TrafficClass, {**row, "targets": _made(Targets, row["targets"])})  # type: ignore[no-any-return]


def _arrive(controller: Controller, now: float, record: Mapping[str, Any]) -> None:
    with suppress(QueueFull):  # as it was then
        controller.arrive(now, _made(Work, record))


def _outputs(controller: Controller, now: float, record: Mapping[str, Any]) -> None:
    at = int(record["t"])
    for id, later, tokens in record["of"]:
        at += later
        controller.output(seconds(at), id, tokens)


APPLY: dict[str, Callable[[Controller, float, Mapping[str, Any]], None]] = {
    "engine": lambda c, now, r: c.engine(now, _made(Capability, r)),
    "timed": lambda c, now, r: c.timed(now, r["tokens"], r["seconds"], r["at"]),
    "foreigners": lambda c, now, r: c.foreigners(now, r["excess"]),
    "forget": lambda c, now, r: c.forget(now),
    "arrive": _arrive,
    "measured": lambda c, now, r: c.measured(now, r["id"], r["uncached"], r["paceable"], r["cached"]),
    "release": lambda c, now, r: c.release(now, r["id"]),
    "prefilled": lambda c, now, r: c.prefilled(now, r["id"], r["uncached"], r["seconds"]),
    "streams": lambda c, now, r: c.streams(now, r["id"], r["streams"]),
    "first_output": lambda c, now, r: c.first_output(now, r["id"]),
    "outputs": _outputs,
    "leave": lambda c, now, r: c.leave(now, r["id"]),
    "would": lambda c, now, r: None,
}
"""What a record of each event does to a controller."""
