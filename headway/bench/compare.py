"""Two bench documents side by side. A difference is called only when its interval leaves out zero."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.bench.suite import SCHEMA
from headway.bench.tables import number
from headway.bench.window import median, quantile
from headway.errors import UsageError

FIGURES = (
    "victim_tokens_per_s", "share", "longest_gap_s", "stalled_s", "victim_ttft_s", "intruder_ttft_s", "t0_s",
    "newcomer_ttft_s", "total_tokens_per_s", "turn2_ttft_s",
)  # fmt: skip
HEADERS = ("scenario, figure", "A", "B", "B - A", "95 % interval", "called")
AT_LEAST = 3


@dataclass(frozen=True)
class Difference:
    name: str
    a: float
    b: float
    low: float | None  # None: too few runs for an interval
    high: float | None

    @property
    def called(self) -> str:
        if self.low is None or self.high is None:
            return "too few runs"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "no difference seen"

    def row(self) -> list[str]:
        interval = "-" if self.low is None else f"{number(self.low, 3)} .. {number(self.high, 3)}"
        return [self.name, number(self.a, 3), number(self.b, 3), f"{self.b - self.a:+.3f}", interval, self.called]


def load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a {SCHEMA} document")
    return document


def _values(document: dict[str, Any], scenario: str, figure: str) -> list[float]:
    runs = [run for run in document["runs"] if run["scenario"] == scenario and not run["void"]]
    return [run["figures"][figure] for run in runs if run["figures"].get(figure) is not None]


def interval(a: Sequence[float], b: Sequence[float], draws: int = 2000, seed: int = 0) -> tuple[float, float] | None:
    """95 % bootstrap interval of median(b) - median(a), over repetitions. None under three of either."""
    if min(len(a), len(b)) < AT_LEAST:
        return None
    rng = random.Random(seed)
    found = []
    for _ in range(draws):
        middle_a, middle_b = median(rng.choices(a, k=len(a))), median(rng.choices(b, k=len(b)))
        assert middle_a is not None and middle_b is not None
        found.append(middle_b - middle_a)
    low, high = quantile(found, 0.025), quantile(found, 0.975)
    assert low is not None and high is not None
    return low, high


def compare(a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    out = []
    for scenario in a["summary"]:
        for figure in FIGURES:
            left, right = _values(a, scenario, figure), _values(b, scenario, figure)
            middle_a, middle_b = median(left), median(right)
            if middle_a is None or middle_b is None:
                continue
            low, high = interval(left, right) or (None, None)
            out.append(Difference(f"{scenario}, {figure}", middle_a, middle_b, low, high))
    return out
