"""Reservations for another instance, by deadline and role (table 2.6)."""

from typing import Any

import pytest

import blockyard as by
from blockyard.scheduling.headroom import Adaptive, FullLength, NoHeadroom, Watermark
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.reservations import Reservations, ReservationState, SpentReservation
from blockyard.scheduling.scheduler import Scheduler
from loop import Loop
from yard import begin, publish, publish_below, text


def made(*, device: int = 9, **reserves: Any) -> tuple[by.KVCache, Reservations]:
    cache = by.KVCache(block_size=4, device=device)
    chosen: dict[Any, Any] = {"decode": NoHeadroom(), **reserves}
    return cache, Reservations(cache, headroom=chosen)


def spare(cache: by.KVCache) -> int:
    room = cache.room()
    return room.free + room.evictable - room.promised


@pytest.mark.law("2.6-1")
def test_a_ticket_is_open_until_it_is_committed_and_then_its_request_begins_with_it() -> None:
    cache, tickets = made()
    promise = tickets.open("a", 5, deadline=7)
    assert (promise.state, promise.blocks, spare(cache)) == (ReservationState.OPEN, 5, 3)
    with pytest.raises(by.NoRoom):
        cache.begin(text(1, 16))
    lease = begin(cache, text(1, 16), ticket=tickets.commit(promise.id))
    assert (promise.state, lease.blocks, spare(cache)) == (ReservationState.COMMITTED, 4, 4)
    assert tickets.stats()["tickets_committed"] == 1
    assert cache.audit() is None


@pytest.mark.law("2.6-2")
def test_a_ticket_that_is_released_gives_its_blocks_back() -> None:
    cache, tickets = made()
    promise = tickets.open("a", 5, deadline=7)
    tickets.release(promise.id)
    assert (promise.state, spare(cache)) == (ReservationState.RELEASED, 8)
    assert tickets.stats() == {
        "tickets_open": 0,
        "tickets_blocks": 0,
        "tickets_committed": 0,
        "tickets_released": 1,
        "tickets_expired": 0,
        "tickets_refused": 0,
    }


@pytest.mark.law("2.6-3")
def test_a_ticket_expires_behind_its_deadline_and_not_on_it() -> None:
    cache, tickets = made()
    soon, later = tickets.open("a", 2, deadline=3), tickets.open("b", 3, deadline=9)
    assert tickets.expire(3) == []
    assert tickets.expire(4) == [soon]
    assert (soon.state, later.state) == (ReservationState.EXPIRED, ReservationState.OPEN)
    assert (spare(cache), tickets.stats()["tickets_expired"]) == (5, 1)


@pytest.mark.law("2.6-4")
def test_when_the_other_side_dies_all_that_it_asked_for_has_expired() -> None:
    cache, tickets = made()
    one = tickets.open("a", 1, deadline=9, peer="p0")
    two = tickets.open("b", 2, deadline=9, peer="p1")
    three = tickets.open("c", 3, deadline=9, peer="p0")
    assert tickets.died("p0") == [one, three]
    assert [each.state for each in (one, two, three)] == ["expired", "open", "expired"]
    assert spare(cache) == 6
    assert tickets.died("p0") == []


@pytest.mark.law("2.6-5")
@pytest.mark.parametrize("end", ["commit", "release", "expire", "die"])
@pytest.mark.parametrize("verb", ["commit", "release"])
def test_a_ticket_that_has_ended_is_refused_with_an_error_of_its_own(end: str, verb: str) -> None:
    cache, tickets = made()
    promise = tickets.open("a", 2, deadline=3, peer="p")
    if end == "expire":
        tickets.expire(4)
    elif end == "die":
        tickets.died("p")
    else:
        getattr(tickets, end)(promise.id)
    # Another reservation of the same request is not mistaken for it.
    again = tickets.open("a", 1, deadline=9)
    before = spare(cache)
    with pytest.raises(SpentReservation, match=f"reservation {promise.id} is not open"):
        getattr(tickets, verb)(promise.id)
    assert (again.state, spare(cache)) == (ReservationState.OPEN, before)


@pytest.mark.law("2.6-6")
def test_a_second_ticket_of_a_request_is_rejected_and_the_first_is_as_it_was() -> None:
    cache, tickets = made()
    promise = tickets.open("a", 2, deadline=3)
    with pytest.raises(by.Misuse, match="'a' has a reservation"):
        tickets.open("a", 1, deadline=5)
    assert (promise.state, spare(cache)) == (ReservationState.OPEN, 6)


