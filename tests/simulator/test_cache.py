"""What is cached for whom: both eras of retention, hits, junctions, eviction. [seen]: on a real vLLM
0.32.0.
"""

from __future__ import annotations

import pytest

from tests.simulator.building import engine, finish, prompt, request, serve

B = 640


def hit_after(version: str, first: int, count: int = 4000, **options: object) -> int:
    """Tokens that a longer sibling finds cached after a prompt of `first` tokens went through."""
    running = engine(version, **options)
    serve(running, request("first", first))
    sibling = request("sibling", count)
    serve(running, sibling)
    assert sibling.cached_tokens is not None
    return sibling.cached_tokens


@pytest.mark.parametrize(
    ("version", "first", "blocks"),
    [
        # dense retention: k*B gives k
        ("0.25.1", B, 1), ("0.25.1", 3 * B, 3), ("0.25.1", 3 * B + 1, 3), ("0.28.0", 2 * B, 2),
        # sparse retention [seen]: k*B gives k - 1, one token more gives k
        ("0.30.0", 2 * B, 1), ("0.32.0", 2 * B, 1), ("0.32.0", 2 * B + 1, 2), ("0.32.0", B, 0),
        ("0.32.0", B + 1, 1), ("0.32.0", 2 * B - 1, 1), ("0.33.0", 2 * B, 1), ("0.33.0", 2 * B + 1, 2),
    ],
)  # fmt: skip
def test_truth_table_of_prefix_pieces(version: str, first: int, blocks: int) -> None:
    assert hit_after(version, first) == blocks * B


@pytest.mark.parametrize(
    ("version", "first", "blocks"),
    [
        ("0.25.1", 4 * B, 3), ("0.25.1", 4 * B + 1, 3), ("0.32.0", 4 * B, 3), ("0.32.0", 4 * B + 1, 3),
        ("0.33.0", 4 * B, 3), ("0.33.0", 4 * B + 1, 4),
    ],
)  # fmt: skip
def test_truth_table_with_speculative_decoding(version: str, first: int, blocks: int) -> None:
    assert hit_after(version, first, drafts=1) == blocks * B


@pytest.mark.parametrize(("groups", "cached"), [(0, B), (3, 0)])
def test_lookahead_needs_the_true_next_token(groups: int, cached: int) -> None:
    running = engine("0.33.0", drafts=1, groups=groups)
    wrong = request("piece", 2 * B + 1)
    assert wrong.tokens is not None
    wrong.tokens[-1] += 1
    serve(running, wrong)
    real = request("real", 4000)
    serve(running, real)
    # block 2's key covers the wrong token; what is below it is kept by full attention alone
    assert real.cached_tokens == cached


def test_dense_model_keeps_every_whole_block() -> None:
    for first, cached in ((2 * B, 2 * B), (2 * B + 1, 2 * B), (3 * B - 1, 2 * B)):
        assert hit_after("0.32.0", first, groups=0) == cached


def test_paced_pieces_one_token_longer_hit_all_earlier_ones() -> None:
    # [seen] pieces hit 0..4 blocks, the request itself 5 of 5 and computes 37 tokens
    running = engine("0.32.0")
    hits = []
    for k in range(1, 6):
        piece = request(f"piece{k}", k * B + 1)
        chunks = serve(running, piece)
        hits.append(piece.cached_tokens)
        assert chunks == [(B,), (1,)]
    assert hits == [0, B, 2 * B, 3 * B, 4 * B]
    whole = request("whole", 5 * B + 37)
    assert serve(running, whole) == [(37,)]
    assert whole.cached_tokens == 5 * B


def test_paced_pieces_of_exact_blocks_fall_one_behind_from_0_30() -> None:
    # [seen] 0, 0, 1, 2, 3 and the request itself 4
    running = engine("0.32.0")
    hits = []
    for k in range(1, 6):
        piece = request(f"piece{k}", k * B)
        serve(running, piece)
        hits.append(piece.cached_tokens)
    whole = request("whole", 5 * B + 37)
    serve(running, whole)
    assert hits == [0, 0, B, 2 * B, 3 * B]
    assert whole.cached_tokens == 4 * B


@pytest.mark.parametrize("groups", [0, 3])
def test_hit_is_never_the_whole_prompt(groups: int) -> None:
    running = engine("0.25.1", groups=groups, block=16, budget=16)
    serve(running, request("a", 1024))
    again = request("again", 1024)
    chunks = serve(running, again)
    assert again.cached_tokens == 1024 - 16
    assert chunks == [(16,)]


def test_sparse_era_keeps_only_the_last_boundary_until_a_sibling_shows_the_junction() -> None:
    # a prompt of 3000 leaves the state at 2560 alone; a sibling that shares 2000 tokens finds nothing, ...
    running = engine("0.32.0")
    serve(running, request("long", 3000))
    fork = prompt(2000)

    def sibling(name: str, seed: int):
        one = request(name, 2000)
        assert one.tokens is not None
        one.tokens.extend(prompt(900, seed))
        one.prompt_tokens = len(one.tokens)
        assert one.tokens[:2000].tolist() == fork
        return one

    first, second = sibling("first", 7), sibling("second", 8)
    serve(running, first)
    assert first.cached_tokens == 0
    assert first.junction == 3 * B
    # ... but stops at the junction, so that the next one resumes there
    serve(running, second)
    assert second.cached_tokens == 3 * B


