"""A parked sequence through the binding: down in parts, and back, whatever becomes of its loads."""

import re
from collections.abc import Callable
from typing import Any, Literal, assert_type

import numpy as np
import pytest

import blockyard as by
from yard import at_rest, begin, free_for_all, table, text, unchanged

BLOCKS = 3
"""Of a sequence of ten tokens: the last one is partial, and anonymous where it is kept."""


def house(*, device: int = 13, host: int = 8, recompute: bool = True) -> by.KVCache:
    return by.KVCache(block_size=4, device=device, host=host, recompute=recompute)


def parked(cache: by.KVCache, tokens: list[int]) -> by.Parked:
    lease = begin(cache, tokens)
    cache.commit(lease.plans)
    return cache.park(lease, len(tokens))


def down(cache: by.KVCache, handle: by.Parked, blocks: int) -> by.Plan:
    plan = cache.demote(blocks, of=handle)
    assert plan is not None
    return plan


def squeeze(cache: by.KVCache) -> None:
    """Has all evicted from the device that may be."""
    cache.finish(begin(cache, text(9, free_for_all(cache) * cache.block_size)))


def below(cache: by.KVCache, tokens: list[int]) -> by.Parked:
    """Parks a sequence, copies it down whole, and takes its slots."""
    handle = parked(cache, tokens)
    cache.commit(down(cache, handle, len(tokens)))
    squeeze(cache)
    assert (handle.on_device, handle.state) == (0, "kept")
    return handle


def pending(handle: by.Parked) -> tuple[int, int, int]:
    return handle.on_device, handle.moving, handle.alone


@pytest.mark.law("INV-16")
def test_it_goes_down_in_parts_and_says_what_moves_and_what_only_it_holds() -> None:
    cache = house()
    before = free_for_all(cache)
    handle = parked(cache, text(1, 10))
    assert (handle.blocks, handle.computed) == (BLOCKS, 10)
    assert pending(handle) == (3, 0, 3)
    tail = down(cache, handle, 1)
    assert pending(handle) == (3, 1, 2)
    assert cache.holders() == [("parked", handle.id, 3, 2, 0, (0, 0, 0))], (
        "at once: a copy holds what is above"
    )
    rest = down(cache, handle, 5)
    assert len(rest) == 2
    assert pending(handle) == (3, 3, 0)
    cache.commit(tail)
    assert (pending(handle), free_for_all(cache)) == ((2, 2, 0), before - 2)
    # The root landed, and the block behind it did not: the root must stay with it.
    cache.commit(rest, 0)
    assert (pending(handle), handle.state) == ((2, 0, 2), "kept")
    cache.commit(down(cache, handle, 2))
    assert (pending(handle), free_for_all(cache)) == ((0, 0, 0), before)
    cache.abandon(handle)
    at_rest(cache)


def test_what_others_pin_too_moves_and_is_not_its_alone() -> None:
    cache = house()
    runs = begin(cache, text(1, 9))
    cache.seal(runs, 8)
    handle = parked(cache, text(1, 10))
    assert pending(handle) == (3, 0, 1)
    plan = down(cache, handle, 2)
    assert pending(handle) == (3, 2, 0)
    cache.commit(plan)
    assert pending(handle) == (1, 0, 0)
    before = free_for_all(cache)
    cache.finish(runs)
    assert (pending(handle), free_for_all(cache)) == ((1, 0, 1), before + 2)
    cache.abandon(handle)
    at_rest(cache)


def test_what_is_read_by_another_copy_stays_until_that_has_ended_or_is_late() -> None:
    cache = house()
    lease = begin(cache, text(1, 10))
    forked = cache.fork(lease, 10)
    handle = cache.park(lease, 10)
    # The fork reads the partial block, and shares the others.
    assert pending(handle) == (3, 0, 0)
    cache.commit(forked.plans)
    assert pending(handle) == (3, 0, 1)
    cache.finish(forked)
    assert pending(handle) == (3, 0, 3)
    overdue = down(cache, handle, 1)
    cache.mark_unknown(overdue)
    assert pending(handle) == (3, 0, 3)
    again = down(cache, handle, 1)
    assert pending(handle) == (3, 1, 2)
    cache.commit(overdue)
    assert pending(handle) == (3, 1, 2)
    cache.commit(again)
    assert pending(handle) == (2, 0, 2)
    cache.abandon(handle)
    at_rest(cache)


