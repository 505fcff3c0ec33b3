"""What a turn sees of the queue (heads, the earliest bound) is what a look at all that wait would show."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headway.core.classes import default_classes
from headway.core.queue import Queue
from headway.core.targets import Targets
from headway.core.work import Entry, Work

CLASSES = list(default_classes(Targets(wait=3.0)).values())


def entry(number: int, rng: random.Random) -> Entry:
    work = Work(str(number), rng.choice([10, 500]), client=rng.choice("abc"), prefills=rng.random() < 0.9)
    klass = rng.choice(CLASSES)
    klass = replace(klass, exempt=rng.random() < 0.1, targets=replace(klass.targets, wait=rng.choice([1.0, 3.0])))
    made = Entry(work, rng.choice([number, number - 7.0]), work.uncached, klass, big=rng.random() < 0.3)
    made.first_grant = made.arrived if rng.random() < 0.1 else None
    return made


@pytest.mark.parametrize("seed", range(20))
def test_heads_bounds_and_the_unheld_are_those_of_all_that_wait(seed: int) -> None:
    rng = random.Random(seed)
    queue, waiting = Queue(), {}
    for number in range(300):
        if waiting and rng.random() < 0.45:
            queue.remove(waiting.pop(rng.choice(list(waiting))))
        else:
            waiting[number] = entry(number, rng)
            queue.add(waiting[number])
        if waiting and rng.random() < 0.1:
            released = rng.choice(list(waiting.values()))
            released.released = True
            queue.changed(released)
        fresh = [e for e in waiting.values() if not e.big and e.first_grant is None]
        assert queue.next_due == min((e.arrived + e.klass.targets.wait for e in fresh), default=float("inf"))
        assert {e.work.id for e in queue.later} == {e.work.id for e in waiting.values() if e not in fresh}
        assert queue.unheld == {e.work.id for e in waiting.values() if e.released or e.klass.exempt or not e.work.prefills}
        heads = {e.work.client: e for e in queue.order(100) if not e.big}
        for client in "abc":
            line = [e for e in waiting.values() if not e.big and e.work.client == client]
            assert heads.get(client) is min(line, key=lambda e: (e.rank, e.arrived), default=None)
    assert len(queue) == len(waiting)


def test_what_left_is_not_kept() -> None:
    queue, rng = Queue(), random.Random(1)
    first = replace(entry(0, rng), big=False)
    queue.add(first)
    for number in range(1, 5000):
        other = replace(entry(number, rng), big=False)
        other.work.client, other.klass = first.work.client, first.klass
        queue.add(other)
        queue.remove(other)
    assert len(queue._bounds._places) < 200
    assert len(queue._heads[first.work.client]._places) < 200
