"""Numbers as people write them: "27.5 tok/s", "743 ms", "8k", "5-7 s", "59.4 -> 7.7", "1,568 tokens", "97 %".

`read_amount` answers with the numbers and what their unit says, or None for text that is not an amount.
A unit in the value is believed over a unit in the field's name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?:\s?[kKM](?![A-Za-z]))?"
_SPLIT = r"(?<=[\w%.])\s*(?:-|–|—|\.\.+|…|\bto\b|\bvs\.?|->|→|=>|,\s|;|\band\b|\bor\b)\s*"
_ABOUT = r"(?i:about|approx\.?|around|roughly|up to|over|under|some|circa|ca\.?|~|≈|<=?|>=?|≤|≥)?\s*"

#: (unit as written, dimension, factor to the project's unit of that dimension).
UNITS: tuple[tuple[str, str, float], ...] = (
    (r"(tok(en)?s?|t)\s*(/|per)\s*s(ec(ond)?)?s?|tps|toks/s", "rate", 1.0),
    (r"(tok(en)?s?|t)\s*(/|per)\s*min(ute)?", "rate", 1 / 60),
    (r"it(erations)?/s|req(uest)?s?/s|/s", "rate", 1.0),
    (r"(ms|millis(econds)?|milliseconds?)(\s*(/|per)\s*tok(en)?)?", "s", 1e-3),
    (r"(us|µs|microseconds?)(\s*(/|per)\s*tok(en)?)?", "s", 1e-6),
    (r"(s|secs?|seconds?)(\s*(/|per)\s*(tok(en)?|step|chunk|batch))?", "s", 1.0),
    (r"(m|mins?|minutes?)", "s", 60.0),
    (r"(h|hrs?|hours?)", "s", 3600.0),
    (r"tok(en)?s?", "tokens", 1.0),
    (r"%|percent|pct", "ratio", 1e-2),
    (r"x|times|fold", "ratio", 1.0),
    (r"[kmgt]i?b", "bytes", 1.0),
    (r"req(uest)?s?|streams?|slots?|sequences|seqs?|cores?|v?cpus?|copies|users?", "count", 1.0),
)
_UNITS = tuple((re.compile(pattern, re.IGNORECASE), dimension, factor) for pattern, dimension, factor in UNITS)
_PIECES = re.compile(rf"{_SPLIT}(?={_ABOUT}[+-]?\d)")
_PIECE = re.compile(rf"{_ABOUT}({_NUMBER})\s*(.*?)[.\s]*")


class Amount(NamedTuple):
    """Values in the project's unit of `dimension`; `dimension` "" and factor 1 when no unit was written."""

    values: list[float]
    dimension: str


def number_of(text: str) -> float:
    """One number with thousands separators and a suffix; 8k is 8,000 and 8K is 8,192."""
    plain = text.strip().replace(",", "")
    factor = {"k": 1000, "K": 1024, "M": 10**6}.get(plain[-1:], 1)
    return float(plain[:-1].strip() if factor != 1 else plain) * factor


def unit_of(text: str) -> tuple[str, float] | None:
    """(dimension, factor) of a unit; None when it is not one."""
    return next(((dimension, factor) for pattern, dimension, factor in _UNITS if pattern.fullmatch(text.strip())), None)


def read_amount(text: str) -> Amount | None:
    """The amount that the whole text is, or None. "10 m" is minutes, "10M" ten million."""
    pieces = _PIECES.split(text.strip())
    values: list[float] = []
    units: list[tuple[str, float] | None] = []
    for piece in pieces:
        hit = _PIECE.fullmatch(piece)
        if not hit:
            return None
        unit = unit_of(hit.group(2)) if hit.group(2) else None
        if hit.group(2) and unit is None:
            return None
        values.append(number_of(hit.group(1)))
        units.append(unit)
    told = next((u for u in reversed(units) if u), None)
    scaled = [value * (unit or told or ("", 1.0))[1] for value, unit in zip(values, units, strict=True)]
    return Amount(scaled, told[0] if told else "")
