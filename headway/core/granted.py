"""Who was granted something and is not over: the few requests in the engine, apart from the many that may wait.

Invariants
----------
1. `running` has the entries in phase PIECE or WHOLE, `engine` those and the ones that decode, requests without prefill left out.
   Both change in the same call as the entry's phase does, here and nowhere else.
2. A turn looks at these and at the heads of the queue: what waits behind a head costs it nothing.
"""

from __future__ import annotations

from headway.core.work import Entry, Phase

INFINITY = float("inf")


class Granted:
    def __init__(self) -> None:
        self.running: dict[str, Entry] = {}
        """Their prefill is in the engine, by id."""
        self.engine: dict[str, Entry] = {}
        self._paced: dict[str, Entry] = {}
        """Those that were granted a piece and have not left."""

    # -- what happens -----------------------------------------------------------------------------

    def began(self, entry: Entry, phase: Phase) -> None:
        """A piece of it, or all of it, goes to the engine."""
        entry.phase = phase
        self.running[entry.work.id] = self.engine[entry.work.id] = entry
        if phase is Phase.PIECE:
            entry.paced = True
            self._paced[entry.work.id] = entry

    def rests(self, entry: Entry) -> None:
        """Its piece ended: it waits for the next."""
        entry.phase, entry.in_flight = Phase.QUEUED, 0
        self.running.pop(entry.work.id, None)
        self.engine.pop(entry.work.id, None)

    def decodes(self, entry: Entry) -> None:
        """Its prefill is over."""
        entry.phase, entry.in_flight, entry.whole_by = Phase.DECODE, 0, None
        self.running.pop(entry.work.id, None)

    def left(self, entry: Entry) -> None:
        id = entry.work.id
        self.running.pop(id, None)
        self.engine.pop(id, None)
        self._paced.pop(id, None)

    # -- what is asked ----------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Uncached tokens granted and not yet prefilled."""
        return sum([entry.in_flight for entry in self.running.values()])

    @property
    def piece(self) -> bool:
        """Whether a prompt in pieces has one in the engine."""
        return any(entry.phase is Phase.PIECE for entry in self.running.values())

    @property
    def coming(self) -> bool:
        """Whether an answer that is owed a share will begin."""
        return any(e.phase is Phase.WHOLE and e.work.streams and e.klass.share > 0 for e in self.running.values())

    @property
    def pacing(self) -> bool:
        """Whether a prompt in pieces waits for its next, or has one in the engine."""
        return any(entry.phase is not Phase.DECODE for entry in self._paced.values())

    @property
    def over_at(self) -> float:
        """Earliest time at which a prefill is taken to be over, or infinity."""
        return min([entry.whole_by for entry in self.running.values() if entry.whole_by is not None], default=INFINITY)
