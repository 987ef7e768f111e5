"""A third tier through the binding: what goes down to it and up from it, and what it says of it."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import blockyard as by
from yard import at_rest, begin, free_for_all, publish_below, table, text, there, unchanged


def house(**keywords: Any) -> by.KVCache:
    sizes = {"block_size": 4, "device": 13, "host": 8, "disk": 16, "ahead": 0}
    return by.KVCache(**(sizes | keywords))


def landed(cache: by.KVCache, plan: by.Plan | list[by.Plan] | None) -> int:
    """Blocks of plans that land at once."""
    plans = plan if isinstance(plan, list) else [plan]
    there = [one for one in plans if one is not None]
    cache.commit(there)
    return sum(map(len, there))


def found(cache: by.KVCache, tokens: list[int]) -> tuple[int, int, int]:
    probe = cache.probe(tokens)
    return probe.device, probe.host, probe.disk


def sunk(cache: by.KVCache, tokens: list[int]) -> None:
    """Leaves a prompt's full blocks on the disk alone."""
    publish_below(cache, tokens)
    assert landed(cache, cache.demote(100, tier="host"))
    publish_below(cache, text(8, 4 * cache.limit("host")))
    assert found(cache, tokens)[:2] == (0, 0)


def parked(cache: by.KVCache, tokens: list[int]) -> by.Parked:
    return cache.park(begin(cache, tokens), len(tokens))


def where(handle: by.Parked) -> tuple[int, tuple[int, int, int]]:
    return handle.on_device, handle.below


# -- demote and promote --------------------------------------------------------------------------


def test_demote_copies_the_next_victims_of_each_tier_to_the_next_one_below() -> None:
    cache = house()
    publish_below(cache, text(1, 24))
    plan = there(cache.demote(4, tier="host"))
    assert (plan.source_tier, plan.destination_tier, len(plan)) == ("host", "disk", 4)
    assert cache.blocks_in_flight() == cache.blocks_in_flight("host") == (4, 0)
    assert cache.blocks_in_flight("device") == (0, 0)
    assert cache.blocks_in_flight("disk") == (0, 0)
    assert cache.demote(4, tier="host") is None, "the next four are getting a copy"
    assert cache.demote(9, tier="host") is not None
    assert cache.blocks_in_flight("host") == (6, 0)
    assert cache.demote(9, tier="host") is None, "all have a copy, or are getting one"
    assert landed(cache, cache.dispatch()) == 6
    stats = cache.stats()
    assert (stats["host_out"], stats["disk_in"], stats["disk_idle"]) == (6, 6, 6)
    assert found(cache, text(1, 24)) == (0, 6, 0), "the highest copy is what a probe finds"
    assert cache.demote(9, tier="disk") is None, "nothing is below it"


def test_without_a_host_the_device_demotes_to_the_disk() -> None:
    cache = house(host=0)
    publish_below(cache, text(1, 24))
    assert found(cache, text(1, 24)) == (0, 0, 6)
    lease = begin(cache, text(1, 25))
    assert (lease.hits, [plan.source_tier for plan in lease.plans]) == ((0, 0, 6, 0), ["disk"])


def test_promote_goes_to_the_tier_that_is_named_and_copies_nothing_that_is_there() -> None:
    cache = house(host=4)
    publish_below(cache, text(1, 16))
    assert landed(cache, cache.demote(4, tier="host")) == 4
    # Another prompt takes the host's slots.
    publish_below(cache, text(2, 16))
    assert found(cache, text(1, 16)) == (0, 0, 4)
    keys = cache.keys(text(1, 16))
    (plan,) = cache.promote(keys, 2, to="host")
    assert (plan.source_tier, plan.destination_tier, len(plan)) == ("disk", "host", 2)
    assert cache.blocks_in_flight("host") == (0, 2)
    assert cache.blocks_in_flight("device") == (0, 0)
    landed(cache, plan)
    assert found(cache, text(1, 16)) == (0, 2, 2)
    up = cache.promote(keys)
    assert [(one.source_tier, one.destination_tier, len(one)) for one in up] == [
        ("host", "device", 2),
        ("disk", "device", 2),
    ]
    assert cache.blocks_in_flight("device") == (0, 4)
    assert landed(cache, up) == 4
    assert (found(cache, text(1, 16)), cache.promote(keys)) == ((4, 0, 0), [])
    assert cache.promote(keys, to="disk") == cache.promote(keys, to="host") == []


