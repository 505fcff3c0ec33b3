"""Gateway and engine together in virtual time: the same controller that `headway serve` runs, over the embedded engine.

A piece is an engine request of one output token, as over HTTP. What HTTP adds is one number, `overhead`: seconds from the
gateway to the engine and back, half on each way; with `front_end`, the engine's HTTP process reads one prompt after the other
before that. No clock and no IO.

Invariants. Decode-only stretches are leapt up to the next event; what the controller would have seen of them is told to it
before the next event that it sees. With `on_end`, a story is handed over when its request is over, and forgotten: memory then
holds the requests under way and nothing else.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from headway.core.capability import Capability
from headway.core.classes import INTERACTIVE
from headway.core.controller import Controller, QueueFull
from headway.core.outcome import Outcome
from headway.core.prefix import BlockIndex, block_keys
from headway.core.targets import Targets
from headway.core.work import Expire, Go, Phase, Piece, Work
from headway.simulator.blocks import ID
from headway.simulator.engine import Engine, EngineSettings, Output
from headway.simulator.leap import TIE, Row, Stretch
from headway.simulator.profiles import FrontEnd
from headway.simulator.request import Request


@dataclass(slots=True)
class Arrival:
    """One request of a trace: `prompt` as token ids, or its length `tokens` and the `keys` of its whole blocks.

    Calls of one `thread` are sent one after the other: not before the answer to the one before has ended. `cancel_at`: seconds
    at which the client leaves. `klass`: its traffic class, empty: interactive. `label` is the caller's.
    """

    at: float
    id: str
    prompt: array[int] | None
    max_tokens: int
    client: str = ""
    cancel_at: float | None = None
    tokens: int = 0
    keys: list[int] | None = None
    thread: str = ""
    klass: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        if self.prompt is not None:
            self.tokens = len(self.prompt)


@dataclass(slots=True)
class Story:
    """What became of a request. Times in seconds of the replay's clock, as the client sees them."""

    arrival: Arrival
    #: When it was sent: `arrival.at`, or when its thread was free.
    sent: float
    outcome: Outcome | None = None
    first_grant: float | None = None
    first_output: float | None = None
    #: (time, tokens) of single outputs, and (time of the stretch's begin, stretch, row).
    parts: list[tuple[float, int] | tuple[float, Stretch, Row]] = field(default_factory=list)
    pieces: int = 0
    waited: float = 0.0
    #: Prompt tokens that the engine found cached for the request itself, behind its pieces.
    cached: int = 0
    ended: float | None = None

    @property
    def ttft(self) -> float | None:
        return self.first_output - self.sent if self.first_output is not None else None

    @property
    def outputs(self) -> list[float]:
        """The time of each output until the end."""
        end = float("inf") if self.ended is None else self.ended + TIE
        return [at for at in self._times() if at <= end]

    def _times(self) -> Iterator[float]:
        for part in self.parts:
            if len(part) == 2:
                yield part[0]
            else:
                begin, stretch, _ = part
                yield from (begin + stretch.timing.seconds(step) for step in range(1, stretch.steps + 1))


