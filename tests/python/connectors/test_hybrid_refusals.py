"""What a connector over several groups of layers refuses, and what is the same after it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import NO_ORDERS
from blockyard.shared.groups import Groups
from hybrid_front import SIZE, Front, kinds, layout

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.law("G12")
def test_tables_that_do_not_fit_are_refused_by_the_name_of_their_group() -> None:
    front = Front()
    keys = front.keys(41)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32
    good = front.tables(8)
    for wrong, what in (
        ([good[0], good[1]], "2 tables for 3 groups"),
        ([good[0][:7], good[1], good[2]], r"group 0 \(SlidingWindow of 10 tokens\) = 7 blocks"),
        ([good[0], good[1], good[2][:3]], r"group 2 \(RecurrentState"),
        ([table[:5] for table in good], "tables of 5 blocks .* 8 were matched"),
        ([[0] * 8, good[1], good[2]], r"group 0 \(SlidingWindow.*block 5 is the null block"),
        ([good[0], good[1], [0] * 8], r"group 2 .*block 7 is the null block"),
        ([good[0], [0, *good[1][1:]], good[2]], r"group 1 \(Full\).*null block"),
        ([good[0], good[1], good[1]], f"block id {good[1][7]} is listed twice"),
        ([good[0], [*good[1][:7], 256], good[2]], r"group 1 \(Full\).*ids = 256"),
    ):
        with pytest.raises(by.Misuse, match=what):
            front.ask.allocated("one", wrong)
    front.ask.allocated("one", good)
    front.carry()
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.law("G12")
def test_a_checkpoint_that_is_no_boundary_is_refused() -> None:
    front = Front()
    keys, tables = front.keys(41), front.tables(10)
    with pytest.raises(by.Misuse, match=r"checkpoint = 12: .*RecurrentState.*8 or 16"):
        front.ask.offload("one", keys, tables, at=[12])
    with pytest.raises(by.Misuse, match="checkpoint = 48: the tables have 40"):
        front.ask.offload("one", keys, tables, at=[48])
    with pytest.raises(by.Misuse, match="states: length = 12 of group 2"):
        front.ask.offload("one", keys, tables, states=[(2, 7, 12)])
    with pytest.raises(by.Misuse, match="group 0 has no states; these have: group 2"):
        front.ask.offload("one", keys, tables, states=[(0, 7, 8)])
    with pytest.raises(by.Misuse, match="ids = 300"):
        front.ask.offload("one", keys, tables, states=[(2, 300, 8)])
    with pytest.raises(by.Misuse, match=r"block id 7 of group 2 .*name one block"):
        front.ask.offload("one", keys, tables, states=[(2, 7, 8), (2, 7, 16)])
    with pytest.raises(by.Misuse, match=r"block id 9 of group 2 .*name one block"):
        front.ask.offload("one", keys, tables, states=[(2, 7, 8), (2, 9, 8)])
    twice = [[*tables[0][:9], tables[0][0]], *tables[1:]]
    nothing = [tables[0], [0, *tables[1][1:]], tables[2]]
    for verb in (front.ask.offload, front.ask.finished):
        with pytest.raises(by.Misuse, match=f"group 0 .*block id {tables[0][0]} is listed twice"):
            verb("one", keys, twice)
        with pytest.raises(by.Misuse, match=r"group 1 \(Full\): it has the null block 0"):
            verb("one", keys, nothing)
    with pytest.raises(by.Misuse, match=r"group 1 \(Full\): it has the null block 0"):
        front.ask.preempted("one", keys, nothing, 40)
    with pytest.raises(by.Misuse, match="tokens = 45 in tables of 10 blocks"):
        front.ask.preempted("one", keys, tables, 45)
    assert front.step().down == ()


@pytest.mark.law("G12")
def test_an_outcome_of_another_group_is_refused() -> None:
    front = Front("F W8")
    front.ask.offload("one", front.keys(33), front.tables(8), at=[32])
    made = front.step()
    spine, window = made.down
    wrong = by.Outcome(spine.flight, 0, 8, None, window.yard, spine.group)
    with pytest.raises(by.Misuse, match=r"yard is that of group 1 \(SlidingWindow"):
        front.ask.commit([wrong])
    with pytest.raises(by.Misuse, match="group 7"):
        front.ask.commit([by.Outcome(spine.flight, 0, 8, None, 0, 7)])
    front.land(spine, window)
    assert front.ask.matched("two", front.keys(33)) == 32


@pytest.mark.law("G12")
@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"linked": True}, r"linked = True in the cache of group 1 \(SlidingWindow"),
        ({"group": 2}, "group = 2 in the cache of group 1"),
        ({"engine": 99}, "engine = 99 in the cache of group 1"),
        ({"yard": 5}, r"yard = 5 in the caches of group 0 \(Full\) and group 1"),
    ],
)
def test_caches_that_do_not_fit_their_groups_are_refused(
    changed: dict[str, Any], what: str
) -> None:
    groups = Groups(kinds("F W8"))
    fields: dict[str, Any] = {"layout": layout(), "engine": 64, "host": 16}
    spine = by.KVCache(by.Config(**fields, yard=5))
    rider = by.KVCache(by.Config(**{**fields, "linked": False, "group": 1, **changed}))
    with pytest.raises(by.Misuse, match=what):
        HybridConnector([spine, rider], groups)
    with pytest.raises(by.Misuse, match="1 caches for 2 groups"):
        HybridConnector([spine], groups)
    given: list[tuple[Any, Any, str]] = [
        ([None, None], 0, r"caches = \[None, None\]: give a KVCache for each group"),
        (None, 0, "caches = None: give a KVCache"),
        ([spine, spine], "x", "linked = True in the cache of group 1"),
    ]
    for caches, null, wrong in given:
        with pytest.raises(by.Misuse, match=wrong):
            HybridConnector(caches, groups, null_block=null)
    front = Front("F W8")
    wrong_nulls: tuple[Any, ...] = ("x", None, 256, -1, True)
    for null in wrong_nulls:
        with pytest.raises(by.Misuse, match="null_block = "):
            HybridConnector(front.caches, front.groups, null_block=null)


def test_a_request_that_was_not_matched_or_is_loading_is_refused() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    with pytest.raises(by.Misuse, match="was not matched"):
        front.ask.allocated("one")
    front.ask.matched("one", keys)
    front.ask.allocated("one", front.tables(8))
    calls: list[Callable[[], object]] = [
        lambda: front.ask.matched("one", keys),
        lambda: front.ask.allocated("one"),
        lambda: front.ask.preempted("one", keys, front.tables(8), 32),
    ]
    for call in calls:
        with pytest.raises(by.Misuse, match="is loading"):
            call()
    assert len(front.step().up) == 2


def test_a_refused_question_changes_nothing_of_what_was_matched() -> None:
    front = Front("F W8")
    keys, other = front.keys(33), front.keys(33, 500)
    front.offloaded(keys, 32)
    front.offloaded(other, 32)
    assert front.ask.matched("one", keys) == 32
    with pytest.raises(by.Misuse, match="after = 99"):
        front.ask.matched("one", other, 99)
    front.ask.allocated("one", front.tables(8))
    window = next(plan for plan in front.carry().up if plan.group == 1)
    with pytest.raises(by.Misuse, match="after = 99"):
        front.ask.matched("new", keys, 99)
    with pytest.raises(by.Misuse, match="was not matched"):
        front.ask.allocated("new")
    assert front.ask.matched("two", keys) == 32
    front.ask.allocated("two", front.tables(8))
    again = next(plan for plan in front.carry().up if plan.group == 1)
    assert window.sources.tolist() == again.sources.tolist(), "the window of the first keys"


def test_a_keep_survives_a_refused_question() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    assert front.ask.preempted("one", keys, front.tables(9), 30)
    front.carry()
    with pytest.raises(by.Misuse, match="after = 99"):
        front.ask.matched("one", front.keys(8), 99)
    assert front.ask.matched("one", keys) == 30


def test_what_does_not_fit_a_preempted_request_is_refused() -> None:
    front = Front("F S8")
    keys, tables = front.keys(41), front.tables(30)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    before = [cache.digest() for cache in front.caches]
    strange = by.KVCache(by.Config(engine=8, block_size=8, host=8)).keys(range(41))
    refused: list[tuple[by.Keys, int, list[Any], str]] = [
        (keys, 100, [], "tokens = 100, and the keys are of 41"),
        (strange, 40, [], "keys of blocks of 8 tokens"),
        (keys, 40, [(1, 5, 48)], r"length = 48 of group 1 .*, and 40 tokens are computed"),
        (keys, 40, [(1, 0, 40)], r"block id 0 of group 1 .* is the null block"),
        (keys, 40, [(1, 5)], r"states: \(1, 5\): give \(group, block id, length\)"),
        (keys, 40, [7], "states: 7: give"),
    ]
    for asked, tokens, states, what in refused:
        with pytest.raises(by.Misuse, match=what):
            front.ask.preempted("one", asked, tables, tokens, states)
        assert [cache.digest() for cache in front.caches] == before


def test_the_null_block_is_no_state() -> None:
    front = Front("F S8")
    keys = front.keys(33)
    with pytest.raises(by.Misuse, match="is the null block"):
        front.ask.offload("one", keys, front.tables(8), at=[32], states=[(1, 0, 32)])
    front.carry()
    assert front.ask.matched("two", keys) == 0


def test_to_forget_a_prompt_keeps_what_is_to_be_offloaded_of_others() -> None:
    front = Front("F W8")
    keys, other = front.keys(33), front.keys(33, 500)
    front.offloaded(other, 32)
    front.ask.offload("one", keys, front.tables(8), at=[32])
    assert front.ask.forget(other).blocks == 8
    front.carry()
    assert front.ask.matched("two", keys) == 32
    assert front.ask.matched("three", other) == 0


def test_a_load_that_has_ended_is_not_said_of_the_next_request_of_its_id() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    front.ask.matched("one", keys)
    front.ask.allocated("one", front.tables(8))
    front.carry()
    assert not front.ask.finished("one")
    front.ask.matched("one", keys)
    front.ask.allocated("one", front.tables(8))
    made = front.step()
    assert front.ask.arrived() == {}
    front.land(*made.up)
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.parametrize("late", [0, 1])
def test_a_load_that_a_late_copy_holds_keeps_nobody_busy(late: int) -> None:
    front = Front("F W8", deadline=5, retries=0)
    keys = front.keys(33)
    front.offloaded(keys, 32)
    front.ask.matched("one", keys)
    front.ask.allocated("one", front.tables(8))
    made = front.step()
    front.land(*(plan for plan in made.up if plan.group != late))
    for _ in range(12):
        front.carry()
    assert not front.ask.is_busy
    assert front.ask.arrived() == {}, "the copy may still write"
    front.land(*(plan for plan in made.up if plan.group == late))
    front.carry()
    assert front.ask.arrived() == {"one": 0}


def test_what_is_kept_of_a_forgotten_prompt_is_given_up_at_once() -> None:
    front = Front("F W8 S8")
    keys, tables = front.keys(40), front.tables(10)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    assert front.ask.preempted("one", keys, tables, 38, [(2, tables[2][9], 38)])
    front.carry()
    assert front.ask.forget(keys).blocks == 0, "it is kept"
    assert front.ask.matched("one", keys) == 38
    front.ask.forget(keys, force=True)
    assert [cache.stats()["host_free"] for cache in front.caches] == [64] * 3
    assert front.ask.matched("one", keys) == 0


@pytest.mark.parametrize("group", [0, 1])
def test_a_count_that_is_refused_names_its_group(group: int) -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.ask.offload("before", keys, front.tables(8), at=[32])
    down = front.step().down
    wrong = [by.Outcome.of(plan, 0, 99 if plan.group == group else len(plan)) for plan in down]
    with pytest.raises(by.Misuse, match=rf"group {group} \(.*rank 0 reports 99 good blocks"):
        front.ask.commit(wrong)
    front.land(*down)
    assert front.ask.matched("one", keys) == 32


def test_a_load_whose_begin_is_interrupted_goes_on_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = Front("F W8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Connector, "allocated", interrupted)
        with pytest.raises(KeyboardInterrupt):
            front.ask.allocated("one", front.tables(8))
    front.carry()
    front.carry()
    assert front.ask.arrived() == {"one": 32}


@pytest.mark.law("G13")
@pytest.mark.parametrize("stripe", [(-1, 1), (0, 0), ("x", 1)])
def test_slots_that_no_disk_can_have_are_refused(stripe: Any) -> None:
    front = Front("F W8", disk=64)
    before = [cache.digest() for cache in front.caches]
    with pytest.raises(by.Misuse, match="of a dead disk = "):
        front.ask.withdraw([stripe])
    assert [cache.digest() for cache in front.caches] == before


@pytest.mark.law("G12")
def test_what_is_of_no_right_kind_is_refused_by_every_verb_and_changes_nothing() -> None:
    front = Front("F W8 S8")
    keys, tables = front.keys(33), front.tables(8)
    front.offloaded(keys, 32)
    front.ask.matched("one", keys)
    before = [cache.digest() for cache in front.caches]
    ask: Any = front.ask
    with_tables: list[Callable[[Any], object]] = [
        lambda given: ask.allocated("one", given),
        lambda given: ask.preempted("two", keys, given, 32),
        lambda given: ask.finished("two", keys, given),
        lambda given: ask.offload("two", keys, given),
    ]
    for call in with_tables:
        for wrong, what in (
            (None, "tables = None: give a list"),
            (7, "tables = 7: give a list"),
            ([tables[0], None, tables[2]], r"table of group 1 .* = None: give the ids"),
            (np.array(tables)[:, :, None], r"group 0 \(Full\): ids = array\(\[\[1\]"),
            (["12345678", *tables[1:]], r"group 0 \(Full\): ids = '12345678'"),
            ([bytes(range(1, 9)), *tables[1:]], r"group 0 \(Full\): ids = b'"),
            (np.array(tables, object), r"group 0 \(Full\): ids = array\(.*dtype=object"),
            (np.array(5), r"tables = array\(5\): give a list"),
            ([np.array(5)] * 3, r"table of group 0 \(Full\) = array\(5\): give the ids"),
        ):
            with pytest.raises(by.Misuse, match=what):
                call(wrong)
    with_keys: list[Callable[[Any], object]] = [
        lambda given: ask.matched("two", given),
        ask.explain,
        lambda given: ask.preempted("two", given, tables, 32),
        lambda given: ask.finished("two", given, tables),
        lambda given: ask.finished("two", given),
        lambda given: ask.offload("two", given, tables),
        ask.forget,
    ]
    for call in with_keys:
        for given in (5, [1, 2], b"x" * 32):
            with pytest.raises(by.Misuse, match=r"keys = .*give the keys of a prompt"):
                call(given)
    others: list[tuple[Callable[[], object], str]] = [
        (lambda: ask.offload("two", keys, tables, at=64), r"at = 64: .*like at=\[64\]"),
        (lambda: ask.offload("two", keys, tables, at=None), "at = None: give a list"),
        (lambda: ask.offload("two", keys, tables, at=["x"]), "checkpoint = 'x'"),
        (lambda: ask.offload("two", keys, tables, states=None), "states = None: give a list"),
        (lambda: ask.finished("two", keys, tables, states=[5]), "states: 5: give"),
        (lambda: ask.finished("two", keys, tables, states=[("x", 1, 8)]), "group = 'x'"),
        (lambda: ask.finished("two", keys, tables, states=[(2, 1, "x")]), "length = 'x'"),
        (lambda: ask.preempted("two", keys, tables, 32, [(2, "x", 8)]), "ids = 'x'"),
        (lambda: ask.finished("two", keys, tables, states=np.array(5)), r"states = array\(5\)"),
        (
            lambda: ask.preempted("two", keys, tables, 32, [(2, 1, np.array([8, 16]))]),
            r"length = array\(\[ 8, 16\]\)",
        ),
        (lambda: ask.preempted("two", keys, tables, 32, [(2, 1, 32.0)]), "length = 32.0"),
        (lambda: ask.offload("two", keys, tables, at=np.array(32)), r"at = array\(32\)"),
        (lambda: ask.withdraw(None), "dead = None: give pairs"),
        (lambda: ask.withdraw([5]), r"dead = \[5\]: give pairs"),
        (lambda: ask.withdraw([(0, 2, 4)]), r"dead = \[\(0, 2, 4\)\]: give pairs"),
        (lambda: ask.withdraw([([], 1)]), r"dead = \[\(\[\], 1\)\]: give pairs"),
        (lambda: ask.commit(np.array(5)), r"outcomes = array\(5\)"),
        (lambda: ask.commit(None), "outcomes = None"),
        (lambda: ask.commit([5]), "outcome = 5"),
    ]
    for refused, what in others:
        with pytest.raises(by.Misuse, match=what):
            refused()
    assert [cache.digest() for cache in front.caches] == before
    assert front.step() == NO_ORDERS
    ask.allocated("one", np.array(tables))
    front.carry()
    assert ask.arrived() == {"one": 32}


@pytest.mark.law("G12")
def test_a_block_that_would_be_read_for_two_groups_is_refused_and_an_unread_one_is_not() -> None:
    front = Front("F W8 S8")
    keys, tables = front.keys(33), front.tables(8)
    spine, window, states = tables
    before = [cache.digest() for cache in front.caches]
    whole = [(2, states[7], 32)]
    refused: list[tuple[Any, Any, str]] = [
        ([spine, [*window[:7], spine[3]], states], whole, "is read for group 0 .* for group 1"),
        (tables, [(2, window[7], 32)], "is read for group 1 .* for group 2"),
        (tables, [(2, spine[0], 32)], "is read for group 0 .* for group 2"),
    ]
    for wrong, told, what in refused:
        with pytest.raises(by.Misuse, match=what):
            front.ask.offload("one", keys, wrong, at=[32], states=told)
        with pytest.raises(by.Misuse, match=what):
            front.ask.finished("one", keys, wrong, states=told)
        with pytest.raises(by.Misuse, match=what):
            front.ask.preempted("one", keys, wrong, 32, told)
    assert [cache.digest() for cache in front.caches] == before
    assert front.step() == NO_ORDERS
    stale = [spine, [*spine[:6], *window[6:]], spine]
    front.ask.offload("one", keys, stale, at=[32], states=front.states(tables, 32))
    front.carry()
    assert front.ask.matched("two", keys) == 32


@pytest.mark.law("G12")
@pytest.mark.parametrize("group", [0, 1, 2])
def test_what_was_taken_before_a_refused_outcome_is_taken_once_when_all_come_again(
    group: int,
) -> None:
    front = Front("F W8 S8")
    keys = front.keys(33)
    front.offloaded(keys, 32)
    assert front.ask.matched("one", keys) == 32
    front.ask.allocated("one", front.tables(8))
    up = front.step().up
    right = [by.Outcome.of(plan, 0, len(plan)) for plan in up]
    wrong = [one._replace(good=99) if one.group == group else one for one in right]
    with pytest.raises(by.Misuse, match=rf"group {group} \(.*99 good blocks"):
        front.ask.commit(wrong)
    assert front.ask.arrived() == {}
    front.ask.commit(right)
    assert front.ask.arrived() == {"one": 32}
    front.carry()
    assert not front.ask.is_busy
    assert [cache.stats()["flights"] for cache in front.caches] == [0] * 3


def test_tables_of_any_integers_are_offloaded() -> None:
    front = Front("F W8")
    keys = front.keys(33)
    wide, narrow = (np.array(front.tables(8), dtype) for dtype in (np.uint64, np.int16))
    mixed: list[Any] = [[np.uint64(one), *more, np.int64(99)] for one, *more in front.tables(7)]
    mixed[1][-1] += 1
    for tables in (wide, narrow, mixed):
        front.ask.offload("before", keys, list(tables), at=[32])
        front.carry()
        assert front.ask.matched("one", keys) == 32
        front.ask.forget(keys)


@pytest.mark.law("G8", "G12")
def test_a_block_of_two_groups_is_refused_at_every_length_that_may_be_kept() -> None:
    front = Front("F W5 S")
    tables = [[1, 2, 3, 4], [11, 12, 2, 0], [21, 22, 23, 24]]
    before = [cache.digest() for cache in front.caches]
    with pytest.raises(by.Misuse, match=r"block id 2 is read for group 0 \(Full\) and for group 1"):
        # The window of 16 tokens is nowhere, and that of 12 is in block 2.
        front.ask.preempted("one", front.keys(30), tables, 16, [(2, 23, 12), (2, 24, 16)])
    assert [cache.digest() for cache in front.caches] == before


class Counted(int):
    """A block id that counts how often it is compared."""

    compared = 0

    @override
    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("blocks", [16, 48])
def test_states_are_compared_a_few_times_each(blocks: int) -> None:
    front = Front("F S")
    keys, tables = front.keys(SIZE * blocks), front.tables(blocks)
    states = [
        (group, Counted(one), length)
        for group, one, length in front.states(tables, *range(SIZE, SIZE * blocks + 1, SIZE))
    ]
    Counted.compared = 0
    front.ask.finished("one", keys, tables, states=states)
    assert Counted.compared <= 8 * blocks


def test_a_step_that_is_refused_loses_no_order() -> None:
    front = Front("F W8")
    keys, other = front.keys(33), front.keys(33, 500)
    tables, others = front.tables(8), front.tables(8)
    front.ask.offload("one", keys, tables, at=[32])
    front.ask.offload("two", other, [others[0], tables[1]], at=[32])
    with pytest.raises(by.Misuse, match="comes twice, with two keys"):
        front.step()
    front.carry()
    assert [cache.stats()["flights"] for cache in front.caches] == [0, 0]
    assert front.caches[0].stats()["host_idle"] == 16
    front.ask.offload("one", keys, tables, at=[32])
    front.carry()
    assert front.ask.matched("one", keys) == 32
