"""The scheduler's half for an engine with groups of layers: what is agreed, kept, loaded, ended."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import Orders
from blockyard.shared.groups import Groups
from blockyard.shared.layout import Plane

SIZE = 4
FULL, WINDOW, STATE = 1, 0, 2
"""The engine's numbers of the groups of most tests."""


def layout(nbytes: int = 16) -> by.KVLayout:
    return by.KVLayout((Plane("kv", 1, nbytes),), block_size=SIZE, ranks=1, dtype="uint8")


def kinds(words: str) -> list[Any]:
    made: dict[str, Callable[[int], Any]] = {
        "F": lambda _: by.Full(layout()),
        "W": lambda tokens: by.SlidingWindow(layout(), tokens=tokens),
        "C": lambda tokens: by.ChunkedAttention(layout(), tokens=tokens),
        "S": lambda tokens: by.RecurrentState(layout(), every=tokens or None),
    }
    return [made[word[0]](int(word[1:] or 0)) for word in words.split()]


class Front:
    """A connector over groups, whose orders land when they are carried out by hand."""

    def __init__(
        self, words: str = "W10 F S8", *, retries: int = 2, again: int = 0, **more: Any
    ) -> None:
        self.groups = Groups(kinds(words))
        sizes = {"host": [64] * len(self.groups)} | {
            name: [size] * len(self.groups) if isinstance(size, int) else size
            for name, size in more.items()
            if name in ("host", "disk")
        }
        fields = {name: value for name, value in more.items() if name not in sizes}
        configs = by.GroupConfigs(kinds(words), engine=256, **sizes, **fields)
        self.caches = [by.KVCache(config) for config in configs]
        self.ask = HybridConnector(self.caches, self.groups, retries=retries, again=again)
        self.ids = iter(range(1, 256))

    def keys(self, tokens: int, first: int = 0) -> by.Keys:
        return self.caches[0].keys(range(first, first + tokens))

    def tables(self, blocks: int) -> list[list[int]]:
        """Tables in which every group has every block."""
        return [[next(self.ids) for _ in range(blocks)] for _ in self.groups]

    def step(self, written: Iterable[int] = ()) -> Orders:
        made = self.ask.step(list(written))
        assert [cache.audit() for cache in self.caches] == [None] * len(self.caches)
        return made

    def land(self, *plans: by.Plan, good: int | None = None, corrupt: bool = False) -> None:
        cause = None if good is None else by.Cause.CORRUPT if corrupt else by.Cause.FAILED
        counts = [len(plan) if good is None else good for plan in plans]
        self.ask.commit(
            by.Outcome.of(plan, 0, count, cause) for plan, count in zip(plans, counts, strict=True)
        )
        assert [cache.audit() for cache in self.caches] == [None] * len(self.caches)

    def carry(self, written: Iterable[int] = ()) -> Orders:
        made = self.step(written)
        self.land(*made.down, *made.up)
        return made

    def states(self, tables: Sequence[Sequence[int]], *lengths: int) -> list[tuple[int, int, int]]:
        """The states of some lengths, each in the block of its table that ends there."""
        has = [
            n
            for n, kind in zip(self.groups.numbers, self.groups, strict=True)
            if isinstance(kind, by.RecurrentState)
        ]
        return [(n, tables[n][length // SIZE - 1], length) for n in has for length in lengths]

    def offloaded(self, keys: by.Keys, *at: int) -> None:
        """Offloads a request, its riders at some lengths."""
        tables = self.tables(len(keys))
        self.ask.offload("before", keys, tables, at=at, states=self.states(tables, *at))
        self.carry()

    def stored(self, group: int) -> int:
        """How many blocks the host of a group has, by the engine's number."""
        return self.caches[self.groups.numbers.index(group)].stats()["host_idle"]


def ids(plans: Iterable[by.Plan]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for plan in plans:
        device = plan.sources if plan.source_tier == "device" else plan.destinations
        found.setdefault(plan.group, []).extend(device.tolist())
    return found


# -- agreement -----------------------------------------------------------------------------------


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


# -- loads ---------------------------------------------------------------------------------------


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


# -- keeps ---------------------------------------------------------------------------------------


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


# -- what ends in one group ends in all ------------------------------------------------------------


@pytest.mark.law("G13", "E9")
def test_a_clear_ends_the_epoch_in_all_groups() -> None:
    front = Front()
    keys = front.keys(41)
    front.offloaded(keys, 32)
    tables = front.tables(10)
    front.ask.offload("one", front.keys(41, 100), tables, at=[32])
    front.ask.clear()
    made = front.step()
    assert (made.down, made.up) == ((), ())
    assert [bool(cache.find(keys).host) for cache in front.caches] == [False] * 3
    assert [cache.known_keys().shape for cache in front.caches] == [(0, 32)] * 3
    assert front.ask.matched("one", keys) == 0


@pytest.mark.law("G13")
def test_what_is_forgotten_is_forgotten_in_all_groups_with_all_that_stands_on_it() -> None:
    front = Front("F W8")
    long, other = front.keys(41), front.keys(41, 100)
    front.offloaded(long, 16, 32, 40)
    front.offloaded(other, 40)
    prompt = front.keys(20)
    assert front.ask.forget(prompt).blocks == 10
    assert [len(cache.known_keys()) for cache in front.caches] == [10, 2]
    assert front.ask.matched("one", long) == 0
    assert front.ask.matched("two", other) == 40
    tables = front.tables(10)
    front.ask.offload("one", long, tables, at=[40])
    front.ask.forget(prompt)
    front.carry()
    assert [len(cache.known_keys()) for cache in front.caches] == [10, 2], "nothing is on its way"


@pytest.mark.law("G13", "INV-32")
def test_a_disk_that_dies_takes_its_slots_in_all_groups() -> None:
    front = Front("F W8", host=[8, 8], disk=[9, 6], keyed=("disk",))
    before = [cache.limit("disk") for cache in front.caches]
    front.ask.withdraw({(0, 3)})
    assert [cache.limit("disk") for cache in front.caches] == [6, 4]
    assert before == [9, 6]


@pytest.mark.law("G13")
def test_a_reset_forgets_what_runs_in_all_groups_and_what_is_kept_stays() -> None:
    front = Front("F W8")
    keys, other = front.keys(33), front.keys(33, 100)
    assert front.ask.preempted("kept", keys, front.tables(8), 32)
    front.carry()
    front.offloaded(other, 32)
    assert front.ask.matched("loads", other) == 32
    front.ask.allocated("loads", front.tables(8))
    front.step()
    front.ask.reset(memory="kept")
    assert [cache.stats()["flights"] for cache in front.caches] == [0, 0]
    assert front.ask.matched("kept", keys) == 32
    assert front.ask.matched("loads", other) == 32


def test_uses_and_hints_hold_for_what_checkpoints_need(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, int, Any]] = []
    right = by.KVCache.used

    def used(self: by.KVCache, rows: list[by.Keys], **named: Any) -> None:
        said.append((self.config.group, sum(map(len, rows)), named.get("retention")))
        right(self, rows, **named)

    monkeypatch.setattr(by.KVCache, "used", used)
    front = Front("F W8")
    keys = front.keys(33)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    front.ask.offload("one", keys, front.tables(8), at=[16])
    for _ in range(4):
        front.carry()
    assert set(said) == {(0, 8, None), (1, 2, None)}
    said.clear()
    assert not front.ask.finished("one", keys, front.tables(8), retention="session-ended")
    front.step()
    assert set(said) == {(0, 8, "session-ended"), (1, 4, "session-ended")}


def test_explain_names_the_group_that_ends_a_hit() -> None:
    front = Front("S8 F W4")
    keys = front.keys(41)
    front.offloaded(keys, 16)
    tables = front.tables(10)
    front.ask.offload("one", keys, tables, at=[24])
    assert "in flight" not in front.ask.explain(keys)
    front.carry()
    said = front.ask.explain(keys)
    assert said == (
        "group 1 (Full) has 40 of 41 tokens (whole). group 0 (RecurrentState every 8 tokens) ends "
        "the hit at 16 tokens, because it lacks block 9; without it the hit would go on to 40."
    )
    assert front.ask.hits_cut() == {0: 0, 2: 0}, "a question changes nothing"


@pytest.mark.law("G10")
def test_of_all_ranks_the_smallest_count_holds_in_each_group() -> None:
    wide = by.KVLayout((Plane("kv", 1, 16),), block_size=SIZE, ranks=2, dtype="uint8")
    configs = by.GroupConfigs(
        [by.Full(wide), by.SlidingWindow(wide, tokens=8)], engine=64, host=[32, 32]
    )
    caches = [by.KVCache(config) for config in configs]
    ask = HybridConnector(caches, configs.groups, retries=0)
    keys = caches[0].keys(range(17))

    def report(plans: Iterable[by.Plan], rank: int, *, bad: int | None = None) -> None:
        ask.commit(
            by.Outcome.of(plan, rank, 0, by.Cause.FAILED)
            if plan.group == bad
            else by.Outcome.of(plan, rank, len(plan))
            for plan in plans
        )

    ask.offload("one", keys, [[1, 2, 3, 4], [5, 6, 7, 8]], at=[16])
    down = ask.step().down
    report(down, 0)
    assert ask.matched("two", keys) is None, "rank 1 has not reported"
    report(down, 1)
    for bad, tokens in ((1, 0), (None, 16)):
        name = f"bad {bad}"
        assert ask.matched(name, keys) == 16
        ask.allocated(name, [[20, 21, 22, 23], [0, 0, 24, 25]])
        up = ask.step().up
        report(up, 0)
        assert ask.arrived() == {}
        report(up, 1, bad=bad)
        assert ask.arrived() == {name: tokens}
        ask.finished(name)


def test_the_spines_free_blocks_alone_are_copied_ahead() -> None:
    front = Front("F W8", host=[4, 4])
    keys = front.keys(17)
    tables = front.tables(4)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    front.ask.finished("one", keys, tables)
    front.carry()
    front.offloaded(front.keys(17, 300), 16)
    made = front.ask.step(victims=[tables[0][0], tables[1][3]])
    assert ids(made.down) == {0: [tables[0][0]]}
    front.land(*made.down)


def test_a_salt_separates_requests_in_every_group() -> None:
    front = Front("F W8")
    salted = front.caches[0].keys(range(33), salt="tenant")
    front.offloaded(salted, 32)
    assert front.ask.matched("one", front.keys(33)) == 0
    assert front.ask.matched("two", salted) == 32


def test_a_group_that_becomes_smaller_costs_hits_and_nothing_else() -> None:
    front = Front("F W8")
    keys, kept = front.keys(33), front.keys(33, 100)
    assert front.ask.preempted("kept", kept, front.tables(8), 32)
    front.carry()
    front.offloaded(keys, 32)
    front.caches[1].resize("host", 2)
    assert front.ask.matched("one", keys) == 0
    assert front.ask.matched("kept", kept) == 32
    front.ask.allocated("kept", front.tables(8))
    front.carry()
    assert front.ask.arrived() == {"kept": 32}


# -- bad input -------------------------------------------------------------------------------------


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