@pytest.mark.law("R3-5")
def test_the_questions_are_of_the_yard_and_change_nothing() -> None:
    cache = house()
    handle = parked(cache, text(1, 10))
    digest = cache.digest()
    assert_type(handle.moving, int)
    assert_type(handle.alone, int)
    assert (handle.moving, handle.alone, cache.digest()) == (0, 3, digest)
    lease = begin(cache, handle)
    assert_type(lease.resumed, bool)
    assert_type(lease.state, Literal["ready", "loading", "incomplete", "detached", "spent"])
    with pytest.raises(by.SpentLease):
        _ = handle.moving
    with pytest.raises(by.SpentLease):
        _ = handle.alone
    cache.finish(lease)
    with pytest.raises(by.SpentLease):
        _ = lease.resumed
    broken = parked(cache, text(2, 10))
    cache.resize("host", 1)
    assert (broken.state, pending(broken)) == ("broken", (0, 0, 0))
    cache.abandon(broken)
    at_rest(cache)


# The way back.


def test_with_all_on_the_device_still_it_is_ready_at_once_and_has_no_plan() -> None:
    cache = house()
    lease = begin(cache, text(1, 10))
    slots = table(cache, lease)
    handle = cache.park(lease, 10)
    resumed = begin(cache, handle, reserve=4)
    assert (resumed.plans, resumed.state, resumed.resumed) == ((), "ready", False)
    assert (resumed.cached, resumed.hits, table(cache, resumed)) == (10, (3, 0, 0, 0), slots)
    assert cache.stats()["parked"] == cache.stats()["host_promised"] == 0
    cache.finish(resumed)
    at_rest(cache)


def test_half_of_it_comes_from_the_device_and_half_from_below() -> None:
    cache = house()
    handle = parked(cache, text(1, 10))
    cache.commit(down(cache, handle, 2))
    squeeze(cache)
    resumed = begin(cache, handle)
    assert (resumed.hits, resumed.state, resumed.resumed) == ((1, 2, 0, 0), "loading", True)
    assert cache.stats()["parked"] == 1, "kept until its loads have landed"
    cache.commit(resumed.plans)
    assert (resumed.cached, resumed.state, resumed.resumed) == (10, "ready", False)
    assert (cache.stats()["parked"], cache.stats()["host_pinned"]) == (0, 0)
    cache.finish(resumed)
    at_rest(cache)


@pytest.mark.law("2.3-tail-air")
def test_the_tail_is_taken_back_while_its_own_copy_down_is_in_flight() -> None:
    """Table 2.3: the engine may write the source, and what the copy read is worth nothing."""
    cache = house()
    lease = begin(cache, text(1, 10))
    slots = table(cache, lease)
    handle = cache.park(lease, 10)
    plan = down(cache, handle, 1)
    assert plan.sources.tolist() == slots[2:]
    resumed = begin(cache, handle)
    assert (resumed.plans, resumed.state, resumed.resumed) == ((), "ready", False)
    assert (resumed.cached, table(cache, resumed)) == (10, slots)
    assert (cache.stats()["host_pinned"], cache.room("host").free) == (1, 7), "until the fence"
    cache.append(resumed, text(2, 2))
    assert cache.grow(resumed, 2).size == 0
    cache.seal(resumed, 12)
    again = cache.park(resumed, 12)
    # It needs a copy of its own: the one in flight belongs to no sequence.
    assert (again.blocks, cache.stats()["host_promised"], again.moving) == (3, 3, 0)
    assert cache.commit(plan) == 1
    assert (cache.stats()["host_pinned"], cache.room("host").free) == (0, 8)
    cache.commit(down(cache, again, 3))
    assert again.on_device == 0
    cache.abandon(again)
    at_rest(cache)


End = Callable[[by.KVCache, by.Plan], object]
ENDS: list[tuple[str, End, int, int]] = [
    # How the load ends; what is cached then; blocks that the table has.
    ("whole", lambda cache, plan: cache.abort(plan), 0, 3),
    ("in part", lambda cache, plan: cache.commit(plan, 1), 4, 3),
    ("at its tail", lambda cache, plan: cache.commit(plan, 2), 8, 3),
    ("never", lambda cache, plan: cache.mark_unknown(plan), 0, 0),
]


