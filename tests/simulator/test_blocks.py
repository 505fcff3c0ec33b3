"""Keys and the order in which blocks are taken."""

from __future__ import annotations

from array import array

import pytest

from headway.simulator.blocks import ID, BlockPool, chained_keys


def tokens(*values: int) -> array:
    return array(ID, values)


def test_a_key_stands_for_everything_before_its_blocks_end() -> None:
    one = chained_keys(tokens(1, 2, 3, 4, 5, 6, 7), 2)
    other = chained_keys(tokens(1, 2, 9, 4, 5, 6, 7), 2)
    assert len(one) == 3
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2], "the same block behind another one has another key"


def test_salt_changes_every_key() -> None:
    plain, salted = chained_keys(tokens(*range(8)), 2), chained_keys(tokens(*range(8)), 2, "s")
    assert not set(plain) & set(salted)


def test_lookahead_waits_for_the_next_token() -> None:
    assert len(chained_keys(tokens(1, 2, 3, 4), 2, lookahead=1)) == 1
    assert len(chained_keys(tokens(1, 2, 3, 4, 5), 2, lookahead=1)) == 2


def test_blocks_without_a_key_are_taken_before_cached_ones_and_those_in_order_of_release() -> None:
    pool = BlockPool(5)
    a, b, c, d = pool.take(4)
    pool.publish(a, 0, 1)
    pool.publish(c, 0, 3)
    pool.release([c])
    pool.release([a, b])
    pool.release([d])
    assert [block.number for block in pool.take(4)] == [d.number, b.number, c.number, a.number]
    assert pool.find(0, 1) is None
    assert pool.find(0, 3) is None


def test_a_cached_block_is_found_until_it_is_taken_and_touching_saves_it() -> None:
    pool = BlockPool(3)
    a, b = pool.take(2)
    pool.publish(a, 0, 1)
    pool.publish(b, 0, 2)
    pool.release([a, b])
    found = pool.find(0, 1)
    assert found is a
    pool.touch([found])
    assert pool.take(1) == [b]
    assert pool.find(0, 1) is a
    assert pool.find(1, 1) is None


def test_two_blocks_with_one_key_survive_each_other() -> None:
    pool = BlockPool(4)
    a, b = pool.take(2)
    pool.publish(a, 0, 7)
    pool.publish(b, 0, 7)
    pool.release([a])
    assert pool.find(0, 7) is a
    pool.take(2)
    assert pool.find(0, 7) is b


def test_more_than_is_free_is_an_error_and_takes_nothing() -> None:
    pool = BlockPool(3)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        pool.take(3)
    assert pool.free_count == 2


def test_reset_forgets_everything_but_not_while_a_block_is_held() -> None:
    pool = BlockPool(3)
    (a,) = pool.take(1)
    pool.publish(a, 0, 1)
    assert not pool.reset()
    pool.release([a])
    assert pool.reset()
    assert pool.find(0, 1) is None
    assert len(pool.take(2)) == 2


def test_blocks_without_a_key_come_back_in_the_order_of_their_release() -> None:
    pool = BlockPool(5)
    a, b, c, d = pool.take(4)
    pool.release([c, a])
    pool.release([d, b])
    assert pool.take(4) == [d, b, c, a]