def test_what_is_on_its_way_to_the_host_is_not_sent_there_twice() -> None:
    cache = house(host=4)
    sunk(cache, text(1, 16))
    keys = cache.keys(text(1, 16))
    first, second = (cache.promote(keys, 2, to="host") for _ in range(2))
    assert [len(plan) for plan in first + second] == [2, 2]
    assert set(first[0].sources).isdisjoint(second[0].sources)
    assert cache.promote(keys, to="host") == []
    assert landed(cache, first + second) == 4
    assert found(cache, text(1, 16)) == (0, 4, 0)


def test_promote_to_a_full_tier_copies_what_finds_room() -> None:
    cache = house(host=4)
    publish_below(cache, text(1, 16))
    landed(cache, cache.demote(4, tier="host"))
    publish_below(cache, text(2, 16))
    kept = cache.promise(3, tier="host")
    assert landed(cache, cache.promote(cache.keys(text(1, 16)), to="host")) == 1
    assert found(cache, text(1, 16)) == (0, 1, 3)
    rest = cache.promise(1, tier="host")
    assert cache.promote(cache.keys(text(1, 16)), to="host") == []
    cache.release(kept)
    cache.release(rest)
    at_rest(cache)


# -- parked sequences ----------------------------------------------------------------------------


def test_a_parked_one_moves_from_tier_to_tier_and_says_where_it_is() -> None:
    cache = house()
    handle = parked(cache, text(1, 10))
    assert (where(handle), cache.stats()["host_promised"]) == ((3, (0, 0, 0)), 3)
    assert landed(cache, cache.demote(2, of=handle)) == 2
    assert where(handle) == (1, (2, 0, 0))
    assert cache.holders() == [("parked", handle.id, 1, 1, 1, (2, 0, 0))]
    # One plan has one source: what the host keeps, and what it was only promised for.
    sources = []
    while (plan := cache.demote(9, of=handle, to="disk")) is not None:
        sources.append(plan.source_tier)
        landed(cache, plan)
    assert sorted(sources) == ["device", "host"]
    assert where(handle) == (0, (0, 3, 0))
    assert cache.holders() == [("parked", handle.id, 0, 0, 0, (0, 3, 0))]
    stats = cache.stats()
    assert (stats["host_pinned"], stats["host_promised"], stats["disk_pinned"]) == (0, 0, 3)
    lease = begin(cache, handle)
    landed(cache, list(lease.plans))
    assert (lease.cached, lease.state) == (10, "ready")
    cache.finish(lease)
    at_rest(cache)


def test_kept_from_the_host_alone_its_copy_is_read_there() -> None:
    cache = house()
    handle = parked(cache, text(1, 10))
    landed(cache, cache.demote(9, of=handle))
    cache.finish(begin(cache, text(9, free_for_all(cache) * 4)))
    plan = there(cache.demote(1, of=handle, to="disk"))
    assert (plan.source_tier, plan.destination_tier, len(plan)) == ("host", "disk", 1)
    assert where(handle) == (0, (3, 0, 0)), "it is kept there once it has landed"
    assert cache.holders()[0][-1] == (3, 0, 0)
    cache.abort(plan)
    assert where(handle) == (0, (3, 0, 0)), "a copy that failed changes nothing"
    assert landed(cache, cache.demote(9, of=handle, to="disk")) == 3
    assert where(handle) == (0, (0, 3, 0))
    assert cache.demote(9, of=handle, to="disk") is None
    assert cache.demote(9, of=handle, to="host") is None, "it is kept no higher by itself"
    lease = begin(cache, handle)
    assert {one.source_tier for one in lease.plans} <= {"host", "disk"}
    landed(cache, list(lease.plans))
    assert len(set(table(cache, lease))) == 3
    cache.finish(lease)
    at_rest(cache)


