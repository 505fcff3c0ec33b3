"""Prompts of a trace as the simulated engine sees them: keys of whole engine blocks, whatever blocks the trace named.

An engine block is shared by two prompts when all trace blocks that reach into it, and all before it, are the same: a trace block
that an engine block covers only in part counts as a whole, so that sharing is never overstated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from headway.simulator.replay import Arrival
from headway.traces import Call

_MASK = (1 << 64) - 1
#: Threads whose latest prompt is remembered, so that what it shares with the next one is not hashed again.
_THREADS = 4096
#: Keys that are remembered to tell new prompt tokens from those that the trace had sent before.
_SEEN = 1_000_000


class Prompts:
    """Turns calls into arrivals. `block`: tokens of an engine block; `bounds`: see `label`."""

    def __init__(self, block: int, bounds: tuple[int, ...] = (1024, 8192), threads: bool = True) -> None:
        self.block = block
        self.bounds = bounds
        self._threads = threads
        self._latest: OrderedDict[str, tuple[tuple[int, ...], list[int]]] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._number = 0

    def arrivals(self, calls: Iterable[Call]) -> Iterator[Arrival]:
        for call in calls:
            number, self._number = self._number, self._number + 1
            keys = self.keys(call, number)
            thread = f"{call.session}/{call.thread}" if self._threads and call.session else ""
            yield Arrival(
                call.arrival,
                f"r{number}",
                None,
                max(call.output_tokens, 1),
                call.session,
                tokens=call.input_tokens,
                keys=keys,
                thread=thread,
                klass=call.klass,
                label=self._label(call.input_tokens - self._known(keys) * self.block),
            )

    def keys(self, call: Call, number: int) -> list[int]:
        """One key for each whole engine block; blocks that the trace does not name belong to call `number` alone."""
        block, size, ids = self.block, call.block_size, call.blocks
        whole = call.input_tokens // block
        named = min(whole, len(ids) * size // block) if size else 0
        who = f"{call.session}/{call.thread}"
        before, known = self._latest.pop(who, ((), []))
        keys = known[:named] if before and ids[: len(before)] == before else []
        key = keys[-1] if keys else 0
        for index in range(len(keys), named):
            key = hash((key, index, ids[index * block // size : -(-(index + 1) * block // size)])) & _MASK
            keys.append(key)
        if named:
            self._latest[who] = ids, keys[:named]
            if len(self._latest) > _THREADS:
                self._latest.popitem(last=False)
        keys.extend(hash((number, index, -1)) & _MASK for index in range(named, whole))
        return keys

    def _known(self, keys: list[int]) -> int:
        """Leading blocks that an earlier call had; all of these keys are known from now on."""
        seen = self._seen
        known = next((i for i, key in enumerate(reversed(keys)) if key in seen), len(keys))
        for key in keys[len(keys) - known :]:
            seen[key] = None
        while len(seen) > _SEEN:
            seen.popitem(last=False)
        return len(keys) - known

    def _label(self, new: int) -> str:
        """The class of a call, by the prompt tokens that no earlier call of the trace had: the same under every policy."""
        bound = next((bound for bound in self.bounds if new <= bound), None)
        return f"over {self.bounds[-1]:,}" if bound is None else f"up to {bound:,}"

    @property
    def labels(self) -> list[str]:
        return [f"up to {bound:,}" for bound in self.bounds] + [f"over {self.bounds[-1]:,}"]
