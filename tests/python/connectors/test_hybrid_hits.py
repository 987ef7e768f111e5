"""The length of a hit that all groups of layers agree to."""

import numpy as np
import pytest

from hybrid_front import SIZE, Front, ids


@pytest.mark.law("G3")
def test_a_hit_ends_where_every_group_has_what_it_needs() -> None:
    front = Front()
    keys = front.keys(41)
    front.offloaded(keys, 16, 32)
    assert front.ask.matched("one", keys) == 32
    assert front.ask.matched("one", keys, 2) == 32 - 2 * SIZE
    assert front.ask.matched("short", front.keys(31)) == 16, "no state of 28 tokens"
    assert front.ask.matched("shorter", front.keys(15)) == 0
    assert front.ask.matched("other", front.keys(41, 100)) == 0


def test_hits_that_a_group_has_ended_are_counted_once_for_each_request() -> None:
    front = Front("S8 F W4")
    keys = front.keys(41)
    front.offloaded(keys, 16)
    for _ in range(2):
        assert front.ask.matched("one", keys) == 16
    assert front.ask.hits_cut() == {0: 0, 2: 0}
    front.ask.allocated("one", front.tables(4))
    front.carry()
    assert front.ask.matched("two", front.keys(17)) == 16
    front.ask.allocated("two")
    assert front.ask.hits_cut() == {0: 1, 2: 0}


@pytest.mark.law("G3")
@pytest.mark.parametrize("words", ["F W4", "F S", "F C8", "F F", "F W5 S8"])
def test_one_token_at_least_is_computed(words: str) -> None:
    front = Front(words)
    keys = front.keys(32)
    front.offloaded(keys, 8, 16, 24, 32)
    found = front.ask.matched("one", keys)
    assert found is not None
    assert 0 < found < 32
    assert front.ask.matched("longer", front.keys(33)) == 32


@pytest.mark.law("G3")
def test_again_shortens_a_hit_before_it_is_agreed() -> None:
    front = Front("F S8", again=1)
    keys = front.keys(33)
    front.offloaded(keys, 16, 32)
    assert front.ask.matched("one", keys) == 16, "there is no state of 28 tokens"


@pytest.mark.law("G3")
def test_only_blocks_behind_the_engines_own_are_asked_for() -> None:
    front = Front("F W12")
    keys = front.keys(33)
    tables = front.tables(8)
    tables[1][:6] = [0] * 6
    front.ask.offload("before", keys, tables, at=[32])
    front.carry()
    assert front.ask.matched("one", keys, 6) == 8, (
        "the window of 32 needs block 5, the engine's own"
    )
    assert front.ask.matched("two", keys, 4) == 0
    front.ask.matched("one", keys, 6)
    front.ask.allocated("one", [[201, 202], [203, 204]])
    assert ids(front.carry().up) == {0: [201, 202], 1: [203, 204]}
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.law("G3")
def test_at_the_end_of_a_chunk_nothing_is_needed() -> None:
    front = Front("F C16")
    keys = front.keys(33)
    front.ask.offload("before", keys, front.tables(8))
    front.carry()
    assert front.ask.matched("one", keys) == 32
    assert front.ask.matched("two", front.keys(31)) == 16
    front.ask.allocated("one", [range(200, 208), [0] * 8])
    assert ids(front.carry().up) == {0: list(range(200, 208))}
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.law("G3")
def test_what_is_in_flight_is_waited_for_only_if_nothing_is_missing() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    tables = front.tables(8)
    front.ask.offload("before", keys, tables, at=[16])
    assert front.ask.matched("one", keys) is None, "16 tokens are on their way in both groups"
    first = front.step()
    front.land(*(plan for plan in first.down if plan.group == 1))
    assert front.ask.matched("one", keys) is None, "the spine is"
    front.land(*(plan for plan in first.down if plan.group == 0))
    front.ask.offload("before", keys, tables, at=[32])
    made = front.step()
    assert front.ask.matched("one", keys) is None, "a longer hit is on its way"
    front.land(*made.down, good=0)
    assert front.ask.matched("one", keys) == 16


@pytest.mark.law("G1")
def test_a_second_group_of_full_attention_needs_every_block() -> None:
    front = Front("F F")
    keys = front.keys(33)
    tables = front.tables(8)
    tables[1][3] = 0
    front.ask.offload("before", keys, tables, at=[32])
    front.carry()
    assert front.ask.matched("one", keys) == 12


@pytest.mark.law("G3")
def test_blocks_counted_in_a_narrow_integer_of_numpy_are_as_many() -> None:
    front = Front("F W4", host=128)
    keys = front.keys(301)
    front.offloaded(keys, 300)
    local = np.uint8(70)
    assert front.ask.matched("one", keys, local) == 300 - 70 * SIZE  # type: ignore[arg-type]
    front.ask.allocated("one", [[201, 202, 203, 204, 205], [0, 0, 0, 0, 206]])
    assert ids(front.carry().up) == {0: [201, 202, 203, 204, 205], 1: [206]}
    assert front.ask.arrived() == {"one": 300}
