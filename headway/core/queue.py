"""Who is next: FIFO per client within a size bucket, clients in turn, short before long without starving long.

Invariants
----------
1. Two requests of one client in one bucket leave in the order they came (those not ready yet stand aside, in place); a resend
   has the place of the one that it stands for.
2. While a long request waits, shorts together get at most as many tokens as it does.
"""

from __future__ import annotations

from collections.abc import Iterator

from headway.core.work import Entry


class Bucket:
    """The waiting requests of one size."""

    def __init__(self) -> None:
        self._by_client: dict[str, dict[str, Entry]] = {}

    def add(self, entry: Entry) -> None:
        self._by_client.setdefault(entry.work.client, {})[entry.work.id] = entry

    def remove(self, entry: Entry) -> None:
        line = self._by_client[entry.work.client]
        del line[entry.work.id]
        if not line:
            del self._by_client[entry.work.client]

    def served(self, entry: Entry) -> None:
        """Its client goes to the end of the turns."""
        line = self._by_client.pop(entry.work.client, None)
        if line is not None:
            self._by_client[entry.work.client] = line

    def heads(self) -> Iterator[Entry]:
        """The first ready request of each client, in the order of the clients' turns."""
        for line in self._by_client.values():
            head = min((entry for entry in line.values() if entry.ready), key=lambda entry: entry.arrived, default=None)
            if head is not None:
                yield head

    def __iter__(self) -> Iterator[Entry]:
        for line in self._by_client.values():
            yield from line.values()

    def __len__(self) -> int:
        return sum(len(line) for line in self._by_client.values())


class Queue:
    def __init__(self) -> None:
        self.short = Bucket()
        self.long = Bucket()
        self._shorts_lead = 0
        """Tokens that shorts were granted beyond longs while longs waited."""

    def add(self, entry: Entry) -> None:
        (self.long if entry.big else self.short).add(entry)

    def remove(self, entry: Entry) -> None:
        (self.long if entry.big else self.short).remove(entry)
        if not len(self.long):
            self._shorts_lead = 0

    def granted(self, entry: Entry, tokens: int) -> None:
        (self.long if entry.big else self.short).served(entry)
        if len(self.long):
            self._shorts_lead = max(0, self._shorts_lead + (-tokens if entry.big else tokens))

    def order(self, piece: int) -> Iterator[Entry]:
        """Candidates, best first. `piece` is the tokens of one piece: the lead that shorts may have."""
        first, then = (self.short, self.long) if self._shorts_lead < piece else (self.long, self.short)
        yield from first.heads()
        yield from then.heads()

    def __iter__(self) -> Iterator[Entry]:
        yield from self.short
        yield from self.long

    def __len__(self) -> int:
        return len(self.short) + len(self.long)
