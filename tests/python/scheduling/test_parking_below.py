"""A disk below the host: where victims are parked, what sinks to it, and who may begin."""

import random
from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.request import RequestState
from blockyard.yard.parking import Parking
from loop import Loop, continuation, squeezed
from yard import at_rest, begin, free_for_all, text

KEPT = RequestState.PARKED


def three(**keywords: Any) -> by.KVCache:
    sizes = {"block_size": 4, "device": 9, "host": 32, "disk": 32, "ahead": 0}
    return by.KVCache(**(sizes | keywords))


def parking(**keywords: Any) -> tuple[by.KVCache, Parking]:
    cache = three(**({"device": 33} | keywords))
    return cache, Parking(cache, cache.config)


def victim(cache: by.KVCache, **keywords: Any) -> Loop:
    """ "new" was the victim of "old", and its stop was acked."""
    loop = squeezed(cache=cache, **keywords)
    while loop.state("new") is not RequestState.STOPPING:
        loop.schedule()
        loop.land()
        loop.output()
    loop.ack()
    return loop


def done(loop: Loop) -> None:
    loop.finish()


def sunk(cache: by.KVCache, name: int, tokens: int) -> by.Parked:
    """Parks a sequence, and copies it down to where it was promised slots."""
    handle = cache.park(begin(cache, text(name, tokens)), tokens)
    while (plan := cache.demote(100, of=handle)) is not None:
        cache.commit(plan)
    assert handle.on_device == 0
    return handle


def landed(cache: by.KVCache) -> list[tuple[str, str, int]]:
    plans = cache.dispatch()
    cache.commit(plans)
    return [(plan.source_tier, plan.destination_tier, len(plan)) for plan in plans]


# -- where a victim goes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "disk", "tier"),
    [(32, 32, "host"), (2, 32, "disk"), (0, 32, "disk"), (4, 0, "host"), (2, 2, None)],
)
def test_a_victim_goes_to_the_nearest_tier_with_room_or_is_computed_again(
    host: int, disk: int, tier: str | None
) -> None:
    loop = victim(three(host=host, disk=disk))
    stats = loop.cache.stats()
    promised = {name: stats[f"{name}_promised"] for name in ("host", "disk")}
    if tier is None:
        assert loop.state("new") is RequestState.RECOMPUTE
        assert (loop.told("no_host"), loop.told("parkings")) == (1, 0)
    else:
        assert (loop.state("new"), loop.told("parkings")) == (KEPT, 1)
        assert promised == {"host": 0, "disk": 0} | {tier: loop.handle().blocks}
    done(loop)
    if tier is not None:
        assert loop.told("lost") == 0
        assert loop.cache.stats()[f"{tier}_in"] > 0


def test_what_is_promised_on_the_host_sends_the_next_victim_to_the_disk() -> None:
    cache = three(host=6)
    held = cache.promise(4, tier="host")
    loop = victim(cache)
    assert (cache.stats()["host_promised"], cache.stats()["disk_promised"]) == (4, 4)
    cache.release(held)
    done(loop)
    assert (cache.stats()["host_in"], loop.told("lost")) == (0, 0)


@pytest.mark.parametrize("block_costs", [(1, 5, 0, 90), (90, 5, 0, 1)])
def test_whether_parking_pays_is_asked_of_the_tier_that_it_goes_to(block_costs: Any) -> None:
    for host in (32, 2):
        loop = victim(three(host=host, block_costs=block_costs))
        pays = (block_costs[0] if host == 32 else block_costs[3]) == 1
        assert (loop.state("new") is KEPT) == pays
        assert (loop.told("cheaper"), loop.told("parkings")) == (int(not pays), int(pays))
        done(loop)


def test_it_comes_back_from_the_disk_with_the_same_tokens() -> None:
    loop = victim(three(host=2))
    while loop.handle().on_device:
        loop.cache.demote(8, of=loop.handle())
        loop.plans += loop.cache.dispatch()
        loop.land()
    assert loop.handle().below == (0, loop.handle().blocks, 0)
    loop.cache.finish(begin(loop.cache, text(9, 4 * free_for_all(loop.cache))))
    loop.scheduler.abort("old")
    while loop.state("new") is not RequestState.LOADING:
        loop.turn(lands=False)
    assert {plan.source_tier for plan in loop.plans} == {"disk"}
    loop.land()
    loop.finish()
    assert (loop.told("lost"), loop.told("resumes")) == (0, 1)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_traffic_over_three_tiers_loses_nothing(seed: int, recompute: bool) -> None:
    rng = random.Random(seed)
    cache = three(device=13, host=12, disk=24, ahead={"host": 6}, recompute=recompute)
    loop = Loop(cache=cache, max_num_seqs=4)
    sizes = {}
    for name in range(10):
        prompt, most = rng.randrange(2, 24), rng.randrange(4, 20)
        sizes[name] = prompt, most
        loop.add(name, text(name + 1, prompt), most, priority=rng.randrange(3))
        loop.turn(rng.randrange(1, 4))
    loop.finish(1000)
    for name, (prompt, most) in sizes.items():
        result = loop.results[name]
        assert result.state is RequestState.FINISHED
        assert result.tokens.tolist() == continuation(name, prompt, most)
    assert loop.told("parkings") > 0
    at_rest(cache)


