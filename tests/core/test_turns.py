"""Who is next, told event by event."""

from __future__ import annotations

from headway.core.capability import Capability
from headway.core.controller import Controller
from headway.core.targets import Targets
from headway.core.work import Decision, Work


def controller(policy: str = "pace", **targets: float) -> Controller:
    made = Controller(policy, Targets(gap=0.1, **targets))  # type: ignore[arg-type]
    made.engine(0.0, Capability(block=256, caching=True))
    for tokens in (256, 512, 1024, 256, 512, 1024):
        made.timed(0.0, tokens, 0.01 + 80e-6 * tokens)
    return made


def granted(decisions: list[Decision]) -> list[str]:
    return [decision.id for decision in decisions]


def live(made: Controller, now: float, outputs: int = 40) -> float:
    """A victim at 100 tokens a second; the time after its last output."""
    made.arrive(now, Work("victim", 20))
    made.decide(now)
    made.first_output(now, "victim")
    for n in range(1, outputs):
        made.output(now + n / 100, "victim")
    return now + outputs / 100


def test_clients_take_turns() -> None:
    made = controller()
    now = live(made, 10.0)
    order: list[str] = []
    for id, client in [(f"a{n}", "a") for n in range(4)] + [("b0", "b")]:
        made.arrive(now, Work(id, 900, client=client))
    for _ in range(4000):
        now += 0.01
        made.output(now, "victim")
        for id in granted(made.decide(now)):
            order.append(id)
            made.first_output(now + 0.005, id)
            made.leave(now + 0.005, id)
        now += 0.005
        if len(order) == 5:
            break
    assert order[0] == "a0" and order.index("b0") == 1, order
    assert [id for id in order if id[0] == "a"] == ["a0", "a1", "a2", "a3"]


def test_an_answer_without_a_stream_closes_the_overlap_when_its_prefill_is_over() -> None:
    made = controller()
    now = live(made, 10.0)
    made.arrive(now, Work("whole", 500, streams=False))
    made.decide(now)
    assert made.debt._open
    wake = made.wake(now)
    assert wake is not None
    made.decide(wake)
    assert not made.debt._open and made.in_flight == 0


def test_what_was_waited_under_hold_does_not_make_the_pieces_overdue() -> None:
    made = controller("hold", wait=30.0)
    now = live(made, 10.0)
    entry = made.arrive(now, Work("long", 5000))
    assert not entry.ready
    made.measured(now, "long", 5000, paceable=True)
    assert made.decide(now) == []
    for _ in range(3000):
        now += 0.01
        made.output(now, "victim")
    (first,) = made.decide(now + 0.001)
    assert first.id == "long" and first.waited >= 30.0
    left, back_to_back = 5000, 0
    while left > 1024:
        now, left = now + 0.1, left - 1024
        made.prefilled(now, "long", left, 0.09)
        if not made.decide(now):
            break
        back_to_back += 1
    # The credit of the wait is worth a quarter of a second; after that the share counts again.
    assert back_to_back <= 2, "pieces go without asking for the share"


def test_a_restart_forgets_the_model() -> None:
    made = controller()
    made.forget(1.0)
    assert made.pacer.model is None and made.pacer.block is None and made.learner.samples == 0


def test_a_piece_has_four_blocks_where_each_loses_one() -> None:
    made = controller()
    made.engine(1.0, Capability(block=256, caching=True, lost=1))
    made.pacer.beside = 0.03
    assert made.pacer.piece() == 4 * 256
    made.pacer.beside = None
    # The gap counts the block that is computed again.
    made.pacer.seen = 100_000
    model = made.pacer.model
    assert model is not None
    tokens = made.pacer.piece()
    assert model.gap(tokens + 256) <= 0.1 or tokens == 4 * 256
