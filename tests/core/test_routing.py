"""Which upstream a request goes to, and when one gets none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.health import CHECKS, FIRST_BACKOFF_S, LONGEST_BACKOFF_S, Health, Standing
from headway.core.routing import Candidate, Role, choose

BULK, INTERACTIVE = Candidate(role=Role.BULK), Candidate(role=Role.INTERACTIVE)


def test_least_estimated_time_to_first_token_wins() -> None:
    assert choose([Candidate(own=1.0), Candidate(own=1.0, ahead=0.5)]) == 0
    # A prompt that is cached there is worth a queue shorter than its prefill, and no longer one.
    assert choose([Candidate(own=1.0), Candidate(own=0.1, ahead=0.8)]) == 1
    assert choose([Candidate(own=1.0), Candidate(own=0.1, ahead=1.0)]) == 0
    # Where it only went through before, half of that.
    assert choose([Candidate(own=1.0), Candidate(own=1.0, seen=1.0, ahead=0.4)]) == 1


def test_equals_take_turns() -> None:
    assert [choose([Candidate()] * 3, turn=turn) for turn in range(4)] == [0, 1, 2, 0]


def test_fewer_live_answers_break_a_tie() -> None:
    assert choose([Candidate(in_engine=3), Candidate(in_engine=2)]) == 1


def test_roles() -> None:
    big = [Candidate(role=role, big=True) for role in (Role.ANY, Role.INTERACTIVE, Role.BULK)]
    assert choose(big, turn=1) == 2  # never interactive; any and bulk take turns
    assert choose(big, route=True) == 2
    assert choose(big, tried=(2,), route=True) == 0
    assert choose(big, tried=(0, 2), route=True) == 1
    small = [BULK, Candidate(ahead=9.0)]
    assert choose(small) == 1 and choose(small, tried=(1,)) == 0
    assert choose([BULK, INTERACTIVE]) == 1


def test_health_comes_before_role_and_load() -> None:
    down = Candidate(standing=Standing.DOWN, takes=False)
    assert choose([down, Candidate(ahead=60.0)]) == 1
    assert choose([Candidate(role=Role.INTERACTIVE, takes=False), BULK]) == 1
    assert choose([Candidate(draining=True), down]) == 1  # drained means none, even where nothing else is healthy
    assert choose([Candidate(serves=False), Candidate(ahead=60.0)]) == 1


candidates = st.builds(
    Candidate,
    role=st.sampled_from(Role),
    standing=st.sampled_from(Standing),
    takes=st.booleans(),
    draining=st.booleans(),
    serves=st.booleans(),
    big=st.booleans(),
    ahead=st.floats(0, 100),
    own=st.floats(0, 100),
    in_engine=st.integers(0, 100),
)


@given(st.lists(candidates, min_size=1, max_size=6), st.sets(st.integers(0, 5)), st.booleans(), st.integers(0, 99))
def test_there_is_an_upstream_until_all_were_tried(some: list[Candidate], tried: set[int], route: bool, turn: int) -> None:
    got = choose(some, tried, route, turn)
    left = set(range(len(some))) - tried
    assert (got is None) == (not left) and (got is None or got in left)


def test_two_failures_take_it_out_and_backoff_doubles_until_a_request_is_answered() -> None:
    health, now = Health(), 0.0
    health.failed(now)
    assert health.takes(now, 5)
    health.failed(now)
    assert not health.takes(now, 0)
    backoff = FIRST_BACKOFF_S
    for _ in range(8):
        assert not health.takes(now + backoff * 0.99, 0)
        now += backoff
        assert health.at(now) is Standing.TRIAL and health.takes(now, 0) and not health.takes(now, 1)
        health.checked(now)  # the health page is fine
        health.failed(now)  # the request is not
        backoff = min(2 * backoff, LONGEST_BACKOFF_S)
    health.answered()
    assert health.standing is Standing.UP and health.takes(now, 9)
    health.failed(now, unreachable=True)
    assert health.retry_at == now + FIRST_BACKOFF_S


def test_good_checks_alone_bring_it_back() -> None:
    health = Health()
    health.failed(0.0, unreachable=True)
    health.checked(0.5)
    assert health.standing is Standing.DOWN
    for _ in range(1 + CHECKS):
        health.checked(2.0)
    assert health.standing is Standing.UP


def test_one_failed_check_between_good_ones_is_forgiven() -> None:
    health = Health()
    for now in range(10):
        health.failed(now)
        health.checked(now)
    assert health.standing is Standing.UP