def test_the_scheduler_lowers_what_is_parked_where_the_host_is_short() -> None:
    loop = victim(three(host=4, disk=32, ahead={"device": 0, "host": 4}))
    handle = loop.handle()
    while loop.state("new") is KEPT and not handle.below[1]:
        loop.turn()
    assert loop.told("lowered") > 0
    done(loop)
    assert loop.told("lost") == 0


# -- lower ---------------------------------------------------------------------------------------


def kept_on_host(*names: int, **keywords: Any) -> tuple[by.KVCache, Parking, list[by.Parked]]:
    """Sequences of three blocks, kept on a host of twelve that wants eight available."""
    sizes = {"host": 12, "disk": 16, "ahead": {"device": 0, "host": 8}}
    cache, own = parking(**(sizes | keywords))
    handles = [sunk(cache, name, 10) for name in names]
    assert [handle.below for handle in handles] == [(3, 0, 0)] * len(handles)
    return cache, own, handles


def test_lower_moves_as_much_as_the_host_lacks_and_keeps_it_once() -> None:
    cache, own, handles = kept_on_host(1, 2, 3)
    assert cache.room("host").available == 3
    assert own.lower(handles) == 5
    assert own.lower(handles) == 0, "what is on its way counts"
    assert landed(cache) == [("host", "disk", 3), ("host", "disk", 2)]
    assert [handle.below for handle in handles] == [(0, 3, 0), (1, 2, 0), (3, 0, 0)]
    assert cache.room("host").available == 8
    assert own.lower(handles) == 0
    stats = cache.stats()
    assert (stats["host_pinned"], stats["disk_pinned"], own.stats()["lowered"]) == (4, 5, 5)
    assert cache.audit() is None
    for handle in handles:
        cache.abandon(handle)
    at_rest(cache)


def test_what_two_keep_is_moved_once_for_both() -> None:
    cache, own = parking(host=12, disk=16, ahead={"device": 0, "host": 12})
    leases = []
    for name in (1, 2):
        lease = begin(cache, [*text(7, 8), name])
        cache.seal(lease, 8)
        leases.append(lease)
    handles = [cache.park(lease, 9) for lease in leases]
    for handle in handles:
        while (plan := cache.demote(9, of=handle)) is not None:
            cache.commit(plan)
    assert [handle.below for handle in handles] == [(3, 0, 0)] * 2
    assert cache.stats()["host_pinned"] == 4
    assert own.lower(handles) == 4
    assert sum(blocks for _, _, blocks in landed(cache)) == 4
    assert [handle.below for handle in handles] == [(0, 3, 0)] * 2
    stats = cache.stats()
    assert (stats["host_pinned"], stats["disk_pinned"], stats["disk_in"]) == (0, 4, 4)


def test_lower_stops_where_the_disk_is_full() -> None:
    cache, own, handles = kept_on_host(1, 2, 3, disk=4)
    assert own.lower(handles) == 4
    landed(cache)
    assert [handle.below for handle in handles] == [(0, 3, 0), (2, 1, 0), (3, 0, 0)]
    assert own.lower(handles) == 0
    assert {handle.state for handle in handles} == {"kept"}


def test_lower_does_nothing_where_the_disk_has_no_slots_any_more() -> None:
    cache, own, handles = kept_on_host(1, 2, 3)
    cache.resize("disk", 0)
    assert own.lower(handles) == 0
    cache.resize("disk", 2)
    assert own.lower(handles) == 2
    assert sum(blocks for _, _, blocks in landed(cache)) == 2


def test_lower_does_nothing_without_a_host_or_a_disk_or_a_watermark() -> None:
    for keywords in ({"disk": 0}, {"ahead": {"host": 0}}, {"ahead": 0}):
        _cache, own, handles = kept_on_host(1, 2, 3, **keywords)
        assert own.lower(handles) == 0
    cache, own = parking(host=0)
    assert (own.tier, own.lower([sunk(cache, 1, 10)])) == ("disk", 0)
    with pytest.raises(by.Misuse, match="must be a Lease"):
        own.promise(3)  # type: ignore[arg-type]


def test_lower_passes_over_what_is_broken_or_not_on_the_host() -> None:
    cache, own, handles = kept_on_host(1, 2, 3)
    still = cache.park(begin(cache, text(4, 4)), 4)
    cache.clear()
    assert {handle.state for handle in [*handles, still]} == {"broken"}
    assert own.lower([*handles, still]) == 0
    for handle in [*handles, still]:
        cache.abandon(handle)
    at_rest(cache)


