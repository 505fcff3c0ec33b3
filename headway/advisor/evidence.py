"""What every proof uses: the form of evidence, quotations, and the thresholds with their reasons."""

from __future__ import annotations

from headway.advisor.derived import Derived
from headway.advisor.facts import Facts

Evidence = list[str]

#: A gap of up to so many chunk steps is still "one chunk a step": rates fall with the position, two
#: intruders share steps.
ONE_STEP = 3.5
#: In a mixed step every decode gets one token, so lanes differ only by their starts; above this they are
#: not served alike.
UNFAIR = 4.0
#: A gap of so many decode steps shows in the text that a reader sees.
SHOWS = 5.0
#: Step bounds that engines use, tokens.
SMALLEST_CHUNK, LARGEST_CHUNK = 64, 40_000
#: A victim that kept this much was not disturbed.
UNDISTURBED = 0.9
#: Below this share of its solo rate a stream is starved by any reading.
STARVED = 0.7
#: KV usage from which on the next token of a stream may find no block.
POOL_FULL = 0.97


def quote(f: Facts, signal: str) -> Evidence | None:
    found = f.says(signal)
    return [f"the report says: {found!r}"] if found else None


def symptom(f: Facts, d: Derived) -> bool:
    """Something suffers at all."""
    prefills, decodes = f.high("prefill_batches"), f.high("decode_batches")
    return bool(
        (d.share is not None and d.share < STARVED)
        or (prefills and decodes is not None and prefills > 4 * decodes)
        or (d.gap is not None and (d.gap > 0.5 or (d.solo is not None and d.gap * d.solo >= SHOWS)))
        or f.says("slows_others")
        or f.says("decodes_stop")
    )
