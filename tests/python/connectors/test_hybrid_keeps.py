"""What is kept of a preempted request, and offloaded at checkpoints, by groups of layers."""

import pytest

from hybrid_front import FULL, SIZE, STATE, WINDOW, Front, ids


@pytest.mark.law("G8")
def test_a_preempted_request_comes_back_at_its_token() -> None:
    front = Front("W10 F C16")
    keys = front.keys(40)
    tables = front.tables(10)
    tables[WINDOW][:7] = [0] * 7
    assert front.ask.preempted("one", keys, tables, 39)
    front.carry()
    assert front.ask.matched("one", keys) == 39
    new = front.tables(10)
    front.ask.allocated("one", new)
    assert ids(front.carry().up) == {0: new[1], 1: new[0][7:], 2: new[2][8:]}
    assert front.ask.arrived() == {"one": 39}
    assert [cache.stats()["parked"] for cache in front.caches] == [0, 0, 0]


@pytest.mark.law("G8")
def test_with_states_it_comes_back_at_the_last_one_that_the_engine_has() -> None:
    front = Front()
    keys = front.keys(40)
    tables = front.tables(10)
    assert front.ask.preempted("one", keys, tables, 39, front.states(tables, 16, 32))
    front.carry()
    assert front.ask.matched("one", keys) == 32
    assert front.ask.finished("one") is False
    assert [cache.stats()["parked"] for cache in front.caches] == [0, 0, 0]


@pytest.mark.law("G8")
@pytest.mark.parametrize("tokens", [29, 28, 3])
def test_a_running_state_is_kept_at_its_token_and_only_for_its_request(tokens: int) -> None:
    front = Front()
    keys, tables = front.keys(31), front.tables(8)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    states = [*front.states(tables, *range(8, tokens, 8)), (STATE, 200, tokens)]
    assert front.ask.preempted("one", keys, tables, tokens, states)
    made = front.carry()
    assert ids(made.down)[2] == [200]
    assert front.ask.matched("two", keys) == 0
    assert front.ask.matched("one", keys) == tokens
    loads = front.tables(-(-tokens // SIZE))
    front.ask.allocated("one", loads)
    assert ids(front.carry().up)[2] == [loads[STATE][-1]]
    assert front.ask.arrived() == {"one": tokens}


@pytest.mark.law("G8")
def test_a_running_state_without_room_leaves_what_the_last_boundary_needs() -> None:
    front = Front(host=[64, 64, 2])
    for request in range(2):
        keys, tables = front.keys(31, 100 * request), front.tables(8)
        assert front.ask.preempted(request, keys, tables, 30, [(STATE, 200 + request, 30)])
    front.carry()
    tables = front.tables(8)
    states = [*front.states(tables, 8, 24), (STATE, 202, 30)]
    assert not front.ask.preempted("one", front.keys(31, 500), tables, 30, states)
    made = ids(front.carry().down)
    assert made[0] == tables[FULL][:7]
    assert {*tables[WINDOW][3:6]} <= {*made[1]}


@pytest.mark.law("G8")
def test_what_has_slid_out_is_taken_from_below_or_ends_the_keep() -> None:
    front = Front("F W12")
    keys = front.keys(34)
    tables = front.tables(9)
    front.ask.offload("one", keys, [table[:8] for table in tables], at=[24])
    front.carry()
    slid = [tables[0], [0] * 6 + tables[1][6:]]
    assert front.ask.preempted("one", keys, slid, 33), "block 5 is below"
    plans = front.carry().down
    assert tables[1][5] not in ids(plans)[1]
    assert front.ask.matched("one", keys) == 33
    other = front.keys(34, 100)
    assert not front.ask.preempted("two", other, slid, 33), "it is nowhere"
    assert front.ask.stats()["kept"] == 1


@pytest.mark.law("G8")
@pytest.mark.parametrize("lacks", [0, 1])
def test_without_room_in_one_group_no_group_keeps_anything(lacks: int) -> None:
    front = Front("F W20", host=[[12, 30], [30, 10]][lacks])
    keys = front.keys(34)
    pinned = front.keys(25, 700)
    assert front.ask.preempted("before", pinned, front.tables(6), 24)
    front.carry()
    assert not front.ask.preempted("one", keys, front.tables(9), 33)
    front.carry()
    assert front.ask.stats()["no_host"] == 1
    assert front.ask.finished("before") is False
    assert [cache.stats()["parked"] for cache in front.caches] == [0, 0]
    assert [cache.stats()["host_pinned"] for cache in front.caches] == [0, 0]


@pytest.mark.law("G8")
@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_keep_that_loses_a_block_in_any_group_is_broken_whole(group: int) -> None:
    front = Front()
    keys = front.keys(40)
    tables = front.tables(10)
    assert front.ask.preempted("one", keys, tables, 39, front.states(tables, 32))
    made = front.step()
    assert front.ask.matched("one", keys) is None
    front.land(*(plan for plan in made.down if plan.group == group), good=0)
    front.land(*(plan for plan in made.down if plan.group != group))
    front.carry()
    found = front.ask.matched("one", keys)
    assert found == 0, "nothing of it is agreed"
    assert [cache.stats()["parked"] for cache in front.caches] == [0, 0, 0]
    assert front.ask.stats()["kv_lost"] == 1
    assert [cache.stats()["host_pinned"] for cache in front.caches] == [0, 0, 0]


@pytest.mark.law("G8")
def test_a_keep_that_is_broken_later_is_given_up_in_all_groups() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    assert front.ask.preempted("one", keys, front.tables(8), 32)
    front.carry()
    front.caches[1].clear()
    assert front.ask.matched("one", keys) == 0
    assert front.caches[0].stats()["parked"] == 0
    assert front.caches[0].find(keys).host == 8, "others find the spine"


# -- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.law("G11")
def test_only_what_checkpoints_need_is_offloaded_of_riders() -> None:
    front = Front("F W8 S8", host=[64, 64, 64])
    keys = front.keys(81)
    front.offloaded(keys, 40, 80)
    assert [front.stored(group) for group in range(3)] == [20, 4, 2]


@pytest.mark.law("G11")
def test_copies_at_checkpoints_take_nothing_that_is_kept() -> None:
    front = Front("F W8", host=[64, 4])
    kept = front.keys(33, 100)
    assert front.ask.preempted("kept", kept, front.tables(8), 32)
    front.carry()
    front.offloaded(front.keys(33), 16, 32)
    front.offloaded(front.keys(33, 300), 16, 32)
    assert front.ask.matched("kept", kept) == 32


def test_checkpoints_are_the_junction_and_the_last_boundary_of_the_prompt() -> None:
    front = Front("F S8")
    first = front.caches[0].keys([*range(40), *range(900, 910)])
    front.offloaded(first, 48)
    second = front.caches[0].keys([*range(40), *range(800, 850)])
    assert front.ask.matched("second", second) == 0
    assert front.ask.checkpoints("second") == [40, 88]
    assert front.ask.checkpoints("nobody") == []
    tables = front.tables(22)
    front.ask.allocated("second")
    front.ask.offload("second", second, tables, at=[40, 88], states=front.states(tables, 40, 88))
    front.carry()
    assert front.ask.matched("third", front.caches[0].keys([*range(40), 5, 6])) == 40


def test_what_ends_is_offloaded_with_what_its_last_length_needs() -> None:
    front = Front()
    keys = front.keys(41)
    tables = front.tables(10)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    assert not front.ask.finished("one", keys, tables, states=front.states(tables, 24, 40))
    front.carry()
    assert front.ask.matched("two", front.keys(42)) == 40
    assert front.ask.matched("three", front.keys(27)) == 24
