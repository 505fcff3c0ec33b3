"""Chunk by chunk: what a step carries. Rows marked [seen] were observed on a real vLLM 0.32.0."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.simulator.engine import SettingsError
from tests.simulator.building import engine, finish, request, serve


def decoding(running, name="victim", tokens=40):
    """A request that is past its prompt."""
    running.add(request(name, 10, tokens, seed=99))
    running.step()
    running.step()


def test_prompt_beside_a_decode_takes_what_the_budget_leaves_in_whole_blocks() -> None:
    # [seen] budget 1024, B 640: no decode-only step in between
    running = engine(budget=1024)
    decoding(running)
    running.add(request("long", 3300))
    trace = [tuple(c.tokens for c in running.step().chunks) for _ in range(7)]
    assert trace == [(1, 640)] * 5 + [(1, 100), (1,)]


def test_block_larger_than_the_budget_is_filled_in_two_chunks() -> None:
    # [seen] budget 512, B 640
    assert serve(engine(budget=512), request("long", 3300)) == [(512,), (128,)] * 5 + [(100,)]


def test_before_0_27_a_block_larger_than_the_budget_does_not_start() -> None:
    with pytest.raises(SettingsError) as caught:
        engine("0.25.1", block=1568, budget=1024)
    assert str(caught.value) == ("In Mamba cache align mode, block_size (1568) must be <= max_num_batched_tokens (1024).")
    assert caught.value.option == "--max-num-batched-tokens"
    engine("0.27.1", block=1568, budget=1024)
    engine("0.25.1", block=1568, budget=1024, groups=0)
    engine("0.25.1", block=1568, budget=1024, caching=False)


def test_before_0_27_a_threshold_below_the_block_does_not_start() -> None:
    with pytest.raises(SettingsError) as caught:
        engine("0.26.0", block=640, long_prefill_token_threshold=512)
    assert caught.value.option == "--long-prefill-token-threshold"
    engine("0.26.0", block=640, long_prefill_token_threshold=640)


def test_before_0_27_a_budget_of_one_block_shuts_a_prompt_out_beside_a_decode() -> None:
    # measured on an H200 with 0.25.1: budget 1568 served the intruder only after the victim's end
    running = engine("0.25.1", block=1568, budget=1568)
    decoding(running, tokens=30)
    running.add(request("long", 5000))
    trace = finish(running)
    assert trace[:28] == [(1,)] * 28
    assert trace[28:] == [(1568,), (1568,), (1568,), (296,)]


def test_from_0_27_a_budget_of_one_block_goes_on_inside_the_block() -> None:
    running = engine("0.27.1", block=1568, budget=1568)
    decoding(running)
    running.add(request("long", 5000))
    # 1568 > the 1567 that are left, but not above the budget itself: still rounded to nothing
    assert [len(running.step().chunks) for _ in range(3)] == [1, 1, 1]
    running = engine("0.27.1", block=1568, budget=1024)
    decoding(running)
    running.add(request("long", 5000))
    assert [running.step().chunks[1].tokens for _ in range(4)] == [1023, 545, 1023, 545]


def test_before_0_27_a_chunk_is_rounded_and_the_last_boundary_is_a_stop() -> None:
    running = engine("0.25.1", block=640, budget=2048)
    assert serve(running, request("long", 3300)) == [(1920,), (1280,), (100,)]
    # an exact multiple has its last boundary at its end, so nothing is cut off
    assert serve(running, request("exact", 1920, seed=1)) == [(1920,)]


def test_from_0_30_the_last_boundary_lies_below_an_exact_multiple() -> None:
    # [seen] 2B exact: [640][640]; 2B + 1: [1280][1]
    assert serve(engine("0.32.0"), request("exact", 1280)) == [(640,), (640,)]
    assert serve(engine("0.32.0"), request("more", 1281)) == [(1280,), (1,)]
    assert serve(engine("0.28.0"), request("exact", 1280)) == [(1280,)]


def test_dense_model_and_caching_off_use_the_whole_budget() -> None:
    for running in (engine(budget=1024, groups=0, block=16), engine(budget=1024, caching=False)):
        decoding(running)
        running.add(request("long", 3300))
        assert [running.step().chunks[1].tokens for _ in range(4)] == [1023, 1023, 1023, 231]


def test_a_waiting_request_gets_only_what_a_long_prompt_leaves() -> None:
    running = engine(groups=0, block=16, budget=512)
    running.add(request("long", 2000))
    running.step()
    running.add(request("short", 30, seed=5))
    starved = [len(running.step().chunks) for _ in range(2)]
    assert starved == [1, 1]
    assert [c.tokens for c in running.step().chunks] == [464, 30]


def test_running_order_is_kept_and_decodes_behind_a_prefill_get_the_rest() -> None:
    running = engine(groups=0, block=16, budget=512)
    running.add(request("long", 1000))
    running.add(request("later", 20, 5, seed=3))
    step = running.step()
    assert [(c.request.id, c.tokens) for c in step.chunks] == [("long", 512)]
    step = running.step()
    assert [(c.request.id, c.tokens) for c in step.chunks] == [("long", 488), ("later", 20)]


def test_max_num_seqs_keeps_the_next_one_waiting() -> None:
    running = engine(seqs=1)
    running.add(request("first", 10, 3))
    running.add(request("second", 10, 1, seed=2))
    assert finish(running) == [(10,), (1,), (1,), (10,)]


@pytest.mark.parametrize(("version", "alone"), [("0.31.0", 256), ("0.32.0", 2000)])
def test_threshold_spares_a_lone_request_only_from_0_32(version: str, alone: int) -> None:
    running = engine(version, groups=0, block=16, long_prefill_token_threshold=256)
    running.add(request("long", 2000))
    assert running.step().chunks[0].tokens == alone
    running = engine(version, groups=0, block=16, long_prefill_token_threshold=256)
    decoding(running)
    running.add(request("long", 2000))
    assert [c.tokens for c in running.step().chunks] == [1, 256]


def test_several_prompts_under_a_threshold_fill_the_budget_together() -> None:
    running = engine(groups=0, block=16, budget=600, long_prefill_token_threshold=256)
    for name in "abc":
        running.add(request(name, 1000, seed=ord(name)))
    assert [c.tokens for c in running.step().chunks] == [256, 256, 88]


def test_priority_orders_the_queue_but_not_the_running_list() -> None:
    running = engine(groups=0, block=16, budget=512, policy="priority")
    running.add(request("first", 1000, arrival=0.0, priority=5))
    running.step()
    running.add(request("low", 100, seed=2, arrival=1.0, priority=9))
    running.add(request("high", 100, seed=3, arrival=2.0, priority=-1))
    step = running.step()
    assert [(c.request.id, c.tokens) for c in step.chunks] == [("first", 488), ("high", 24)]
    assert [r.id for r in running.scheduler.waiting] == ["low"]


def test_cut_off_head_of_the_queue_blocks_those_behind_it() -> None:
    # B 640 of which nothing fits into what is left: even a prompt of 10 tokens behind it waits
    running = engine(budget=1024, block=640)
    running.add(request("first", 3000))
    running.add(request("second", 3000, seed=1))
    running.add(request("tiny", 10, seed=2))
    assert [c.request.id for c in running.step().chunks] == ["first"]


def interval_trace(version: str, prompts: int, steps: int = 9, **options: object) -> list[tuple[int, ...]]:
    running = engine(version, budget=1024, prefill_schedule_interval=4, **options)
    decoding(running, tokens=100)
    for number in range(prompts):
        running.add(request(f"long{number}", 3000, seed=number))
    return [tuple(c.tokens for c in running.step().chunks) for _ in range(steps)]


def test_interval_does_nothing_on_one_engine_before_0_33() -> None:
    # [seen] on 0.32
    assert interval_trace("0.32.0", 1)[:4] == [(1, 640)] * 4


def test_interval_from_0_33_carries_prefill_in_every_nth_step() -> None:
    trace = interval_trace("0.33.0", 1)
    carried = [index for index, step in enumerate(trace) if len(step) > 1]
    assert [b - a for a, b in pairwise(carried)] == [4] * (len(carried) - 1)
    assert len(carried) >= 2


def test_interval_is_given_up_while_prompts_are_left_waiting() -> None:
    trace = interval_trace("0.33.0", 3, steps=12)
    first = next(index for index, step in enumerate(trace) if len(step) > 1)
    assert all(len(step) > 1 for step in trace[first:])


def test_throttle_hook_with_the_guard_reset_holds_through_the_whole_queue() -> None:
    # [seen] on 0.32: four prompts queued, hold for a while: (1,640),(1),(1),(1),(1,640)...
    running = engine(budget=1024)
    decoding(running, tokens=200)
    for number in range(4):
        running.add(request(f"long{number}", 1300, seed=number))
    trace = []
    for number in range(16):
        running.scheduler.capacity_bound = False
        step = running.begin(throttle_prefills=number % 4 != 0)
        running.end(step)
        trace.append(tuple(c.tokens for c in step.chunks))
    held = [(1,)] * 3
    assert trace == [(1, 640), *held, (1, 640), *held, (1, 20, 640), *held, (1, 640), *held]


def test_throttle_hook_is_not_heard_without_a_decode() -> None:
    running = engine(budget=1024)
    running.add(request("long", 3000))
    assert running.begin(throttle_prefills=True).chunks[0].tokens == 640


def test_one_token_prompt_tail_makes_no_mixed_step() -> None:
    running = engine()
    decoding(running)
    running.add(request("piece", 1281))
    first, second = running.step(), running.step()
    assert [c.tokens for c in second.chunks] == [1, 1]
    assert first.duration == pytest.approx(0.010 + 0.005 + 1280 * 1e-4)
    assert second.duration == pytest.approx(0.010)


def test_speculative_decoding_carries_its_drafts_and_yields_the_mean() -> None:
    running = engine(groups=0, block=16, drafts=3, rate=2.5)
    running.add(request("a", 20, 22))
    chunks, outputs = [], []
    while running.has_work:
        result = running.step()
        chunks.append(result.chunks[0].tokens)
        outputs.append(result.outputs[0].tokens)
    assert chunks[0] == 20
    assert set(chunks[1:]) == {4}, "one token and three drafts in each step"
    assert outputs[0] == 1
    assert sum(outputs) == 22
    assert set(outputs[1:-1]) == {2, 3}
    assert sum(outputs[1:9]) == 20


def test_a_chunk_ends_at_the_first_of_several_stops() -> None:
    running = engine(budget=4096)
    serve(running, request("long", 3000))
    fork = request("fork", 2000)
    assert fork.tokens is not None
    fork.tokens.extend(range(900))
    fork.prompt_tokens = len(fork.tokens)
    # the junction at 1920 comes before the last boundary at 2560
    assert serve(running, fork) == [(1920,), (640,), (340,)]
