"""The scheduler's half for an engine that owns its blocks: what is asked, planned and believed."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors import connector, loads, orders
from blockyard.connectors.connector import Connector
from blockyard.connectors.orders import Orders

SIZE = 4


class Front:
    """A connector whose orders land when they are carried out by hand."""

    def __init__(self, cache: by.KVCache | None = None, **config: Any) -> None:
        given = {"engine": 64, "host": 64, "block_size": SIZE} | config
        self.cache = by.KVCache(**given) if cache is None else cache
        self.ask = Connector(self.cache)

    def keys(self, tokens: int, first: int = 0) -> by.Keys:
        return self.cache.keys(range(first, first + tokens))

    def step(self, written: Iterable[int] = ()) -> Orders:
        made = self.ask.step(list(written))
        assert self.cache.audit() is None
        return made

    def land(self, *plans: by.Plan, good: int | None = None, corrupt: bool = False) -> None:
        cause = None if good is None else by.Cause.CORRUPT if corrupt else by.Cause.FAILED
        self.ask.commit(
            by.Outcome(plan.flight, rank, len(plan) if good is None else good, cause)
            for plan in plans
            for rank in range(self.cache.config.ranks)
        )
        assert self.cache.audit() is None

    def carry(self, written: Iterable[int] = ()) -> Orders:
        """Carries a step's orders out at once."""
        made = self.step(written)
        self.land(*made.down, *made.up)
        return made

    def offloaded(self, name: str, keys: by.Keys, first: int = 0) -> None:
        """Runs a request to its end."""
        assert self.ask.matched(name, keys) == 0
        self.ask.allocated(name)
        assert not self.ask.finished(name, keys, range(first, first + len(keys)))
        self.carry()


def held(cache: by.KVCache) -> list[int]:
    stats = cache.stats()
    return [stats[name] for name in ("host_pinned", "disk_pinned", "flights")]


def test_what_has_ended_is_found_again_and_comes_up_to_other_ids() -> None:
    front = Front()
    keys = front.keys(22)
    assert front.ask.matched("one", keys) == 0
    front.ask.allocated("one")
    assert not front.ask.finished("one", keys, [7, 3, 5, 9, 11, 2])
    made = front.step()
    (plan,) = made.down
    assert (plan.sources.tolist(), made.up, made.fence) == ([7, 3, 5, 9, 11], (), None)
    front.land(plan)
    assert front.ask.matched("two", keys, 2) == 3 * SIZE
    assert front.ask.matched("two", keys, 1) == 4 * SIZE
    front.ask.allocated("two", [20, 21, 22, 23])
    (plan,) = front.step().up
    assert plan.destinations.tolist() == [20, 21, 22, 23]
    assert front.ask.arrived() == {}
    front.land(plan)
    assert front.ask.arrived() == {"two": 20}
    assert front.ask.arrived() == {}
    assert held(front.cache) == [0, 0, 0]


def test_a_preempted_request_comes_back_with_exactly_its_tokens() -> None:
    front = Front()
    keys = front.keys(22)
    assert front.ask.preempted("one", keys, [1, 2, 3, 4, 5, 6], 22)
    made = front.step()
    assert [plan.sources.tolist() for plan in made.down] == [[1, 2, 3, 4, 5, 6]]
    assert front.ask.matched("one", keys) is None, "its copies are in the air"
    front.land(*made.down)
    assert front.ask.matched("one", keys, 2) == 22 - 2 * SIZE
    assert front.ask.matched("one", keys) == 22
    front.ask.allocated("one", range(30, 36))
    assert front.carry().up[0].destinations.tolist() == list(range(30, 36))
    assert front.ask.arrived() == {"one": 22}
    assert held(front.cache) == [0, 0, 0], "what was kept is given up"
    assert front.cache.find(keys).host == 5, "and found by others"


def test_what_is_kept_is_given_up_where_the_engine_has_it_still_and_where_it_ends() -> None:
    front = Front()
    keys = front.keys(8)
    for name in ("here", "gone"):
        assert front.ask.preempted(name, keys, [1, 2], 8)
    front.carry()
    assert front.ask.matched("here", keys, 2) == 0
    front.ask.allocated("here")
    assert not front.ask.finished("gone")
    assert not front.ask.finished("gone"), "of one that is not known there is nothing to say"
    assert held(front.cache) == [0, 0, 0]
    assert front.cache.stats()["leaked"] == 0


