"""What was told, in the project's names and units: the input of every verdict.

`numbers`: name -> values in seconds, tokens and tokens a second; `options`: engine options as they were set; `words`: all free
text; `fields`: names of the observed fields; `unread`: fields that the vocabulary does not know. Filled by reading.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headway.advisor.engine import Engine
from headway.advisor.relations import End, relations
from headway.advisor.vocabulary import PREFILL_SEEN, find_signal, option_kind

#: A prompt of up to so many tokens is prefilled within a step that nobody notices.
SHORT_PROMPT = 256.0


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
    fields: str = ""
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

    @cached_property
    def relations(self) -> dict[tuple[End, End], str]:
        """Who waits for whom, as the report's sentences say it."""
        return relations(self.sentences)

    def last(self, name: str) -> float | None:
        """The value told last: of a before and an after, the after."""
        return self.numbers[name][-1] if self.numbers.get(name) else None

    def cite(self, *names: str) -> list[str]:
        """Evidence lines for the given quantities, as the report has them."""
        return [self.sources[name] for name in names if name in self.sources]

    @cached_property
    def _met(self) -> str:
        """Names of fields, without those that only count a short prompt's tokens."""
        small = (self.high("intruder_tokens") or SHORT_PROMPT + 1) <= SHORT_PROMPT
        return re.sub(r"\b\w* ?prompts? \w*tokens?", "", self.fields) if small else self.fields

    @cached_property
    def prefill_seen(self) -> bool:
        """Something in the report says that a prompt was being computed while others decoded."""
        if (
            self.high("intruders") == 0
            or (self.high("prompt_rate") == 0 and not self.high("prefill_batches"))
            or self.says("only_decodes")
        ):
            return False
        told = dict.fromkeys(("prompt_rate", "prefill_rate", "prefill_batches", "intruders"), 0.0)
        told |= dict.fromkeys(("intruder_tokens", "newcomer_tokens"), SHORT_PROMPT)
        return any((self.high(name) or 0) > least for name, least in told.items()) or bool(
            PREFILL_SEEN.search(f"{self._met}. {self.words}")
        )

    @cached_property
    def chunk(self) -> float | None:
        """Prefill tokens that one step may carry: the smallest positive setting that bounds it."""
        settings = [
            max(v)
            for key, value in self.options.items()
            # llama.cpp computes a batch in micro-batches but samples only after all of it.
            if option_kind(key) == "chunk" and "ubatch" not in key and (v := [n for n in numeric(value) if n > 1])
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