def test_went_through_whole_is_not_cached_for_a_fork_below_its_last_boundary() -> None:
    sparse, dense = (hit_after_fork(version) for version in ("0.32.0", "0.28.0"))
    assert sparse == 0
    # dense: each chunk end stays; 3,000 tokens at a budget of 2,048 left one at 1,920
    assert dense == 3 * B


def hit_after_fork(version: str) -> int | None:
    running = engine(version)
    serve(running, request("long", 3000))
    fork = request("fork", 2000)
    serve(running, fork)
    return fork.cached_tokens


def test_next_turn_hits_the_answer_too_when_the_last_boundary_lies_in_it() -> None:
    running = engine("0.28.0", block=16, budget=512)
    first = request("turn1", 40, 30, output_token=lambda i: 70_000 + i)
    serve(running, first)
    assert first.tokens is not None
    known = first.tokens[:69].tolist()
    second = request("turn2", 40)
    assert second.tokens is not None
    second.tokens.extend([*known[40:], *prompt(50, 3)])
    second.prompt_tokens = len(second.tokens)
    serve(running, second)
    assert second.cached_tokens == 64


def test_salt_separates_what_is_otherwise_equal() -> None:
    running = engine("0.25.1")
    serve(running, request("a", 2000, cache_salt="one"))
    for salt, cached in (("one", 3 * B), ("two", 0), ("", 0)):
        other = request(f"b{salt}", 2001, cache_salt=salt)
        serve(running, other)
        assert other.cached_tokens == cached


def test_state_made_in_a_step_is_no_hit_in_the_same_step() -> None:
    running = engine("0.32.0", budget=4096)
    running.add(request("a", B + 1))
    running.add(request("b", B + 50))
    first = running.step()
    # b would hit what a computes in this very step, so it is not admitted yet
    assert [(c.request.id, c.tokens) for c in first.chunks] == [("a", B)]
    trace = finish(running)
    b = [chunk for step in trace for chunk in step]
    assert sum(b) == 1 + 50


def test_eviction_takes_the_longest_unused_and_a_hit_renews() -> None:
    running = engine("0.25.1", groups=0, block=16, blocks=1 + 64, length=1000)
    for name, seed in (("a", 1), ("b", 2)):
        serve(running, request(name, 161, seed=seed))
    serve(running, request("a again", 161, seed=1))
    # of 64 blocks 10 carry a, 10 carry b: 54 more take the 44 that carry nothing and all of b
    serve(running, request("big", 54 * 16 - 1, seed=3))
    kept = request("kept", 161, seed=1)
    gone = request("gone", 161, seed=2)
    assert running.cache.lookup(kept).tokens == 160
    assert running.cache.lookup(gone).tokens == 0


def test_blocks_are_all_free_again_when_everything_has_ended() -> None:
    running = engine("0.32.0", blocks=400)
    for number in range(6):
        running.add(request(f"r{number}", 900 * (number + 1), 5, seed=number % 2))
    finish(running)
    assert running.cache.pool.free_count == 399
    assert running.cache.pool.usage == 0.0


def test_abort_frees_at_once_and_keeps_what_was_cached() -> None:
    running = engine("0.25.1", budget=1280)
    running.add(request("a", 4000, 100))
    running.step()
    running.step()
    assert running.cache.pool.usage > 0
    assert running.abort("a")
    assert not running.abort("a")
    assert running.cache.pool.usage == 0.0
    assert not running.has_work
    again = request("b", 4000)
    serve(running, again)
    assert again.cached_tokens == 2 * 1280


def test_preemption_recomputes_the_answer_so_far_and_still_gives_every_token() -> None:
    running = engine("0.25.1", groups=0, block=16, blocks=1 + 20, length=300, seqs=4, budget=300)
    outputs: dict[str, int] = {}
    for name, seed in (("a", 1), ("b", 2)):
        running.add(request(name, 120, 100, seed=seed))
    preempted = []
    while running.has_work:
        result = running.step()
        preempted += [r.id for r in result.preempted]
        for output in result.outputs:
            assert output.first == outputs.get(output.request.id, 0)
            outputs[output.request.id] = output.first + output.tokens
    assert preempted == ["b"]
    assert outputs == {"a": 100, "b": 100}
    assert running.counters.preemptions == 1


def test_prompt_that_does_not_fit_whole_waits_for_room() -> None:
    running = engine("0.25.1", groups=0, block=16, blocks=1 + 40, length=640, budget=64)
    running.add(request("a", 320, 3))
    running.add(request("b", 400, 1, seed=2))
    seen = []
    while running.has_work:
        seen.append({c.request.id for c in running.step().chunks})
    first_b = next(index for index, ids in enumerate(seen) if "b" in ids)
    assert all("a" not in ids for ids in seen[first_b:])


def test_a_remembered_lookup_is_looked_up_again_when_the_cache_changed() -> None:
    """The head of the queue is asked for in each step; what others publish, take or lose meanwhile counts."""
    running = engine("0.32.0", groups=0, block=16, blocks=1100)
    cache = running.cache
    head = request("head", 100)
    assert cache.lookup(head).tokens == 0 == cache.lookup(head).tokens
    serve(running, request("other", 100, max_tokens=1))
    assert cache.lookup(head).tokens == 96
    cache.lookup(head).full.clear()  # what a caller does with its list is its own
    assert len(cache.lookup(head).full) == 6
    assert cache.pool.reset()
    assert cache.lookup(head).tokens == 0