def test_the_second_of_two_equal_prompts_waits_and_copies_nothing_twice() -> None:
    front = Front()
    keys = front.keys(16)
    front.ask.finished("one", keys, range(4))
    assert front.ask.matched("two", keys) is None, "it is on its way down"
    front.ask.finished("three", keys, range(10, 14))
    made = front.step()
    assert sum(map(len, made.down)) == 4
    front.land(*made.down)
    assert front.ask.matched("two", keys) == 16
    front.ask.allocated("two", range(20, 24))
    assert front.ask.matched("four", keys) is None, "it is on its way up"
    front.carry()
    assert front.ask.matched("four", keys) == 16


def test_two_that_share_a_prefix_are_offloaded_once_and_cut_together() -> None:
    front = Front()
    one, two = front.cache.keys([*range(8), 90, 90]), front.cache.keys([*range(8), 91, 91])
    assert front.ask.preempted("one", one, [1, 2, 3], 10)
    assert front.ask.preempted("two", two, [1, 2, 4], 10)
    first, second = front.step().down
    assert (first.sources.tolist(), second.sources.tolist()) == ([1, 2, 3], [4])
    front.land(first, good=1)
    front.land(second)
    assert (front.ask.matched("one", one), front.ask.matched("two", two)) == (SIZE, SIZE)
    front.ask.allocated("one", [20])
    front.carry()
    assert front.ask.arrived() == {"one": SIZE}
    front.ask.finished("two")
    assert held(front.cache) == [0, 0, 0]


def test_ids_that_are_copied_from_have_a_fence_until_all_ranks_have_reported() -> None:
    layout = by.KVLayout.llama(2, 2, 8, block_size=SIZE, ranks=2)
    front = Front(engine=64, host=64, layout=layout, block_size=SIZE)
    assert front.ask.preempted("one", front.keys(10), [1, 2, 3], 10)
    made = front.step([3, 9])
    (plan,) = made.down
    assert (made.fence, made.written.tolist()) == (plan.flight, [3, 9])
    other = front.step([9, 10])
    assert (other.fence, len(other.written)) == (None, 0)
    front.ask.commit([by.Outcome(plan.flight, 0, 3)])
    assert front.step([2]).fence == plan.flight
    front.ask.commit([by.Outcome(plan.flight, 1, 1, by.Cause.FAILED)])
    assert front.step([2]).fence is None
    assert front.ask.matched("one", front.keys(10)) == SIZE, "the smallest count is believed"


def test_a_load_waits_for_ids_that_are_still_copied_from() -> None:
    front = Front()
    keys = front.keys(8)
    front.offloaded("before", keys)
    assert front.ask.preempted("one", front.keys(8, 100), [1, 2], 8)
    (down,) = front.step().down
    assert front.ask.matched("two", keys) == 8
    front.ask.allocated("two", [2, 3])
    made = front.step()
    assert (made.down, made.up) == ((), ())
    assert front.ask.arrived() == {}
    front.land(down)
    (up,) = front.step().up
    front.land(up)
    assert front.ask.arrived() == {"two": 8}


def test_a_load_comes_in_as_many_rounds_as_it_needs() -> None:
    front = Front()
    keys = front.keys(16)
    front.offloaded("before", keys)
    assert front.ask.matched("one", keys, 2) == 8
    assert front.ask.matched("two", keys) == 16
    front.ask.allocated("one", [12, 13])
    front.ask.allocated("two", [20, 21, 22, 23])
    one, two = front.step().up
    assert (one.destinations.tolist(), two.destinations.tolist()) == ([12, 13], [20, 21])
    front.land(two)
    assert front.step().up == (), "the others are on their way up for the first"
    front.land(one)
    assert front.ask.arrived() == {"one": 16}
    (rest,) = front.step().up
    assert rest.destinations.tolist() == [22, 23]
    front.land(rest)
    assert front.ask.arrived() == {"two": 16}


