"""What vLLM's scheduler does in which version: one row a version in which something changed, no ifs
elsewhere.

Read in the released wheels of 0.19.1 to 0.33.0; a version between two rows behaves like the row before it.
Terms: B is the block size in tokens, n the tokens of a prompt, "align" the mode in which a hybrid model
(linear attention beside full attention) caches its recurrent states at block boundaries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rules:
    """The scheduling rules of one vLLM version (see the table below for what each field means)."""

    since: tuple[int, int]
    #: Start is refused unless B <= token budget and B <= long_prefill_token_threshold (align only).
    block_must_fit: bool
    #: A chunk may end inside a block when the block is larger than the largest chunk. Before, it is rounded
    #: down to whole blocks, possibly to none, and the request then gets nothing in that step.
    sub_block_chunks: bool
    #: The last state that prefill stops for: (n - 1) // B * B if true, n // B * B if not.
    checkpoint_below_prompt: bool
    #: Only states at a prompt's last boundary and at detected shared-prefix junctions are kept; before, one
    #: at every chunk end.
    sparse_retention: bool
    #: A chunk stops at a junction, the place up to which full attention alone had matched at admission.
    stops_at_junction: bool
    #: long_prefill_token_threshold is ignored while only one request is in the engine.
    threshold_spares_lone: bool
    #: Prefill of a waiting request is deferred when more than its last token is missing (0.27+) or when
    #: nothing of it is cached.
    defers_partial_hits: bool
    #: prefill_schedule_interval does something on one engine (before: data parallel only, silently nothing
    #: here).
    interval_on_one_engine: bool
    #: With speculative decoding, block keys cover the next token instead of dropping the last matched block.
    lookahead_keys: bool
    #: Prefix caching is on for hybrid models unless switched off.
    hybrid_prefix_caching: bool


_FIRST = Rules(
    since=(0, 19),
    block_must_fit=True,
    sub_block_chunks=False,
    checkpoint_below_prompt=False,
    sparse_retention=False,
    stops_at_junction=False,
    threshold_spares_lone=False,
    defers_partial_hits=False,
    interval_on_one_engine=False,
    lookahead_keys=False,
    hybrid_prefix_caching=False,
)
_V027 = replace(_FIRST, since=(0, 27), block_must_fit=False, sub_block_chunks=True, defers_partial_hits=True)
_V030 = replace(_V027, since=(0, 30), checkpoint_below_prompt=True, sparse_retention=True, stops_at_junction=True)
_V032 = replace(_V030, since=(0, 32), threshold_spares_lone=True)
_V033 = replace(_V032, since=(0, 33), interval_on_one_engine=True, lookahead_keys=True, hybrid_prefix_caching=True)

TABLE: tuple[Rules, ...] = (_FIRST, _V027, _V030, _V032, _V033)

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:[.+-].*)?")


def rules_for(version: str) -> Rules:
    """The rules of a version string such as `0.25.1`. Newer versions than the table get its last row.

    Raises ValueError for text that is no version and for versions before the table's first row.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ValueError(f"{version!r} is not a version such as 0.32.0")
    wanted = (int(match[1]), int(match[2]))
    if wanted < TABLE[0].since:
        raise ValueError(f"vLLM {version} is older than the oldest version known here ({_dotted(TABLE[0].since)})")
    return next(row for row in reversed(TABLE) if row.since <= wanted)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
