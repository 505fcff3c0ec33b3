"""The pool of KV blocks and the chained keys by which a block is found again.

Invariants: a block is in the free queue exactly when its reference count is 0; a free block with a key is
still a hit until it is taken for something else; the queue's head is taken first. Blocks without a key go
back to the head (nothing can hit them), blocks with a key to the tail in the order in which they are freed:
that is the LRU order of vLLM's block pool. Block 0 is never handed out (vLLM's null block); a place in a
request's list that holds no block is None here.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence

import xxhash

#: The type code of a token id array: 4 bytes, so that a block's tokens are hashed as they lie in memory.
ID = "I"


def chained_keys(tokens: array[int], block: int, salt: str = "", lookahead: int = 0) -> list[int]:
    """One 64-bit key for each whole block of `tokens`; a key stands for all tokens up to its block's end.

    `salt` (cache_salt) enters the first key and so all of them. With `lookahead`, a key also covers that
    many tokens behind its block and exists only once they do.
    """
    keys: list[int] = []
    extend_keys(keys, tokens, block, salt, lookahead)
    return keys


def extend_keys(keys: list[int], tokens: array[int], block: int, salt: str = "", lookahead: int = 0) -> None:
    """Append the keys that `tokens` now allow."""
    whole = max(len(tokens) - lookahead, 0) // block
    view = memoryview(tokens)
    while len(keys) < whole:
        at = len(keys) * block
        parent = keys[-1].to_bytes(8, "little") if keys else b"salt:" + salt.encode()
        digest = xxhash.xxh3_64(parent)
        digest.update(view[at : at + block + lookahead])
        keys.append(digest.intdigest())


class Block:
    """One block of the pool: `refs` requests hold it, `key` is (group, chained key) once its content is
    complete.
    """

    __slots__ = ("key", "number", "refs")

    def __init__(self, number: int) -> None:
        self.number = number
        self.refs = 0
        self.key: tuple[int, int] | None = None


class BlockPool:
    """`size` counts as vLLM's num_gpu_blocks does: the null block included."""

    def __init__(self, size: int, caching: bool = True) -> None:
        if size < 2:
            raise ValueError(f"a pool needs at least 2 blocks, not {size}")
        self.size = size
        self.caching = caching
        #: Grows whenever a block changes hands or gets a key.
        self.changes = 0
        self._free: OrderedDict[int, Block] = OrderedDict((n, Block(n)) for n in range(1, size))
        #: By group (0 is full attention), then by key; the blocks of a key by number, the oldest first.
        self._by_key: defaultdict[int, dict[int, dict[int, Block]]] = defaultdict(dict)

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0..1 (cached blocks that nobody holds count as free)."""
        return 1.0 - len(self._free) / (self.size - 1)

    def find(self, group: int, key: int) -> Block | None:
        held = self._by_key[group].get(key)
        return next(iter(held.values())) if held else None

    def run(self, group: int, keys: Sequence[int]) -> list[Block]:
        """The blocks of the leading `keys` that are found."""
        get = self._by_key[group].get
        found: list[Block] = []
        for key in keys:
            held = get(key)
            if not held:
                break
            for block in held.values():
                found.append(block)
                break
        return found

    def take(self, count: int) -> list[Block]:
        """The next `count` blocks, least recently used first; what was cached in them is lost."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        if not count:
            return []
        self.changes += 1
        taken = [self._free.popitem(last=False)[1] for _ in range(count)]
        for block in taken:
            self._forget(block)
            block.refs = 1
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """One more holder for each block."""
        for block in blocks:
            self.changes += 1
            if block.refs == 0:
                del self._free[block.number]
            block.refs += 1

    def release(self, blocks: Sequence[Block | None]) -> None:
        """One holder less for each block, in the order in which they may be taken again."""
        first: list[Block] = []
        for block in blocks:
            if block is None:
                continue
            self.changes += 1
            block.refs -= 1
            assert block.refs >= 0
            if block.refs:
                continue
            if block.key is None or not self.caching:
                first.append(block)
            else:
                self._free[block.number] = block
        for block in reversed(first):
            self._free[block.number] = block
            self._free.move_to_end(block.number, last=False)

    def publish(self, block: Block, group: int, key: int) -> None:
        """From now on `block` is found under (group, key). Several blocks may carry one key; the oldest is
        found.
        """
        assert block.key is None
        self.changes += 1
        block.key = (group, key)
        self._by_key[group].setdefault(key, {})[block.number] = block

    def reset(self) -> bool:
        """Forget everything cached; refused (False) while any block is held."""
        if len(self._free) != self.size - 1:
            return False
        for block in self._free.values():
            block.key = None
        self._by_key.clear()
        self.changes += 1
        return True

    def _forget(self, block: Block) -> None:
        if block.key is None:
            return
        group, key = block.key
        held = self._by_key[group][key]
        del held[block.number]
        if not held:
            del self._by_key[group][key]
        block.key = None
