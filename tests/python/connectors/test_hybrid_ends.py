"""What ends in one group of layers ends in all."""

from collections.abc import Iterable
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import NO_ORDERS
from blockyard.shared.layout import Plane
from hybrid_front import SIZE, Front, ids


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


@pytest.mark.law("G13")
def test_a_refused_reset_changes_nothing() -> None:
    front = Front("W8 F S8", disk=64)
    keys, tables = front.keys(33), front.tables(8)
    front.ask.offload("one", keys, tables, at=[32], states=front.states(tables, 32))
    assert front.ask.matched("one", keys) is None, "its copies are planned"
    for word in ("disk kept", "host kept", None):
        with pytest.raises(by.Misuse, match="memory = "):
            front.ask.reset(memory=word)  # type: ignore[arg-type]
    assert set(ids(front.carry().down)) == {0, 1, 2}
    assert front.ask.matched("one", keys) == 32


@pytest.mark.law("G13")
@pytest.mark.parametrize("lacks", range(3))
def test_where_the_disks_outlive_a_reset_a_group_without_one_loses_all(lacks: int) -> None:
    disks = [0 if group == lacks else 64 for group in range(3)]
    front = Front("W8 F S8", disk=disks, keyed=("disk",), write="through")
    keys, tables = front.keys(33), front.tables(8)
    front.offloaded(keys, 32)
    while front.ask.is_busy:
        front.carry()
    front.ask.matched("loads", keys)
    front.ask.allocated("loads", tables)
    front.step()
    front.ask.reset(memory="disk kept")
    has = [len(cache.known_keys()) > 0 for cache in front.caches]
    assert has == [group != lacks for group in front.groups.numbers]
    assert front.ask.matched("loads", keys) == 0
    assert not front.ask.finished("loads")
    front.offloaded(front.keys(33, 500), 32)
    assert front.ask.matched("one", front.keys(33, 500)) == 32


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
        "the hit at 16 tokens, because it lacks block 9; group 1 (Full) goes on to 40."
    )
    assert front.ask.hits_cut() == {0: 0, 2: 0}, "a question changes nothing"
    tables[2][9] = 0
    front.ask.offload("one", keys, tables, states=[(0, tables[0][9], 40)])
    front.carry()
    assert front.ask.matched("two", keys) == 16, "the window lacks block 9, too"


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


@pytest.mark.parametrize("words", ["F", "F W8", "F S8"])
def test_it_is_busy_until_all_that_the_hosts_have_is_on_the_disks(words: str) -> None:
    front = Front(words, disk=64, keyed=("disk",), write="through")
    front.offloaded(front.keys(33), 16, 32)
    flying: list[by.Plan] = []
    while front.ask.is_busy:
        plans = front.step().down
        if not plans:  # each copy takes a step in which nothing is planned
            front.land(*flying)
        flying = list(plans)
    stats = [cache.stats() for cache in front.caches]
    assert [one["disk_idle"] for one in stats] == [one["host_idle"] for one in stats]
    assert all(one["disk_idle"] for one in stats)
    assert front.carry() == NO_ORDERS


@pytest.mark.law("G8", "G13")
def test_a_load_that_waits_while_its_keep_is_forgotten_brings_nothing() -> None:
    front = Front("F W8")
    keys, other = front.keys(33), front.keys(33, 500)
    assert front.ask.preempted("one", keys, front.tables(8), 32)
    front.carry()
    tables = front.tables(8)
    front.ask.offload("other", other, tables, at=[32])
    down = front.step().down
    assert front.ask.matched("one", keys) == 32
    front.ask.allocated("one", tables)
    front.ask.forget(keys, force=True)
    assert front.step().up == (), "its ids are still read"
    front.land(*down)
    front.carry()
    assert front.ask.arrived() == {"one": 0}
    assert front.ask.matched("one", keys) == 0
    front.ask.finished("one")
    assert [cache.stats()["parked"] for cache in front.caches] == [0, 0]