@pytest.mark.law("R1-5", "4.5-34")
@pytest.mark.parametrize(
    ("role", "policy"),
    [("mixed", Adaptive(2.0)), ("prefill", NoHeadroom()), ("decode", Watermark(3))],
)
@pytest.mark.parametrize("running", [0, 1, 2, 3])
@pytest.mark.parametrize("idle", [0, 3])
def test_a_promise_succeeds_if_and_only_if_it_leaves_what_the_roles_policy_wants(
    role: Any, policy: Any, running: int, idle: int
) -> None:
    """F + evictable - n >= policy(R, r) (R1-5)."""
    for blocks in range(1, 13):
        cache, tickets = made(device=13, **{role: policy})
        publish(cache, text(1, 4 * idle)) if idle else None
        growth = begin(cache, text(2, 8), reserve=8)
        room = cache.room()
        left = room.free + room.evictable - growth.promised - blocks
        if left >= policy.headroom(running):
            assert tickets.open("a", blocks, deadline=1, role=role, running=running).blocks
        else:
            with pytest.raises(by.NoRoom) as refused:
                tickets.open("a", blocks, deadline=1, role=role, running=running)
            assert refused.value.promised == growth.promised
            assert tickets.stats()["tickets_refused"] == 1
            assert spare(cache) == left + blocks
            assert cache.stats()["tickets"] == 0
        assert cache.audit() is None


@pytest.mark.law("R1-5")
def test_what_a_scheduler_keeps_already_is_not_kept_twice() -> None:
    cache = by.KVCache(block_size=4, device=13)
    policy = Watermark(4)
    scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=2, headroom=policy))
    scheduler.add(by.NewRequest("runs", text(1, 8), max_tokens=9))
    scheduler.schedule()
    scheduler.schedule()
    assert (scheduler.running, scheduler.headroom) == (1, 4)
    tickets = Reservations(cache, headroom={"decode": policy})
    want = spare(cache) + scheduler.headroom - policy.headroom(1)
    with pytest.raises(by.NoRoom):
        tickets.open("a", want + 1, deadline=1, running=1)
    assert tickets.open("a", want, deadline=1, running=1).blocks == want


@pytest.mark.law("R1-5")
@pytest.mark.parametrize("policy", [Adaptive(), Watermark(12)])
def test_no_more_is_kept_than_those_that_run_can_still_need(policy: Any) -> None:
    """But what was asked for as a fixed number is kept."""
    cache = by.KVCache(block_size=4, device=33)
    scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=2, headroom=NoHeadroom()))
    scheduler.add(by.NewRequest("runs", text(1, 8), max_tokens=9))
    scheduler.schedule()
    assert (scheduler.running, scheduler.growth) == (1, 2)
    tickets = Reservations(cache, headroom={"decode": policy})
    fits = spare(cache) - (2 if isinstance(policy, Adaptive) else 12)
    with pytest.raises(by.NoRoom):
        tickets.open("a", fits + 1, deadline=1, running=1, growth=scheduler.growth)
    assert tickets.open("a", fits, deadline=1, running=1, growth=scheduler.growth).blocks == fits


@pytest.mark.law("2.6-1", "4.5-34")
def test_a_scheduled_request_begins_in_the_room_of_its_ticket() -> None:
    cache, tickets = made()
    scheduler = Scheduler(cache, SchedulerOptions(max_num_seqs=3, headroom=FullLength()))
    promise = tickets.open("comes", 6, deadline=5)
    scheduler.add(by.NewRequest("other", text(1, 12), max_tokens=5))
    scheduler.add(
        by.NewRequest("comes", text(2, 20), max_tokens=4, ticket=tickets.commit(promise.id))
    )
    step = scheduler.schedule()
    assert [start.request for start in step.starts] == ["comes"]
    assert cache.stats()["tickets"] == 0


@pytest.mark.law("T23", "2.6-2")
def test_a_request_that_is_aborted_in_the_queue_gives_its_ticket_back() -> None:
    cache, tickets = made()
    scheduler = Scheduler(cache)
    ticket = tickets.commit(tickets.open("a", 6, deadline=5).id)
    scheduler.add(by.NewRequest("a", text(2, 20), max_tokens=4, ticket=ticket))
    scheduler.abort("a")
    assert (ticket.state, spare(cache)) == ("spent", 8)
    with pytest.raises(by.Misuse, match="is spent"):
        scheduler.add(by.NewRequest("a", text(2, 20), max_tokens=4, ticket=ticket))


