"""How much of a prompt is cached, from its bytes alone: no tokenizer, no round trip.

A prompt's text is named by chained hashes: one key for every COARSE bytes, and FINE ones for its last stretch, where the next
turn of a conversation leaves it. For each key the index knows how many tokens come before its end, learned from the usage of
answers, so a later prompt that begins alike is known in tokens up to where it differs, and estimated beyond.

What of a matched beginning is *cached* depends on the engine, and is learned by trying three rules on every answer that
reports its cached tokens; the rule whose predictions were off least lately is believed:

    confirmed   only boundaries that a hit or a piece confirmed (what is assumed while nothing is known)
    boundary    those, and the places where hybrid models keep a state: a prompt's last whole block before its last token, and
                where a later prompt left an earlier one (vLLM from 0.30; docs/engines.md)
    whole       all of it (full attention, SGLang, llama.cpp)

Invariants
----------
1. A key names the whole text before it and the seed: model, LoRA, cache_salt and tools never mix.
2. Keys are held least recently used first out, as many tokens as the engine's KV cache holds. That number shrinks when an
   answer shows that something within it was gone, and grows when something beyond it was there.
3. `look` changes nothing; only answers of the engine do.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from headway.core.prefix import chain

COARSE = 2048
"""Bytes of a coarse key."""
FINE = 256
"""Bytes of a fine key."""
SLACK = 512
"""Tokens by which a prediction may be off and still be right; text keys and blocks are not finer."""
MEMORY = 0.85
"""Part of a rule's earlier error that still counts after one more answer."""
PREFERENCE = 1.0
"""Error, in SLACKs, by which another rule must be better than the expected one."""
STATES = 3
"""Blocks that a kept state of a hybrid model takes beside those of full attention: linear attention in three layers of four."""
GHOSTS = 2.0
"""Capacities that are remembered, so that a capacity that was assumed too small is noticed."""
DEFAULT_TOKENS = 1_000_000
"""Tokens of the KV cache while the engine did not say."""


class Rule(enum.IntEnum):
    CONFIRMED = 0
    BOUNDARY = 1
    WHOLE = 2


class PromptText:
    """A prompt by its bytes. `size`: bytes that stand for all of it, tools included, for counting tokens."""

    __slots__ = ("keys", "root", "size", "text")

    def __init__(self, seed: bytes, text: bytes | memoryview, size: int | None = None) -> None:
        self.text = text
        self.size = len(text) if size is None else size
        self.root = xxhash.xxh3_64_intdigest(seed)
        self.keys = chain(self.root, memoryview(text), COARSE)
        """Coarse keys: keys[k] names the text up to (k + 1) * COARSE."""

    def fine(self, block: int) -> list[int]:
        """Keys inside the coarse block `block`, its end left out."""
        first = self.keys[block - 1] if block else self.root
        begin = block * COARSE
        return chain(first, memoryview(self.text)[begin : begin + COARSE - FINE], FINE)


@dataclass(slots=True)
class _Mark:
    """What is known at the end of one key."""

    tokens: float
    """Tokens of the prompt before its end."""
    width: float
    """Tokens that it stands for in the count of what is held."""
    confirmed: bool = False
    """Of a boundary (entry ~key, `tokens` of it at or before the key's end): the engine confirmed it. Others are expected of
    hybrid models."""


@dataclass(slots=True)
class Guess:
    """What `look` knows of a prompt; the tokens are estimates."""

    tokens: int
    cached: int = 0
    matched: int = 0
    """Tokens of its beginning that went through before and may be held."""
    by_rule: tuple[int, int, int] = (0, 0, 0)


