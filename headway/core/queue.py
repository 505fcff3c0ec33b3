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
4. `tokens` is the sum of the uncached tokens of all that wait; `new_shorts` that of the short ones that were granted nothing
   yet, and `new_longs` the number of such long ones.
"""

from __future__ import annotations

from collections.abc import Iterator

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


class Queue:
    def __init__(self) -> None:
        self.short = Bucket()
        self.long = Bucket()
        self.tokens = 0
        self.new_shorts = self.new_longs = 0
        self._turns = Turns()
        self._shorts_lead = 0
        """Tokens that shorts were granted beyond longs while longs waited."""

    def add(self, entry: Entry) -> None:
        self._bucket(entry).add(entry)
        self.tokens += entry.uncached
        self._count(entry, 1)
        self._turns.came(entry.work.client)

    def remove(self, entry: Entry) -> None:
        self._bucket(entry).remove(entry)
        self.tokens -= entry.uncached
        self._count(entry, -1)
        self._turns.went(entry.work.client)
        if not len(self.long):
            self._shorts_lead = 0

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
        shorts = [(head, 0) for line in self.short.by_client.values() if (head := _first(line)) is not None]
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