class Replay:
    def __init__(
        self,
        engine: EngineSettings,
        policy: str,
        targets: Targets,
        *,
        overhead: float = 0.01,
        front_end: FrontEnd | None = None,
        warm: Iterable[tuple[int, float]] = (),
        leap: bool = True,
        on_end: Callable[[Story], None] | None = None,
    ) -> None:
        """`warm`: (tokens, seconds) of pieces already timed, as a probe would have left them."""
        self.engine = Engine(engine)
        self.controller = Controller(policy, targets)
        self.block = engine.layout.block_size
        self.controller.engine(0.0, Capability(block=self.block, caching=True))
        for tokens, seconds in warm:
            self.controller.timed(0.0, tokens, seconds)
        self.index = BlockIndex()
        self.overhead = overhead
        self.front_end = front_end
        self._front_end_free = 0.0
        #: Seconds that it spent on pieces.
        self.front_end_busy = 0.0
        self.leap = leap
        self.on_end = on_end
        self.now = 0.0
        #: Seconds in which the engine made steps.
        self.busy = 0.0
        self.stories: dict[str, Story] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stepping = False
        self._wake_at: float | None = None
        self._coming: Iterator[Arrival] = iter(())
        self._threads: dict[str, list[Arrival]] = {}
        self._keys: dict[str, list[int]] = {}
        self._done: dict[str, int] = {}
        self._sent_at: dict[str, float] = {}
        #: Stretches whose outputs the controller has not all seen: begin (as the client sees it), stretch, steps seen.
        self._unseen: list[tuple[float, Stretch, int]] = []

    def run(self, arrivals: Iterable[Arrival], until: float = float("inf")) -> dict[str, Story]:
        """Replay to the end, or to `until` seconds. `arrivals` are in order of time and are asked for one at a time."""
        self._coming = iter(arrivals)
        self._next_arrival()
        while self._events:
            at, _, event = heapq.heappop(self._events)
            if at > until:
                break
            self.now = max(self.now, at)
            self._see(self.now)
            event()
            if not self._events or self._events[0][0] > self.now + TIE:
                self._go()
        return self.stories

    # -- the gateway's part ---------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        arrival = next(self._coming, None)
        if arrival is not None:
            self._at(arrival.at, partial(self._come, arrival))

    def _come(self, arrival: Arrival) -> None:
        self._next_arrival()
        if arrival.thread:
            line = self._threads.setdefault(arrival.thread, [])
            line.append(arrival)
            if len(line) > 1:
                return
        self._arrive(arrival)

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.cancel_at is not None:
            self._at(max(arrival.cancel_at, self.now), partial(self._cancel, arrival.id))
        story = self.stories[arrival.id] = Story(arrival, self.now)
        keys = arrival.keys
        if keys is None:
            assert arrival.prompt is not None
            keys = block_keys(b"", arrival.prompt, self.block)
        self._keys[arrival.id] = keys
        last = (arrival.tokens - 1) // self.block
        done = self._done[arrival.id] = min(self.index.cached(keys), last)
        uncached = arrival.tokens - done * self.block
        if arrival.tokens >= self.engine.settings.layout.max_model_len:
            self._over(story, Outcome.PASSED)  # the engine answers that it is too long
            return
        try:
            work = Work(arrival.id, uncached, done * self.block, arrival.client, klass=arrival.klass or INTERACTIVE)
            entry = self.controller.arrive(self.now, work)
        except QueueFull:
            self._over(story, Outcome.QUEUE_FULL)
            return
        if not entry.ready:
            self.controller.measured(self.now, arrival.id, uncached, True, done * self.block)
        self._turn()

    def _turn(self) -> None:
        for decision in self.controller.decide(self.now):
            story = self.stories[decision.id]
            if story.first_grant is None:
                story.first_grant, story.waited = self.now, decision.waited
            if isinstance(decision, Expire):
                self._end(decision.id, Outcome.WAIT_EXPIRED)
            elif isinstance(decision, Go):
                story.outcome = Outcome.PACED if story.pieces else Outcome.HELD if decision.waited else Outcome.PASSED
                self._submit(decision.id, story.arrival, None)
            else:
                self._piece(decision, story)
        wake = self.controller.wake(self.now)
        if wake is not None and wake != self._wake_at:
            self._wake_at = wake
            self._at(wake, partial(self._woken, wake))

    def _woken(self, at: float) -> None:
        if at == self._wake_at:  # else another time has been set since
            self._wake_at = None
            self._turn()

    def _piece(self, piece: Piece, story: Story) -> None:
        last = (story.arrival.tokens - 1) // self.block
        end = min(last, self._done[piece.id] + max(1, piece.tokens // self.block))
        self._done[piece.id] = end
        self._sent_at[piece.id] = self.now
        story.pieces += 1
        self._submit(f"{piece.id}#{story.pieces}", story.arrival, end)

    def _piece_done(self, id: str) -> None:
        if id not in self.controller.entries:
            return
        self.index.confirm(self._keys[id], self._done[id])
        left = self.stories[id].arrival.tokens - self._done[id] * self.block
        self.controller.prefilled(self.now, id, left, self.now - self._sent_at[id])
        self._turn()

    def _first(self, id: str, cached: int) -> None:
        if id in self.controller.entries:
            self.stories[id].cached = cached
            self.stories[id].first_output = self.now
            # The hit is told with the answer: so far, and up to the last whole block, the prompt is known to be cached.
            self.index.confirm(self._keys[id], cached // self.block)
            self.controller.first_output(self.now, id)
            self._turn()

    def _finish(self, id: str) -> None:
        if id in self.controller.entries:
            self._end(id, self.stories[id].outcome or Outcome.PASSED)

    def _cancel(self, id: str) -> None:
        if id not in self.controller.entries:
            return
        story = self.stories[id]
        for name in (id, f"{id}#{story.pieces}"):
            self._at(self.now + self.overhead / 2, partial(self._abort, name))
        self._end(id, Outcome.CLIENT_LEFT)

    def _end(self, id: str, outcome: Outcome) -> None:
        self.controller.leave(self.now, id)
        self._over(self.stories[id], outcome)
        self._turn()

    def _over(self, story: Story, outcome: Outcome) -> None:
        story.outcome, story.ended = outcome, self.now
        arrival = story.arrival
        for known in (self._keys, self._done, self._sent_at):
            known.pop(arrival.id, None)
        if self.on_end is not None:
            del self.stories[arrival.id]
            self.on_end(story)
        if arrival.thread:
            line = self._threads[arrival.thread]
            del line[0]
            if line:
                self._at(self.now, partial(self._arrive, line[0]))
            else:
                del self._threads[arrival.thread]

    def _see(self, now: float) -> None:
        """Tell the controller of the outputs of leapt steps that have come by now."""
        later = []
        for begin, stretch, seen in self._unseen:
            timing, due = stretch.timing, now - begin
            ended = stretch.steps
            if due < stretch.duration - TIE:
                ended = timing.steps_begun(due) if due > 0 else 0
                ended -= ended > 0 and timing.seconds(ended) > due + TIE
                later.append((begin, stretch, max(ended, seen)))
            if ended > seen:
                first, last = begin + timing.seconds(seen + 1), begin + timing.seconds(ended)
                for row in stretch.rows:
                    if row.request.id in self.controller.debt.victims:
                        tokens = stretch.gained(row, ended) - stretch.gained(row, seen)
                        self.controller.outputs(row.request.id, ended - seen, tokens, first, last)
        self._unseen = later

    # -- the engine's part ------------------------------------------------------------------------------

    def _submit(self, name: str, arrival: Arrival, blocks: int | None) -> None:
        """Send the request, or a piece of it: its first `blocks` blocks and one token."""
        tokens = arrival.tokens if blocks is None else blocks * self.block + 1
        answer = arrival.max_tokens if blocks is None else 1
        if arrival.prompt is not None:
            request = Request(name, tokens=arrival.prompt[:tokens], max_tokens=answer, arrival=self.now)
        else:
            keys = (arrival.keys or [])[: tokens // self.block]
            request = Request(name, prompt_tokens=tokens, keys=keys, max_tokens=answer, arrival=self.now)
        self._at(self._read(tokens, ids=blocks is not None) + self.overhead / 2, lambda: self.engine.add(request))

    def _read(self, tokens: int, ids: bool) -> float:
        """When the engine's front end has read a prompt that is sent now."""
        if self.front_end is None:
            return self.now
        each = self.front_end.id_token_s if ids else self.front_end.text_token_s
        seconds = self.front_end.request_s + tokens * each
        self.front_end_busy += seconds if ids else 0.0
        self._front_end_free = max(self._front_end_free, self.now) + seconds
        return self._front_end_free

    def _abort(self, name: str) -> None:
        self.engine.abort(name)

    def _go(self) -> None:
        if self._stepping or not self.engine.has_work:
            return
        if self.leap:
            stretch = self.engine.leap(self._events[0][0] - self.now if self._events else float("inf"))
            if stretch is not None:
                self._leapt(stretch)
                return
        result = self.engine.step()
        if result.stuck:
            return
        self._busy_for(result.duration)
        seen_at = self.now + result.duration + self.overhead / 2
        for output in result.outputs:
            self._output(output, seen_at)

    def _busy_for(self, seconds: float) -> None:
        self._stepping = True
        self.busy += seconds
        self._at(self.now + seconds, self._stepped)

    def _leapt(self, stretch: Stretch) -> None:
        begin = self.now + self.overhead / 2
        self._busy_for(stretch.duration)
        self._unseen.append((begin, stretch, 0))
        for row in stretch.rows:
            story = self.stories.get(row.request.id)
            if story is not None:
                story.parts.append((begin, stretch, row))
                if row.finish_reason is not None:
                    self._at(begin + stretch.duration, partial(self._finish, row.request.id))

    def _output(self, output: Output, at: float) -> None:
        id = output.request.id
        if "#" in id:
            self._at(at, partial(self._piece_done, id.partition("#")[0]))
            return
        story = self.stories.get(id)
        if story is None:
            return
        story.parts.append((at, output.tokens))
        if output.first == 0:
            self._at(at, partial(self._first, id, output.request.cached_tokens or 0))
        else:
            self._at(at, partial(self._more, id, output.tokens))
        if output.finish_reason is not None:
            self._at(at, partial(self._finish, id))

    def _more(self, id: str, tokens: int) -> None:
        if id in self.controller.entries and self.controller.entries[id].phase is Phase.DECODE:
            self.controller.output(self.now, id, tokens)

    def _stepped(self) -> None:
        self._stepping = False

    def _at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))


def prompt(seed: int, tokens: int) -> array[int]:
    """Token ids that share no prefix with another seed's."""
    return array(ID, ((seed * 7919 + i * 31) % 50_000 for i in range(tokens)))