class TextIndex:
    def __init__(self) -> None:
        self.capacity = float(DEFAULT_TOKENS)
        """Tokens believed to be held."""
        self.block = 1
        """Tokens of the engine's block."""
        self._limit = float(DEFAULT_TOKENS)
        self._held: OrderedDict[int, _Mark] = OrderedDict()
        self._gone: OrderedDict[int, _Mark] = OrderedDict()
        """What no longer fits: only to notice that the capacity is larger after all."""
        self._held_tokens = 0.0
        self._gone_tokens = 0.0
        self._errors = [0.0, 0.0, 0.0]
        self._scored = False
        self._likely = Rule.BOUNDARY

    @property
    def rule(self) -> Rule:
        """The rule that is believed now: the confirmed one until an answer has said anything."""
        if not self._scored:
            return Rule.CONFIRMED
        return min(Rule, key=lambda rule: self._errors[rule] - (PREFERENCE if rule is self._likely else 0.0))

    def expect(self, rule: Rule) -> None:
        """The rule that this kind of engine follows as a rule: preferred where the answers do not decide."""
        self._likely = rule

    def resize(self, tokens: int) -> None:
        """The engine's KV cache holds `tokens` tokens."""
        if tokens > 0 and tokens != self._limit:
            self._limit = self.capacity = float(tokens)
            self._settle()

    # -- asking -------------------------------------------------------------------------------------

    def look(self, prompt: PromptText, ratio: float) -> Guess:
        """What is believed of this prompt. `ratio`: bytes a token where nothing better is known."""
        path, length = self._match(prompt, self._held)
        if not path:
            return Guess(int(prompt.size / ratio) + 1)
        mark = self._held[path[-1]]
        tokens = int(mark.tokens + (len(prompt.text) - length) / ratio) + 1
        confirmed = expected = 0
        for key in reversed(path):
            boundary = self._held.get(~key)
            if boundary is not None:
                expected = expected or int(boundary.tokens)
                if boundary.confirmed:
                    confirmed = int(boundary.tokens)
                    break
        matched = min(int(mark.tokens), tokens - 1)
        by_rule = (min(confirmed, tokens - 1), min(expected, tokens - 1), matched // self.block * self.block)
        return Guess(tokens, by_rule[self.rule], matched, by_rule)

    def _match(self, prompt: PromptText, marks: Mapping[int, _Mark]) -> tuple[list[int], int]:
        """Keys of the longest known beginning of this prompt, first to last, and its bytes."""
        keys = prompt.keys
        low, high = 0, len(keys)
        while low < high:  # a key is held only where those before it are
            middle = (low + high + 1) // 2
            if keys[middle - 1] in marks:
                low = middle
            else:
                high = middle - 1
        path, length = keys[:low], low * COARSE
        for key in prompt.fine(low):
            if key not in marks:
                break
            path.append(key)
            length += FINE
        return path, length

    # -- learning -----------------------------------------------------------------------------------

    def answered(self, prompt: PromptText, guess: Guess, tokens: int, cached: int | None) -> None:
        """The engine took this prompt, which had `tokens` tokens, of which it says that `cached` were cached (None: it does
        not say). `guess`: what `look` said before it was sent."""
        path, _ = self._match(prompt, self._held)
        used = None
        if cached is not None:
            if guess.matched:
                self._score(guess, cached)
            self._fit_capacity(prompt, path, guess, cached)
            for key in path:
                boundary = self._held.get(~key)
                if boundary is not None and boundary.tokens > cached:
                    self._drop(~key)
                elif boundary is not None:
                    used = ~key
        if used is not None:
            self._held.move_to_end(used)
        ends: dict[int, bool] = {}
        if self.block > 1:
            if cached is not None and cached + self.block <= guess.matched:
                ends[guess.matched // self.block * self.block] = False
            ends[(tokens - 1) // self.block * self.block] = False
        if cached:
            ends[cached] = True
        self._insert(prompt, tokens, ends)

    def confirm(self, prompt: PromptText, tokens: int, cached: int) -> None:
        """Of a prompt of `tokens` tokens the first `cached` are cached: pieces put them there."""
        self._insert(prompt, tokens, {cached: True})

    def deny(self, prompt: PromptText) -> None:
        """Nothing of this prompt was cached where something was believed to be."""
        for key in [*prompt.keys, *prompt.fine(len(prompt.keys))]:
            self._drop(key)
            self._drop(~key)

    def clear(self) -> None:
        """The engine restarted: nothing is cached, and it may be another one."""
        self.__init__()  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._held)

    def _drop(self, key: int) -> None:
        mark = self._held.pop(key, None)
        if mark is not None:
            self._held_tokens -= mark.width

    def _score(self, guess: Guess, cached: int) -> None:
        for rule in Rule:
            error = min(abs(guess.by_rule[rule] - cached) / SLACK, 8.0)
            self._errors[rule] = MEMORY * self._errors[rule] + error
        self._scored = True

    def _fit_capacity(self, prompt: PromptText, path: Sequence[int], guess: Guess, cached: int) -> None:
        """Move the capacity to where this answer says that it is."""
        if guess.cached and cached + SLACK < guess.cached:
            missing = next((key for key in path if self._held[key].tokens > cached + self.block), None)
            if missing is not None:
                depth = self._depth(missing, self._held) - self._held[missing].width
                # Halfway: one miss may have another reason than a capacity that is smaller.
                self.capacity = max(SLACK, min(self.capacity, 0.5 * (min(self.capacity, self._held_tokens) + depth)))
        elif cached > guess.matched + SLACK:
            known = {**self._gone, **self._held} if self._gone else self._held
            found, _ = self._match(prompt, known)
            there = next((key for key in reversed(found) if key in self._gone and self._gone[key].tokens <= cached), None)
            if there is not None:
                depth = self._held_tokens + self._depth(there, self._gone)
                self.capacity = min(max(self.capacity, depth), GHOSTS * self._limit)
        else:
            self.capacity = max(self.capacity, min(self.capacity * 1.01, self._limit))

    def _depth(self, key: int, marks: OrderedDict[int, _Mark]) -> float:
        """Tokens that were used since this key was, itself counted."""
        total = 0.0
        for other in reversed(marks):
            total += marks[other].width
            if other == key:
                break
        return total

    def _insert(self, prompt: PromptText, tokens: int, boundaries: Mapping[int, bool]) -> None:
        """Put this prompt's keys in as the latest used, with these boundaries (tokens -> confirmed). Where tokens lie between
        two known places is taken in proportion to the bytes."""
        held = self._held
        keys = prompt.keys
        ends = [*range(COARSE, len(keys) * COARSE + 1, COARSE)]
        last = prompt.fine(len(keys))
        ends += [len(keys) * COARSE + FINE * (n + 1) for n in range(len(last))]
        lead = prompt.size - len(prompt.text)
        slope = tokens / max(1, prompt.size)
        before, at = lead * slope, 0
        known = 0
        for key in keys:
            if key not in held:
                break
            known += 1
        if known:
            before, at = held[keys[known - 1]].tokens, ends[known - 1]
            slope = max(0.0, tokens - before) / max(1, len(prompt.text) - at)
        all_keys = [*keys, *last]
        fresh: list[tuple[int, _Mark]] = []
        for n, key in enumerate(all_keys):
            if key not in held:
                place = before + (ends[n] - at) * slope
                fresh.append((key, _Mark(place, (COARSE if n < len(keys) else FINE) * slope)))
        places = dict(fresh)
        # The order in which vLLM gives up a prompt: its states first, then its end before its beginning.
        for boundary, confirmed in boundaries.items():
            self._boundary(all_keys, places, boundary, confirmed)
        for key in reversed(all_keys):
            mark = places.get(key)
            if mark is None:
                held.move_to_end(key)
            else:
                self._forget_gone(key)
                held[key] = mark
                self._held_tokens += mark.width
        self._settle()

    def _boundary(self, keys: Sequence[int], fresh: Mapping[int, _Mark], tokens: int, confirmed: bool) -> None:
        """A boundary at `tokens` tokens: noted at the last key that ends before it."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            key = keys[middle]
            mark = fresh.get(key) or self._held[key]
            if mark.tokens <= tokens + 1:
                low = middle + 1
            else:
                high = middle
        if low == 0 or tokens <= 0:
            return
        key = ~keys[low - 1]
        held = self._held.get(key)
        if held is not None:
            held.tokens, held.confirmed = max(held.tokens, tokens), held.confirmed or confirmed
            self._held.move_to_end(key)
            return
        self._forget_gone(key)
        width = STATES * self.block if self._likely is Rule.BOUNDARY else 0.0
        self._held[key] = _Mark(tokens, width, confirmed)
        self._held_tokens += width

    def _forget_gone(self, key: int) -> None:
        mark = self._gone.pop(key, None)
        if mark is not None:
            self._gone_tokens -= mark.width

    def _settle(self) -> None:
        """What is beyond the capacity goes to the ghosts, and what is beyond their room is forgotten."""
        while self._held_tokens > self.capacity and self._held:
            key, mark = self._held.popitem(last=False)
            self._held_tokens -= mark.width
            self._gone_tokens += mark.width
            self._gone[key] = mark
        while self._gone and self._held_tokens + self._gone_tokens > GHOSTS * self._limit:
            _, mark = self._gone.popitem(last=False)
            self._gone_tokens -= mark.width
