"""Whose turn: deficit round robin over clients, with a quantum of one token.

Each round gives every waiting client one more token of deficit; the first whose deficit covers its next request is served, and
pays for it. With so small a quantum that is an order by `served + cost`: what the client was served so far (its deficit,
negated), and what its next request still costs. So clients get equal work, not equal turns; a client with little to do passes
one with much; and one that was passed by is nearer to its turn by what the others got.

Invariants
----------
1. Of two clients that always have work waiting, neither is served more than the other by over one request of its own.
2. A client that comes, or comes back, starts level with the one in service: having been away is no credit, being ahead stays.
"""

from __future__ import annotations

REMEMBERED = 4096
"""Clients that are remembered although nothing of theirs waits."""


class Turns:
    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._level = 0.0
        """`served` of the client in service: where newcomers start."""

    def came(self, client: str) -> None:
        """One more request of this client waits."""
        count = self._waiting.get(client, 0)
        if count == 0:
            self._served[client] = max(self._served.get(client, 0.0), self._level)
        self._waiting[client] = count + 1

    def went(self, client: str) -> None:
        """One request less of this client waits."""
        count = self._waiting[client] - 1
        if count:
            self._waiting[client] = count
        else:
            del self._waiting[client]
            if len(self._served) > REMEMBERED:
                self._served = {c: s for c, s in self._served.items() if c in self._waiting or s > self._level}

    def served(self, client: str, tokens: int) -> None:
        """This client was granted `tokens` tokens of prefill."""
        before = self._served.get(client, self._level)
        self._level = max(self._level, before)
        self._served[client] = before + tokens

    def place(self, client: str, cost: float) -> float:
        """Order of a client whose next request costs `cost` tokens: lowest first."""
        return self._served.get(client, self._level) + cost