def test_what_a_step_in_flight_may_still_write_is_not_lowered() -> None:
    loop = victim(three(host=8, ahead={"device": 0, "host": 8}))
    while loop.handle().on_device:
        loop.cache.demote(8, of=loop.handle())
        loop.cache.commit(loop.cache.dispatch())
    entry = loop.scheduler._lifecycle._requests["new"]
    preemptor = loop.scheduler._pressure._preemptor
    before, entry.last_write = entry.last_write, loop.cache.done + 1
    preemptor.lower()
    assert (loop.told("lowered"), loop.cache.dispatch()) == (0, [])
    entry.last_write = before
    preemptor.lower()
    assert loop.told("lowered") > 0
    done(loop)


# -- an engine that cannot recompute -------------------------------------------------------------


def test_a_promise_tries_the_tiers_in_turn() -> None:
    cache, own = parking(host=4, disk=6, recompute=False)
    leases = [begin(cache, text(name, 10)) for name in range(4)]
    tickets = [own.promise(lease) for lease in leases]
    assert [ticket and ticket.tier for ticket in tickets] == ["host", "disk", "disk", None]
    assert own.limits() == [4, 6]
    kept = [
        cache.park(lease, 10, ticket=ticket)
        for lease, ticket in zip(leases[:3], tickets, strict=False)
    ]
    stats = cache.stats()
    assert (stats["host_promised"], stats["disk_promised"]) == (3, 6)
    for handle in kept:
        cache.abandon(handle)
    cache.finish(leases[3])
    at_rest(cache)


def test_inv_11_a_request_that_could_not_be_parked_waits_and_is_told_the_numbers() -> None:
    """Of three that may need six blocks each, a host of six and a disk of four hold one."""
    cache = by.KVCache(block_size=1, device=13, host=6, disk=4, ahead=0, recompute=False)
    loop = Loop(cache=cache)
    for name in range(3):
        loop.add(name, [name + 1], 6)
    loop.turn(2)
    assert [loop.state(name) for name in range(3)].count(RequestState.WAITING) == 1
    (entry,) = loop.scheduler._queue.next(9)
    with pytest.raises(by.NoRoom) as refused:
        loop.scheduler._admission._check_safe(entry)
    error = refused.value
    assert str(error) == "no room on the host to park 12 blocks: there is room for 6"
    assert (error.tier, error.need, error.free, error.available) == ("host", 12, 6, 6)
    loop.finish(1000)
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


def test_inv_11_without_a_host_the_disk_is_named() -> None:
    cache = by.KVCache(block_size=1, device=13, disk=6, ahead=0, recompute=False)
    loop = Loop(cache=cache)
    for name in range(3):
        loop.add(name, [name + 1], 6)
    loop.turn(2)
    (entry,) = loop.scheduler._queue.next(9)
    with pytest.raises(by.NoRoom, match="no room on the disk to park 12 blocks") as refused:
        loop.scheduler._admission._check_safe(entry)
    assert refused.value.tier == "disk"
    loop.finish(1000)
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.parametrize("sizes", [(6, 6, 6), (4, 7, 5), (3, 3, 9), (8, 2, 2)])
@pytest.mark.parametrize("tiers", [(9, 9), (12, 7), (7, 12), (0, 16)])
def test_inv_11_over_two_tiers_none_is_lost(sizes: tuple[int, ...], tiers: tuple[int, int]) -> None:
    host, disk = tiers
    cache = by.KVCache(
        block_size=1, device=11, host=host, disk=disk, ahead={"host": 3}, recompute=False
    )
    loop = Loop(cache=cache)
    for name, most in enumerate(sizes):
        loop.add(name, [name + 1], most)
    loop.finish(1000)
    for name, most in enumerate(sizes):
        result = loop.results[name]
        assert result.state is RequestState.FINISHED
        assert result.tokens.tolist() == continuation(name, 1, most)


@pytest.mark.parametrize(("blocks", "tier"), [(3, "host"), (4, "host"), (5, "disk"), (40, "host")])
def test_whether_parking_pays_is_asked_of_the_nearest_tier_with_just_enough_room(
    monkeypatch: pytest.MonkeyPatch, blocks: int, tier: str
) -> None:
    """Where none has the room, of the nearest."""
    cache, preempt = parking(host=6, disk=16, device=65)
    ticket = cache.promise(2, tier="host")
    assert cache.room("host").available == 4
    asked: list[str] = []

    def worth(_self: by.KVCache, _blocks: int, *, tier: str) -> bool:
        asked.append(tier)
        return False

    monkeypatch.setattr(by.KVCache, "worth_loading", worth, raising=False)
    lease = begin(cache, text(1, 4 * blocks))
    assert preempt.park(lease, 4 * blocks) is None
    assert asked == [tier]
    cache.finish(lease)
    cache.release(ticket)
