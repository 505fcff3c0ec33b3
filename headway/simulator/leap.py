"""Decode-only stretches in closed form: as many engine steps as are all alike are made in one go.

A step is like the one before it while the same requests decode, nobody is admitted and no block changes hands. Then each row
gains its tokens, the step time grows by what the longer contexts cost, and times follow from the step's number alone. Where a
row passes a block boundary the cache is asked exactly as the single step would have asked it, and in the same order.

Invariants. A leap gives the token times, chunks, counters and cache that as many calls of `Engine.step` give (times to
rounding). It ends with the step in which the first row ends, and with the step under way when the caller's `until` comes; it
never admits, preempts or prefills: such a step is left to `Engine.step`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

from headway.simulator.cache import KVCache
from headway.simulator.request import Request
from headway.simulator.steps import StepModel

#: Seconds. An event that comes this little after a step's begin is taken to come with it: a sum of step times and their closed
#: form differ by rounding, and must not decide differently on a tie.
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a stretch. `first`: outputs before it; `tokens`: outputs it gains over all of the stretch's steps."""

    request: Request
    first: int
    tokens: int
    #: Decode steps before the stretch since its drafts were last counted from 0, and outputs at that 0.
    phase: int
    base: int
    #: Set where the stretch's last step is the request's last.
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of decode steps of `rows` requests that hold `context` tokens together before the first of them."""

    model: StepModel
    rate: Fraction
    context: int
    #: (phase, outputs since phase 0) of each row.
    phases: tuple[tuple[int, int], ...]

    def seconds(self, steps: int) -> float:
        """From the first step's begin to the end of step number `steps` (from 1)."""
        p, q = self.rate.numerator, self.rate.denominator
        rows = len(self.phases)
        if q == 1:
            gained = rows * p * (steps * (steps - 1) // 2)
        else:
            gained = sum(floor_sum(steps, q, p, p * phase) - steps * since for phase, since in self.phases)
        return self.model.decode_seconds(rows, 0) * steps + self.model.a_ctx * (self.context * steps + gained)

    def steps_begun(self, until: float) -> int:
        """How many steps begin before `until` seconds have passed: at least 1."""
        first = self.model.decode_seconds(len(self.phases), self.context)
        growth = self.model.a_ctx * len(self.phases) * float(self.rate)
        steps = until / first
        if growth > 0:
            slope = first - growth / 2
            steps = 2 * until / (slope + sqrt(slope * slope + 2 * growth * until))
        whole = max(int(steps), 1)
        while whole > 1 and self.seconds(whole - 1) >= until - TIE:
            whole -= 1
        while self.seconds(whole) < until - TIE:
            whole += 1
        return whole


@dataclass(frozen=True, slots=True)
class Stretch:
    """`steps` engine steps in which `rows` decoded, in the order of the running list, and nothing else happened."""

    steps: int
    rows: tuple[Row, ...]
    timing: Timing

    @property
    def duration(self) -> float:
        return self.timing.seconds(self.steps)

    def outputs(self, row: Row) -> Iterator[tuple[int, int, int]]:
        """(number of the step from 1, first token, tokens) for each step of `row`."""
        before = 0
        for step in range(1, self.steps + 1):
            after = self.gained(row, step)
            yield step, row.first + before, after - before
            before = after

    def gained(self, row: Row, steps: int) -> int:
        """Tokens of `row` in the first `steps` steps."""
        return min(row.base + accepted(self.timing.rate, row.phase + steps) - row.first, row.tokens)


def accepted(rate: Fraction, steps: int) -> int:
    """Tokens that `steps` decode steps yield together."""
    return steps * rate.numerator // rate.denominator


def steps_for(rate: Fraction, tokens: int) -> int:
    """The fewest decode steps that yield `tokens`."""
    return -(-tokens * rate.denominator // rate.numerator)


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum of (a·i + b) // m over i = 0 .. n - 1, in the rounds of Euclid's algorithm on a and m."""
    total = 0
    while True:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            return total
        n, b = divmod(top, m)
        m, a = a, m


class Leap:
    """One leap over steps of `requests`, each of which takes `each` tokens a step, drafts included.

    `most`: steps that may be made; `frozen`: none of them may move a block, since somebody waits for one.
    """

    def __init__(self, cache: KVCache, model: StepModel, rate: Fraction, requests: Sequence[Request], each: int) -> None:
        self.cache = cache
        self.rate = rate
        self.requests = requests
        self.each = each
        self.firsts = [request.outputs for request in requests]
        phases = tuple((request.decode_steps, request.outputs - request.decode_from) for request in requests)
        self.timing = Timing(model, rate, sum(request.computed for request in requests), phases)

    def make(self, most: int | None, frozen: bool, until: float) -> Stretch | None:
        """Take the requests over the steps; None, and nothing changed, where not even one can be made."""
        steps = min(self._to_end(request) for request in self.requests)
        if most is not None:
            steps = min(steps, most)
        if steps > 1 and until != float("inf"):
            steps = min(steps, self.timing.steps_begun(until))
        steps = self._move(steps, frozen)
        if steps < 1:
            return None
        rows = []
        for request, first in zip(self.requests, self.firsts, strict=True):
            self._advance(request, steps)
            reason = "length" if request.outputs >= self._room(request) else None
            gained = request.outputs - first
            rows.append(Row(request, first, gained, request.decode_steps, request.decode_from, reason))
            request.decode_steps += steps
        return Stretch(steps, tuple(rows), self.timing)

    def _room(self, request: Request) -> int:
        return min(request.max_tokens, self.cache.layout.max_model_len - request.prompt_tokens)

    def _to_end(self, request: Request) -> int:
        """Steps up to the one that ends `request`, or before the one that has no room for all drafts."""
        since = request.outputs - request.decode_from
        steps = steps_for(self.rate, since + self._room(request) - request.outputs) - request.decode_steps
        if self.each > 1:
            short = self.cache.layout.max_model_len - self.each - request.num_tokens + 1
            steps = min(steps, steps_for(self.rate, since + short) - request.decode_steps)
        return steps

    def _move(self, steps: int, frozen: bool) -> int:
        """Let the cache move the blocks that these steps move; fewer steps where it lacks some or `frozen` forbids it."""
        cache = self.cache
        moves = []
        for index, request in enumerate(self.requests):
            at = self._next_move(request, request.computed) if cache.unmoved(request, self.each) else 0
            if at < steps:
                moves.append((at, index))
        heapq.heapify(moves)
        step = -1
        while moves:
            at, index = moves[0]
            if at > step:
                step = at
                # Where a row of this step might lack a block, the whole step is left to the engine.
                if frozen or cache.pool.free_count < cache.most_moved * len(self.requests):
                    return at
            request = self.requests[index]
            self._advance(request, at)
            cache.allocate(request, self.each)
            following = self._next_move(request, request.computed)
            if following < steps:
                heapq.heapreplace(moves, (following, index))
            else:
                heapq.heappop(moves)
        return steps

    def _next_move(self, request: Request, computed: int) -> int:
        """The number (from 0) of the first step that begins behind `computed` and moves a block."""
        origin = request.prompt_tokens - 1 + request.decode_from
        return steps_for(self.rate, self.cache.next_move(computed) - origin) - request.decode_steps

    def _advance(self, request: Request, steps: int) -> None:
        """The state in which `request` is after `steps` steps of the leap."""
        outputs = request.decode_from + accepted(self.rate, request.decode_steps + steps)
        request.append_outputs(min(outputs, self._room(request)) - request.outputs)
        request.computed = request.num_tokens - 1
