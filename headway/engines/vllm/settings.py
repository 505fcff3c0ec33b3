"""The scheduler class's targets: from the environment, else from vLLM's --additional-config, else the defaults.

    HEADWAY_SHARE=0.75 HEADWAY_GAP=0.25 HEADWAY_WAIT=30
    --additional-config '{"headway": {"share": 0.75, "gap": 0.25, "wait": 30}}'

Invariant: a value that cannot be used is an error that names it; nothing is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headway.core.targets import Targets

NAMES = ("share", "gap", "wait", "stretch")


def read(environment: Mapping[str, str], additional: object = None) -> Targets:
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
    return replace(Targets(), **values)  # type: ignore[arg-type]