@pytest.mark.law("INV-2")
def test_a_ticket_of_another_cache_is_refused_when_its_request_is_added() -> None:
    cache, _ = made()
    _, others = made()
    scheduler = Scheduler(cache)
    foreign = others.commit(others.open("a", 2, deadline=5).id)
    with pytest.raises(by.Misuse, match=f"ticket {foreign.id} of request 'a' was made by another"):
        scheduler.add(by.NewRequest("a", text(2, 8), max_tokens=4, ticket=foreign))
    assert (foreign.state, scheduler.state("a"), scheduler.idle) == ("open", None, True)
    assert cache.audit() is None


@pytest.mark.law("R1-5")
@pytest.mark.parametrize("how", ["finish", "stop", "abort while loading", "fail", "reset"])
def test_when_nothing_runs_any_more_all_that_is_free_can_be_promised_at_once(how: str) -> None:
    """It falls at once: an idle instance may never call `schedule` again (R1-5)."""
    policy = Adaptive(8.0)
    loop = Loop(device=65, host=64, headroom=policy)
    tickets = Reservations(loop.cache, headroom={"decode": policy})
    if how == "abort while loading":
        publish_below(loop.cache, text(1, 32))
    loop.add("one", text(1, 33), 40)
    loop.schedule()
    loop.schedule()
    assert (loop.scheduler.running, loop.scheduler.headroom) == (1, 8)
    room = loop.cache.room()
    with pytest.raises(by.NoRoom):
        tickets.open("comes", room.free + room.evictable, deadline=9, running=1)
    if how == "finish":
        loop.output()
        loop.output()
        while loop.state("one") is not None:
            loop.turn()
    elif how == "fail":
        loop.scheduler.fail()
    elif how == "reset":
        loop.scheduler.reset(requests="abort")
    else:
        loop.scheduler.abort("one")
    assert (loop.scheduler.running, loop.scheduler.headroom) == (0, 0)
    room = loop.cache.room()
    assert room.promised == 0
    assert tickets.open("comes", room.free + room.evictable, deadline=9, running=0).blocks
    assert loop.cache.audit() is None


@pytest.mark.law("R1-5")
def test_as_fewer_run_less_is_kept_for_their_growth_at_once() -> None:
    loop = Loop(device=65, headroom=Adaptive(4.0, 0.0, short=0))
    for name in range(3):
        loop.add(name, text(name, 8), 20)
    loop.turn(2)
    assert (loop.scheduler.running, loop.scheduler.headroom) == (3, 12)
    loop.scheduler.abort(1)
    assert (loop.scheduler.running, loop.scheduler.headroom) == (2, 8)
    loop.finish()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"blocks": 0}, "blocks = 0"),
        ({"blocks": True}, "blocks = True"),
        ({"deadline": 1}, "deadline = 1"),
        ({"role": "cook"}, "'cook'"),
        ({"running": -1}, "running = -1"),
        ({"growth": -1}, "growth = -1"),
        ({"growth": 1.5}, "growth = 1.5"),
    ],
)
def test_bad_values_are_named_and_nothing_is_promised(wrong: dict[str, Any], says: str) -> None:
    cache, tickets = made()
    tickets.expire(2)
    with pytest.raises(by.Misuse, match=says):
        tickets.open("a", **{"blocks": 1, "deadline": 5, **wrong})
    assert (spare(cache), tickets.stats()["tickets_open"]) == (8, 0)


def test_a_tick_never_goes_back_and_what_never_fits_is_said() -> None:
    cache, tickets = made()
    tickets.expire(5)
    with pytest.raises(by.Misuse, match="now = 4"):
        tickets.expire(4)
    with pytest.raises(by.TooLarge):
        tickets.open("a", 9, deadline=9)
    with pytest.raises(by.Misuse, match="role"):
        Reservations(cache, headroom={"cook": NoHeadroom()})  # type: ignore[dict-item]


@pytest.mark.law("R1-5")
def test_a_refusal_for_those_that_run_says_what_is_needed_with_what_they_want() -> None:
    """There were blocks enough, but not beside the headroom (R1-5)."""
    _, tickets = made(decode=Watermark(3))
    with pytest.raises(by.NoRoom) as refused:
        tickets.open("a", 6, deadline=1, running=1)
    assert (refused.value.need, refused.value.free) == (9, 8)


@pytest.mark.law("R1-5")
def test_a_policy_keeps_nothing_for_an_empty_batch_and_never_less_than_nothing() -> None:
    """R1-5."""
    growing = Adaptive(1.0, 0.75)
    for _ in range(3):
        growing.stepped()
    assert (growing.headroom(0), growing.headroom(9)) == (0, 0)
    assert [Watermark(3).headroom(running) for running in (0, 1, 2)] == [0, 3, 3]
