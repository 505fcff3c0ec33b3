"""Numbers that follow from the facts by the step model, computed once before any rule is asked.

All in seconds, tokens and tokens a second; None where the facts do not give it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from headway.advisor.facts import Facts
from headway.core import frontier
from headway.core.steps import StepModel

#: A prefill below this many tokens a second is not a prefill that runs: one step of a chunk does not last
#: that long even on
#: a laptop (public reports: 60 tokens/s for a large model on a CPU up to 40,000 on a server GPU).
SLOWEST_PREFILL = 60.0
FASTEST_PREFILL = 100_000.0
#: Rates of that many streams, told in one list and under one setting, are lanes beside each other.
LANES = 3


@dataclass(frozen=True, slots=True)
class Derived:
    solo: float | None = None
    overlap: float | None = None
    share: float | None = None
    gap: float | None = None
    prefill_rate: float | None = None
    implied_rate: float | None = None
    step: float | None = None
    chunk_seen: float | None = None
    chunk_counted: float | None = None
    gap_in_steps: float | None = None
    work: float | None = None
    excess: float | None = None
    unfairness: float | None = None

    def model(self) -> StepModel | None:
        """Step model of this report; None unless both the solo rate and the prefill rate are known."""
        rate = self.prefill_rate or self.implied_rate
        return StepModel(a=1 / self.solo, e=0.0, b=1 / rate) if self.solo and rate else None


def _beside_contexts(f: Facts) -> bool:
    """Rates told beside as many prompt lengths: a stream slowed by its own context, not by somebody else."""
    lengths = len(f.numbers.get("intruder_tokens", []))
    return any(2 <= len(f.numbers.get(name, [])) <= lengths for name in ("generation_rate", "rate", "overlap_rate"))


def _solo(f: Facts) -> float | None:
    rate, gap = f.high("solo_rate"), f.low("normal_gap")
    if rate or gap:
        return rate or 1 / gap  # type: ignore[operator]
    if f.series is None and not _beside_contexts(f):
        # One rate told twice, well and badly: the better one is the undisturbed one.
        for name in ("overlap_rate", "generation_rate", "rate"):
            if len(f.numbers.get(name, [])) >= 2:
                return f.high(name)
    return None


def _overlap(f: Facts) -> float | None:
    if f.has("overlap_rate") and (f.has("solo_rate") or not _beside_contexts(f)):
        return f.low("overlap_rate")
    for name in ("generation_rate", "rate"):
        if len(f.numbers.get(name, [])) >= 2 and not f.has("solo_rate") and not _beside_contexts(f):
            return f.low(name)
    # Rates of a whole server, shared by its streams.
    live, whole = f.high("running") or f.high("victims"), f.low("generation_rate")
    if whole is None:
        whole = f.low("aggregate_rate")
    return whole / live if whole is not None and live and live >= 2 and f.has("solo_rate") else None


def _gap(f: Facts) -> float | None:
    """The longest time in which one stream got nothing."""
    if f.has("longest_gap"):
        return f.high("longest_gap")
    seen = [v for name in ("freeze", "seconds_per_token") if (v := f.high(name)) is not None]
    rate = _overlap(f)
    if not seen and (tail := f.high("p99_gap")) is not None and f.series is None:
        return tail
    if not seen and rate:
        seen.append(1 / rate)
    return max(seen) if seen else None


def _ratio(most: float | None, least: float | None) -> float | None:
    """How many times as much; infinite for a lane that got nothing."""
    return None if not most or least is None else most / least if least else inf


def derive(f: Facts) -> Derived:
    """Everything the rules compare; pure arithmetic on what was told."""
    solo, overlap, gap, chunk = _solo(f), _overlap(f), _gap(f), f.chunk
    share = f.low("victim_share")
    if share is None and solo and overlap is not None:
        share = overlap / solo
    prompt, alone, ttft = f.high("intruder_tokens"), f.low("ttft_alone"), f.high("ttft")
    prefill_rate = f.high("prefill_rate") or (prompt / alone if prompt and alone else None) or f.high("prompt_rate") or None
    step = f.high("step_time") or (chunk / prefill_rate if chunk and prefill_rate else None)
    implied = None
    if chunk and gap:
        decode = 1 / solo if solo else 0.0
        implied = chunk / (gap - decode) if gap > decode else None
    lanes = f.high("lane_max"), f.low("lane_min")
    beside = [n for n, v in f.numbers.items() if n != "lane_rates" and len(v) == len(f.numbers.get("lane_rates", ()))]
    if lanes == (None, None) and f.series is None and len(f.numbers.get("lane_rates", ())) >= LANES and not beside:
        lanes = f.high("lane_rates"), f.low("lane_rates")
    work = alone or (prompt / prefill_rate if prompt and prefill_rate else None)
    return Derived(
        solo=solo,
        overlap=overlap,
        share=share,
        gap=gap,
        prefill_rate=prefill_rate,
        implied_rate=implied,
        step=step,
        chunk_seen=(gap - (1 / solo if solo else 0)) * prefill_rate if gap and prefill_rate else None,
        chunk_counted=f.low("chunk_counted"),
        gap_in_steps=gap / step if gap and step else None,
        work=work,
        excess=frontier.excess(alone, ttft, share) if ttft and alone and share is not None else None,
        unfairness=_ratio(*lanes),
    )
