"""Engines other than vLLM, where their scheduling differs: one class each, and a row in FAMILIES.

Only the scheduling is theirs; blocks, prefix cache and step times are those of the simulator. Both mixtures of one step are
left out: SGLang's `--enable-mixed-chunk` (off by default there) and llama.cpp's micro-batches.
"""

from __future__ import annotations

from headway.simulator.scheduler import Scheduler
from headway.simulator.step import Alike, Step


class PrefillFirst(Scheduler):
    """SGLang: a step is prefill or decode, never both, and prefill goes first; so decodes stand still for a whole prompt.

    `max_num_batched_tokens` is `--chunked-prefill-size`. With `prefill_schedule_interval` N (`--prefill-decode-interval`,
    sgl-project/sglang#35017, 1: none) N - 1 decode steps follow each prefill step while anybody decodes.
    """

    def schedule(self, throttle_prefills: bool = False) -> Step:
        self.cache.step_starts()
        self._idle = None
        decoding = [request for request in self.running if not request.in_prefill]
        resting = (
            self._steps_since_prefill is not None and self._steps_since_prefill < self.settings.prefill_schedule_interval - 1
        )
        step = Step()
        if not (decoding and (resting or throttle_prefills)):
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
    """llama.cpp's server: one batch holds a token of each generating slot first, whatever came before it, then prompt tokens up
    to `n_batch` (`max_num_batched_tokens`), slot by slot; `max_num_seqs` is the number of slots (ggml-org/llama.cpp#4216).
    """

    def _schedule_running(self, step: Step, budget: int, threshold: int, defer: bool) -> int:
        # Generating slots stand first; among each other all keep their order.
        self.running.sort(key=lambda request: request.in_prefill)
        return super()._schedule_running(step, budget, threshold, defer)


FAMILIES: dict[str, type[Scheduler]] = {"vllm": Scheduler, "sglang": PrefillFirst, "llamacpp": SlotsFirst}
