"""A report as people write it to Facts.

`read_facts` takes a JSON object {"engine": text, "given": {"config": {..}, "observed": {..}}} and is lenient about its form: the
groups may be missing or nested deeper, fields may stand at the top, numbers may be text with units, options may be a command
line. Nothing is guessed: a field that the vocabulary does not know is kept in `unread` and reported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headway.advisor.amounts import read_amount
from headway.advisor.commandline import parse_words
from headway.advisor.engine import Engine, parse_engine
from headway.advisor.facts import Facts, numeric
from headway.advisor.vocabulary import CHUNK_OPTIONS, COMPILED_QUANTITIES, OPTION_NAMES
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


def _key(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


_GROUPS = {
    "given": "", "facts": "", "config": "config", "configuration": "config", "options": "config", "settings": "config",
    "flags": "config", "args": "config", "launch": "config", "server": "config", "observed": "observed",
    "observations": "observed", "measured": "observed", "measurements": "observed", "metrics": "observed",
    "symptoms": "observed", "seen": "observed",
}  # fmt: skip


def _leaves(value: Mapping[str, Any], group: str = "", path: str = "") -> Iterator[tuple[str, str, str, Any]]:
    """(group, path of names without the group's, last name, value) of every field."""
    for name, item in value.items():
        key = _key(str(name))
        whole = f"{path}_{key}" if path else key
        if not isinstance(item, Mapping):
            yield group, whole, key, item
        elif key in _GROUPS and not path:
            yield from _leaves(item, _GROUPS[key] or group)
        else:
            yield from _leaves(item, group, whole)


def _quantity(key: str) -> tuple[str, str, float] | None:
    """(name, dimension, factor to the project's unit) of a field's name."""
    for name, dimension, yes, no in COMPILED_QUANTITIES:
        if yes.search(key) and not (no and no.search(key)):
            scale = next((k for pattern, k in _SCALE.get(dimension, ()) if re.search(pattern, key)), 1.0)
            return name, dimension, scale
    return None


def _amounts(item: Any) -> tuple[list[float], str]:
    """Numbers of a value and the dimension that its own units say ("" when none is written)."""
    if values := numeric(item):
        return values, ""
    items = item if isinstance(item, list | tuple) else [item]
    read = [read_amount(part) if isinstance(part, str) else read_amount(repr(part)) for part in items]
    if not items or not all(read):
        return [], ""
    dimensions = {amount.dimension for amount in read if amount} - {""}
    if len(dimensions) > 1:
        return [], ""
    return [value for amount in read if amount for value in amount.values], next(iter(dimensions), "")


#: Names of fields that only say that a text follows.
_TEXT_FIELDS = frozenset(
    ("text", "note", "notes", "comment", "comments", "summary", "description", "report", "symptom", "symptoms")
) | frozenset(("said", "quote", "title", "detail", "details", "what", "log"))


def _say(key: str, item: Any) -> str | None:
    """Free text of one field: strings, lists of strings, and the names of flags that are true."""
    # A name that only says "here is text" is no part of the text.
    phrase = "" if key.split("_")[-1] in _TEXT_FIELDS else key.replace("_", " ")
    if item is True:
        return phrase
    if item is False:
        return f"no {phrase}"
    if isinstance(item, str):
        return f"{phrase}: {item}" if phrase else item
    if isinstance(item, list) and any(isinstance(part, str) for part in item):
        return (f"{phrase}: " if phrase else "") + ", ".join(map(str, item))
    return None


def _spell(item: Any) -> str:
    """Text of a value that may be a list or an object of texts."""
    if isinstance(item, Mapping):
        return " ".join(map(_spell, item.values()))
    if isinstance(item, list | tuple):
        return " ".join(map(_spell, item))
    return "" if item is None else str(item)


def _given(report: Mapping[str, Any]) -> Mapping[str, Any]:
    given = report.get("given")
    if isinstance(given, str | list):
        return {"text": _spell(given)}
    if given is not None and not isinstance(given, Mapping):
        raise UsageError("facts: `given` is neither an object nor text")
    meta = ("engine", "id", "verdict", "why", "source", "url", "schema", "given", "title", "version")
    return {**(given or {}), **{key: item for key, item in report.items() if key not in meta}}


def _command_line(item: Any) -> dict[str, Any]:
    """Options of a field that holds a command line."""
    text = _spell(item) if isinstance(item, str | list) else ""
    if not re.search(r"(^|\s)--?[a-zA-Z]", text):
        return {}
    try:
        return parse_words(shlex.split(text), "vllm")[0]
    except ValueError:
        return {}


class _Reader:
    """Sorts the fields of one report into Facts."""

    def __init__(self, engine: str) -> None:
        self.facts = Facts(parse_engine(engine))
        self.phrases = [engine]

    def field(self, group: str, whole: str, last: str, item: Any) -> None:
        facts = self.facts
        if item is None or item == [] or item == "":
            return
        if command := _command_line(item):
            for name, value in command.items():
                facts.options.setdefault(OPTION_NAMES.get(name, name), value)
        values, dimension = _amounts(item)
        spoken = None if values and not isinstance(item, bool) else _say(whole, item)
        if spoken:
            self.phrases.append(spoken)
        known = None
        if values and not isinstance(item, bool):
            known = next((q for key in dict.fromkeys((whole, last)) if (q := _quantity(key)) and _fits(q, dimension)), None)
        name = OPTION_NAMES.get(last, last)
        # An observation is never read from an option's name, and an option never from an observation's.
        option = name in CHUNK_OPTIONS or (group == "config" and (known is None or known[0] not in TOLD_IN_CONFIG))
        if option or (known and known[0] == "slots"):
            facts.options[name] = _plain_number(item, values)
        if known and not option:
            quantity, _, scale = known
            if dimension:
                scale = 1.0
            read = [value * scale for value in values]
            cited = f"{whole} = {_plain(item)}"
            if quantity in facts.numbers:
                facts.numbers[quantity] += read
                facts.sources[quantity] += f", {cited}"
            else:
                facts.numbers[quantity], facts.sources[quantity] = read, cited
            return
        if not option and not spoken and not command:
            facts.unread.append(whole)


def _fits(quantity: tuple[str, str, float], dimension: str) -> bool:
    """A unit that was written and the field's name do not contradict each other."""
    return dimension in ("", quantity[1]) or (dimension, quantity[1]) in (("tokens", "count"), ("count", "tokens"))


def _plain_number(item: Any, values: list[float]) -> Any:
    """An option's value: text that is a number becomes one; everything else stays as it was set."""
    if not isinstance(item, str) or not values:
        return item if not (isinstance(item, list) and values) else values
    return values[0] if len(values) == 1 else values


def read_facts(report: Mapping[str, Any]) -> Facts:
    """Facts of a report; UsageError when it has neither an engine nor anything observed."""
    given = _given(report)
    engine = " ".join(part for part in (_spell(report.get("engine")), _spell(report.get("version"))) if part)
    if not engine and not given:
        raise UsageError("facts: neither `engine` nor `given` is there, so there is nothing to judge")
    reader = _Reader(engine)
    leaves = list(_leaves(given))
    for leaf in leaves:
        reader.field(*leaf)
    facts = reader.facts
    facts.words = ". ".join(reader.phrases)
    facts.fields = ". ".join(whole.replace("_", " ") for group, whole, _, _ in leaves if group != "config")
    facts.engine = _told_engine(facts)
    hits, asked = facts.high("cache_hits"), facts.high("cache_queries")
    if hits is not None and asked and "hit_rate" not in facts.numbers:
        facts.numbers["hit_rate"] = [hits / asked]
        facts.sources["hit_rate"] = ", ".join(facts.cite("cache_hits", "cache_queries"))
    return facts


def _told_engine(facts: Facts) -> Engine:
    """The engine with what the options say of it: its name and version, speculation, a hybrid model's cache."""
    told, options = facts.engine, facts.options
    said = " ".join(str(options.get(name, "")) for name in ("engine", "image", "version", "vllm_version", "sglang_version"))
    if said.strip() and (told.family == "other" or told.version is None):
        told = parse_engine(f"{told.name} {said}".strip())
    speculative = told.speculative or any(
        re.search(r"spec|draft|mtp|eagle", key) and value not in (None, False, 0, "") for key, value in options.items()
    )
    block = options.get("block_size")
    hybrid = (
        told.hybrid
        or options.get("mamba_cache_mode") not in (None, "none")
        or (told.family == "vllm" and isinstance(block, int | float) and block > 256)
    )
    return replace(told, speculative=speculative, hybrid=hybrid)


def _plain(item: Any) -> str:
    return ", ".join(map(str, item)) if isinstance(item, list) else str(item)
