"""Who is next: classes by rank, clients in turn, short before long without starving long.

Two buckets by size. *Short* requests pass between the pieces of long ones; of one client they leave as they came. *Long* ones are
taken by remaining uncached work, so one that arrives beside a longer one under way goes first, piece by piece.

Invariants
----------
1. Two short requests of one client and class leave in the order they came (those not ready yet stand aside, in place);
   a resend has the place of the one that it stands for.
2. Aging: of one client, later long requests pass an earlier one by no more tokens than it has left itself. Between clients, see
   fairness.py.
3. While a long request waits, shorts together get at most as many tokens as longs do, and one piece.
4. A turn sees the head of each client's short ones and the earliest bound, not all that wait: a short one's place and bound stay
   as they were when it came.
5. `tokens` is the sum of the uncached tokens of all that wait; `new_shorts` that of the short ones that were granted nothing
   yet, and `new_longs` the number of such long ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from headway.core.fairness import Turns
from headway.core.work import Entry


class Bucket:
    """The waiting requests of one size, by client."""

    def __init__(self) -> None:
        self.by_client: dict[str, dict[str, Entry]] = {}
        self.count = 0

    def add(self, entry: Entry) -> None:
        self.by_client.setdefault(entry.work.client, {})[entry.work.id] = entry
        self.count += 1

    def remove(self, entry: Entry) -> None:
        line = self.by_client[entry.work.client]
        del line[entry.work.id]
        self.count -= 1
        if not line:
            del self.by_client[entry.work.client]

    def __iter__(self) -> Iterator[Entry]:
        for line in self.by_client.values():
            yield from line.values()

    def __len__(self) -> int:
        return self.count


class Heap:
    """Waiting requests by a key that does not change while they wait; of equal ones the one that was added first. Those that have
    left are dropped when they come up."""

    def __init__(self) -> None:
        self._places: list[tuple[tuple[float, ...], int, Entry]] = []
        self._numbers: dict[str, int] = {}
        self._next = 0

    def add(self, entry: Entry, *key: float) -> None:
        self._next += 1
        self._numbers[entry.work.id] = self._next
        heappush(self._places, (key, self._next, entry))

    def remove(self, entry: Entry) -> None:
        self._numbers.pop(entry.work.id, None)
        if len(self._places) > 2 * len(self._numbers) + 64:  # else what leaves from the middle would stay for long
            self._places = [place for place in self._places if self._numbers.get(place[2].work.id) == place[1]]
            heapify(self._places)

    @property
    def first(self) -> tuple[tuple[float, ...], int, Entry] | None:
        """(key, number, entry)"""
        places = self._places
        while places and self._numbers.get(places[0][2].work.id) != places[0][1]:
            heappop(places)
        return places[0] if places else None

    def __len__(self) -> int:
        return len(self._numbers)


class Queue:
    def __init__(self) -> None:
        self.short = Bucket()
        self.long = Bucket()
        self.tokens = 0
        self.new_shorts = self.new_longs = 0
        self.unheld: set[str] = set()
        """Ids of those that nothing holds: released, exempt, or without prefill."""
        self._bounds = Heap()
        """Short ones that were granted nothing yet, by the end of their `wait`, which is their bound."""
        self._begun: dict[str, Entry] = {}
        """Short ones that are the rest of one begun."""
        self._heads: dict[str, Heap] = {}
        """Short ones by client, oldest of the best rank first."""
        self._turns = Turns()
        self._shorts_lead = 0
        """Tokens that shorts were granted beyond longs while longs waited."""

    def add(self, entry: Entry) -> None:
        self._bucket(entry).add(entry)
        if not entry.big:
            self._heads.setdefault(entry.work.client, Heap()).add(entry, entry.rank, entry.arrived)
            if entry.first_grant is None:
                self._bounds.add(entry, entry.arrived + entry.klass.targets.wait)
            else:
                self._begun[entry.work.id] = entry
        self.changed(entry)
        self.tokens += entry.uncached
        self._count(entry, 1)
        self._turns.came(entry.work.client)

    def changed(self, entry: Entry) -> None:
        """One that waits may have been released."""
        if entry.released or not entry.work.prefills or entry.klass.exempt:
            self.unheld.add(entry.work.id)

    def remove(self, entry: Entry) -> None:
        self._bucket(entry).remove(entry)
        if not entry.big:
            heads = self._heads[entry.work.client]
            heads.remove(entry)
            if not len(heads):
                del self._heads[entry.work.client]
            self._bounds.remove(entry)
            self._begun.pop(entry.work.id, None)
        self.unheld.discard(entry.work.id)
        self.tokens -= entry.uncached
        self._count(entry, -1)
        self._turns.went(entry.work.client)
        if not len(self.long):
            self._shorts_lead = 0

    @property
    def next_due(self) -> float:
        """When the first of the short ones that were granted nothing yet comes to its bound, or infinity."""
        first = self._bounds.first
        return first[0][0] if first is not None else float("inf")

    @property
    def later(self) -> Iterator[Entry]:
        """The others, in the queue's order: what is known of the engine moves their bounds."""
        yield from self._begun.values()
        yield from self.long

    def granted(self, entry: Entry, tokens: int) -> None:
        """An entry, removed already, was granted `tokens` tokens."""
        self._turns.served(entry.work.client, tokens)
        if len(self.long):
            self._shorts_lead = max(0, self._shorts_lead + (-tokens if entry.big else tokens))
        if entry.big:
            for other in self.long.by_client.get(entry.work.client, {}).values():
                if other.arrived < entry.arrived:
                    other.passed += tokens

    def order(self, piece: int) -> list[Entry]:
        """Candidates, best first: of each client the next short and the next long one. `piece` is the tokens of one piece: the
        lead that shorts may have."""
        shorts = [(head, 0) for client, line in self.short.by_client.items() if (head := self._head(client, line)) is not None]
        longs = [(head, 1) for line in self.long.by_client.values() if (head := _least(line)) is not None]
        turn = 0 if self._shorts_lead < piece else 1
        ranked = sorted(
            (entry.rank, kind != turn, self._turns.place(entry.work.client, entry.uncached), number, entry)
            for number, (entry, kind) in enumerate(shorts + longs)
        )
        return [entry for *_, entry in ranked]

    def _count(self, entry: Entry, sign: int) -> None:
        if entry.first_grant is None and entry.work.prefills:
            self.new_shorts += 0 if entry.big else sign * entry.uncached
            self.new_longs += sign if entry.big else 0

    def _head(self, client: str, line: dict[str, Entry]) -> Entry | None:
        """The oldest ready one of the best rank."""
        first = self._heads[client].first
        return first[2] if first is not None and first[2].ready else _first(line)

    def _bucket(self, entry: Entry) -> Bucket:
        return self.long if entry.big else self.short

    def __iter__(self) -> Iterator[Entry]:
        yield from self.short
        yield from self.long

    def __len__(self) -> int:
        return len(self.short) + len(self.long)


def _first(line: dict[str, Entry]) -> Entry | None:
    """The oldest ready one of the best rank."""
    return min((entry for entry in line.values() if entry.ready), key=lambda entry: (entry.rank, entry.arrived), default=None)


def _least(line: dict[str, Entry]) -> Entry | None:
    """The ready one with the least left, less what it was passed by, of the best rank; of two alike
    the one that was begun, then the older."""
    ready = [entry for entry in line.values() if entry.ready]
    return min(ready, key=lambda entry: (entry.rank, entry.uncached - entry.passed, not entry.paced, entry.arrived), default=None)