def test_a_park_that_the_host_cannot_hold_is_promised_the_disk() -> None:
    cache = house(host=2)
    handle = parked(cache, text(1, 10))
    stats = cache.stats()
    assert (stats["host_promised"], stats["disk_promised"]) == (0, 3)
    plan = there(cache.demote(9, of=handle))
    assert plan.destination_tier == "disk"
    landed(cache, plan)
    assert where(handle) == (0, (0, 3, 0))
    small = parked(cache, text(2, 8))
    assert cache.stats()["host_promised"] == 2
    for one in (handle, small):
        cache.abandon(one)
    at_rest(cache)


def test_where_no_tier_below_has_room_the_refusal_has_the_numbers_of_the_nearest() -> None:
    cache = house(host=2, disk=3)
    first = parked(cache, text(1, 10))
    lease = begin(cache, text(2, 10))
    with pytest.raises(by.NoRoom) as refused:
        cache.park(lease, 10)
    error = refused.value
    assert (error.tier, error.need, error.free, error.promised) == ("host", 3, 2, 0)
    assert "The host had no room: 3 slots were needed, 2 were available" in str(
        cache.explain(error)
    )
    longer = begin(cache, text(3, 16))
    with pytest.raises(by.TooLarge) as never:
        cache.park(longer, 16)
    assert (never.value.need, never.value.capacity) == (4, 3)
    assert "It never fits: 4 slots are needed" in str(cache.explain(never.value))
    cache.abandon(first)
    cache.finish([lease, longer])
    at_rest(cache)


# -- promises, room and sizes --------------------------------------------------------------------


def test_a_ticket_of_the_disk_keeps_room_for_a_park_there_alone() -> None:
    cache = house(host=2, disk=4)
    ticket = cache.promise(3, tier="disk")
    assert (ticket.tier, ticket.blocks, ticket.state) == ("disk", 3, "open")
    assert cache.holders() == [("disk ticket", ticket.id, 0, 3, 0, (0, 0, 0))]
    room = cache.room("disk")
    assert (room.free, room.promised, room.available) == (4, 3, 1)
    lease, other = begin(cache, text(1, 10)), begin(cache, text(2, 10))
    with pytest.raises(by.NoRoom):
        cache.park(other, 10)
    with pytest.raises(by.Misuse, match="is for the disk: park with it"):
        begin(cache, [1], ticket=ticket)
    handle = cache.park(lease, 10, ticket=ticket)
    assert (ticket.state, cache.stats()["disk_promised"]) == ("spent", 3)
    cache.abandon(handle)
    cache.finish(other)
    at_rest(cache)


def test_a_disk_can_grow_shrink_and_go_and_what_it_kept_is_lost_only_then() -> None:
    cache = house(host=2)
    handle = parked(cache, text(1, 10))
    landed(cache, cache.demote(9, of=handle))
    ticket = cache.promise(3, tier="disk")
    with pytest.raises(by.InUse, match="cannot shrink the disk to 2 blocks") as held:
        cache.resize("disk", 2)
    assert (held.value.tier, held.value.want, held.value.used) == ("disk", 2, 6)
    assert "The disk cannot have 2 slots: 6 are held" in str(cache.explain(held.value))
    assert handle.state == "kept"
    cache.release(ticket)
    cache.resize("disk", 3)
    assert (cache.limit("disk"), cache.room("disk").available) == (3, 0)
    cache.resize("disk", 20)
    assert (cache.limit("disk"), cache.room("disk").available) == (20, 17)
    cache.resize("disk", 0)
    assert (handle.state, cache.limit("disk"), cache.room("disk").free) == ("broken", 0, 0)
    cache.abandon(handle)
    with pytest.raises(by.TooLarge):
        cache.promise(1, tier="disk")
    publish_below(cache, text(2, 8))
    assert cache.demote(9, tier="host") is None, "a tier without slots is passed over"
    assert cache.audit() is None