@pytest.mark.law("2.3-up-failed", "2.3-up-unknown")
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(("end", "cached", "blocks"), [pytest.param(*e, id=i) for i, *e in ENDS])
def test_a_resume_that_came_back_incomplete_is_parked_again_and_comes_back_whole(
    end: End, cached: int, blocks: int, *, recompute: bool
) -> None:
    cache = house(recompute=recompute)
    handle = below(cache, text(1, 10))
    resumed = begin(cache, handle)
    (load,) = resumed.plans
    assert (len(load), resumed.state, resumed.resumed) == (3, "loading", True)
    with pytest.raises(by.Misuse, match="loading"):
        cache.park(resumed, 10)
    end(cache, load)
    assert (resumed.state, resumed.resumed) == ("incomplete", True)
    assert (resumed.cached, resumed.blocks) == (cached, blocks)
    if not recompute:
        with pytest.raises(by.Misuse, match="park it again"):
            cache.grow(resumed, 0)
    assert (resumed.state, resumed.resumed) == ("incomplete", True)
    again = cache.park(resumed, 10)
    assert (resumed.state, handle.state, again.state) == ("spent", "spent", "kept")
    assert (again.computed, again.blocks, again.on_device) == (10, 3, 0)
    assert cache.stats()["parkings"] == 1, "it was parked once"
    # What never ended has its fence before, or after it has come back.
    fence = cache.stats()["device_quarantined"]
    assert fence == (3 if blocks == 0 else 0)
    back = begin(cache, again)
    cache.commit(back.plans)
    assert (back.cached, back.state, back.resumed) == (10, "ready", False)
    assert cache.commit(load) == (1 if fence else 0)
    cache.finish(back)
    at_rest(cache)


@pytest.mark.parametrize(("end", "cached", "blocks"), [pytest.param(*e, id=i) for i, *e in ENDS])
def test_a_resume_that_came_back_incomplete_may_go_on_from_its_good_prefix(
    end: End, cached: int, blocks: int
) -> None:
    cache = house()
    resumed = begin(cache, below(cache, text(1, 10)))
    end(cache, resumed.plans[0])
    assert resumed.blocks == blocks
    assert cache.grow(resumed, 0).size == 0
    assert (resumed.state, resumed.resumed) == ("ready", False)
    assert (resumed.cached, resumed.blocks, resumed.tokens) == (cached, 3, 10)
    assert cache.stats()["parked"] == cache.stats()["host_pinned"] == 0, "its keeps have ended"
    # Parked now it is a new one, at what it has computed since.
    handle = cache.park(resumed, 10)
    assert (handle.blocks, cache.stats()["parkings"]) == (3, 2)
    cache.abandon(handle)
    cache.abort(resumed.plans)
    at_rest(cache)


@pytest.mark.law("2.3-up-unknown")
def test_short_and_not_resumed_is_a_table_that_ends_too_soon() -> None:
    """The copy of a fork's partial block has no end: there is nothing to park it as it was."""
    cache = house()
    lease = begin(cache, text(1, 10))
    forked = cache.fork(lease, 10)
    cache.mark_unknown(forked.plans)
    assert (forked.state, forked.resumed, forked.cached, forked.blocks) == (
        "incomplete",
        False,
        8,
        2,
    )
    assert cache.grow(forked, 0).size == 0
    assert (forked.state, forked.blocks) == ("ready", 3)
    cache.finish([lease, forked])
    cache.abort(forked.plans)
    at_rest(cache)


def test_a_resume_without_room_for_what_came_back_incomplete_has_its_keeps_still() -> None:
    cache = house(device=7)
    resumed = begin(cache, below(cache, text(1, 10)))
    other = begin(cache, text(2, 12))
    cache.mark_unknown(resumed.plans)
    assert cache.grow(resumed, 0).tolist() == [0]
    assert (resumed.state, resumed.resumed, cache.stats()["parked"]) == ("incomplete", True, 1)
    again = cache.park(resumed, 10)
    with pytest.raises(by.NoRoom):
        cache.begin(again)
    assert again.state == "kept"
    cache.finish(other)
    cache.abort(resumed.plans)
    back = begin(cache, again)
    cache.commit(back.plans)
    assert back.cached == 10
    cache.finish(back)
    at_rest(cache)


