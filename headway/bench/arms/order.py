"""Who runs when. Pure: the same arms, repetitions and seed give the same order, so that a resumed run goes on in it.

Repetitions are interleaved: a round starts every server once, in an order that is shuffled anew each round, and runs
`per_start` repetitions of each of its arms, shuffled too. So a machine that gets warmer meets every arm alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from headway.bench.arms.plan import Arm


@dataclass(frozen=True)
class Cell:
    """One repetition of one arm: what is measured without a pause, and what is redone when it was interrupted."""

    arm: Arm
    rep: int


@dataclass(frozen=True)
class Start:
    """One life of one server, and what is measured in it."""

    cells: tuple[Cell, ...]

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(dict.fromkeys(cell.arm for cell in self.cells))


def groups(arms: Sequence[Arm]) -> list[tuple[Arm, ...]]:
    """Arms that can share one start of one server."""
    found: dict[object, list[Arm]] = {}
    for arm in arms:
        found.setdefault((arm.server, arm.name) if arm.own_start else arm.server, []).append(arm)
    return [tuple(group) for group in found.values()]


def order(arms: Sequence[Arm], reps: int, per_start: int, seed: int = 0) -> list[Start]:
    out: list[Start] = []
    for begin in range(0, reps, per_start):
        rng = random.Random(f"{seed}/{begin}")
        for group in rng.sample(made := groups(arms), len(made)):
            cells = [
                Cell(arm, rep)
                for rep in range(begin, min(begin + per_start, reps))
                for arm in rng.sample(group, len(group))
            ]  # fmt: skip
            out.append(Start(tuple(cells)))
    return out
