"""Block ids for traces that only say how many leading tokens of a prompt were cached, not which text they are.

A call with c cached tokens continues an earlier prompt of its thread: the latest one that is at least c tokens long.
Only the latest few prompts of a thread are kept, and only the latest threads, so memory stays bounded; what no kept
prompt can explain is new text.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

KEPT = 8  # prompts of a thread
THREADS = 4096


@dataclass
class Branches:
    block_size: int
    _next: int = 0
    _threads: OrderedDict[str, deque[tuple[int, ...]]] = field(default_factory=OrderedDict)

    def ids(self, thread: str, tokens: int, cached: int) -> tuple[int, ...]:
        """Ids of the whole blocks of a prompt of `tokens` tokens, the first `cached` of which this thread had sent before."""
        known = self._threads.setdefault(thread, deque(maxlen=KEPT))
        self._threads.move_to_end(thread)
        if len(self._threads) > THREADS:
            self._threads.popitem(last=False)
        count, shared = tokens // self.block_size, cached // self.block_size
        stem = next((ids for ids in reversed(known) if len(ids) >= shared), max(known, key=len, default=()))[:shared]
        made = stem[:count] + tuple(range(self._next, self._next + count - min(len(stem), count)))
        self._next += max(0, count - len(stem))
        known.append(made)
        return made
