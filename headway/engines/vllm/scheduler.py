"""vLLM's scheduler with Headway's pace: --scheduler-cls headway.engines.vllm.scheduler.HeadwayScheduler (vLLM 0.24 to 0.33).

Imported inside vLLM's engine process; needs nothing but vLLM and `headway.core`. See docs/scheduler.md.

Invariants
----------
1. `schedule()` is vLLM's own: this only sets limits that vLLM has (the step's token budget, the long-prefill threshold, its
   hook that holds prefill back) and puts them back.
2. While nothing is prefilled, `update_from_output()` is vLLM's own, and `schedule()` costs a look at the clock more.
3. The base class is the one that the engine would have taken: asynchronous or not.
"""

from __future__ import annotations

import os
import time
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler

from headway.engines.vllm.cadence import StepPacer
from headway.engines.vllm.chunks import ChunkRule
from headway.engines.vllm.report import Report
from headway.engines.vllm.settings import TargetsFile, read
from headway.engines.vllm.step import NOTHING, Began, Decision, Work
from headway.engines.vllm.versions import OVERRIDE, traits

logger = init_logger("vllm.headway")

_TRAITS = traits(vllm.__version__, os.environ.get(OVERRIDE) == "1")

SEATS = ("max_num_running_reqs", "max_num_active_reqs")
"""vLLM's limits of running requests; the second since 0.32."""