@pytest.mark.law("2.3-up-failed")
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_kept_copy_that_is_corrupt_breaks_it_and_it_begins_again_from_what_is_good(
    bad: int,
) -> None:
    cache = house()
    resumed = begin(cache, below(cache, text(1, 10)))
    cache.commit(resumed.plans, bad, corrupt=True)
    assert (resumed.state, resumed.resumed, resumed.cached) == ("incomplete", True, 4 * bad)
    again = cache.park(resumed, 10)
    assert (again.state, again.blocks, pending(again)) == ("broken", 0, (0, 0, 0))
    assert (cache.stats()["broken"], cache.demote(8, of=again)) == (1, None)
    back = begin(cache, again)
    cache.commit(back.plans)
    # The block behind a bad one is out of reach, and the partial one is gone with the keep.
    assert (back.cached, back.state, back.resumed) == (4 * bad, "ready", False)
    cache.seal(back, 10)
    cache.finish(back)
    at_rest(cache)


def test_one_that_ends_short_gives_its_keeps_up() -> None:
    cache = house()
    resumed = begin(cache, below(cache, text(1, 10)))
    cache.commit(resumed.plans, np.array([1]))
    cache.finish(resumed)
    assert (resumed.state, cache.stats()["parked"]) == ("spent", 0)
    at_rest(cache)


# Tickets of the host: a victim that must not be lost is stopped with its slots promised first (T7).


def test_a_park_with_a_ticket_finds_the_room_that_it_keeps() -> None:
    cache = house(host=4)
    lease = begin(cache, text(1, 10))
    ticket = cache.promise(4, tier="host")
    assert (ticket.tier, ticket.blocks, ticket.state) == ("host", 4, "open")
    assert repr(ticket) == f'Ticket(id={ticket.id}, blocks=4, tier="host")'
    assert (cache.room("host").promised, cache.room().promised) == (4, 0)
    other = begin(cache, text(2, 4))
    with pytest.raises(by.NoRoom) as refused:
        cache.park(other, 4)
    told = refused.value
    assert (told.tier, told.need, told.free, told.promised) == ("host", 1, 4, 4)
    # Tokens that were in flight when it was stopped: still inside what was promised.
    cache.append(lease, text(3, 3))
    assert cache.grow(lease, 3).size == 0
    handle = cache.park(lease, 13, ticket=ticket)
    assert (ticket.state, handle.blocks, cache.room("host").promised) == ("spent", 4, 4)
    assert cache.stats()["tickets"] == 0
    cache.commit(down(cache, handle, 4))
    assert (handle.on_device, cache.stats()["host_pinned"]) == (0, 4)
    cache.abandon(handle)
    cache.finish(other)
    at_rest(cache)


def test_what_a_ticket_kept_and_the_park_did_not_need_is_promised_no_more() -> None:
    cache = house(host=8)
    ticket = cache.promise(8, tier="host")
    handle = cache.park(begin(cache, text(1, 5)), 5, ticket=ticket)
    assert cache.room("host").promised == 2
    # So it is where an incomplete resume goes back to where it was, which needs nothing.
    cache.commit(down(cache, handle, 2))
    squeeze(cache)
    resumed = begin(cache, handle)
    cache.abort(resumed.plans)
    ticket = cache.promise(6, tier="host")
    handle = cache.park(resumed, 5, ticket=ticket)
    assert (ticket.state, handle.state, cache.room("host").promised) == ("spent", "kept", 0)
    cache.abandon(handle)
    at_rest(cache)


def test_a_park_that_is_refused_has_its_ticket_still() -> None:
    cache = house(host=4)
    lease = begin(cache, text(1, 12))
    ticket, others = cache.promise(1, tier="host"), cache.promise(2, tier="host")
    with pytest.raises(by.NoRoom) as refused:
        cache.park(lease, 12, ticket=ticket)
    assert (refused.value.need, refused.value.free, refused.value.promised) == (3, 4, 2)
    assert (ticket.state, lease.state, lease.sealed) == ("open", "ready", 3)
    for computed in (8, 13):
        with pytest.raises(by.Misuse, match="computed"):
            cache.park(lease, computed, ticket=ticket)
    assert (ticket.state, cache.room("host").promised) == ("open", 3)
    cache.release(others)
    handle = cache.park(lease, 12, ticket=ticket)
    assert (ticket.state, cache.room("host").promised) == ("spent", 3)
    cache.abandon(handle)
    at_rest(cache)