def test_a_copy_that_fails_is_tried_again_and_its_good_blocks_stay() -> None:
    front = Front()
    keys = front.keys(16)
    front.offloaded("before", keys)
    assert front.ask.matched("one", keys) == 16
    front.ask.allocated("one", range(20, 24))
    (first,) = front.step().up
    front.land(first, good=1)
    (second,) = front.step().up
    assert second.destinations.tolist() == [21, 22, 23]
    front.land(second, good=2)
    (third,) = front.step().up
    front.land(third, good=0)
    assert front.step().up == (), "three rounds have failed"
    assert front.ask.arrived() == {"one": 3 * SIZE}
    assert front.ask.matched("two", keys) == 16, "nothing was known against the copies"


def test_a_load_that_brings_nothing_is_not_offered_again_before_the_request_has_run() -> None:
    front = Front()
    keys = front.keys(8)
    front.offloaded("before", keys)
    for _ in range(2):
        assert front.ask.matched("one", keys) == 8
        front.ask.allocated("one", [1, 2])
        for _ in range(3):
            front.land(*front.step().up, good=0)
        assert front.ask.arrived() == {"one": 0}
        assert [front.ask.matched("one", keys) for _ in range(3)] == [0, 0, 0]
        front.ask.allocated("one")
        assert not front.ask.preempted("one", keys, [], 0)


def test_a_copy_found_bad_is_never_offered_again() -> None:
    front = Front()
    keys = front.keys(12)
    front.offloaded("before", keys)
    assert front.ask.matched("one", keys) == 12
    front.ask.allocated("one", [1, 2, 3])
    front.land(*front.step().up, good=1, corrupt=True)
    assert front.step().up == ()
    assert front.ask.arrived() == {"one": SIZE}
    assert front.ask.matched("two", keys) == SIZE


def test_a_kept_copy_found_bad_leaves_the_tokens_before_it() -> None:
    front = Front()
    keys = front.keys(14)
    assert front.ask.preempted("one", keys, [1, 2, 3, 4], 14)
    front.carry()
    assert front.ask.matched("one", keys) == 14
    front.ask.allocated("one", [11, 12, 13, 14])
    front.land(*front.step().up, good=2, corrupt=True)
    front.carry()
    assert front.ask.arrived() == {"one": 2 * SIZE}
    assert held(front.cache) == [0, 0, 0]


def test_a_late_load_is_not_named_before_it_has_ended() -> None:
    front = Front(deadline=2)
    keys = front.keys(8)
    front.offloaded("before", keys)
    assert front.ask.matched("one", keys) == 8
    front.ask.allocated("one", [1, 2])
    (plan,) = front.step().up
    for _ in range(5):
        front.ask.commit([])
        assert front.step().up == ()
        assert front.ask.arrived() == {}, "the copy may still write to its ids"
    assert front.step([2]).fence == plan.flight
    front.land(plan)
    front.carry()
    assert front.ask.arrived() == {"one": 8}


@pytest.mark.parametrize("ends", ["aborted", "aborted later", "tried often enough"])
def test_a_late_load_that_is_asked_for_no_more_is_named_when_it_has_ended(ends: str) -> None:
    front = Front(deadline=2)
    keys = front.keys(8)
    front.offloaded("before", keys)
    front.ask = Connector(front.cache, retries=0 if "often" in ends else 2)
    assert front.ask.matched("one", keys) == 8
    front.ask.allocated("one", [1, 2])
    (plan,) = front.step().up
    if ends == "aborted":
        assert front.ask.finished("one")
    for _ in range(5):
        front.ask.commit([])
        assert front.step().up == ()
    if ends == "aborted later":
        assert front.ask.finished("one"), "the copy may still write to its ids"
    assert front.ask.arrived() == {}
    front.land(plan)
    front.carry()
    assert front.ask.arrived() == {"one": 0}
    assert front.ask.preempted("two", front.keys(8, 50), [1, 2], 8)


def test_a_late_load_of_what_is_kept_no_more_is_named_when_it_has_ended() -> None:
    front = Front(deadline=2)
    keys = front.keys(8)
    assert front.ask.preempted("one", keys, [1, 2], 8)
    front.carry()
    assert front.ask.matched("one", keys) == 8
    front.ask.allocated("one", [3, 4])
    (plan,) = front.step().up
    front.ask.clear()
    for _ in range(5):
        front.ask.commit([])
        assert front.step().up == ()
    assert front.ask.arrived() == {}, "the copy may still write to its ids"
    front.land(plan)
    front.carry()
    assert front.ask.arrived() == {"one": 0}


