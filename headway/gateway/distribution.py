"""A histogram that costs little to add to: it is asked once in seconds, and added to with every token.

The client library's own takes a lock and walks through the buckets for each value. Here everything runs on the event loop's
thread: a value is one search and two additions, and the cumulative counts are made when the page is read.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60)
"""Upper bounds of the buckets, seconds."""


class Values:
    """One series."""

    __slots__ = ("counts", "created", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0
        self.created = time.time()

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


class Distribution(Collector):
    def __init__(self, name: str, about: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._series: dict[tuple[str, ...], Values] = {}
        registry.register(self)

    def labels(self, *values: str) -> Values:
        return self._series.setdefault(values, Values())

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in SECONDS), "+Inf"]
        for values, series in self._series.items():
            buckets = list(zip(bounds, accumulate(series.counts), strict=True))
            family.add_metric(values, buckets, series.total)
            family.add_sample(f"{self._name}_created", dict(zip(self._labels, values, strict=True)), series.created)
        yield family