def test_a_ticket_outlives_a_copy_that_never_ends_and_the_keep_does_not() -> None:
    cache = house(host=4)
    handle = parked(cache, text(1, 6))
    ticket = cache.promise(2, tier="host")
    plan = down(cache, handle, 1)
    cache.mark_unknown(plan)
    assert (handle.state, ticket.state, cache.room("host").promised) == ("broken", "open", 2)
    assert cache.audit() is None
    cache.abandon(handle)
    handle = cache.park(begin(cache, text(2, 8)), 8, ticket=ticket)
    cache.commit(down(cache, handle, 2))
    assert handle.on_device == 0
    cache.abort(plan)
    cache.abandon(handle)
    at_rest(cache)


def test_a_ticket_of_the_host_is_told_apart_among_the_holders() -> None:
    cache = house(host=4)
    above, below = cache.promise(1), cache.promise(3, tier="host")
    assert above.tier == "device"
    assert cache.holders() == [
        ("host ticket", below.id, 0, 3, 0, (0, 0, 0)),
        ("ticket", above.id, 0, 1, 0, (0, 0, 0)),
    ]
    cache.release(above)
    cache.release(below)
    at_rest(cache)


class Office:
    """A cache with a lease, and tickets of each kind."""

    def __init__(self) -> None:
        # Wrong on purpose: not for a type checker.
        self.cache: Any = by.KVCache(block_size=4, device=13, host=4)
        self.bare: Any = by.KVCache(block_size=4, device=13)
        self.lease = begin(self.cache, text(1, 10))
        self.above, self.below = self.cache.promise(2), self.cache.promise(2, tier="host")
        self.spent = self.cache.promise(1, tier="host")
        self.cache.release(self.spent)
        self.other: Any = by.KVCache(block_size=4, device=13, host=4)
        self.foreign = self.other.promise(2, tier="host")


Act = Callable[[Office], object]
BAD: list[tuple[str, Act, type[by.BlockyardError], str]] = [
    ("no tier", lambda o: o.cache.promise(1, tier="disc"), by.Misuse, "tier = "),
    ("the disk", lambda o: o.cache.promise(1, tier="disk"), by.Misuse, "tier = disk"),
    ("none", lambda o: o.cache.promise(0, tier="host"), by.Misuse, "blocks = 0"),
    (
        "never",
        lambda o: o.cache.promise(5, tier="host"),
        by.TooLarge,
        "for the host: need 5 blocks",
    ),
    ("no host", lambda o: o.bare.promise(1, tier="host"), by.TooLarge, "capacity 0"),
    (
        "no room",
        lambda o: o.cache.promise(3, tier="host"),
        by.NoRoom,
        "no room on the host: need 3",
    ),
    ("above", lambda o: o.cache.park(o.lease, 10, ticket=o.above), by.Misuse, "is for the device"),
    ("below", lambda o: o.cache.begin([1], ticket=o.below), by.Misuse, "is for the host"),
    ("spent", lambda o: o.cache.park(o.lease, 10, ticket=o.spent), by.SpentLease, "is spent"),
    ("foreign", lambda o: o.cache.park(o.lease, 10, ticket=o.foreign), by.ForeignLease, "another"),
]


@pytest.mark.parametrize(("act", "error", "says"), [pytest.param(*b, id=i) for i, *b in BAD])
def test_it_is_refused_by_name_and_nothing_is_changed(
    act: Act, error: type[by.BlockyardError], says: str
) -> None:
    office = Office()
    before, digest = office.cache.stats(), office.cache.digest()
    with pytest.raises(by.BlockyardError, match=re.escape(says)) as caught:
        act(office)
    assert type(caught.value) is error
    assert unchanged(office.cache.stats()) == unchanged(before)
    assert office.cache.digest() == digest
    assert (office.above.state, office.below.state, office.foreign.state) == ("open",) * 3
    assert (office.lease.state, office.cache.audit()) == ("ready", None)


def test_the_words_of_a_ticket_are_what_the_stubs_say() -> None:
    cache = house()
    ticket = cache.promise(1, tier="host")
    assert_type(ticket.tier, Literal["device", "host", "disk", "remote"])
    assert_type(cache.park(begin(cache, text(1, 4)), 4, ticket=ticket), by.Parked)
    with pytest.raises(AttributeError):
        ticket.tier = "device"  # type: ignore[misc]
    lease = begin(cache, text(2, 4))
    wrongs: list[Any] = [3, "ticket", lease]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            cache.park(lease, 4, ticket=wrong)
