"""The engine in virtual time: add requests, run a step, read what it produced. No clock, no IO, no
randomness.

One call of `step` is one engine step: its duration comes from the step-time model, its outputs belong to
the step's end. A caller with a real clock sleeps that long before it shows them; a caller in virtual time
adds the durations up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from headway.simulator.cache import KVCache
from headway.simulator.families import FAMILIES
from headway.simulator.holdings import CacheLayout
from headway.simulator.leap import Leap, Stretch
from headway.simulator.request import Request
from headway.simulator.rules import Rules, rules_for
from headway.simulator.scheduler import SchedulerSettings
from headway.simulator.step import Chunk
from headway.simulator.steps import StepModel

#: Upper bounds of vLLM's iteration_tokens_total histogram (tokens a step).
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SettingsError(ValueError):
    """Settings with which an engine of this version refuses to start. `option` is the command-line option
    to change.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, slots=True)
class EngineSettings:
    version: str
    layout: CacheLayout
    scheduler: SchedulerSettings
    steps: StepModel
    #: Tokens that one decode step yields on average, 1 + accepted drafts; from 1 to 1 + draft_tokens. The nearest fraction
    #: with a denominator of at most 1,000 is used.
    tokens_per_step: float = 1.0
    #: Whose scheduling rules hold, a key of FAMILIES; `version` is vLLM's.
    family: str = "vllm"


@dataclass(frozen=True, slots=True)
class Output:
    """Tokens `first` .. `first + tokens - 1` of a request's answer. `finish_reason` is set with the last
    ones.
    """

    request: Request
    first: int
    tokens: int
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A step between its begin and its end; the fields are those of `StepResult`."""

    duration: float
    chunks: tuple[Chunk, ...]
    preempted: tuple[Request, ...] = ()
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """`duration` in seconds; `stuck`: requests are here, but none of them could be given a token."""

    duration: float
    outputs: tuple[Output, ...]
    chunks: tuple[Chunk, ...]
    preempted: tuple[Request, ...] = ()
    stuck: bool = False


@dataclass(slots=True)
class Counters:
    """What the engine has done since its start, in tokens unless named otherwise."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    iteration_tokens: int = 0
    iteration_buckets: list[int] = field(default_factory=lambda: [0] * (len(ITERATION_BUCKETS) + 1))
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})


