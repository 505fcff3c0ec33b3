"""The scheduler class's targets: from the environment, else from vLLM's --additional-config, else the defaults.

    HEADWAY_SHARE=0.75 HEADWAY_GAP=0.25 HEADWAY_WAIT=30
    --additional-config '{"headway": {"share": 0.75, "gap": 0.25, "wait": 30}}'
    HEADWAY_TARGETS=/etc/headway.json     a file like {"share": 0.75, "gap": 0.25}: wins, and is read again when it changes

Invariant: a value that cannot be used is an error that names it; nothing is silently ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headway.core.targets import Targets

NAMES = ("share", "gap", "wait", "stretch")


def read(environment: Mapping[str, str], additional: object = None, base: Targets | None = None) -> Targets:
    """Raises ValueError in one line."""
    section = additional.get("headway", {}) if isinstance(additional, Mapping) else {}
    if not isinstance(section, Mapping):
        raise ValueError('additional-config: "headway" is not an object')
    for name in section:
        if name not in NAMES:
            raise ValueError(f"additional-config: headway.{name} is not one of {', '.join(NAMES)}")
    values: dict[str, float] = {}
    for name in NAMES:
        variable = f"HEADWAY_{name.upper()}"
        raw, where = (environment[variable], variable) if variable in environment else (section.get(name), f"headway.{name}")
        if raw is None:
            continue
        try:
            values[name] = float(raw)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: {raw!r} is not a number") from None
    return replace(base or Targets(), **values)  # type: ignore[arg-type]


def within_stretch(targets: Targets) -> float:
    """The share that is steered by: beyond stretch/(1 + stretch) the frontier itself is above the newcomer's bound."""
    return min(targets.share, targets.stretch / (1.0 + targets.stretch))


LOOK_S = 1.0
"""Seconds between two looks at the targets file."""


@dataclass(slots=True)
class TargetsFile:
    """Targets that change while the engine runs, without a restart."""

    path: str | None
    base: Targets
    _looked: float = float("-inf")
    _stamp: tuple[float, int] | None = None

    def changed(self, now: float) -> Targets | None:
        """New targets if the file has changed since the last look; raises ValueError, in one line, when it cannot be used (and
        does not look at that content again)."""
        if self.path is None or now < self._looked + LOOK_S:
            return None
        self._looked = now
        try:
            state = os.stat(self.path)
            stamp = (state.st_mtime, state.st_size)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            with open(self.path, encoding="utf-8") as file:
                section = json.load(file)
        except OSError as error:
            if self._stamp is None:
                return None  # it may come later
            self._stamp = None
            raise ValueError(f"HEADWAY_TARGETS={self.path}: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"HEADWAY_TARGETS={self.path}: {error}") from None
        return read({}, {"headway": section}, self.base)
