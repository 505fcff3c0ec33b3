"""Facts in, a verdict out: the pure core of `headway diagnose`.

Nothing is guessed: when no rule of verdicts.py is proved the verdict is "undetermined", `measure` says
which numbers would decide, and `likely` names the cause that the engine's schedule suggests, if any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.advisor.derived import Derived, derive
from headway.advisor.evidence import ONE_STEP, SHOWS, UNDISTURBED
from headway.advisor.facts import Facts
from headway.advisor.hints import weigh
from headway.advisor.measures import what_to_measure
from headway.advisor.reading import read_facts
from headway.advisor.remedies import choose
from headway.advisor.series import outcome
from headway.advisor.verdicts import RULES

SCHEMA = "headway.diagnose/1"
UNDETERMINED = "undetermined"


@dataclass
class Diagnosis:
    verdict: str
    evidence: list[str]
    measure: list[str]
    do: list[dict[str, Any]]
    rule: str | None = None
    likely: str | None = None
    engine: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def diagnose(facts: Facts) -> Diagnosis:
    """The verdict on these facts; the first rule that is proved counts."""
    d, tried = derive(facts), outcome(facts)
    verdict, rule, evidence = UNDETERMINED, None, []
    for candidate in RULES:
        found = candidate.test(facts, d, tried)
        if found:
            verdict, rule, evidence = candidate.verdict, candidate.name, list(dict.fromkeys(found))
            break
    if verdict == UNDETERMINED and (weighed := weigh(facts, d)):
        verdict, rule, evidence = weighed[0], "weighed", weighed[1]
    likely = _likely(facts) if verdict == UNDETERMINED else None
    return Diagnosis(
        verdict=verdict,
        evidence=evidence or _nothing(d),
        measure=what_to_measure(facts, d) if verdict == UNDETERMINED else [],
        do=choose(verdict, facts, d),
        rule=rule,
        likely=likely,
        engine=facts.engine.title,
        numbers=_numbers(facts, d),
        options=facts.options,
        contradictions=_contradictions(facts, d),
        unread=facts.unread,
    )


def diagnose_report(report: Mapping[str, Any]) -> Diagnosis:
    """Verdict on a JSON object in the form of a public case: `engine` and `given`."""
    return diagnose(read_facts(report))


def _likely(f: Facts) -> str | None:
    if not f.says("slows_others"):
        return None
    return "prefill-first" if f.engine.schedule == "alternate" else "chunk-arithmetic"


def _nothing(d: Derived) -> list[str]:
    """Evidence where no rule is proved: a stream that was not disturbed is worth saying."""
    if d.share is not None and d.share >= UNDISTURBED and d.gap is not None and (not d.solo or d.gap * d.solo < SHOWS):
        return [f"no stall in these numbers: the stream kept {d.share:.0%} of its rate, its longest gap was {d.gap:.3g} s"]
    return ["the facts prove none of the known causes"]


def _numbers(f: Facts, d: Derived) -> dict[str, float]:
    """All that a verdict may rest on: rates, gaps and times, T/T0 against 1/(1-f), the chunk seen and counted, hits."""
    found = {name: value for name, value in asdict(d).items() if value is not None}
    told = {"ttft": "ttft", "preemptions": "preemptions", "hits": "found_tokens", "hit_rate": "hit_rate", "kv_usage": "kv_usage"}
    found |= {name: value for name, what in told.items() if (value := f.high(what)) is not None}
    if d.share is not None and d.share < 1:
        found["predicted_ttft_over_alone"] = 1 / (1 - d.share)
    if d.work and (late := f.high("ttft")):
        found["ttft_over_alone"] = late / d.work
    return {name: round(value, 4) for name, value in found.items()}


def _contradictions(f: Facts, d: Derived) -> list[str]:
    """Numbers of one report that cannot all be true; reported, never averaged away."""
    found = []
    if d.gap and d.prefill_rate and f.chunk and d.gap * d.prefill_rate < f.chunk / (2 * ONE_STEP):
        fit = d.gap * d.prefill_rate
        found.append(
            f"in a gap of {d.gap:.3g} s at {d.prefill_rate:.0f} tokens/s only {fit:.0f} tokens fit, but a step may carry {f.chunk:.0f}"  # noqa: E501
        )
    if d.chunk_seen and d.chunk_counted and not 0.4 <= d.chunk_seen / d.chunk_counted <= 2.5:
        found.append(
            f"gap x prefill rate gives {d.chunk_seen:.0f} tokens a step, the engine's own count of steps {d.chunk_counted:.0f}"
        )
    if d.excess is not None and d.excess < 0.8:
        found.append(f"(T/T0)(1-f) = {d.excess:.2f} is below 1: the two did not share the engine for the whole time")
    return found
