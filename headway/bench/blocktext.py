"""Prompts that share what a trace says they share: the same block id is the same text, everything else is new.

The first words are a salt of the run, so that nothing is cached from an earlier one. A block's words are drawn by a
generator that is seeded with the salt and the id; how many they are is rounded at random, also by the id, so that long
prompts come out at their size.
"""

from __future__ import annotations

import random
from collections import OrderedDict

from headway.bench import prompts
from headway.bench.client import Request
from headway.traces import Call

KEPT_BLOCKS = 65536  # texts kept at hand; others are made again


class BlockText:
    def __init__(self, scale: prompts.Scale, rng: random.Random) -> None:
        self._scale, self._rng, self._salt = scale, rng, prompts.salt(rng)
        self._texts: OrderedDict[tuple[int, int], tuple[str, int]] = OrderedDict()

    def _block(self, size: int, number: int) -> tuple[str, int]:
        """(text with a space in front, words)."""
        key = (size, number)
        made = self._texts.get(key)
        if made is None:
            rng = random.Random(f"{self._salt} {size} {number}")
            exact = size / self._scale.per_word
            count = int(exact) + (rng.random() < exact % 1)
            made = " " + " ".join(rng.choices(prompts.WORDS, k=count)) if count else "", count
            self._texts[key] = made
            if len(self._texts) > KEPT_BLOCKS:
                self._texts.popitem(last=False)
        return made

    def request(self, call: Call) -> Request:
        """A chat of about `call.input_tokens` tokens with exactly `call.output_tokens` (at least one) of answer."""
        left = self._scale.words_for(call.input_tokens)
        parts = [self._salt]
        for number in call.blocks:
            text, count = self._block(call.block_size, number)
            if count > left:
                break
            parts.append(text)
            left -= count
        parts.append(" " + " ".join([prompts.salt(self._rng), *self._rng.choices(prompts.WORDS, k=left)]))
        message = {"role": "user", "content": "".join(parts)}
        return prompts.ask([message], max(1, call.output_tokens))


class Known:
    """What an endless prefix cache would hold of the calls so far."""

    def __init__(self) -> None:
        self._ids: set[tuple[int, int]] = set()

    def take(self, call: Call) -> int:
        """Leading tokens of this call that earlier ones had, before it is added."""
        shared = 0
        for number in call.blocks:
            if (call.block_size, number) not in self._ids:
                break
            shared += call.block_size
        self._ids.update((call.block_size, number) for number in call.blocks)
        return min(shared, call.input_tokens)
