"""What must hold in every run: Hypothesis chooses arrivals, aborts, sizes and versions."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.simulator.blocks import BlockPool
from headway.simulator.engine import Engine, EngineSettings
from headway.simulator.holdings import CacheLayout
from headway.simulator.request import Request
from headway.simulator.scheduler import SchedulerSettings
from tests.simulator.building import STEPS, prompt

BLOCK = 16
LENGTH = 16 * BLOCK


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    drafts = draw(st.sampled_from([0, 0, 2]))
    groups = draw(st.sampled_from([0, 1, 3]))
    least = LENGTH // BLOCK + groups * (2 + drafts) + 1
    version = draw(st.sampled_from(["0.19.1", "0.25.1", "0.27.1", "0.30.0", "0.32.0", "0.33.0"]))
    smallest = BLOCK + 8 if version < "0.27" else 8
    return Engine(
        EngineSettings(
            version,
            CacheLayout(least + draw(st.integers(0, 60)), BLOCK, groups, draw(st.booleans()), drafts, LENGTH),
            SchedulerSettings(
                max_num_batched_tokens=draw(st.integers(smallest, 6 * BLOCK)),
                max_num_seqs=draw(st.integers(1, 6)),
                long_prefill_token_threshold=draw(st.sampled_from([0, BLOCK, 3 * BLOCK])),
                policy=draw(st.sampled_from(["fcfs", "priority"])),
                prefill_schedule_interval=draw(st.sampled_from([1, 3])),
            ),
            STEPS,
            draw(st.sampled_from([1.0, 1.7, 3.0])) if drafts else 1.0,
        )
    )


requests = st.lists(
    st.tuples(
        st.integers(0, 30),  # step of arrival
        st.integers(1, LENGTH - 1),  # prompt tokens
        st.integers(1, 24),  # answer tokens
        st.integers(0, 2),  # text
        st.integers(-1, 1),  # priority
        st.one_of(st.none(), st.integers(0, 20)),  # steps until the client leaves
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(engines(), requests)
def test_every_run_conserves_tokens_blocks_and_requests(engine: Engine, plan: list) -> None:
    budget = engine.settings.scheduler.max_num_batched_tokens
    by_step: dict[int, list[Request]] = {}
    leaving: dict[int, list[str]] = {}
    everyone: dict[str, Request] = {}
    for number, (at, count, answer, seed, priority, stays) in enumerate(plan):
        request = Request(f"r{number}", tokens=prompt(count, seed), max_tokens=answer, priority=priority, arrival=at)
        everyone[request.id] = request
        by_step.setdefault(at, []).append(request)
        if stays is not None:
            leaving.setdefault(at + stays, []).append(request.id)
    received: Counter[str] = Counter()
    computed: Counter[str] = Counter()
    ended: dict[str, str] = {}
    idle = 0
    for step in range(4000):
        for request in by_step.pop(step, ()):
            engine.add(request)
        for name in leaving.pop(step, ()):
            if engine.abort(name):
                assert name not in ended
                ended[name] = "abort"
        if not engine.has_work and not by_step:
            break
        before = {name: request.computed for name, request in everyone.items()}
        result = engine.step()
        assert sum(c.tokens for c in result.chunks) <= budget
        assert len({c.request.id for c in result.chunks}) == len(result.chunks)
        assert engine.num_running <= engine.settings.scheduler.max_num_seqs
        assert (result.duration > 0) == bool(result.chunks)
        idle = 0 if result.chunks or not engine.has_work else idle + 1
        assert idle < 50, "nothing is scheduled any more"
        for chunk in result.chunks:
            assert chunk.tokens > 0
            assert chunk.start == (before[chunk.request.id] or chunk.start)
            computed[chunk.request.id] += chunk.tokens
        for output in result.outputs:
            name = output.request.id
            assert name not in ended
            assert output.first == received[name]
            received[name] += output.tokens
            if output.finish_reason:
                ended[name] = output.finish_reason
        assert 0.0 <= engine.cache.pool.usage <= 1.0
    assert set(ended) == set(everyone)
    assert not engine.has_work
    for name, request in everyone.items():
        hit = request.cached_tokens
        if hit is not None:
            assert 0 <= hit <= request.prompt_tokens - 1
            assert hit % BLOCK == 0
        if ended[name] == "length":
            assert received[name] == min(request.max_tokens, LENGTH - request.prompt_tokens)
            if request.preemptions == 0 and engine.settings.layout.draft_tokens == 0:
                # every known token but the last one is computed once, or was a hit
                assert computed[name] + (hit or 0) == request.prompt_tokens + received[name] - 1
    pool = engine.cache.pool
    assert pool.free_count == pool.size - 1
    assert engine.counters.generation_tokens == sum(received.values())
    assert engine.counters.steps == sum(engine.counters.iteration_buckets)


@settings(max_examples=60, deadline=None)
@given(engines(), requests)
def test_the_same_arrivals_give_the_same_steps(engine: Engine, plan: list) -> None:
    def trace(running: Engine) -> list:
        for number, (_, count, answer, seed, priority, _) in enumerate(plan):
            running.add(
                Request(
                    f"r{number}",
                    tokens=prompt(count, seed),
                    max_tokens=answer,
                    priority=priority,
                    arrival=number,
                )
            )
        steps = []
        while running.has_work:
            result = running.step()
            steps.append((result.duration, [(c.request.id, c.start, c.tokens) for c in result.chunks]))
        return steps

    assert trace(engine) == trace(Engine(engine.settings))


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 12), st.lists(st.tuples(st.sampled_from("tfhp"), st.integers(0, 11)), max_size=60))
def test_pool_counts_every_holder(size: int, moves: list[tuple[str, int]]) -> None:
    """take, free, hold once more, publish: a block is free exactly when nobody holds it."""
    pool = BlockPool(size)
    held: list = []
    key = 0
    for move, number in moves:
        if move == "t" and pool.free_count:
            block = pool.take(1)[0]
            assert block.key is None
            assert block not in held
            held.append(block)
        elif move == "f" and held:
            pool.release([held.pop(number % len(held))])
        elif move == "h" and held:
            block = held[number % len(held)]
            pool.touch([block])
            held.append(block)
        elif move == "p" and held:
            block = held[number % len(held)]
            if block.key is None:
                key += 1
                pool.publish(block, 0, key)
                assert pool.find(0, key) is block
        counts = Counter(block.number for block in held)
        assert all(block.refs == counts[block.number] for block in held)
        assert pool.free_count == size - 1 - len(counts)
