"""Engines other than vLLM, where their scheduling differs: a scheduler and a cache each, and a row in FAMILIES.

Step times are those of the profile. Both mixtures of one step are left out: SGLang's `--enable-mixed-chunk` (off by default
there) and llama.cpp's micro-batches (an answer gets its token at the end of the whole batch all the same).
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.simulator.cache import KVCache
from headway.simulator.request import Request
from headway.simulator.scheduler import Scheduler, SchedulerSettings
from headway.simulator.slots import CHECKPOINTS, Slot, SlotCache
from headway.simulator.step import Alike, Step


class PrefillFirst(Scheduler):
    """SGLang: a step is prefill or decode, never both, and prefill goes first; so decodes stand still for a whole prompt.

    `max_num_batched_tokens` is `--chunked-prefill-size`. With `prefill_decode_interval` N (`--prefill-decode-interval`,
    sgl-project/sglang#35017; 0: none) N decode rounds follow each prefill batch while anybody decodes: there, the next N rounds
    that would have been prefill are deferred, and a round in which nobody decodes takes no time
    (test/…/test_prefill_decode_interval: an interval of 2 defers twice, then no more).
    """

    @property
    def _rest(self) -> int:
        return self.settings.prefill_decode_interval

    def schedule(self, throttle_prefills: bool = False) -> Step:
        self.cache.step_starts()
        self._idle = None
        step = Step()
        if not ((self._holds_prefill() or throttle_prefills) and self._someone_decodes()):
            self._prefill(step)
        if not step.chunks and not step.preempted:
            self._schedule_running(step, max(self.settings.max_num_batched_tokens, self.settings.max_num_seqs), 0, True)
        self._advance(step)
        return step

    def _prefill(self, step: Step) -> None:
        budget = self.settings.max_num_batched_tokens
        parked = [request for request in self.running if not request.in_prefill]
        self.running = [request for request in self.running if request.in_prefill]
        budget = self._schedule_running(step, budget, 0, False)
        self.running = parked + self.running
        if not step.preempted:
            self._schedule_waiting(step, budget, 0, False)

    def alike(self, each: int) -> Alike | None:
        if self.waiting and len(self.running) < self.settings.max_num_seqs:
            return None  # prefill may go first in any step
        return super().alike(each)


class SlotsFirst(Scheduler):
    """llama.cpp's server: one batch holds a token of each generating slot first, then prompt tokens up to `n_batch`
    (`max_num_batched_tokens`), both by the number of the slot, whoever came first; `max_num_seqs` is the number of slots
    (`--parallel`). A request has its slot from when one is idle; those for which none is are served as they came.

    Read in ggml-org/llama.cpp, tools/server/server-context.cpp (commit 001d906): process_single_task, pre_decode; a maintainer
    says so in #4216.
    """

    cache: SlotCache

    def __init__(self, settings: SchedulerSettings, cache: KVCache) -> None:
        super().__init__(settings, cache)
        assert isinstance(cache, SlotCache)
        cache.slots = [Slot(number) for number in range(settings.max_num_seqs)]

    @property
    def _rest(self) -> int:
        return 0

    def schedule(self, throttle_prefills: bool = False) -> Step:
        step = Step()
        while self.waiting:
            request = self.waiting.peek()
            seat = self.cache.seat(request)
            if seat is None:
                break
            _, cached = seat
            self._seated(request, cached, step)
        self.running.sort(key=self._place)
        self._schedule_running(step, self.settings.max_num_batched_tokens, 0, False)
        self._advance(step)
        self.running.sort(key=self._place)  # a leap takes them in this order
        self._idle = None
        return step

    def _place(self, request: Request) -> tuple[bool, int]:
        return request.in_prefill, self.cache.slot_of(request)

    def _seated(self, request: Request, cached: int, step: Step) -> None:
        self.waiting.pop()
        self.running.append(request)
        step.admitted.append(request)
        request.computed = request.cached_tokens = cached
        request.in_prefill = True

    def _align(self, request: Request, new: int, start: int) -> int:
        """Prompts of models with states stop where a checkpoint is made of these."""
        if not self.cache.stops or start >= request.prefill_end:
            return new
        stops = (request.prompt_tokens - offset for offset in CHECKPOINTS)
        return min((stop for stop in stops if start < stop < start + new), default=start + new) - start


@dataclass(frozen=True, slots=True)
class Family:
    scheduler: type[Scheduler]
    cache: type[KVCache] = KVCache
    #: The option that lets decodes have steps of their own between prefills.
    interval: str = ""


FAMILIES: dict[str, Family] = {
    "vllm": Family(Scheduler, interval="prefill_schedule_interval"),
    "sglang": Family(PrefillFirst, interval="prefill_decode_interval"),
    "llamacpp": Family(SlotsFirst, SlotCache),
}
