"""Learn an engine by asking it: block size, prefix caching, cached_tokens, and how long pieces take.

A generator that does no IO: it yields a Question (token ids, to be sent with one output token), is sent an Answer, and returns
what it Found. The caller runs it only on an idle engine and drops it when a request comes.

How the block is found. Sparse retention keeps only the state at a prompt's last whole block, dense retention keeps them all;
both hit the last whole block *before the last token*. So a prompt of n tokens, sent twice with a new tail, hits
h1 = (n - 1)//B * B, and a fresh one of h1 tokens hits h2 = h1 - B in the same way: B = h1 - h2.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

TAIL = 2
"""Tokens by which the second prompt differs from the first."""
FIRST = 2048
UNCACHED = 256
"""Tokens of the smallest timed prompt on an engine without prefix cache."""
SMALLEST = 64
"""Tokens of the smallest timed prompt on an engine that matches token by token."""
LARGEST = 16384
"""Tokens of the longest probe prompt: block sizes up to half of this are found."""


@dataclass(slots=True, frozen=True)
class Question:
    ids: list[int]


@dataclass(slots=True, frozen=True)
class Answer:
    seconds: float
    cached: int | None
    """Cached prompt tokens as the engine reports them, by usage or by a /metrics delta; None: it does not."""


@dataclass(slots=True)
class Found:
    block: int | None = None
    caching: bool | None = None
    lost: int = 0
    """Blocks that a later prompt does not hit although they were computed."""
    reports: bool = False
    """The engine says how many prompt tokens were cached."""
    timed: list[tuple[int, float]] = field(default_factory=list)
    """(uncached tokens, seconds) of each question, those that warmed the engine up left out."""


Probe = Generator[Question, Answer, Found]


def fresh(seed: int, count: int) -> list[int]:
    """`count` token ids that no earlier prompt began with: a small linear congruential walk over ids 100..1123."""
    ids, state = [], (seed * 2654435761 + 12345) & 0xFFFFFFFF
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        ids.append(100 + (state >> 12) % 1024)
    return ids


def probe(seed: int, hint: int | None, caching: bool | None = None) -> Probe:
    """`seed` makes the prompts of this run differ from those of an earlier one. `hint`: block size that /metrics names.
    `caching`: whether /metrics says that there is a prefix cache."""
    found = Found(caching=caching)
    # The first of all pays for warm-up (allocation, kernels); it is asked and not counted.
    yield Question(fresh(seed, 64))
    if caching is False:
        yield from _sizes(found, seed, UNCACHED)  # nothing to find but how long a prefill takes
        return found
    if hint == 1:
        found.block = 1  # token by token, as SGLang and llama.cpp match: no block to search for, and their CPUs may be slow
        yield from _sizes(found, seed, SMALLEST)
        return found
    if hint is not None:
        size = hint if hint >= 64 else FIRST // hint * hint
        first = fresh(seed + 1, size + 1)
        yield from _ask(found, first, 0)
        again = first + fresh(seed + 2, size)
        answer = yield from _ask(found, again, size)
        found.reports = answer.cached is not None
        if answer.cached is not None and answer.cached >= size and hint >= 64:
            found.block, found.caching = hint, True
            yield from _sizes(found, seed, hint)
            return found
    length = FIRST
    while length <= LARGEST:
        hit = yield from _hit(found, seed + 10 + length, length)
        if hit is None:
            return found  # the engine does not say; the first paced request will have to tell, by its time
        if hit > 0:
            below = yield from _hit(found, seed + 11 + length, hit)
            if below is not None and hit > below:
                found.block, found.caching = hit - below, True
                yield from _lost(found, seed, found.block)
                yield from _sizes(found, seed, found.block)
            elif below is not None and hit == below:
                # The length is itself a whole number of blocks: one that is none tells blocks from tokens.
                odd = yield from _hit(found, seed + 12 + length, hit - 3)
                if odd is not None and 0 < odd < hit:
                    found.block, found.caching = (1 if odd == hit - 3 else hit - odd), True
                    yield from _sizes(found, seed, max(found.block, UNCACHED))
            return found
        length *= 2
    found.caching = False
    return found


def _ask(found: Found, ids: list[int], cached: int) -> Generator[Question, Answer, Answer]:
    answer = yield Question(ids)
    found.timed.append((len(ids) - (cached if answer.cached is None else answer.cached), answer.seconds))
    if answer.cached is not None:
        found.reports = True
    return answer


def _hit(found: Found, seed: int, length: int) -> Generator[Question, Answer, int | None]:
    """Cached tokens of a prompt of `length` tokens that is extended a little."""
    first = fresh(seed, length)
    yield from _ask(found, first, 0)
    answer = yield from _ask(found, first + fresh(seed + 1, TAIL), length)
    return answer.cached


def _lost(found: Found, seed: int, block: int) -> Generator[Question, Answer, None]:
    """Whether the engine drops the last block that matches, as up to 0.32 with a drafter (MTP, EAGLE)."""
    hit = yield from _hit(found, seed + 13, 3 * block + 1)
    if hit is not None and hit == 2 * block:
        found.lost = 1


def _sizes(found: Found, seed: int, block: int) -> Generator[Question, Answer, None]:
    """Pieces of several sizes, for the slope of the step model: at most some 6,000 tokens, at least one block and two."""
    for n, blocks in enumerate((1, 2, 4, 1, 2, 4)):
        if blocks <= 2 or blocks * block <= 2048:
            yield from _ask(found, fresh(seed + 100 + n, blocks * block + 1), 0)
