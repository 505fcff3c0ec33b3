"""Which family an upstream's engine is of (engines/families.py): by its /metrics, else by a page that only it has.

Invariant: an engine that answers none of them is taken for any OpenAI-compatible server, which is the most careful assumption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.engines.families import FAMILIES, GENERIC, Family
from headway.engines.metrics import EngineMetrics
from headway.gateway.configured import as_json, page_of

if TYPE_CHECKING:
    from headway.gateway.upstream import Upstream


async def recognise(upstream: Upstream) -> tuple[Family, EngineMetrics | None]:
    """The family, and what its own page says of the cache. `--upstream URL,engine=NAME` overrules the pages."""
    named = FAMILIES.get(upstream.target.engine)
    for family in [named] if named is not None else [family for family in FAMILIES.values() if family.page]:
        body = as_json(await page_of(upstream, family.page) or b"") if family.page else None
        if family.is_page(body):
            return family, family.facts(body)
    return named or GENERIC, None
