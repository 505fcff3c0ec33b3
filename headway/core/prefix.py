"""What the engine is known to have cached, in tokens: blocks of the engine's own size, once a prompt's token ids are known.

An entry exists only where the engine *confirmed* it, by a hit or by a piece that ended there. "It went through before" is not
"it is cached": hybrid models keep only some boundaries (docs/engines.md). Before a prompt is tokenised, textindex.py answers.

Invariants
----------
1. A key names the whole prefix up to its boundary (chained hashes), with the seed: model, LoRA and cache_salt never mix.
2. The least recently used is forgotten first, above `capacity` entries, and so is what a later answer contradicts.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import xxhash


def block_keys(seed: bytes, ids: Sequence[int], block: int) -> list[int]:
    """Keys of the whole blocks of `ids`: keys[k] names ids[: (k + 1) * block]."""
    data = array("I", ids).tobytes()
    return chain(xxhash.xxh3_64_intdigest(seed), memoryview(data), block * array("I").itemsize)


def chain(key: int, data: memoryview, size: int) -> list[int]:
    """Keys of the whole slices of `size` bytes; each names all before it, and what `key` named."""
    digest = xxhash.xxh3_64_intdigest
    keys = []
    for start in range(0, len(data) - size + 1, size):
        key = digest(data[start : start + size], key)
        keys.append(key)
    return keys


class _Recent:
    """A bounded map that forgets what was not used for longest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: OrderedDict[int, int] = OrderedDict()

    def put(self, key: int, value: int) -> None:
        self.entries[key] = value
        self.entries.move_to_end(key)
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)

    def get(self, key: int) -> int | None:
        value = self.entries.get(key)
        if value is not None:
            self.entries.move_to_end(key)
        return value


class BlockIndex:
    def __init__(self, capacity: int = 100_000) -> None:
        self._known = _Recent(capacity)

    def confirm(self, keys: Sequence[int], blocks: int) -> None:
        """The engine has the first `blocks` blocks of this chain cached."""
        if 0 < blocks <= len(keys):
            self._known.put(keys[blocks - 1], blocks)

    def deny(self, keys: Sequence[int], blocks: int) -> None:
        """The engine hit only `blocks` blocks of this chain: boundaries above are gone."""
        for key in keys[blocks:]:
            self._known.entries.pop(key, None)

    def cached(self, keys: Sequence[int]) -> int:
        """Blocks known to be cached: the longest confirmed boundary of this chain."""
        for blocks in range(len(keys), 0, -1):
            if self._known.get(keys[blocks - 1]) is not None:
                return blocks
        return 0

    def resize(self, capacity: int) -> None:
        """Entries that may be held: blocks of the engine's cache."""
        self._known.capacity = max(1, capacity)

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._known.entries.clear()

    def __len__(self) -> int:
        return len(self._known.entries)