def test_a_keep_whose_end_is_unknown_is_cut_at_once() -> None:
    front = Front(deadline=2)
    keys = front.keys(8)
    assert front.ask.preempted("one", keys, [1, 2], 8)
    (plan,) = front.step().down
    assert front.ask.matched("one", keys) is None
    for _ in range(3):
        front.ask.commit([])
    assert front.ask.matched("one", keys) == 0
    # It may never end, and nothing that it brings is believed: what it reads may be written.
    assert front.step([1]).fence is None
    front.cache.commit([by.Outcome(plan.flight, 0, 2)])
    assert front.ask.matched("one", keys) == 0


def test_where_nothing_has_room_full_blocks_are_offloaded_as_far_as_they_find_some() -> None:
    front = Front(host=3)
    keys = front.keys(18)
    assert not front.ask.preempted("one", keys, range(5), 18)
    front.carry()
    assert front.ask.matched("one", keys) == 3 * SIZE
    assert held(front.cache) == [0, 0, 0]
    nowhere = Front(host=0)
    assert not nowhere.ask.preempted("one", nowhere.keys(18), range(5), 18)
    assert nowhere.ask.matched("one", nowhere.keys(18)) == 0


def test_blocks_of_a_request_that_runs_on_are_offloaded_as_they_fill() -> None:
    front = Front()
    keys = front.keys(14)
    assert front.ask.matched("one", keys) == 0
    front.ask.allocated("one")
    front.ask.offload(keys, [5])
    front.carry()
    front.ask.offload(keys, [9, 2, 7], first=1)
    (plan,) = front.step().down
    assert plan.sources.tolist() == [9, 2], "there are keys of three blocks"
    front.land(plan)
    assert front.ask.matched("two", front.keys(14)) == 3 * SIZE


def test_what_is_kept_moves_to_the_disk_where_the_host_is_short_of_room() -> None:
    front = Front(host=8, disk=40, ahead={"host": 4})
    keys = front.keys(22)
    assert front.ask.matched("one", keys) == 0
    front.ask.allocated("one")
    assert front.ask.preempted("one", keys, range(6), 22)
    front.carry()
    (lowered,) = front.step().down
    assert (lowered.source_tier, lowered.destination_tier, len(lowered)) == ("host", "disk", 2)
    front.land(lowered)
    assert front.step().down == ()
    assert front.cache.room("host").available == 4
    assert front.ask.matched("one", keys) == 22
    front.ask.allocated("one", range(30, 36))
    made = front.step(range(30, 36))
    # What has moved may be evicted from the host, and is there until it is.
    assert [(plan.source_tier, len(plan)) for plan in made.up] == [("host", 6)]
    front.land(*made.up)
    assert front.ask.arrived() == {"one": 22}
    assert held(front.cache) == [0, 0, 0]


def test_one_that_ends_while_it_loads_has_its_ids_until_it_is_named() -> None:
    front = Front()
    keys = front.keys(14)
    assert front.ask.preempted("one", keys, [1, 2, 3, 4], 14)
    front.carry()
    assert front.ask.matched("one", keys) == 14
    front.ask.allocated("one", [11, 12, 13, 14])
    made = front.step()
    assert front.ask.finished("one", keys, [11, 12, 13])
    assert front.ask.arrived() == {}
    front.land(*made.up, good=1)
    assert front.ask.arrived() == {"one": SIZE}
    made = front.step()
    assert (made.down, made.up) == ((), ()), (
        "nothing more comes up for it, and nothing is offloaded"
    )
    assert held(front.cache) == [0, 0, 0]
    assert front.ask.matched("one", keys) == 12, "its id is free for another one"


def test_one_that_ends_before_its_load_has_begun_has_no_ids_to_keep() -> None:
    front = Front()
    keys = front.keys(8)
    front.offloaded("before", keys)
    assert front.ask.matched("first", keys) == 8
    assert front.ask.matched("second", keys) == 8
    front.ask.allocated("first", [1, 2])
    front.ask.allocated("second", [3, 4])
    assert not front.ask.finished("second"), "it waits for the copies of the first"
    front.carry()
    assert front.ask.arrived() == {"first": 8}
    assert front.step().up == ()


