"""A report that tried several settings has made the experiment itself; this reads its outcome.

The settings are ordered by how much they protect decodes (a small chunk, a long interval); what happened to
the victims, to the newcomer and to the total is then one ratio each, most protective over least.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.advisor.facts import Facts
from headway.advisor.vocabulary import option_kind

#: A change below this is noise in a single public run (measured spreads of repeated runs: up to 10 %).
NOISE = 1.15
#: "Nothing moved" is a claim of its own: what was measured on the victims moved by less than this.
STILL = 1.05
#: A victim that gains this much was held back by what the option bounds.
CURED = 1.5

#: Part of the ratio of two chunk sizes that must show in the gap; the rest is the decode step itself.
FOLLOWS = 0.35

_VICTIM = (("overlap_rate", 1), ("lane_min", 1), ("generation_rate", 1), ("longest_gap", -1), ("freeze", -1), ("seconds_per_token", -1), ("itl", -1), ("normal_gap", -1), ("p99_gap", -1))  # fmt: skip  # noqa: E501
_NEWCOMER = ("newcomer_wait", "ttft")
_TOTAL = ("aggregate_rate", "rate")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Ratios of most over least protective setting: victim's gain, newcomer's time, total throughput (None: not told)."""

    option: str
    kind: str
    gain: float | None
    wait: float | None
    total: float | None
    span: float | None = None
    best_rate: float | None = None
    tail: bool = True

    @property
    def follows_size(self) -> bool:
        """The victims' gain is what the chunk sizes predict (a large fixed cost a step would hide it)."""
        return self.gain is None or not self.span or self.gain >= FOLLOWS * self.span

    @property
    def flat(self) -> bool:
        """Nothing moved, the victims included: the option has no effect."""
        told = [r for r in (self.gain, self.wait, self.total) if r is not None]
        return self.gain is not None and all(1 / STILL < r < STILL for r in told)


def outcome(f: Facts) -> Outcome | None:
    """The report's experiment, or None when it has none that is understood."""
    series = f.series
    if series is None:
        return None
    kind = option_kind(series.option)
    if kind is None:
        return None
    # A chunk option of 0 means "no bound", so it protects least.
    strength = [s if kind == "interval" else -(s or float("inf")) for s in series.settings]
    # With two real chunk sizes a further 0 is a special mode (no bound, or no mixing), not a third size.
    if kind == "chunk" and sum(s > 0 for s in series.settings) >= 2:
        allowed = [i for i, s in enumerate(series.settings) if s > 0]
    else:
        allowed = list(range(len(series.settings)))
    most, least = max(allowed, key=lambda i: strength[i]), min(allowed, key=lambda i: strength[i])
    span = series.settings[least] / series.settings[most] if kind == "chunk" and series.settings[most] else None

    def ratio(name: str) -> float | None:
        values = f.numbers.get(name, [])
        if len(values) != len(series.settings) or not values[least]:
            return None
        return values[most] / values[least]

    gains = [r**sign for name, sign in _VICTIM if (r := ratio(name))]
    waits = [r for name in _NEWCOMER if (r := ratio(name)) is not None]
    totals = [r for name in _TOTAL if (r := ratio(name)) is not None]
    if not (gains or waits or totals):
        return None
    rates = f.numbers.get("overlap_rate", [])
    best = rates[most] if len(rates) == len(series.settings) else None
    return Outcome(
        series.option,
        kind,
        max(gains, default=None),
        max(waits, default=None),
        min(totals, default=None),
        span,
        best,
        # A median gap hides the stalls, so that it did not move says nothing of them.
        any(ratio(name) for name, _ in _VICTIM if name != "normal_gap"),
    )
