"""Which vLLM versions the scheduler class knows, and what differs between them.

Invariant: a version that nobody has read is refused, in one line, before a request is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OLDEST = (0, 24)
"""First with `schedule(throttle_prefills)`, the hook that holds prefill back."""
NEWEST = (0, 33)
SUB_BLOCK = (0, 27, 1)
"""First whose align mode prefills less than a block; before, a smaller limit stalls the prompt without a word."""
OVERRIDE = "HEADWAY_ANY_VLLM"


class UnknownVersion(RuntimeError):
    """This vLLM is not known to work with the scheduler class."""


@dataclass(slots=True, frozen=True)
class Traits:
    sub_block: bool
    """Align mode: chunks smaller than a block make progress."""


def parse(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: '0.32.0+cpu' -> (0, 32, 0). Empty when there are none."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")[:3]) if match else ()


def traits(version: str, anyway: bool = False) -> Traits:
    """What this version does. `anyway`: take an unknown one for the most careful of the known.

    Raises UnknownVersion."""
    numbers = parse(version)
    if OLDEST <= numbers[:2] <= NEWEST:
        return Traits(sub_block=numbers >= SUB_BLOCK)
    if anyway:
        return Traits(sub_block=False)
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    raise UnknownVersion(f"headway knows vLLM {oldest} to {newest}, this is {version}: drop --scheduler-cls, or set {OVERRIDE}=1")
