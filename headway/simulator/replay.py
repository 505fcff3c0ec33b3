"""Gateway and engine together in virtual time: the same controller that `headway serve` runs, over the embedded engine.

A piece is an engine request of one output token, as over HTTP. What HTTP adds is one number, `overhead`: seconds from the
gateway to the engine and back, half on each way. No clock and no IO, so a day of traffic takes as long as its events do.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from headway.core.capability import Capability
from headway.core.controller import Controller, QueueFull
from headway.core.outcome import Outcome
from headway.core.prefix import BlockIndex, block_keys
from headway.core.targets import Targets
from headway.core.work import Expire, Go, Phase, Piece, Work
from headway.simulator.blocks import ID
from headway.simulator.engine import Engine, EngineSettings, Output
from headway.simulator.request import Request


@dataclass(slots=True)
class Arrival:
    """One request of a trace. `prompt` are token ids; `cancel_at`: seconds at which its client leaves."""

    at: float
    id: str
    prompt: array[int]
    max_tokens: int
    client: str = ""
    cancel_at: float | None = None


@dataclass(slots=True)
class Story:
    """What became of a request. Times in seconds of the replay's clock."""

    arrival: Arrival
    outcome: Outcome | None = None
    first_grant: float | None = None
    outputs: list[float] = field(default_factory=list)
    """Time of each output as the client sees it."""
    pieces: int = 0
    waited: float = 0.0
    ended: float | None = None

    @property
    def ttft(self) -> float | None:
        return self.outputs[0] - self.arrival.at if self.outputs else None


class Replay:
    def __init__(
        self,
        engine: EngineSettings,
        policy: str,
        targets: Targets,
        *,
        overhead: float = 0.01,
        warm: Iterable[tuple[int, float]] = (),
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
        self.now = 0.0
        self.stories: dict[str, Story] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stepping = False
        self._wake_at: float | None = None
        self._keys: dict[str, list[int]] = {}
        self._done: dict[str, int] = {}
        self._sent_at: dict[str, float] = {}

    def run(self, arrivals: Iterable[Arrival], until: float = float("inf")) -> dict[str, Story]:
        """Replay to the end, or to `until` seconds."""
        for arrival in arrivals:
            self._at(arrival.at, partial(self._arrive, arrival))
            if arrival.cancel_at is not None:
                self._at(arrival.cancel_at, partial(self._cancel, arrival.id))
        while self._events:
            at, _, event = heapq.heappop(self._events)
            if at > until:
                break
            self.now = max(self.now, at)
            event()
            self._step()
        return self.stories

    # -- the gateway's part ---------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival) -> None:
        story = self.stories[arrival.id] = Story(arrival)
        keys = self._keys[arrival.id] = block_keys(b"", arrival.prompt, self.block)
        last = (len(arrival.prompt) - 1) // self.block
        done = self._done[arrival.id] = min(self.index.cached(keys), last)
        uncached = len(arrival.prompt) - done * self.block
        try:
            entry = self.controller.arrive(self.now, Work(arrival.id, uncached, done * self.block, arrival.client))
        except QueueFull:
            story.outcome, story.ended = Outcome.QUEUE_FULL, self.now
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
                self._submit(decision.id, story.arrival.prompt, story.arrival.max_tokens)
            else:
                self._piece(decision, story)
        wake = self.controller.wake(self.now)
        if wake is not None and wake != self._wake_at:
            self._wake_at = wake
            self._at(wake, self._woken)

    def _woken(self) -> None:
        self._wake_at = None
        self._turn()

    def _piece(self, piece: Piece, story: Story) -> None:
        last = (len(story.arrival.prompt) - 1) // self.block
        end = min(last, self._done[piece.id] + max(1, piece.tokens // self.block))
        self._done[piece.id] = end
        self._sent_at[piece.id] = self.now
        story.pieces += 1
        self._submit(f"{piece.id}#{story.pieces}", story.arrival.prompt[: end * self.block + 1], 1)

    def _piece_done(self, id: str) -> None:
        if id not in self.controller.entries:
            return
        self.index.confirm(self._keys[id], self._done[id])
        left = len(self.stories[id].arrival.prompt) - self._done[id] * self.block
        self.controller.prefilled(self.now, id, left, self.now - self._sent_at[id])
        self._turn()

    def _output(self, output: Output) -> None:
        id = output.request.id
        if "#" in id:
            self._piece_done(id.partition("#")[0])
            return
        if id not in self.controller.entries:
            return
        self.stories[id].outputs.append(self.now)
        if self.controller.entries[id].phase is Phase.DECODE:
            self.controller.output(self.now, id, output.tokens)
        else:
            self.controller.first_output(self.now, id)
            self._turn()
        if output.finish_reason is not None:
            self._end(id, self.stories[id].outcome or Outcome.PASSED)

    def _cancel(self, id: str) -> None:
        if id not in self.controller.entries:
            return
        story = self.stories[id]
        for name in (id, f"{id}#{story.pieces}"):
            self._at(self.now + self.overhead / 2, partial(self._abort, name))
        self._end(id, Outcome.CLIENT_LEFT)

    def _end(self, id: str, outcome: Outcome) -> None:
        self.stories[id].outcome, self.stories[id].ended = outcome, self.now
        self.controller.leave(self.now, id)
        self._turn()

    # -- the engine's part ------------------------------------------------------------------------------

    def _submit(self, id: str, prompt: array[int], max_tokens: int) -> None:
        request = Request(id, tokens=prompt, max_tokens=max_tokens, arrival=self.now)
        self._at(self.now + self.overhead / 2, lambda: self.engine.add(request))

    def _abort(self, name: str) -> None:
        self.engine.abort(name)

    def _step(self) -> None:
        if self._stepping or not self.engine.has_work:
            return
        result = self.engine.step()
        if result.stuck:
            return
        self._stepping = True
        end = self.now + result.duration
        self._at(end, self._stepped)
        for output in result.outputs:
            self._at(end + self.overhead / 2, partial(self._output, output))

    def _stepped(self) -> None:
        self._stepping = False

    def _at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))


def prompt(seed: int, tokens: int) -> array[int]:
    """Token ids that share no prefix with another seed's."""
    return array(ID, ((seed * 7919 + i * 31) % 50_000 for i in range(tokens)))
