"""What was told, in the project's names and units: the input of every verdict.

`read_facts` takes a JSON object {"engine": text, "given": {"config": {..}, "observed": {..}}} (the two
groups may be missing, fields may stand at the top) and fills `numbers` (name -> values; seconds, tokens,
tokens a second), `options` (engine options as they were set) and `words` (all free text). Nothing is
guessed here: a field that the vocabulary does not know is kept in `unread` and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headway.advisor.engine import Engine, parse_engine
from headway.advisor.vocabulary import (
    CHUNK_OPTIONS,
    COMPILED_QUANTITIES,
    find_signal,
    option_kind,
)
from headway.errors import UsageError

#: Quantities that people write among the options: properties of the machine or of the workload.
TOLD_IN_CONFIG = frozenset(
    {
        "prefill_rate",
        "slots",
        "victims",
        "intruder_tokens",
        "newcomer_tokens",
        "cpu_cores",
        "client_timeout",
        "solo_rate",
        "models",
    }
)

_SCALE: dict[str, tuple[tuple[str, float], ...]] = {
    "s": ((r"_ms(_|$)|^ms_", 1e-3), (r"minutes|_mins?$", 60.0), (r"_us(_|$)", 1e-6)),
    "ratio": ((r"pct|percent", 1e-2),),
}


@dataclass(slots=True)
class Series:
    """One option set to several values, and what was seen at each: the report's own experiment."""

    option: str
    settings: list[float]


@dataclass
class Facts:
    engine: Engine
    options: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, list[float]] = field(default_factory=dict)
    words: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        return all(name in self.numbers for name in names)

    def low(self, name: str) -> float | None:
        return min(self.numbers[name]) if self.numbers.get(name) else None

    def high(self, name: str) -> float | None:
        return max(self.numbers[name]) if self.numbers.get(name) else None

    def says(self, signal: str) -> str | None:
        """The words that carry a signal of the vocabulary, or None."""
        return find_signal(signal, self.sentences)

    @cached_property
    def sentences(self) -> list[str]:
        return [part for part in re.split(r"[.;!?]\s+|\n", self.words) if part.strip()]

    def cite(self, *names: str) -> list[str]:
        """Evidence lines for the given quantities, as the report has them."""
        return [self.sources[name] for name in names if name in self.sources]

    @cached_property
    def chunk(self) -> float | None:
        """Prefill tokens that one step may carry: the smallest positive setting that bounds it."""
        settings = [
            max(v)
            for key, value in self.options.items()
            # llama.cpp computes a batch in micro-batches but samples only after all of it.
            if option_kind(key) == "chunk" and "ubatch" not in key and (v := [n for n in numeric(value) if n > 0])
        ]
        return min(settings) if settings else None

    @cached_property
    def series(self) -> Series | None:
        for key, value in self.options.items():
            values = numeric(value)
            if len(values) >= 2 and len(set(values)) >= 2:
                return Series(key, values)
        return None


def numeric(value: Any) -> list[float]:
    """The numbers in a value or list; booleans count as 0 and 1; anything else gives an empty list."""
    items = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(item, int | float) for item in items):
        return [float(item) for item in items]
    return []


def _key(name: str) -> str:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def _leaves(value: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            inner = _key(name) if _key(name) in ("config", "observed") else group
            yield from _leaves(item, inner)
        else:
            yield group, _key(name), item


def _quantity(key: str) -> tuple[str, float] | None:
    for name, dimension, yes, no in COMPILED_QUANTITIES:
        if yes.search(key) and not (no and no.search(key)):
            scale = next((k for pattern, k in _SCALE.get(dimension, ()) if re.search(pattern, key)), 1.0)
            return name, scale
    return None


def _say(key: str, item: Any) -> str | None:
    """Free text of one field: strings, lists of strings, and the names of flags that are true."""
    phrase = key.replace("_", " ")
    if item is True:
        return phrase
    if isinstance(item, str):
        return f"{phrase}: {item}"
    if isinstance(item, list) and any(isinstance(part, str) for part in item):
        return f"{phrase}: " + ", ".join(map(str, item))
    return None


def read_facts(report: Mapping[str, Any]) -> Facts:
    """Facts of a report; UsageError when it has neither an engine nor anything observed."""
    given = report.get("given", {key: item for key, item in report.items() if key in ("config", "observed")})
    if not isinstance(given, Mapping):
        raise UsageError("facts: `given` is not an object")
    if not given:
        meta = ("engine", "id", "verdict", "why", "source", "url", "schema")
        given = {key: item for key, item in report.items() if key not in meta}
    text = str(report.get("engine", ""))
    if not text and not given:
        raise UsageError("facts: neither `engine` nor `given` is there, so there is nothing to judge")
    facts = Facts(parse_engine(text))
    phrases = [text]
    for group, key, item in _leaves(given):
        spoken = _say(key, item)
        if spoken:
            phrases.append(spoken)
        values = numeric(item)
        known = _quantity(key) if values and not isinstance(item, bool) else None
        # An observation is never read from an option's name, and an option never from an observation's.
        option = key in CHUNK_OPTIONS or (group == "config" and (known is None or known[0] not in TOLD_IN_CONFIG))
        if option or (group == "config" and not known) or (known and known[0] == "slots"):
            facts.options[key] = item
        if known and not option:
            name, scale = known
            if name in facts.numbers:
                facts.numbers[name] += [value * scale for value in values]
                facts.sources[name] += f", {key} = {_plain(item)}"
            else:
                facts.numbers[name] = [value * scale for value in values]
                facts.sources[name] = f"{key} = {_plain(item)}"
            continue
        if not option and not spoken and group != "config":
            facts.unread.append(key)
    facts.words = ". ".join(phrases)
    return facts


def _plain(item: Any) -> str:
    return ", ".join(map(str, item)) if isinstance(item, list) else str(item)