class _Paced(SchedulerInterface):  # type: ignore[misc]
    """Stands before Scheduler or AsyncScheduler in the order of bases."""

    max_num_scheduled_tokens: int
    prefill_capacity_bound: bool
    max_num_running_reqs: int
    running: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        targets = read(os.environ, getattr(self.vllm_config, "additional_config", None))
        align = bool(getattr(self, "need_mamba_block_aligned_split", False))
        block = self.cache_config.block_size if align else self.block_size
        rule = ChunkRule(self.max_num_scheduled_tokens, block, align, _TRAITS.sub_block)
        self.headway = StepPacer(targets, rule)
        self._targets_file = TargetsFile(os.environ.get("HEADWAY_TARGETS"), targets)
        self._turn_tokens = 1 + self.num_spec_tokens
        """Tokens that one turn of a live answer takes of a step's budget."""
        self._decode_step = self.headway.decode_step
        self._prefilling = False
        """Prefill work was left when the latest step had been scheduled."""
        self._uncached: tuple[str, int] = ("", 0)
        self._by_priority = getattr(self.scheduler_config, "policy", "fcfs") == "priority"
        self._report = Report(logger, self.headway, isinstance(self, AsyncScheduler))
        self._report.start(vllm.__version__)

    # -- what vLLM calls --------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Any:
        # All requests run and none is being prefilled: the common case, told by two lengths.
        if self._prefilling or (len(self.requests) != len(self.running) and self.get_request_counts()[1]):
            return self._schedule_paced(throttle_prefills)
        self._decode_step(time.monotonic())
        return super().schedule(throttle_prefills)

    def _watched_update(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Stands for update_from_output from the first step with prefill work to the end of the last."""
        now = time.monotonic()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.headway.completed(now, id(scheduler_output), bool(self.running))
        if not self._prefilling and not self.headway.in_flight:
            del self.update_from_output
        return outputs

    def shutdown(self) -> None:
        self._report.end()
        super().shutdown()

    # -- a step with prefill work -----------------------------------------------------------------

    def _schedule_paced(self, throttle_prefills: bool) -> Any:
        now = time.monotonic()
        self._retarget(now)
        self.update_from_output = self._watched_update
        live = [request.request_id for request in self.running if not request.is_prefill_chunk]
        work = self._work(len(live))
        decision = self.headway.decide(now, live, work)
        output = self._limited(throttle_prefills, decision, len(live))

        scheduled = output.num_scheduled_tokens
        turns = [id for id in live if id in scheduled]
        prefill = output.total_num_scheduled_tokens - sum(scheduled[id] for id in turns)
        begins = self._begins(output, set(live)) if prefill else NOTHING
        if not throttle_prefills:
            self.headway.came_of(now, decision, work, prefill)
        if output.total_num_scheduled_tokens:
            self.headway.scheduled(now, id(output), turns, prefill, begins)
        # What waits but cannot be let in yet still counts: the next step asks again.
        self._prefilling = any(request.is_prefill_chunk for request in self.running)
        if not self._prefilling and not self.get_request_counts()[1]:
            self.headway.close(now)
        self._report.tick(now)
        return output

    def _retarget(self, now: float) -> None:
        try:
            targets = self._targets_file.changed(now)
        except ValueError as error:
            logger.warning("targets stay as they are: %s", error)
            return
        if targets is not None:
            self.headway.retarget(targets)
            logger.info("targets now: share %g, gap %g s, wait %g s", targets.share, targets.gap, targets.wait)

    def _limited(self, throttle_prefills: bool, decision: Decision, live: int) -> Any:
        """vLLM's own schedule() under the limits of `decision`."""
        if decision.hold:
            # The guard turns the hook off as soon as one step cannot admit all that waits: just when it is needed.
            bound, self.prefill_capacity_bound = self.prefill_capacity_bound, False
            try:
                return super().schedule(True)
            finally:
                self.prefill_capacity_bound = bound
        if decision.door:
            return self._for_newcomers(throttle_prefills, decision.budget, live)
        if decision.budget is not None:
            self._order(decision.shorts_first, decision.budget, live)
        return self._within(throttle_prefills, decision.budget, live)

    def _within(self, throttle_prefills: bool, prefill: int | None, live: int) -> Any:
        """A step of at most `prefill` tokens beside the turns of `live` answers."""
        if prefill is None:
            return super().schedule(throttle_prefills)
        config = self.scheduler_config
        budget, threshold = self.max_num_scheduled_tokens, config.long_prefill_token_threshold
        if config.enable_chunked_prefill:
            self.max_num_scheduled_tokens = min(budget, prefill + live * self._turn_tokens)
        # The threshold too: a prompt must not take the tokens that are meant for turns of answers behind it.
        config.long_prefill_token_threshold = min(prefill, threshold or prefill)
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.max_num_scheduled_tokens, config.long_prefill_token_threshold = budget, threshold

    def _for_newcomers(self, throttle_prefills: bool, prefill: int | None, live: int) -> Any:
        """A step in which prompts under way stand aside: as if they were not to be scheduled in this step."""
        aside = [request for request in self.running if request.is_prefill_chunk]
        self.running = [request for request in self.running if not request.is_prefill_chunk]
        before = set(self.running)
        limits = {name: getattr(self, name) for name in SEATS if hasattr(self, name)}
        for name, seats in limits.items():
            setattr(self, name, seats - len(aside))  # those that stand aside keep their seats
        try:
            return self._within(throttle_prefills, prefill, live)
        finally:
            for name, seats in limits.items():
                setattr(self, name, seats)
            answers = [request for request in self.running if request in before]
            self.running = answers + aside + [request for request in self.running if request not in before]

    def _order(self, shorts_first: bool, chunk: int, live: int) -> None:
        """Decodes before prefill, for the step's budget is given out in this order and a decode must not lose its turn;
        prompts by priority, where that is vLLM's policy, and those that end with this chunk first when it is their turn."""
        if len(self.running) == live:
            return

        def place(request: Any) -> tuple[int, int, bool]:
            if not request.is_prefill_chunk:
                return (0, 0, False)
            longer = request.num_tokens - request.num_computed_tokens > chunk
            return (1, request.priority if self._by_priority else 0, shorts_first and longer)

        self.running.sort(key=place)

    # -- what there is to prefill -----------------------------------------------------------------

    def _work(self, live: int) -> Work:
        under_way = len(self.running) - live
        left = 0
        if under_way:
            first = next(request for request in self.running if request.is_prefill_chunk)
            left = first.num_tokens - first.num_computed_tokens
        if not self.waiting or len(self.running) >= self._most_running():
            return Work(under_way, left)
        head = self.waiting.peek_request()
        tokens = self._uncached_tokens(head)
        waited = time.time() - head.arrival_time if head.num_preemptions == 0 else 0.0
        return Work(under_way, left or tokens, head.request_id, tokens, waited)

    def _most_running(self) -> int:
        return int(getattr(self, "max_num_active_reqs", self.max_num_running_reqs))

    def _uncached_tokens(self, request: Any) -> int:
        """Asked once of each request: the look-up walks the hashes of all its blocks."""
        if self._uncached[0] == request.request_id:
            return self._uncached[1]
        manager = self.kv_cache_manager
        cached = request.num_computed_tokens
        if not cached and manager.enable_caching and not request.skip_reading_prefix_cache:
            cached = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]
        self._uncached = (request.request_id, max(1, request.num_tokens - cached))
        return self._uncached[1]

    def _begins(self, output: Any, live: set[str]) -> dict[str, Began | None]:
        """Requests whose prompt ends with the step just scheduled (see Step.begins)."""
        at_once = {new.req_id for new in output.scheduled_new_reqs}
        now = time.time()
        return {
            id: Began(max(0.0, now - self.requests[id].arrival_time), tokens) if id in at_once else None
            for id, tokens in output.num_scheduled_tokens.items()
            if id not in live and not self.requests[id].is_prefill_chunk
        }


class HeadwayScheduler(_Paced, AsyncScheduler):  # type: ignore[misc]
    """The class to name: for engines with asynchronous scheduling. Where that is off, the other one is made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        if not config.scheduler_config.async_scheduling:
            return HeadwaySyncScheduler(*args, **kwargs)
        return super().__new__(cls)


class HeadwaySyncScheduler(_Paced, Scheduler):  # type: ignore[misc]
    """For engines without asynchronous scheduling."""