def test_each_number_of_a_disk_is_in_the_stats_whether_there_is_one_or_not() -> None:
    names = [stat.name for stat in by.KVCache.schema()]
    tiers = {tier: [n for n in names if n.startswith(f"{tier}_")] for tier in ("host", "disk")}
    assert [name.removeprefix("host_") for name in tiers["host"]] == [
        name.removeprefix("disk_") for name in tiers["disk"]
    ]
    for cache in (house(), house(disk=0), house(host=0)):
        assert set(tiers["disk"]) <= cache.stats().keys()
    assert all(house(disk=0).stats()[name] == 0 for name in tiers["disk"])
    assert house().stats()["disk_capacity"] == 16


# -- explain -------------------------------------------------------------------------------------


def test_what_is_on_the_disk_is_said_and_no_word_of_it_where_none_is() -> None:
    cache = house(block_costs=(1, 5, 0, 10), host=4)
    publish_below(cache, text(1, 16))
    assert "disk" not in str(cache.explain(text(1, 17)))
    landed(cache, cache.demote(4, tier="host"))
    publish_below(cache, text(2, 16))
    said = str(cache.explain(text(1, 17)))
    assert "0 are on the device, 0 on the host, 4 on the disk: 16 of 17 tokens." in said
    assert "Now 4 blocks below the device would be skipped: loading them would take longer" in said
    landed(cache, cache.promote(cache.keys(text(1, 16)), 2, to="host"))
    said = str(cache.explain(text(1, 17)))
    assert "0 are on the device, 2 on the host, 2 on the disk" in said
    assert "Now 2 blocks below the device would be skipped" in said
    lease = begin(cache, text(1, 17))
    assert lease.hits == (0, 2, 0, 0)
    said = str(cache.explain(lease))
    assert "0 blocks were on the device and 2 below, and the prefix ended there: loading" in said
    cache.abort(lease.plans)
    cache.finish(lease)


def test_tickets_of_lower_tiers_free_nothing_on_the_device() -> None:
    cache = house()
    below, above = cache.promise(4, tier="disk"), cache.promise(12)
    with pytest.raises(by.NoRoom) as refused:
        begin(cache, [1])
    said = str(cache.explain(refused.value))
    assert f"The end of ticket {above.id} would make room." in said
    assert f"disk ticket {below.id}: 0" in said
    for ticket in (below, above):
        cache.release(ticket)


# -- bad input -----------------------------------------------------------------------------------


class House:
    """A cache of three tiers with something of everything, and one of two."""

    def __init__(self) -> None:
        # Wrong on purpose: not for a type checker.
        self.cache: Any = house()
        self.two: Any = house(disk=0)
        publish_below(self.cache, text(1, 16))
        self.keys = self.cache.keys(text(1, 16))
        self.foreign_keys = by.KVCache(block_size=8, device=8).keys(text(1, 16))
        self.lease = begin(self.cache, text(2, 9))
        self.parked = parked(self.cache, text(3, 10))
        self.spent = parked(self.cache, text(4, 6))
        self.cache.abandon(self.spent)
        self.foreign = parked(self.two, text(3, 10))
        self.ticket = self.cache.promise(2, tier="disk")


