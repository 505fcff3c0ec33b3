"""When the engine prefills beside live answers, and how much: the scheduler class without the scheduler.

Where there is prefill work, the engine asks before each step (`decide`), says what came of it (`came_of`, `scheduled`) and when
the step is done (`completed`, in the same order); asynchronous engines have one more under way. Elsewhere it says
`decode_step`, and nothing more.

Debt is counted in steps: one step gives each live answer its turn, however many tokens speculation makes of it. A chunk is
granted when every live answer will still have had `share` of its turns at the chunk's *end*; so the share holds at the end
of any prefill, short ones too, and a prefill of W seconds takes W/(1 - share).

Invariants
----------
1. With no live answer nothing is held and the engine's own budget is used.
2. A chunk beside live answers is the largest whose step is expected to last at most `gap`, or a/share where that is longer
   (an answer that keeps the share of its turns waits so long for one anyway), or the smallest at which the engine moves.
3. A newcomer that has waited `wait` seconds is let in, whatever is owed.
4. A grant after which no prefill ran, though a prompt was under way, is followed by one with the engine's own budget: a limit
   set here can slow a prompt down, never stop it.
5. The share is bounded by stretch/(1 + stretch), so every prefill ends, at the latest after 1 + stretch times its work.
6. No step is timed from or to a moment that may lie inside another. An asynchronous engine of one process hands a step to the GPU
   before it takes the result of the one before. Handing over a decode-only step (one graph) takes no time; handing over a chunk
   waits while more kernels are queued than the driver takes, for most of the chunk (three quarters of it on an H200). So the
   end of a step that a chunk follows is seen late; it is taken to be when it was due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.core.debt import DebtLedger
from headway.core.pacing import Pacer
from headway.core.targets import Targets
from headway.engines.vllm.chunks import ChunkRule
from headway.engines.vllm.settings import within_stretch
from headway.engines.vllm.step import DOOR, FREE, HOLD, NOTHING, Began, Decision, Step, Tally, Work
from headway.engines.vllm.stepfit import StepFit

FIRST = 256
"""Tokens of the first chunk, of which nothing is known."""
TINY = 64
"""A prompt of so few tokens is never worth a wait."""
LOW_SHARE = 0.25
"""At lower shares than this the gap target is not stretched any further."""
LONGEST = 4.0
"""Gap targets that a step is expected to last at most, however long the steps before it were: one stall while the engine warms
up must not make the next chunk wait for as long."""
FRESH = 2.0
"""Seconds after which an overlap's decode-only steps say nothing of the next one's."""
STALE = 300.0
"""Seconds after which solo steps are believed no more, on an engine that is never without prefill."""
DOORS = 3
"""With so many prompts under way, a further long one waits for its turn."""
AGAIN = 1.0
"""Seconds until a newcomer that could not be let in is tried once more."""
RUN = 8
"""Steps with prefill in a row that are timed together at most."""


@dataclass(slots=True)
class StepPacer:
    targets: Targets
    rule: ChunkRule
    fit: StepFit = field(default_factory=StepFit)
    tally: Tally = field(default_factory=Tally)
    share: float = field(init=False)
    debt: DebtLedger = field(init=False)
    pacer: Pacer = field(init=False)
    overlap: bool = False
    """Prefill work is there."""
    _flight: deque[Step] = field(default_factory=deque)
    _last_end: float | None = None
    """End of the latest step, if the engine went on at once with one whose end is reported too."""
    _run: list[tuple[int, bool]] = field(default_factory=list)
    """Steps with prefill in a row whose ends may have been seen late: (tokens, beside decodes) of each."""
    _run_start: float = 0.0
    _seen: float | None = None
    """When the latest step's end was seen."""
    _live_at_open: int = 0
    _closed_at: float = 0.0
    _solo_at: float = 0.0
    """Time of the latest `decode_step`."""
    _solo_step: float | None = None
    """Seconds of a step of the answers by themselves."""
    _last_decode: float | None = None
    """Time of the latest `decode_step`, if nothing else came between."""
    _steps: int = 0
    """Steps ended, those with a turn in them."""
    _steps_at_close: int = 0
    _coming: set[str] = field(default_factory=set)
    _turn: bool = False
    _opened: bool = False
    """The latest chunk was a newcomer's."""
    _shut: tuple[str | None, float] = (None, 0.0)
    """Newcomer that could not be let in, and when that was."""
    _fruitless: bool = False

    def __post_init__(self) -> None:
        self.share = within_stretch(self.targets)
        self.debt = DebtLedger(self.share)
        self.pacer = Pacer(self.targets, block=self.rule.unit)

    def retarget(self, targets: Targets) -> None:
        """Other targets from now on; what was learned stays."""
        self.targets = self.pacer.targets = targets
        self.share = within_stretch(targets)
        self.debt.retarget(self.share)

    # -- what the engine does ---------------------------------------------------------------------

    def decode_step(self, now: float) -> None:
        """A step with nothing but turns is about to be scheduled: there is no prefill work at all. The time from one
        to the next is that of a step, also where one more is under way."""
        self._steps += 1
        if self._flight:
            self._last_decode = None  # the last chunk is still under way: its time is no decode-only step's
            return
        if self._last_decode is not None:
            self.fit.solo(now - self._last_decode)
        self._last_decode = now
        self._last_end = None

    def came_of(self, now: float, decision: Decision, work: Work, prefill: int) -> None:
        """The prefill tokens that the engine made of a decision, which may be fewer than granted, or none."""
        if prefill:
            self._fruitless = False
        elif decision.door:
            self._shut = (work.newcomer, now)
        elif not decision.hold and work.under_way:
            self._fruitless = True

    def scheduled(
        self, now: float, key: int, turns: Sequence[str], prefill: int, begins: Mapping[str, Began | None] = NOTHING
    ) -> None:
        """A step was scheduled: answers that have a turn, prefill tokens, requests whose prompt ends with it (see Step)."""
        step = Step(key, now, turns, prefill, begins, self.overlap)
        if not self._flight and prefill:
            self.debt.prefill_began(now)
        self._flight.append(step)
        self._coming.update(begins)

    def completed(self, now: float, key: int, busy: bool) -> None:
        """The step `key` ended; `busy`: the engine has requests to go on with. A key that is not known is that of a
        `decode_step`."""
        flight = self._flight
        if all(step.key != key for step in flight):
            # A decode-only step from before the overlap; it began when the chunk behind it was scheduled, or a little before.
            self._last_end = (self._due(now, flight[0].at) if flight and flight[0].prefill else now) if busy else None
            self._seen = now if busy else None
            return
        while flight:
            step = flight.popleft()
            start = step.at if self._last_end is None else self._last_end
            end = self._end(now, step, start)
            if flight and flight[0].prefill:
                self.debt.prefill_began(end)
            self._ended(now, step, start, end)
            self._last_end = end
            if step.key == key:
                break
        if not busy:
            self._last_end = self._seen = None

    def _end(self, now: float, step: Step, start: float) -> float:
        """When a step seen to end at `now` ended."""
        late = bool(self._flight) and self._flight[0].prefill > 0
        return self._due(now, start) if late and not step.prefill else now

    def _due(self, now: float, start: float) -> float:
        """When a decode-only step that began at `start` was due to end, at the latest `now`."""
        a = self.fit.a or self._solo_step
        return now if a is None else min(now, start + a)

    @property
    def in_flight(self) -> bool:
        """Steps have been `scheduled` that have not ended."""
        return bool(self._flight)

    def close(self, now: float) -> None:
        """No prefill work is left, but for what the steps under way carry."""
        if self.overlap:
            self.overlap = False
            self.debt.close(now)
            self._steps_at_close = self._steps
            self._closed_at = now
            self._fruitless = False

    # -- what is asked ----------------------------------------------------------------------------

    def decide(self, now: float, live: Sequence[str], work: Work) -> Decision:
        """What the next step may carry. `live`: the answers that decode. There is prefill work."""
        if self._last_decode is not None:
            self._solo_at, self._last_decode = self._last_decode, None
        if not self.overlap:
            self._open(now, live)
        self._solo_step = self._solo(now, len(live))
        if self._solo_step:
            self.debt.told = 1.0 / self._solo_step
        a = self.fit.a
        self._sync(now, live)
        if self._fruitless:
            return FREE
        if not live:
            return self._alone(now, work)
        decision = self._beside(now, len(live), work, a)
        if decision.hold:
            self.tally.held += 1
        return decision

    # -- decisions --------------------------------------------------------------------------------

    def _alone(self, now: float, work: Work) -> Decision:
        """Nobody decodes: all of the engine's budget, every other step for a newcomer (it might soon be an answer)."""
        return DOOR if self._door(now, work) else FREE

    def _beside(self, now: float, live: int, work: Work, a: float | None) -> Decision:
        chunk = self.chunk(live, a)
        tokens = min(chunk, work.left) or chunk
        if work.newcomer is not None and work.newcomer_waited >= self.targets.wait and self._may_open(now, work):
            self.tally.yields += 1
            return Decision(budget=chunk, door=True)
        if self.share <= 0 or self._granted(now, tokens):
            self._turn = not self._turn
            return Decision(budget=chunk, shorts_first=self._turn, door=self._door(now, work))
        if work.newcomer is not None and work.newcomer_tokens <= TINY and self._may_open(now, work):
            return Decision(budget=TINY, door=True)
        return HOLD

    def chunk(self, live: int, a: float | None) -> int:
        """Tokens of a chunk beside `live` answers."""
        model = self.fit.model()
        if model is None:
            return self.rule.fit(FIRST, live)
        gap = max(self.targets.gap, (a or 0.0) / max(self.share, LOW_SHARE))
        if gap != self.pacer.targets.gap:
            self.pacer.targets = replace(self.targets, gap=gap)
        self.pacer.model = model
        return self.rule.fit(self.pacer.piece(), live)

    def _granted(self, now: float, tokens: int) -> bool:
        """Whether every answer will still have had its share of turns when a step of `tokens` that is scheduled now ends."""
        model = self.fit.model()
        ahead = 0.0
        if model is not None:
            until, turns = model.gap(tokens), 1
            for step in self._flight:
                until += model.gap(step.prefill) if step.prefill else model.a
                turns += 1
            if self._flight and self._last_end is not None:
                until = max(until - (now - self._last_end), 0.0)
            until = min(until, LONGEST * self.pacer.targets.gap)
            ahead = until - turns * (self._solo_step or 0.0) / self.share
            self.debt.credit = max(0.25, 1.5 * until)
        room, _ = self.pacer.grant(now, True, self.debt, ahead)
        return room > 0

    def _door(self, now: float, work: Work) -> bool:
        """Whether a newcomer gets what prompts under way would take: never twice in a row, or they would not get on."""
        wanted = work.newcomer is not None and work.under_way > 0
        wanted = wanted and (work.under_way < DOORS or work.newcomer_tokens <= FIRST)
        self._opened = wanted and not self._opened and self._may_open(now, work)
        return self._opened

    def _may_open(self, now: float, work: Work) -> bool:
        """Not again at once to a newcomer that could not be let in: it may lack memory, or a grammar."""
        who, when = self._shut
        return work.newcomer != who or now >= when + AGAIN

    # -- bookkeeping ------------------------------------------------------------------------------

    def _solo(self, now: float, live: int) -> float | None:
        """Seconds of a step of the answers by themselves: as before the overlap, while they are as many as then."""
        before = self.fit.solo_step()
        if before is not None and live == self._live_at_open and now - self._solo_at < STALE:
            return before
        return self.fit.between_step() or before

    def _open(self, now: float, live: Sequence[str]) -> None:
        self.overlap = True
        self._live_at_open = len(live)
        if now - self._closed_at > FRESH:
            self.fit.forget_between()
        missed = self._steps - self._steps_at_close
        present = set(live)
        for id in list(self.debt.victims):
            if id not in present:
                self.debt.leave(id)
            elif missed:
                self.debt.output(now, id, missed)
        if live:
            self.tally.overlaps += 1
        self.debt.open(now)

    def _sync(self, now: float, live: Sequence[str]) -> None:
        victims = self.debt.victims
        for id in live:
            if id not in victims and id not in self._coming:
                self.debt.join(now, id)
        if len(victims) > len(live) - len(self._coming):
            present = set(live)
            for id in [id for id in victims if id not in present]:
                self.debt.leave(id)
            self._coming &= present

    def _ended(self, now: float, step: Step, start: float, end: float) -> None:
        """`step`, which was seen to end at `now`, ran from `start` to `end`."""
        seconds = end - start
        if step.turns:
            self._steps += 1
            self._steps_at_close += not self.overlap
            self._give_turns(now, step.turns)
        if step.prefill:
            self._time_chunk(step, start, end)
            # In whole units, or twice half a block would stay just below a block for ever.
            self.pacer.seen = max(self.pacer.seen, -(-step.prefill // self.rule.unit) * self.rule.unit)
            self.tally.chunks += 1
            self.tally.tokens += step.prefill
            self.debt.prefill_ended(now)
        elif step.turns and start != step.at and end == now:
            self.fit.between(seconds)
        for id, began in step.begins.items():
            if id in self._coming:
                self._coming.discard(id)
                if self.overlap:
                    self.debt.join(now, id, self._kept_waiting(step, began, end))
        if step.overlap and step.turns:
            self.tally.overlap_s += seconds
            self.tally.turns_s += min(self._solo_step or seconds, seconds)
            self.tally.longest_gap = max(self.tally.longest_gap, now - (step.at if self._seen is None else self._seen))
        self._seen = now

    def _kept_waiting(self, step: Step, began: Began | None, end: float) -> float:
        """Seconds by which others' prompts delayed an answer's first token: before its step, and within it."""
        model = self.fit.model()
        if began is None or model is None:
            return 0.0
        return max(0.0, began.waited + end - step.at - model.a - model.b * began.tokens)

    def _time_chunk(self, step: Step, start: float, end: float) -> None:
        """Steps with prefill in a row are timed together: the ends between them were seen late."""
        if not self._run:
            self._run_start = start
        self._run.append((step.prefill, bool(step.turns)))
        if self._flight and self._flight[0].prefill and len(self._run) < RUN:
            return
        tokens = sum(tokens for tokens, _ in self._run)
        each = min(self.fit.a or 0.0, (end - self._run_start) / len(self._run))
        rest = end - self._run_start - each * len(self._run)
        for part, turns in self._run:
            self.fit.step(part, turns, each + rest * part / tokens)
        self._run.clear()

    def _give_turns(self, now: float, turns: Sequence[str]) -> None:
        victims = self.debt.victims
        for id in turns:
            if id in victims:
                self.debt.output(now, id)
