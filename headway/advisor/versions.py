"""Engine versions as people write them, and ranges of them.

A version is a tuple of integers; `None` means "not known", which is different from "any". Ranges are half
open: `since <= version < until`, each end optional.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, ...]

_NUMBER = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?:[a-z.+-][\w.+-]*)?", re.IGNORECASE)


def parse_version(text: str | None) -> Version | None:
    """(0, 25, 1) from "v0.25.1", "vllm 0.25.1+cu130" or "0.25.1rc2.dev3"; None when there is no such number."""
    found = _NUMBER.search(text or "")
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def show(version: Version | None) -> str:
    return ".".join(map(str, version)) if version else "unknown version"


@dataclass(frozen=True, slots=True)
class Range:
    """Half-open range of versions; `Range()` holds every version, known or not."""

    since: str | None = None
    until: str | None = None

    def holds(self, version: Version | None) -> bool | None:
        """True or False; None when the answer depends on a version that is not known."""
        if self.since is None and self.until is None:
            return True
        if version is None:
            return None
        low, high = parse_version(self.since), parse_version(self.until)
        return (low is None or version >= low) and (high is None or version < high)

    def __str__(self) -> str:
        if self.since and self.until:
            return f"{self.since} up to but not {self.until}"
        if self.since:
            return f"{self.since} and later"
        return f"before {self.until}" if self.until else "every version"
