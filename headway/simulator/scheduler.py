"""vLLM V1's scheduler: one token budget a step, running requests first, then waiting ones; no phases.

A request is scheduled until the tokens computed catch up with the tokens known; so a decode is a request
that lacks one token and a prefill one that lacks many. Prompt chunks are whatever the budget leaves. The
running list is in order of admission and is never reordered; a decode admitted before a long prefill
therefore always gets its token, and every step beside the prefill carries a whole chunk. That is the
starvation which this project is about.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.simulator.cache import KVCache
from headway.simulator.holdings import Hit
from headway.simulator.request import Request
from headway.simulator.step import Alike, Chunk, Step
from headway.simulator.waiting import Policy, Waiting


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Tokens and counts; names are those of vLLM's options."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    long_prefill_token_threshold: int = 0
    policy: Policy = "fcfs"
    prefill_schedule_interval: int = 1
    #: SGLang's: decode rounds after a prefill batch.
    prefill_decode_interval: int = 0
    enable_chunked_prefill: bool = True


class Scheduler:
    def __init__(self, settings: SchedulerSettings, cache: KVCache) -> None:
        self.settings = settings
        self.cache = cache
        self.rules = cache.rules
        self.running: list[Request] = []
        self.waiting = Waiting(settings.policy)
        self.requests: dict[str, Request] = {}
        self.capacity_bound = False
        self._steps_since_prefill: int | None = None
        #: What the last step did, if it was only decodes and left all else as it was, and whether prefill was held in it.
        self._idle: tuple[tuple[Request, ...], bool] | None = None

    def add(self, request: Request) -> None:
        if request.id in self.requests:
            raise ValueError(f"request {request.id!r} is already here")
        self._idle = None
        self.requests[request.id] = request
        self.waiting.add(request)

    def remove(self, request_id: str) -> Request | None:
        """Take a request out, wherever it is, and free its blocks. None if it is not here (any more)."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        self._idle = None
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.cache.free(request_id)
        return request

    # -- one step ----------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Step:
        """Choose the chunks of the next step and advance what is computed by them.

        `throttle_prefills` asks for a step without prefill, as vLLM's hook of that name does; like there, it
        is not heard while nobody decodes, nor once a step that carried prefill left requests waiting.
        """
        step = Step()
        budget = self.settings.max_num_batched_tokens
        changes = self.cache.pool.changes
        self.cache.step_starts()
        held = self._holds_prefill() and not self.capacity_bound
        defer = (held or (throttle_prefills and not self.capacity_bound)) and self._someone_decodes()
        threshold = self.settings.long_prefill_token_threshold
        if self.rules.threshold_spares_lone and len(self.running) + len(self.waiting) <= 1:
            threshold = 0
        budget = self._schedule_running(step, budget, threshold, defer)
        if not step.preempted:
            self._schedule_waiting(step, budget, threshold, defer)
            if not defer:
                self.capacity_bound = len(self.waiting) > 0
        self._advance(step)
        idle = changes == self.cache.pool.changes and not any(chunk.prefill for chunk in step.chunks)
        self._idle = (tuple(c.request for c in step.chunks), held) if idle and step.chunks and not throttle_prefills else None
        return step

    def alike(self, each: int) -> Alike | None:
        """The steps that follow, if they are known to be alike and to give each of their requests `each` tokens."""
        running, settings = self.running, self.settings
        threshold = settings.long_prefill_token_threshold
        if self.rules.threshold_spares_lone and len(running) + len(self.waiting) <= 1:
            threshold = 0
        if not running or len(running) * each > settings.max_num_batched_tokens or 0 < threshold < each:
            return None
        nobody_comes = (
            not self.waiting or len(running) >= settings.max_num_seqs or len(running) * each == settings.max_num_batched_tokens
        )
        if nobody_comes and not any(request.in_prefill or request.computed < request.num_tokens - 1 for request in running):
            return Alike(tuple(running))
        if self._idle is None:
            return None
        requests, was_held = self._idle
        held = self._holds_prefill() and not self.capacity_bound
        if held != was_held:
            return None
        since = self._steps_since_prefill
        most = self._rest - since if held and since is not None else None
        return Alike(requests, most, frozen=True)

    def leapt(self, steps: int) -> None:
        """`steps` steps as `alike` describes them were made elsewhere."""
        since = self._steps_since_prefill
        released = since is None or since + steps > self._rest or not self._holds_prefill() or self.capacity_bound
        if since is not None:
            self._steps_since_prefill = since + steps
        if released:
            self.capacity_bound = len(self.waiting) > 0

    def _schedule_running(self, step: Step, budget: int, threshold: int, defer: bool) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            if defer and request.in_prefill:
                index += 1
                continue
            drafts = 0 if request.in_prefill else self.cache.layout.draft_tokens
            new = request.num_tokens + drafts - request.computed
            if 0 < threshold < new:
                new = threshold
            new = min(new, budget, self.cache.layout.max_model_len - request.computed - 1)
            new = self._align(request, new, request.computed)
            if new <= 0:
                index += 1
                continue
            while not (fits := self.cache.allocate(request, new)):
                victim = self._preemption_victim()
                at = self.running.index(victim)
                del self.running[at]
                if at < index:
                    index -= 1
                for chunk in step.chunks:
                    if chunk.request is victim:
                        step.chunks.remove(chunk)
                        budget += chunk.tokens
                        break
                self._preempt(victim, step)
                if victim is request:
                    break
            if not fits:
                break
            step.chunks.append(self._chunk(request, request.computed, new))
            budget -= new
            index += 1
        return budget

    def _schedule_waiting(self, step: Step, budget: int, threshold: int, defer: bool) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting.peek()
            hit = self.cache.lookup(request)
            request.junction = hit.junction
            missing = request.num_tokens - hit.tokens
            if defer and (missing > 1 if self.rules.defers_partial_hits else hit.tokens == 0):
                break
            new = missing
            if 0 < threshold < new:
                new = threshold
            if not self.settings.enable_chunked_prefill and new > budget:
                break
            new = self._align(request, min(new, budget), hit.tokens)
            if new <= 0:
                break
            if not self.cache.allocate(request, new, hit, whole=True):
                break
            self._admit(request, hit, step)
            step.chunks.append(self._chunk(request, hit.tokens, new))
            budget -= new

    def _admit(self, request: Request, hit: Hit, step: Step) -> None:
        self.waiting.pop()
        self.running.append(request)
        step.admitted.append(request)
        request.computed = hit.tokens
        if request.cached_tokens is None:
            request.cached_tokens = hit.tokens

    def _chunk(self, request: Request, start: int, tokens: int) -> Chunk:
        return Chunk(request, start, tokens, prefill=start < request.prefill_end)

    def _advance(self, step: Step) -> None:
        carried = False
        for chunk in step.chunks:
            request = chunk.request
            request.computed = chunk.start + chunk.tokens
            request.in_prefill = request.computed < request.num_tokens
            carried = carried or chunk.prefill
        if carried:
            self._steps_since_prefill = 0
        elif step.chunks and self._steps_since_prefill is not None:
            self._steps_since_prefill += 1

    # -- rules -------------------------------------------------------------------------------------

    def _someone_decodes(self) -> bool:
        return any(not request.in_prefill for request in self.running)

    @property
    def _rest(self) -> int:
        """Steps without prefill behind one with it. prefill_schedule_interval: one step in that many may carry prefill."""
        return self.settings.prefill_schedule_interval - 1 if self.rules.interval_on_one_engine else 0

    def _holds_prefill(self) -> bool:
        """The first prefill is never held."""
        return self._steps_since_prefill is not None and self._steps_since_prefill < self._rest

    def _align(self, request: Request, new: int, start: int) -> int:
        """Cut a prompt chunk so that it ends where a recurrent state has to be cached (0: nothing in this
        step).
        """
        if not self.cache.align or start >= request.prefill_end or new <= 0:
            return new
        block = self.cache.layout.block_size
        n = request.num_tokens
        last = (n - 1 if self.rules.checkpoint_below_prompt and not self.cache.drops_block else n) // block * block
        if self.cache.drops_block:
            last = max(last - block, 0)
        end = start + new
        if not self.rules.sub_block_chunks:
            if end < last:
                return new // block * block
            return last - start if start < last < end else new
        if end < request.prefill_end:
            largest = self.settings.max_num_batched_tokens
            if self.settings.long_prefill_token_threshold:
                largest = min(largest, self.settings.long_prefill_token_threshold)
            aligned = end // block * block
            if aligned > start or block <= largest:
                end = aligned
        stops = [last]
        if start % block:
            stops.append((start // block + 1) * block)
        if self.rules.stops_at_junction and start < request.junction < end:
            stops.append(start + (request.junction - start) // block * block)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)

    def _preemption_victim(self) -> Request:
        if self.settings.policy == "priority":
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return self.running[-1]

    def _preempt(self, request: Request, step: Step) -> None:
        """Recompute later: the blocks go, the answer so far stays known."""
        self.cache.free(request.id)
        request.computed = 0
        request.in_prefill = False
        request.preemptions += 1
        step.preempted.append(request)
        self.waiting.add(request, front=True)
