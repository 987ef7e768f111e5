"""Loads of several groups of layers: whole, or nothing."""

import pytest

from hybrid_front import Front, ids


@pytest.mark.law("G10")
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_a_load_that_is_short_in_any_group_is_of_no_use(fails: int) -> None:
    front = Front(retries=0)
    keys = front.keys(41)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32
    front.ask.allocated("one", front.tables(8))
    made = front.step()
    assert {plan.group for plan in made.up} == {0, 1, 2}
    front.land(*(plan for plan in made.up if plan.group == fails), good=0)
    assert front.ask.arrived() == {}, "copies of other groups still write"
    front.land(*(plan for plan in made.up if plan.group != fails))
    front.carry()
    assert front.ask.arrived() == {"one": 0}
    assert [front.ask.matched("one", keys) for _ in range(2)] == [0, 0]
    front.ask.allocated("one")
    assert front.ask.matched("two", keys) == 32, "the copies below are as good as before"


@pytest.mark.law("G10")
def test_a_copy_that_fails_is_tried_again_inside_the_load() -> None:
    front = Front()
    keys = front.keys(41)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32
    front.ask.allocated("one", front.tables(8))
    made = front.step()
    front.land(*made.up, good=0)
    assert front.ask.arrived() == {}
    assert len(front.carry().up) == len(made.up)
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.law("G10", "E1")
def test_a_load_that_waited_for_a_copy_of_the_spine_begins_in_every_group() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    front.ask.offload("other", front.keys(33, 500), [range(100, 108), [0] * 8])
    down = front.step().down
    assert front.ask.matched("one", keys) == 32
    front.ask.allocated("one", [range(200, 208), [0] * 6 + [100, 209]])
    assert not front.step().up
    assert not front.step().up
    front.land(*down)
    assert ids(front.carry().up) == {0: list(range(200, 208)), 1: [100, 209]}
    assert front.ask.arrived() == {"one": 32}
    front.carry()
    assert not front.ask.is_busy


@pytest.mark.law("G10", "E1")
def test_a_load_waits_until_no_group_copies_from_its_ids() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    other = front.keys(33, 500)
    front.ask.offload("other", other, [range(100, 108), range(110, 118)], at=[32])
    down = front.step().down
    assert front.ask.matched("one", keys) == 32
    spine, window = [*range(200, 207), 117], [0] * 6 + [208, 209]
    front.ask.allocated("one", [spine, window])
    assert front.step().up == (), "block 117 is still read for the window of another request"
    assert front.ask.is_busy
    front.land(*down)
    assert ids(front.carry().up) == {0: spine, 1: [208, 209]}
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.law("G10", "E1")
def test_ids_of_an_ended_request_are_kept_until_the_last_group_has_ended() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32
    front.ask.allocated("one", front.tables(8))
    made = front.step()
    front.land(*(plan for plan in made.up if plan.group == 0))
    assert front.ask.finished("one"), "the window still writes"
    assert front.ask.arrived() == {}
    front.land(*(plan for plan in made.up if plan.group == 1))
    assert front.ask.arrived() == {"one": 32}, "its ids are free"
    assert not front.ask.finished("one")
    assert [cache.stats()["flights"] for cache in front.caches] == [0, 0]


@pytest.mark.law("G10", "E1")
def test_a_late_copy_of_one_group_holds_the_ids_and_keeps_nobody_busy() -> None:
    front = Front("F W8", deadline=2)
    keys = front.keys(33)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32
    tables = front.tables(8)
    front.ask.allocated("one", tables)
    spine, late = front.step().up
    front.land(spine)
    for _ in range(5):
        front.ask.commit([])
        front.step()
    assert front.ask.arrived() == {}, "the copy may still write"
    assert front.step([tables[1][7]]).fence is not None
    front.ask.finished("one")
    front.land(late)
    for _ in range(2):
        front.carry()
    assert not front.ask.is_busy
    assert front.ask.arrived() == {"one": 0}


@pytest.mark.law("E1")
def test_the_fence_is_asked_of_every_group() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    tables = front.tables(8)
    front.ask.offload("before", keys, tables, at=[32])
    made = front.step([tables[1][7]])
    (plan,) = (plan for plan in made.down if plan.group == 1)
    assert (made.fence, made.written.tolist()) == (plan.flight, [tables[1][7]])
    front.land(*made.down)
    assert front.step([tables[1][7]]).fence is None
