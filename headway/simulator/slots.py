"""llama.cpp's cache: each slot keeps the prompt and answer that it served last, and nothing is shared between slots.

Read in ggml-org/llama.cpp, tools/server/server-context.cpp (commit 001d906, get_available_slot, pre_decode, create_checkpoint):
a request goes to the idle slot whose tokens begin most like its prompt, if that is more than a tenth of the prompt
(`--slot-prompt-similarity`), else to the idle slot that was used longest ago; from the longest common beginning on, all is
computed again, and at least the last token. A model with recurrent states cannot go back to any token: it has the end of what the
slot holds, and checkpoints that were made 4 and 4 + n_ubatch tokens before the end of the prompt.

Each slot has room for max_model_len tokens of its own, so nothing is ever evicted or preempted. Left out: the prompts that newer
servers move to main memory (`--cache-ram`), checkpoints at messages, and `--cache-reuse`. Where requests carry keys and no
tokens, hits are whole blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.simulator.blocks import ID
from headway.simulator.cache import KVCache
from headway.simulator.holdings import CacheLayout, Hit
from headway.simulator.request import Request
from headway.simulator.rules import Rules

SIMILAR = 0.1
UBATCH = 512
"""Tokens; n_ubatch as it is unless told otherwise."""
CHECKPOINTS = (4 + UBATCH, 4)
"""Tokens before the end of a prompt."""
NEVER = 1 << 62


@dataclass(slots=True)
class Slot:
    number: int
    tokens: array[int] | None = None
    keys: Sequence[int] = ()
    length: int = 0
    """Tokens that it holds."""
    stops: list[int] = field(default_factory=list)
    """Tokens at which it has a checkpoint."""
    request: Request | None = None
    used: int = 0


class SlotCache(KVCache):
    def __init__(self, layout: CacheLayout, rules: Rules) -> None:
        super().__init__(replace(layout, blocks=2, state_groups=0, draft_tokens=0), rules)
        self.layout = layout
        self.slots: list[Slot] = []
        self._clock = 0
        self._of: dict[str, Slot] = {}

    @property
    def stops(self) -> bool:
        """Prompts are cut where checkpoints are made."""
        return self.layout.state_groups > 0 and self.layout.caching

    def seat(self, request: Request) -> tuple[Slot, int] | None:
        """Give `request` an idle slot: (slot, cached tokens); None where all are busy."""
        idle = [slot for slot in self.slots if slot.request is None]
        if not idle:
            return None
        alike = [(self._common(slot, request), slot) for slot in idle] if self.layout.caching else []
        common, slot = max(alike, key=lambda pair: (pair[0], -pair[1].number), default=(0, idle[0]))
        if common <= SIMILAR * request.prompt_tokens:
            slot = min(idle, key=lambda one: (one.used, one.number))
            common = self._common(slot, request) if self.layout.caching else 0
        hit = min(common, request.prompt_tokens - 1)
        if self.stops and hit < slot.length:
            hit = max((stop for stop in slot.stops if stop <= hit), default=0)
        slot.stops = [stop for stop in slot.stops if stop <= hit]
        slot.request = request
        self._of[request.id] = slot
        self.pool.changes += 1
        return slot, hit

    def slot_of(self, request: Request) -> int:
        return self._of[request.id].number

    def lookup(self, request: Request) -> Hit:
        return Hit()

    def allocate(self, request: Request, new: int, hit: Hit | None = None, whole: bool = False) -> bool:
        return True

    def unmoved(self, request: Request, new: int) -> bool:
        return True

    def next_move(self, computed: int) -> int:
        return NEVER

    def holds(self, request_id: str) -> bool:
        return request_id in self._of

    def free(self, request_id: str) -> None:
        slot = self._of.pop(request_id, None)
        if slot is None or slot.request is None:
            return
        request, slot.request = slot.request, None
        self._clock += 1
        slot.used, slot.length = self._clock, request.computed
        if self.stops:
            made = (request.prompt_tokens - offset for offset in CHECKPOINTS)
            slot.stops += [stop for stop in made if 0 < stop <= request.computed and stop not in slot.stops]
        if request.tokens is not None:
            slot.tokens, slot.keys = request.tokens[: request.computed], ()
        else:
            request.grow_keys(self.layout.block_size, 0)
            slot.tokens, slot.keys = None, request.keys[: request.computed // self.layout.block_size]
        self.pool.changes += 1

    def _common(self, slot: Slot, request: Request) -> int:
        if slot.tokens is not None and request.tokens is not None:
            return _common(slot.tokens, request.tokens)
        request.grow_keys(self.layout.block_size, 0)
        same = next((i for i, (a, b) in enumerate(zip(slot.keys, request.keys, strict=False)) if a != b), None)
        return (min(len(slot.keys), len(request.keys)) if same is None else same) * self.layout.block_size


def _common(a: array[int], b: array[int]) -> int:
    """Length of the common beginning."""
    assert a.typecode == b.typecode == ID
    low, high = 0, min(len(a), len(b))
    left, right = memoryview(a).cast("B"), memoryview(b).cast("B")
    size = a.itemsize
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * size : middle * size] == right[low * size : middle * size]:
            low = middle
        else:
            high = middle - 1
    return low
