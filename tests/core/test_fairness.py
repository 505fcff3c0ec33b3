"""Must: deficit round robin over clients, remaining work first with aging, a queue bounded in count and tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.capability import Capability
from headway.core.classes import INTERACTIVE, default_classes
from headway.core.controller import Controller, QueueFull
from headway.core.fairness import Turns
from headway.core.queue import Queue
from headway.core.targets import Targets
from headway.core.work import Entry, Piece, Work

KLASS = default_classes(Targets())[INTERACTIVE]
PIECE = 1000


def entry(id: str, uncached: int, client: str = "a", at: float = 0.0, big: bool = True) -> Entry:
    return Entry(Work(id, uncached, client=client), arrived=at, uncached=uncached, klass=KLASS, big=big)


def serve(queue: Queue, pieces: int) -> list[str]:
    """Who is granted, piece by piece."""
    order = []
    for _ in range(pieces):
        candidates = queue.order(PIECE)
        if not candidates:
            break
        head = candidates[0]
        queue.remove(head)
        tokens = min(PIECE, head.uncached)
        queue.granted(head, tokens)
        order.append(head.work.id)
        head.uncached -= tokens
        if head.uncached:
            queue.add(head)
    return order


def test_the_least_left_goes_first_and_a_shorter_newcomer_passes() -> None:
    queue = Queue()
    queue.add(entry("long", 100_000))
    assert serve(queue, 10) == ["long"] * 10
    queue.add(entry("short", 30_000, at=1.0))
    assert serve(queue, 30) == ["short"] * 30
    assert serve(queue, 1) == ["long"]


def test_one_with_less_left_than_the_newcomer_ends_first() -> None:
    queue = Queue()
    queue.add(entry("long", 100_000))
    serve(queue, 80)
    queue.add(entry("short", 30_000, at=1.0))
    assert serve(queue, 20) == ["long"] * 20


def test_aging_a_stream_of_shorter_ones_cannot_starve_a_long_one() -> None:
    queue = Queue()
    queue.add(entry("long", 100_000))
    granted = []
    for n in range(200):
        queue.add(entry(f"s{n}", 10_000, at=1.0 + n))
        granted += serve(queue, 10)
        if granted.count("long") == 100:
            break
    passed = granted[: len(granted) - granted[::-1].index("long")]
    assert granted.count("long") == 100
    assert sum(1 for id in passed if id != "long") * PIECE <= 110_000


def test_a_client_with_many_long_prompts_leaves_another_its_half() -> None:
    queue = Queue()
    for n in range(10):
        queue.add(entry(f"a{n}", 20_000, "a", at=float(n)))
    queue.add(entry("b0", 20_000, "b", at=20.0))
    queue.add(entry("b1", 20_000, "b", at=21.0))
    order = serve(queue, 80)
    b = [n for n, id in enumerate(order) if id[0] == "b"]
    assert len(b) == 40, "b's share of the first 80 pieces is half"


@given(
    served=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5000)), max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_of_clients_that_always_wait_none_gets_more_than_a_request_ahead(served: list[tuple[str, int]]) -> None:
    turns, got = Turns(), {"a": 0, "b": 0, "c": 0}
    for client in got:
        turns.came(client)
    sizes = iter([*(size for _, size in served), *([1000] * 60)])
    cost = {client: next(sizes) for client in got}
    largest = max([1000, *(size for _, size in served)])
    for _ in range(60):
        client = min(got, key=lambda c: (turns.place(c, cost[c]), c))
        turns.served(client, cost[client])
        got[client] += cost[client]
        cost[client] = next(sizes, 1000)
        assert max(got.values()) - min(got.values()) <= largest


def test_a_client_that_was_away_has_no_credit() -> None:
    turns = Turns()
    turns.came("a")
    for _ in range(100):
        turns.served("a", 1000)
    turns.came("b")
    assert turns.place("b", 5000) - turns.place("a", 5000) == pytest.approx(-1000, abs=1000)


def test_interactive_goes_before_agent_before_background() -> None:
    made = Controller("pace", Targets(gap=0.1, wait=1000.0))
    made.engine(0.0, Capability(block=256, caching=True))
    made.timed(0.0, 1024, 0.09)
    made.arrive(1.0, Work("busy", 5000))
    made.measured(1.0, "busy", 5000, True)
    made.decide(1.0)
    for n, name in enumerate(("background", "agent", "interactive")):
        made.arrive(1.1 + n, Work(name, 5000, klass=name))
        made.measured(1.1 + n, name, 5000, True)
    made.leave(5.0, "busy")
    (first,) = made.decide(5.0)
    assert isinstance(first, Piece) and first.id == "interactive"
    made.leave(6.0, "interactive")
    assert [decision.id for decision in made.decide(6.0)] == ["agent"]


def test_the_queue_is_bounded_in_requests_and_in_tokens() -> None:
    made = Controller("serialize", Targets(queue=3, queue_tokens=10_000))
    made.arrive(0.0, Work("first", 50_000))  # nothing waits: it is taken whatever its size
    made.decide(0.0)
    made.arrive(1.0, Work("a", 9_000))
    with pytest.raises(QueueFull) as full:
        made.arrive(1.0, Work("b", 2_000))
    assert (full.value.limit, full.value.allowed) == ("queue-tokens", 10_000)
    made.arrive(1.0, Work("c", 500))
    made.arrive(1.0, Work("d", 500))
    with pytest.raises(QueueFull) as full:
        made.arrive(1.0, Work("e", 1))
    assert (full.value.limit, full.value.allowed) == ("queue", 3)
    assert made.waiting == 3 and made.waiting_tokens == 10_000
    made.arrive(1.0, Work("health", 1, prefills=False))
    for id in ("a", "c", "d", "health"):
        made.leave(2.0, id)
    assert made.waiting_tokens == 0