class Engine:
    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.rules: Rules = rules_for(settings.version)
        _check(settings, self.rules)
        family = FAMILIES[settings.family]
        self.cache: KVCache = family.cache(settings.layout, self.rules)
        self.scheduler = family.scheduler(settings.scheduler, self.cache)
        self.counters = Counters()
        #: `tokens_per_step` as a fraction, so that a stretch of steps can be added up exactly.
        self.rate = Fraction(settings.tokens_per_step).limit_denominator(1000)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def add(self, request: Request) -> None:
        """Queue a request. ValueError when it can never be served: too long for the model or for the whole
        cache.
        """
        longest = self.settings.layout.max_model_len
        if request.prompt_tokens >= longest:
            raise ValueError(
                f"This model's maximum context length is {longest} tokens. However, your prompt has "
                f"{request.prompt_tokens} tokens, which leaves no room for an answer."
            )
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request between two steps. False if it is not here: finished, aborted before, never
        added.
        """
        request = self.scheduler.remove(request_id)
        if request is None:
            return False
        request.finish_reason = "abort"
        self.counters.finished["abort"] += 1
        return True

    def step(self) -> StepResult:
        """Run one step; without work, one of no duration and no outputs."""
        under_way = self.begin()
        return StepResult(under_way.duration, self.end(under_way), under_way.chunks, under_way.preempted, under_way.stuck)

    def begin(self, throttle_prefills: bool = False) -> StepUnderWay:
        """Schedule a step and say how long it takes. Until `end`, its requests are still in the engine.

        `throttle_prefills`: see `Scheduler.schedule`.
        """
        if not self.has_work:
            return StepUnderWay(0.0, ())
        step = self.scheduler.schedule(throttle_prefills)
        self.counters.preemptions += len(step.preempted)
        preempted = tuple(step.preempted)
        if not step.chunks:
            return StepUnderWay(0.0, (), preempted, stuck=not preempted)
        for request in step.admitted:
            if request.preemptions == 0:
                self.counters.cache_queries += request.num_tokens
                self.counters.cache_hits += request.cached_tokens or 0
        return StepUnderWay(self._seconds(step.chunks), tuple(step.chunks), preempted)

    def end(self, under_way: StepUnderWay) -> tuple[Output, ...]:
        """The outputs of a step that `begin` scheduled. Requests aborted meanwhile have none."""
        if not under_way.chunks:
            return ()
        self._count(sum(chunk.tokens for chunk in under_way.chunks))
        produced = (self._produce(chunk) for chunk in under_way.chunks)
        return tuple(output for output in produced if output is not None)

    def leap(self, until: float = float("inf")) -> Stretch | None:
        """Make all steps that are alike and begin less than `until` seconds from now; None where the next is not known to be.

        The stretch's outputs are in its rows. `step` and `begin` go on behind it.
        """
        each = 1 + self.settings.layout.draft_tokens
        alike = self.scheduler.alike(each)
        if alike is None:
            return None
        stretch = Leap(self.cache, self.settings.steps, self.rate, alike.requests, each).make(alike.most, alike.frozen, until)
        if stretch is None:
            return None
        self.scheduler.leapt(stretch.steps)
        for row in stretch.rows:
            self.counters.generation_tokens += row.tokens
            if row.finish_reason is not None:
                self._finish(row.request)
        self._count(each * len(stretch.rows), stretch.steps)
        return stretch

    def _finish(self, request: Request) -> None:
        request.finish_reason = "length"
        self.scheduler.remove(request.id)
        self.counters.finished["length"] += 1

    def _seconds(self, chunks: Sequence[Chunk]) -> float:
        # A one-token tail of a prompt runs as a decode row (query length 1), so it makes no mixed step.
        prefill = [(c.start, c.tokens) for c in chunks if c.prefill and c.tokens > 1]
        decodes = [c.start for c in chunks if not (c.prefill and c.tokens > 1)]
        return self.settings.steps.step_seconds(prefill, decodes)

    def _produce(self, chunk: Chunk) -> Output | None:
        """The tokens sampled behind a chunk that reached the last known token; frees the request at its
        end.
        """
        request = chunk.request
        if request.computed < request.num_tokens or self.scheduler.requests.get(request.id) is not request:
            return None
        room = min(request.max_tokens - request.outputs, self.settings.layout.max_model_len - request.num_tokens)
        first = request.outputs
        if chunk.prefill:
            count = 1
            request.decode_from, request.decode_steps = first + 1, 0
        else:
            count = min(self._accepted(request, chunk.tokens), room)
        if first == 0:
            self.counters.prompt_tokens += request.prompt_tokens
        # Of the drafts computed, those that were not accepted have to be computed again.
        request.computed = request.num_tokens + count - 1
        request.append_outputs(count)
        self.counters.generation_tokens += count
        if count == room:
            self._finish(request)
        return Output(request, first, count, request.finish_reason)

    def _accepted(self, request: Request, scheduled: int) -> int:
        """Whole tokens of this step such that the mean since the last prefill is `tokens_per_step`."""
        request.decode_steps += 1
        rate = self.rate
        wanted = request.decode_from + request.decode_steps * rate.numerator // rate.denominator - request.outputs
        if wanted <= scheduled:
            return wanted
        request.decode_from, request.decode_steps = request.outputs + scheduled, 0
        return scheduled

    def _count(self, tokens: int, steps: int = 1) -> None:
        counters = self.counters
        counters.steps += steps
        counters.iteration_tokens += tokens * steps
        counters.iteration_buckets[bisect_left(ITERATION_BUCKETS, tokens)] += steps


def _check(settings: EngineSettings, rules: Rules) -> None:
    layout, scheduler = settings.layout, settings.scheduler
    budget, block, seqs = scheduler.max_num_batched_tokens, layout.block_size, scheduler.max_num_seqs
    if budget < seqs:
        raise SettingsError(
            "--max-num-batched-tokens",
            f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({seqs}).",
        )
    family = FAMILIES[settings.family]
    for name, nothing in (("prefill_schedule_interval", 1), ("prefill_decode_interval", 0)):
        if getattr(scheduler, name) != nothing and name != family.interval:
            raise SettingsError(f"--{name.replace('_', '-')}", f"{settings.family} has no {name}")
    if settings.family == "vllm" and layout.state_groups and layout.caching and rules.block_must_fit:
        if block > budget:
            raise SettingsError(
                "--max-num-batched-tokens",
                f"In Mamba cache align mode, block_size ({block}) must be <= max_num_batched_tokens ({budget}).",
            )
        threshold = scheduler.long_prefill_token_threshold
        if 0 < threshold < block:
            # vLLM's own assertion says nothing here.
            raise SettingsError(
                "--long-prefill-token-threshold",
                f"in Mamba cache align mode, long_prefill_token_threshold ({threshold}) must be >= block_size ({block})",
            )
    needed = -(-layout.max_model_len // block) + layout.state_groups * (2 + layout.draft_tokens)
    if needed > layout.blocks - 1 and family.cache is KVCache:
        raise SettingsError(
            "--num-gpu-blocks",
            f"one request of max_model_len {layout.max_model_len} needs {needed} blocks, and the cache has "
            f"{layout.blocks - 1}: lower --max-model-len or raise --num-gpu-blocks",
        )
    most = 1 + layout.draft_tokens
    if not 1.0 <= settings.tokens_per_step <= most:
        raise SettingsError("--tokens-per-step", f"{settings.tokens_per_step} tokens a step do not lie in 1..{most}")
