"""What Headway reads of an engine's /metrics page, whichever engine it is, and how a Prometheus page is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([0-9.eE+\-]+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True, frozen=True)
class EngineMetrics:
    running: float = 0.0
    waiting: float = 0.0
    hits: float | None = None
    """Tokens found in the prefix cache since the start."""
    queries: float | None = None
    block_size: int | None = None
    """As configured. vLLM up to 0.32 may say the size before align mode raised it: confirm it by a hit."""
    prefix_caching: bool | None = None
    blocks: int | None = None
    """Blocks of the KV cache, over all ranks."""
    engines: int = 1
    """Data-parallel ranks that the page has series of."""
    match_unit: int | None = None
    """Tokens in which hits are counted, where that is finer than a block (vLLM's --prefix-match-unit)."""
    states: bool | None = None
    """Whether recurrent states are cached, of which only some boundaries are kept (docs/engines.md)."""
    started: float | None = None
    """process_start_time_seconds of the server."""

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.waiting == 0


def series(page: str, prefix: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name without `prefix` and `_total`, labels, value) of each finite sample whose name begins with `prefix`."""
    for name, labels, text in _LINE.findall(page):
        if name.startswith(prefix):
            try:
                value = float(text)
            except ValueError:
                continue
            if isfinite(value):
                yield name.removeprefix(prefix).removesuffix("_total"), dict(_LABEL.findall(labels)), value


def started(page: str) -> float | None:
    return next((value for _, _, value in series(page, "process_start_time_seconds")), None)
