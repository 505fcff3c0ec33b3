"""Must: traffic of others is noticed, protected and not learned from; a tool parser that buffers is not taken for starvation."""

from __future__ import annotations

from headway.core.controller import Controller
from headway.core.work import Go, Piece, Work
from tests.core.test_turns import controller, live


def long(made: Controller, now: float, tokens: int = 20_000) -> None:
    made.arrive(now, Work("long", tokens))
    made.measured(now, "long", tokens, paceable=True)


def test_one_look_proves_nothing_two_do() -> None:
    made = controller()
    made.foreigners(1.0, 2)
    assert made.foreign.count == 0
    made.foreigners(6.0, 1)
    assert made.foreign.count == 1
    made.foreigners(11.0, 0)
    assert made.foreign.count == 0


def paced(made: Controller, now: float, seconds: float) -> tuple[float, int]:
    """(part of the time in which prefill ran, pieces) of a long prompt over `seconds`, by a driver with pieces of 0.1 s."""
    end, busy, pieces = now + seconds, 0.0, 0
    long(made, now)
    left = 20_000
    while now < end:
        for decision in made.decide(now):
            if isinstance(decision, Piece):
                pieces += 1
                left = max(1, left - decision.tokens)
                now, busy = now + 0.1, busy + 0.1
                made.prefilled(now, "long", left, 0.1)
                break
            assert isinstance(decision, Go)
            return busy / (now - end + seconds), pieces
        else:
            wake = made.wake(now)
            assert wake is not None
            now = max(wake, now + 1e-3)
    return busy / seconds, pieces


def test_others_keep_their_share_of_the_time() -> None:
    made = controller(share=0.5, wait=1000.0, stretch=1000.0)
    alone, _ = paced(made, 10.0, 1.0)
    assert alone > 0.95
    made = controller(share=0.5, wait=1000.0, stretch=1000.0)
    made.foreigners(5.0, 1)
    made.foreigners(9.0, 1)
    beside, pieces = paced(made, 10.0, 3.0)
    assert 0.4 <= beside <= 0.6 and pieces >= 10


def test_beside_an_answer_of_our_own_prefill_waits_for_its_debt_alone() -> None:
    """Others decode in the same steps: to rest for them as well would take more from the prompt than was asked."""
    grants: dict[int, list[float]] = {}
    for others in (0, 2):
        made = controller(share=0.5, wait=1000.0, stretch=1000.0)
        now = live(made, 10.0, outputs=80)
        made.foreigners(now - 0.5, others)
        made.foreigners(now - 0.2, others)
        long(made, now)
        left, end, grants[others] = 20_000, now + 4.0, []
        while now < end:
            if any(isinstance(decision, Piece) for decision in made.decide(now)):
                grants[others].append(round(now, 2))
                left -= 1024
                now += 0.1  # all of it prefill, and an output at its end
                made.output(now, "victim")
                made.prefilled(now, "long", left, 0.1)
            else:
                now += 0.01
                made.output(now, "victim")
    assert len(grants[0]) >= 10
    assert grants[2] == grants[0]


def test_others_are_not_learned_from() -> None:
    made = controller()
    before = made.learner.samples
    made.foreigners(5.0, 1)
    made.foreigners(9.0, 1)
    paced(made, 10.0, 2.0)
    assert made.learner.samples == before


def test_a_parser_that_buffers_for_ten_seconds_does_not_starve_the_newcomer() -> None:
    """A live answer that says nothing for 10 s while a long prompt comes in: prefill goes on, and the model does not take the
    silence for a gap of its own pieces."""
    made = controller(share=0.5, wait=1000.0, stretch=1000.0)
    now = live(made, 10.0)
    model = made.pacer.model
    assert model is not None
    done, pieces = paced(made, now, 10.0)  # no output in between
    assert done > 0.6, done
    assert pieces >= 19, "all of it went"
    assert made.pacer.model is not None and made.pacer.model.e < 0.1
    made.output(now + 10.0, "victim", 1)
    assert made.debt.victims["victim"].owed < 100 * 0.5 * 10 / 2, "the silence is not owed for"