@pytest.mark.parametrize("memory", ["kept", "lost"])
def test_after_a_reset_only_what_is_kept_below_is_known(memory: Any) -> None:
    front = Front()
    keys = [front.keys(10, 100 * at) for at in range(4)]
    assert front.ask.preempted("kept", keys[0], [1, 2, 3], 10)
    front.offloaded("before", keys[1])
    assert front.ask.preempted("in the air", keys[2], [4, 5, 6], 10)
    assert front.ask.matched("loads", keys[1]) == 8
    front.ask.allocated("loads", [11, 12])
    assert front.ask.matched("kept", keys[0]) == 10
    front.ask.allocated("kept", [21, 22, 23])
    made = front.step()
    front.ask.reset(memory=memory)
    front.land(*made.down, *made.up)
    assert front.ask.arrived() == {}
    made = front.step(range(64))
    assert made[:3] == ((), (), None)
    with pytest.raises(by.Misuse, match="'loads' was not matched"):
        front.ask.allocated("loads")
    there = memory == "kept"
    assert front.ask.matched("kept", keys[0]) == (10 if there else 0)
    assert front.ask.matched("loads", keys[1]) == (8 if there else 0)
    assert front.ask.matched("in the air", keys[2]) == 0
    for name in ("kept", "loads", "in the air"):
        front.ask.finished(name)
    assert held(front.cache) == [0, 0, 0]


class Seen(by.KVCache):
    """A cache that notes which paths are touched."""

    touched: list[list[by.Keys]]

    @override
    def used(self, rows: Any, **hints: Any) -> None:
        self.touched.append(list(rows))
        super().used(rows, **hints)


def test_a_few_running_requests_are_touched_every_four_steps_and_all_in_turn() -> None:
    cache = Seen(engine=64, host=64, block_size=SIZE)
    cache.touched = []
    front = Front(cache)
    paths = [front.keys(8, 10 * at) for at in range(20)]
    for at, keys in enumerate(paths):
        assert front.ask.matched(at, keys) == 0
        front.ask.allocated(at)
    front.ask.finished(5)
    assert front.ask.preempted(6, paths[6], [1, 2], 8)
    for _ in range(1 + 8 * 4):
        front.step()
    assert [len(rows) for rows in cache.touched] == [4] * 9
    running = [keys for at, keys in enumerate(paths) if at not in {5, 6}]
    assert [keys for rows in cache.touched for keys in rows] == running * 2
    long = Front(cache)
    cache.touched.clear()
    for at in range(3):
        long.ask.matched(at, long.keys(SIZE * 600, 7 * at))
        long.ask.allocated(at)
    long.step()
    assert [len(rows) for rows in cache.touched] == [1], "long paths are fewer"


def test_what_runs_is_not_evicted_below_before_what_does_not() -> None:
    front = Front(host=6)
    runs, rests = front.keys(8), front.keys(8, 100)
    front.offloaded("runs", runs)
    front.offloaded("rests", rests)
    assert front.ask.matched("runs again", runs, 2) == 0
    front.ask.allocated("runs again")
    front.step()
    front.offloaded("more", front.keys(16, 200))
    assert front.cache.find(runs).host == 2
    assert front.cache.find(rests).host == 0


@pytest.mark.law("E9")
def test_what_has_ended_before_an_epoch_ends_is_not_offloaded_in_the_next() -> None:
    front = Front()
    keys = front.keys(8)
    front.ask.finished("one", keys, [1, 2])
    front.ask.clear()
    assert front.step().down == ()
    assert front.ask.step(victims=[1, 2]).down == ()
    assert front.ask.matched("two", keys) == 0


def failed(front: Front, keys: by.Keys, ids: list[int]) -> None:
    """Ends a request whose copies down fail."""
    front.ask.finished(str(ids), keys, ids)
    front.land(*front.step().down, good=0)
    assert front.cache.find(keys).host == 0


def test_what_the_engine_evicts_next_is_copied_ahead_of_that() -> None:
    front = Front()
    one, two = front.keys(14), front.keys(8, 100)
    failed(front, one, [7, 3, 5])
    failed(front, two, [20, 21])
    # vLLM evicts the end of a sequence before its start.
    made = front.ask.step(victims=[5, 21, 20, 3, 7, 40])
    assert sorted(plan.sources.tolist() for plan in made.down) == [[5], [7, 3], [20, 21]]
    front.land(*made.down)
    assert [front.cache.find(keys).host for keys in (one, two)] == [3, 2]
    assert front.ask.step(victims=[5, 21, 20, 3, 7]).down == (), "each is copied once"


