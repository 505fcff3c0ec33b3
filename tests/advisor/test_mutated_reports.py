"""Reports with fields dropped, renamed or spelled otherwise: the same verdict, or none and what to measure; never another."""

from __future__ import annotations

import copy
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.advisor.diagnose import UNDETERMINED, diagnose_report

HERE = Path(__file__).parent
CASES = [json.loads(line) for path in sorted(HERE.glob("cases_*.jsonl")) for line in path.read_text().splitlines()]
PROVED = [case for case in CASES if diagnose_report(case).verdict != UNDETERMINED]
IDS = [case["id"] for case in PROVED]

#: A cause that is told apart from a more general one by one more measurement: without that measurement the general one is right.
#: (T/T0 for a mixed step's cost; the option and engine for an option that does nothing.)
GENERAL = {
    "mixed-step-cost": {"chunk-arithmetic", "prefill-first"},
    "no-op-option": {"prefill-first", "chunk-arithmetic", "running-order"},
    # A prompt that is dropped and computed again hits nothing either: without the word on the drop, that is what the facts say.
    # The same of long prompts beside streams on an engine that mixes: without eviction or a full pool it is their chunks.
    "preemption": {"cache-miss", "chunk-arithmetic"},
}


def fields(case: dict[str, Any]) -> list[tuple[str, str]]:
    return [(group, key) for group, inner in case["given"].items() for key in inner]


def without(case: dict[str, Any], dropped: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    less = copy.deepcopy(case)
    for group, key in dropped:
        del less["given"][group][key]
    return less


def allowed(verdict: str) -> set[str]:
    return {verdict, UNDETERMINED} | GENERAL.get(verdict, set())


@pytest.mark.parametrize("case", PROVED, ids=IDS)
def test_any_one_or_two_fields_may_be_missing(case: dict[str, Any]) -> None:
    verdict = diagnose_report(case).verdict
    for count in (1, 2):
        for dropped in combinations(fields(case), count):
            found = diagnose_report(without(case, dropped))
            assert found.verdict in allowed(verdict), (dropped, found.evidence)
            assert (found.verdict != UNDETERMINED) or found.measure


@pytest.mark.parametrize("case", PROVED, ids=IDS)
def test_the_engine_may_be_missing(case: dict[str, Any]) -> None:
    found = diagnose_report({"engine": "", "given": case["given"]})
    assert found.verdict in allowed(diagnose_report(case).verdict), found.evidence


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PROVED), st.data())
def test_a_field_of_an_unknown_name_is_as_good_as_missing(case: dict[str, Any], data: st.DataObject) -> None:
    group, key = data.draw(st.sampled_from(fields(case)))
    value = case["given"][group][key]
    if isinstance(value, str) or (isinstance(value, list) and any(isinstance(part, str) for part in value)):
        return  # text is read under any name
    renamed = without(case, ((group, key),))
    renamed["given"][group]["zz_9"] = value
    assert diagnose_report(renamed).verdict in allowed(diagnose_report(case).verdict)


def camel(key: str) -> str:
    return re.sub(r"_([a-z])", lambda hit: hit.group(1).upper(), key)


def _times(value: Any, factor: float) -> Any:
    return [part * factor for part in value] if isinstance(value, list) else value * factor


def _numbers(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return bool(parts) and all(isinstance(part, int | float) and not isinstance(part, bool) for part in parts)


UNITS = (
    (r"_s$", "_ms", 1e3),
    (r"_ms$", "_s", 1e-3),
    (r"_tps$", "_tokens_per_second", 1),
    (r"_tps$", "_tok_s", 1),
    (r"_pct$", "", 0.01),
)
WORDS = ((r"(?<!_per)_s$", "s"), (r"_ms$", "ms"), (r"_tps$", "tok/s"), (r"_tokens$", "tokens"), (r"_pct$", "%"))


@st.composite
def respelled(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A report and the same facts in another hand: units, number words, key style, grouping, the engine's case."""
    case = draw(st.sampled_from(PROVED))
    other: dict[str, Any] = {}
    for group, inner in case["given"].items():
        place = other.setdefault(group, {})
        for key, value in inner.items():
            style = draw(st.sampled_from(("as it is", "unit", "words", "camel", "dashes", "text")))
            name, told = key, value
            if style == "unit" and _numbers(value):
                name, told = next(
                    ((re.sub(p, new, key), _times(value, k)) for p, new, k in UNITS if re.search(p, key)), (key, value)
                )
            elif style == "words" and _numbers(value):
                unit = next((u for p, u in WORDS if re.search(p, key)), None)
                parts = value if isinstance(value, list) else [value]
                told = ([f"{p} {unit}" for p in parts] if isinstance(value, list) else f"{value} {unit}") if unit else value
            elif style == "text" and _numbers(value):
                told = [str(p) for p in value] if isinstance(value, list) else str(value)
            elif style == "camel":
                name = camel(key)
            elif style == "dashes" and group == "config":
                name = "--" + key.replace("_", "-")
            place[name] = told
    engine = draw(st.sampled_from((str.upper, str.lower, str)))(case["engine"])
    report: dict[str, Any] = {"engine": engine, "given": other}
    if draw(st.booleans()):
        report = {"engine": engine, **other}
    elif draw(st.booleans()):
        report["given"]["observed"]["note"] = None
    return case, report


@settings(max_examples=400, deadline=None)
@given(respelled())
def test_the_same_facts_in_another_hand(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    case, report = pair
    assert diagnose_report(report).verdict == diagnose_report(case).verdict, report


@pytest.mark.parametrize("case", PROVED, ids=IDS)
def test_what_is_missing_is_asked_for(case: dict[str, Any]) -> None:
    """A report without any observation names no cause by its numbers, and asks."""
    found = diagnose_report({"engine": case["engine"], "given": {"config": case["given"].get("config", {})}})
    assert found.verdict in allowed(diagnose_report(case).verdict)
    if found.verdict == UNDETERMINED:
        assert any("solo rate" in line for line in found.measure)
