"""What every scenario works with: the numbers that a user may set, the server, and what was learned of it so far."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields

import aiohttp

from headway.bench import prompts
from headway.bench.client import Request, Stream, Target, stream
from headway.bench.lag import LIMIT_S
from headway.bench.overlap import Solo
from headway.bench.server import Server
from headway.bench.window import Window, median

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Defaults: the shape of the report that named the problem. Tokens, seconds and counts."""

    victim_in: int = 38
    victim_out: int = 512
    intruder_in: int = 28623
    intruder_out: int = 58
    after: int = 16  # the intruder comes when the victim has this many tokens
    lead_s: float = 0.05  # ... or is this far ahead of it, at most
    streams: int = 4
    ramp_s: float = 0.002  # between the starts of two of them: a thousand requests at once are a stall of the client
    burst: int = 3
    turn_in: int = 500
    turn_out: int = 16
    neighbour_out: int = 32  # the short neighbour of the control
    newcomer_at: float = 0.25  # part of the long prefill that is done when the newcomer comes
    newcomer_out: int = 32
    budget: int | None = None  # the server's token budget a step, if the user knows it
    timeout_s: float = 600.0
    warmup: int = 1  # rounds that are not measured
    cooldown_s: float = 0.5  # between two runs
    lag_limit_s: float = LIMIT_S
    lengthen: int = 2  # a victim that ended too early is run again with twice the length, this often
    load: float = 0.5  # mixed: seconds of prefill that arrive a second; 1 is saturation
    rate: float | None = None  # mixed: long prompts a second, in place of `load`
    duration_s: float = 30.0  # mixed: how long they arrive
    baseline_s: float = 5.0  # mixed: live streams alone, before the first arrives
    trace: str | None = None  # a file or folder
    trace_format: str | None = None
    trace_speed: float = 1.0
    trace_every_s: float = 60.0
    trace_idle_s: float | None = None
    trace_start_s: float = 0.0
    trace_end_s: float | None = None
    trace_limit: int = 200
    trace_longest: int | None = None  # prompt tokens; None: what the server's context holds
    trace_open: bool = False  # a session's call does not wait for its previous answer
    trace_big: int = 4096  # uncached tokens from which on a call counts as an intruder
    kept_back: bool = False  # the server keeps the intruder back until the victim ends, which then cannot outlive it
    pieces: bool = False  # a gateway sends the intruder in pieces, each of which finds the ones before it in the cache


#: Numbers that must be above 0; the others may be 0.
ABOVE_0 = frozenset((
    "victim_in", "victim_out", "intruder_in", "intruder_out", "after", "streams", "burst", "turn_in", "turn_out",
    "neighbour_out", "newcomer_at", "newcomer_out", "budget", "timeout_s", "lag_limit_s", "load", "rate", "duration_s",
    "baseline_s", "trace_speed", "trace_every_s", "trace_end_s", "trace_longest",
))  # fmt: skip


def unfit(settings: Settings) -> tuple[str, str] | None:
    """(field, what is wrong with its value) of the first setting that cannot be used."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not value >= 0 or (value == 0 and one.name in ABOVE_0):  # NaN is no number to go by either
            return one.name, f"{value:g} must be {'above 0' if one.name in ABOVE_0 else '0 or more'}"
    if settings.victim_out <= settings.after:
        return "victim_out", f"{settings.victim_out} must be above after {settings.after}: no overlap is possible"
    if settings.newcomer_at >= 1:
        return "newcomer_at", f"{settings.newcomer_at:g} must be below 1, else the prefill is over"
    return None


@dataclass(frozen=True)
class Stall:
    """A gap longer than max(3 x the solo median, 0.1 s). `stream` counts within the run; `at_s` since its beginning."""

    stream: int
    kind: str
    at_s: float
    seconds: float
    during_prefill: bool


@dataclass
class Run:
    """One run: its figures (None: could not be read) and its streams by class."""

    scenario: str
    rep: int
    figures: dict[str, float | None]
    streams: list[tuple[str, Stream]]
    void: str | None = None
    notes: list[str] = field(default_factory=list)
    lag_p99_s: float = 0.0
    lag_max_s: float = 0.0
    windows: list[Window] = field(default_factory=list)  # in which a long prefill ran; monotonic
    stalls: list[Stall] = field(default_factory=list)  # the longest few
    text: str | None = None  # same | corrupt | batch | unknown: the victim's text beside the prefill
    saturation: float | None = None  # seconds of prefill that arrived a second


@dataclass
class Context:
    http: aiohttp.ClientSession
    target: Target
    server: Server
    scale: prompts.Scale
    rng: random.Random
    settings: Settings
    say: Say = lambda text: None
    t0: list[float] = field(default_factory=list)  # the intruder alone, seconds, so far
    prefill_rate: float | None = None  # tokens/s of the intruder alone
    solo: Solo | None = None  # the latest
    victim_out: int = 0  # grows when a victim ended too early

    def __post_init__(self) -> None:
        self.victim_out = self.victim_out or self.settings.victim_out

    @property
    def alone_s(self) -> float | None:
        return median(self.t0)

    def victim(self, out: int | None = None) -> Request:
        return prompts.chat(self.settings.victim_in, out or self.victim_out, self.scale, self.rng)

    def intruder(self) -> Request:
        return prompts.chat(self.settings.intruder_in, self.settings.intruder_out, self.scale, self.rng)

    async def send(self, request: Request, due: float | None = None) -> Stream:
        return await stream(self.target, request, timeout=self.settings.timeout_s, due=due)


Scenario = Callable[[Context, int], Awaitable[list[Run]]]
