"""Must: nobody starves. A few thousand of the million random schedules of benchmarks/schedules.py; and that what is checked of
them bites.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.core import bounds
from headway.core.debt import DebtLedger
from headway.core.pacing import Pacer
from headway.simulator.schedules import run, trial

SEEDS = 2000


def test_what_must_hold_holds_in_every_schedule() -> None:
    results = [(seed, run(trial(seed))) for seed in range(SEEDS)]
    faults = [f"seed {seed}: {fault}" for seed, result in results for fault in result.faults]
    assert not faults, faults[:5]
    # They are about something: most have pieces, and in some a bound overrules the share.
    assert sum(result.pieces for _, result in results) > 5 * SEEDS
    assert 0.05 * SEEDS < sum(result.yielded for _, result in results) < 0.5 * SEEDS


def no_debt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DebtLedger, "clear_at", lambda self, now, ahead=0.0: now)


def no_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "due", lambda entry, pacer: float("inf"))


def large_pieces(patch: pytest.MonkeyPatch) -> None:
    piece = Pacer.piece
    patch.setattr(Pacer, "piece", lambda self, at=0: 3 * piece(self, at))


def idle_alone(patch: pytest.MonkeyPatch) -> None:
    grant = Pacer.grant

    def held(self: Pacer, now: float, live: bool, debt: DebtLedger, ahead: float = 0.0, at: int = 0) -> tuple[int, float]:
        return grant(self, now, live, debt, ahead, at) if live else (0, now + 1.0)

    patch.setattr(Pacer, "grant", held)


@pytest.mark.parametrize(
    ("broken", "words"),
    [(no_debt, "is owed"), (no_bound, "its bound is"), (large_pieces, "a gap of"), (idle_alone, "stood still")],
)
def test_a_broken_controller_is_found(
    broken: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    faults = [fault for seed in range(150) for fault in run(trial(seed)).faults]
    assert any(words in fault for fault in faults), faults[:5]
