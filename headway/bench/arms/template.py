"""Placeholders of an arm file: `{name}` with a lower-case name, replaced by a value of `vars`, by {port}, {url} or {arm}.

Anything else in braces stays as it is: JSON in an option (`{"mode": 0}`) and the shell's `${HOME}` are no placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Known only when the server starts; left alone until then.
LATE = frozenset({"port", "url"})
_NAME = re.compile(r"(?<!\$)\{([a-z_][a-z0-9_]*)\}")


class Unknown(ValueError):
    """`str(error)` is the name that has no value."""


def fill(text: str, values: Mapping[str, object], *, late: bool = True) -> str:
    """The text with its placeholders replaced. Raises Unknown; with `late` {port} and {url} may stay."""

    def put(hit: re.Match[str]) -> str:
        name = hit.group(1)
        if name in values:
            return str(values[name])
        if late and name in LATE:
            return hit.group(0)
        raise Unknown(name)

    return _NAME.sub(put, text)


def names(text: str) -> set[str]:
    """The placeholders in the text."""
    return set(_NAME.findall(text))