@pytest.mark.parametrize(
    "given", [lambda ask: ask.step([3]), lambda ask: ask.allocated("loads", [3])]
)
def test_what_was_given_to_others_is_not_copied_ahead(given: Any) -> None:
    front = Front()
    loads, keys = front.keys(4, 100), front.keys(12)
    front.offloaded("before", loads, 30)
    failed(front, keys, [7, 3, 5])
    assert front.ask.matched("loads", loads) == 4
    given(front.ask)
    made = front.ask.step(victims=[5, 3, 7])
    assert sorted(plan.sources.tolist() for plan in made.down) == [[5], [7]]


def test_a_block_is_known_by_the_last_sequence_that_has_left_it() -> None:
    front = Front()
    failed(front, front.keys(12), [7, 3, 5])
    later = front.keys(8, 100)
    failed(front, later, [3, 9])
    made = front.ask.step(victims=[9, 3])
    front.land(*made.down)
    assert front.cache.find(later).host == 2


def test_a_request_may_have_its_own_alone_and_nothing_of_others() -> None:
    front = Front()
    keys = front.keys(12)
    front.offloaded("one", keys)
    assert front.ask.matched("two", keys, prefix=False) == 0
    front.ask.allocated("two")
    assert front.ask.preempted("two", keys, [10, 11, 12], 10)
    front.carry()
    assert front.ask.matched("two", keys, prefix=False) == 10


def state(front: Front) -> tuple[int, int]:
    return front.cache.digest(), front.cache.stats()["flights"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ask, keys: ask.matched("loads", keys), "'loads' is loading"),
        (lambda ask, keys: ask.preempted("loads", keys, [1, 2], 8), "'loads' is loading"),
        (lambda ask, _: ask.allocated("loads", [1]), "'loads' is loading"),
        (lambda ask, _: ask.allocated("nobody", [1]), "'nobody' was not matched"),
        (lambda ask, _: ask.allocated("rests", [64]), "ids = 64"),
        (lambda ask, _: ask.allocated("rests", [1, 1]), "ids = 1"),
        (lambda ask, keys: ask.matched("rests", keys, 3), "after = 3"),
        (lambda ask, keys: ask.preempted("rests", keys, [1], 8), "ids = 1"),
        (lambda ask, keys: ask.preempted("rests", keys, [1, 64], 8), "ids = 64"),
        (lambda ask, keys: ask.preempted("rests", keys, [1, 2, 3], 12), "ids = 3|keys"),
        (lambda ask, keys: ask.preempted("rests", keys, [1, 2], -1), "tokens = -1"),
        (lambda ask, _: ask.step([64]), "ids = 64"),
        (lambda ask, _: ask.step([-1]), r"ids\[0\] = -1"),
        (lambda ask, _: ask.step([], [64]), "ids = 64"),
        (lambda ask, keys: ask.finished("ends", keys, [1, 64]), "ids = 64"),
        (lambda ask, _: ask.commit([], now=0), "now = 0"),
        (lambda ask, _: ask.reset(memory="some"), "memory = 'some'"),
        (lambda ask, _: Connector(ask.cache, retries=-1), "retries = -1"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(call: Any, says: str) -> None:
    front = Front()
    keys = front.keys(8)
    front.offloaded("before", keys)
    assert front.ask.matched("loads", keys) == 8
    assert front.ask.matched("rests", keys) == 8
    front.ask.allocated("loads", [1, 2])
    made = front.step()
    before = state(front)
    with pytest.raises(by.Misuse, match=says):
        call(front.ask, keys)
    assert state(front) == before
    front.land(*made.up)
    assert front.ask.arrived() == {"loads": 8}
    assert front.ask.matched("rests", keys) == 8
    front.ask.allocated("rests", [3, 4])
    front.carry()
    assert front.ask.arrived() == {"rests": 8}


def test_the_scheduler_half_knows_no_engine_and_no_crane() -> None:
    for module in (connector, loads, orders):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        names = [
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [one.name for one in node.names]
            )
        ]
        assert names
        assert not [
            name
            for name in names
            if re.match(r"vllm|sglang|torch|cupy|blockyard\.(crane|scheduling)", name)
        ]