Act = Callable[[House], object]
NONE = "to = disk: name a tier below the device that has slots"
BAD: list[tuple[str, Act, type[Exception], str]] = [
    (
        "an unknown tier",
        lambda h: h.cache.demote(1, tier="tape"),
        by.Misuse,
        'tier = "tape": did you',
    ),
    ("a tier by number", lambda h: h.cache.demote(1, tier=2), by.Misuse, "tier = 2: must be"),
    ("no such tier", lambda h: h.two.demote(1, tier="disk"), by.Misuse, "tier = disk"),
    ("less than 0", lambda h: h.cache.demote(-1, tier="host"), by.Misuse, "blocks = -1"),
    ("half a block", lambda h: h.cache.demote(0.5, tier="host"), by.Misuse, "blocks = 0.5"),
    ("to without of", lambda h: h.cache.demote(1, to="disk"), by.Misuse, "to goes with of="),
    (
        "to with a lease",
        lambda h: h.cache.demote(1, of=h.lease, to="disk"),
        by.Misuse,
        "to goes with of=, a parked sequence",
    ),
    (
        "tier with of",
        lambda h: h.cache.demote(1, of=h.parked, tier="host"),
        by.Misuse,
        "tier goes without of=",
    ),
    (
        "to the device",
        lambda h: h.cache.demote(1, of=h.parked, to="device"),
        by.Misuse,
        "to = device: name a tier below the device",
    ),
    ("to no tier", lambda h: h.cache.demote(1, of=h.parked, to="tape"), by.Misuse, 'to = "tape"'),
    ("to none", lambda h: h.two.demote(1, of=h.foreign, to="disk"), by.Misuse, NONE),
    ("spent", lambda h: h.cache.demote(1, of=h.spent, to="disk"), by.SpentLease, "is spent"),
    ("foreign", lambda h: h.cache.demote(1, of=h.foreign, to="disk"), by.ForeignLease, "another"),
    ("of text", lambda h: h.cache.demote(1, of="x", to="disk"), by.Misuse, "to goes with of="),
    (
        "up to no tier",
        lambda h: h.cache.promote(h.keys, to="tape"),
        by.Misuse,
        'to = "tape": did you',
    ),
    ("up to none", lambda h: h.two.promote(h.two.keys(text(1, 8)), to="disk"), by.Misuse, NONE),
    ("less than none", lambda h: h.cache.promote(h.keys, -1, to="host"), by.Misuse, "blocks = -1"),
    (
        "keys of another size",
        lambda h: h.cache.promote(h.foreign_keys, to="host"),
        by.Misuse,
        "8",
    ),
    ("tokens", lambda h: h.cache.promote([1, 2], to="host"), TypeError, "Keys"),
    ("in flight nowhere", lambda h: h.cache.blocks_in_flight("tape"), by.Misuse, 'tier = "tape"'),
    ("none in flight", lambda h: h.two.blocks_in_flight("disk"), by.Misuse, "tier = disk"),
    ("no room", lambda h: h.two.room("disk"), by.Misuse, "tier = disk"),
    ("no limit", lambda h: h.two.limit("disk"), by.Misuse, "tier = disk"),
    ("no size", lambda h: h.two.resize("disk", 4), by.Misuse, "tier = disk"),
    ("a size below 0", lambda h: h.cache.resize("disk", -1), by.Misuse, "slots = -1"),
    ("no ticket", lambda h: h.two.promise(1, tier="disk"), by.Misuse, "tier = disk"),
    ("a ticket of nothing", lambda h: h.cache.promise(0, tier="disk"), by.Misuse, "blocks = 0"),
    ("never", lambda h: h.cache.promise(17, tier="disk"), by.TooLarge, "for the disk: need 17"),
    ("too many", lambda h: h.cache.promise(15, tier="disk"), by.NoRoom, "on the disk: need 15"),
    ("above", lambda h: h.cache.begin([1], ticket=h.ticket), by.Misuse, "is for the disk"),
    ("from the device", lambda h: h.cache.worth_loading(1, tier="device"), by.Misuse, "'device'"),
    ("from nowhere", lambda h: h.cache.worth_loading(1, tier="tape"), by.Misuse, 'tier = "tape"'),
]


@pytest.mark.parametrize(("act", "error", "says"), [pytest.param(*b, id=i) for i, *b in BAD])
def test_it_is_refused_by_name_and_nothing_is_changed(
    act: Act, error: type[Exception], says: str
) -> None:
    there = House()
    caches = (there.cache, there.two)
    before = [(unchanged(cache.stats()), cache.digest()) for cache in caches]
    with pytest.raises((by.BlockyardError, TypeError), match=re.escape(says)) as caught:
        act(there)
    assert type(caught.value) is error
    assert [(unchanged(cache.stats()), cache.digest()) for cache in caches] == before
    assert (there.ticket.state, there.parked.state, there.lease.state) == ("open", "kept", "ready")
    assert there.cache.audit() is None
