"""What the engine is known to have cached.

Two indexes with one rule: an entry exists only where the engine *confirmed* it, by a hit or by a piece that ended there.
"It went through before" is not "it is cached": hybrid models keep only some boundaries (docs/engines.md).

`BlockIndex` is exact: token ids in blocks of the engine's own size. `TextIndex` answers before anything is tokenised, from the
bytes of the prompt, and is therefore an estimate.

Invariants
----------
1. A key names the whole prefix up to its boundary (chained hashes), with the seed: model, LoRA and cache_salt never mix.
2. Both forget least recently used first, above `capacity` entries, and forget what a later answer contradicts.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import xxhash

TEXT_BLOCK = 1024
"""Bytes of prompt text a key of TextIndex stands for."""


def block_keys(seed: bytes, ids: Sequence[int], block: int) -> list[int]:
    """Keys of the whole blocks of `ids`: keys[k] names ids[: (k + 1) * block]."""
    data = array("I", ids).tobytes()
    return _chain(seed, data, block * array("I").itemsize)


def text_keys(seed: bytes, text: bytes) -> list[int]:
    """Keys of the whole TEXT_BLOCKs of `text`."""
    return _chain(seed, text, TEXT_BLOCK)


def _chain(seed: bytes, data: bytes, size: int) -> list[int]:
    key = xxhash.xxh3_64_intdigest(seed)
    view = memoryview(data)
    keys = []
    for end in range(size, len(data) + 1, size):
        key = xxhash.xxh3_64_intdigest(view[end - size : end], key)
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

    def clear(self) -> None:
        """The engine restarted: nothing is cached."""
        self._known.entries.clear()

    def __len__(self) -> int:
        return len(self._known.entries)


class TextIndex:
    def __init__(self, capacity: int = 100_000) -> None:
        self._known = _Recent(capacity)
        self._went = _Recent(capacity)

    def went(self, keys: Sequence[int], tokens: int) -> None:
        """A prompt of these text blocks and `tokens` tokens was sent here. Says nothing about what is cached."""
        if keys:
            self._went.put(keys[-1], tokens)

    def seen(self, keys: Sequence[int]) -> int:
        """Tokens of the longest beginning of this prompt that was sent here before."""
        for key in reversed(keys):
            if (tokens := self._went.get(key)) is not None:
                return tokens
        return 0

    def confirm(self, keys: Sequence[int], length: int, tokens: int, cached: int) -> None:
        """Of a prompt of `length` bytes and `tokens` tokens, `cached` tokens are cached. The bytes that they stand for
        are taken in proportion, and rounded down to a key."""
        at = int(length * (cached / max(tokens, 1))) // TEXT_BLOCK
        at = min(at, len(keys))
        if at > 0:
            self._known.put(keys[at - 1], cached)

    def deny(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._known.entries.pop(key, None)

    def cached(self, keys: Sequence[int]) -> int:
        """Tokens believed to be cached for a prompt that begins with these text blocks."""
        for key in reversed(keys):
            tokens = self._known.get(key)
            if tokens is not None:
                return tokens
        return 0

    def clear(self) -> None:
        self._known.entries.clear()

    def __len__(self) -> int:
        return len(self._known.entries)
