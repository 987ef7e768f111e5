"""Tickets and the digest, through the binding."""

import gc
import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal, assert_type

import pytest

import blockyard as by
from blockyard._core import Cache, Ticket
from yard import array, begin, publish, publish_below, text, unchanged


def spare(cache: by.KVCache) -> int:
    room = cache.room()
    return room.free + room.evictable - room.promised


def test_a_ticket_keeps_its_blocks_for_its_owner() -> None:
    cache = by.KVCache(block_size=4, device=9)
    publish(cache, text(1, 12))
    ticket = cache.promise(6)
    assert (ticket.blocks, ticket.state) == (6, "open")
    assert repr(ticket) == f"Ticket(id={ticket.id}, blocks=6)"
    assert (cache.stats()["tickets"], cache.room().promised, spare(cache)) == (1, 6, 2)
    assert cache.holders() == [("ticket", ticket.id, 0, 6, 0, (0, 0, 0))]
    with pytest.raises(by.NoRoom) as refused:
        cache.begin(text(2, 12))
    assert (refused.value.need, refused.value.promised) == (3, 6)
    assert f"The end of ticket {ticket.id} would make room." in str(cache.explain(refused.value))
    lease = begin(cache, text(2, 12), reserve=4, ticket=ticket)
    assert (ticket.state, ticket.blocks, lease.blocks, lease.promised) == ("spent", 6, 3, 1)
    assert (cache.stats()["tickets"], cache.room().promised) == (0, 1)
    assert cache.audit() is None


def test_what_is_released_is_promised_no_more() -> None:
    cache = by.KVCache(block_size=4, device=9)
    ticket = cache.promise(8)
    cache.release(ticket)
    assert (ticket.state, cache.room().promised, cache.stats()["leaked"]) == ("spent", 0, 0)
    again = cache.promise(8)
    assert again.id != ticket.id


def test_a_ticket_is_open_still_when_its_begin_is_refused_or_told_to_wait() -> None:
    cache = by.KVCache(block_size=4, device=12, host=8)
    publish_below(cache, text(1, 8))
    (plan,) = cache.promote(cache.keys(text(1, 8)))
    ticket = cache.promise(4)
    before, digest = cache.stats(), cache.digest()
    soon = cache.begin(text(1, 9), filling="soon", ticket=ticket)
    assert isinstance(soon, by.Soon)
    for tokens, error in ((40, by.NoRoom), (48, by.TooLarge)):
        with pytest.raises(by.NoRoom) as refused:
            cache.begin(text(2, tokens), ticket=ticket)
        assert type(refused.value) is error
        assert refused.value.promised == 0, "its own ticket is not in its way"
    assert (ticket.state, cache.digest()) == ("open", digest)
    assert unchanged(cache.stats()) == unchanged(before)
    lease = begin(cache, text(2, 16), ticket=ticket)
    assert ticket.state == "spent"
    cache.finish(lease)
    cache.commit(plan)


def test_a_parked_sequence_comes_back_with_a_ticket() -> None:
    cache = by.KVCache(block_size=4, device=7, host=6)
    lease = begin(cache, text(1, 12))
    cache.seal(lease, 12)
    parked = cache.park(lease, 12)
    plan = cache.demote(3, of=parked)
    assert plan is not None
    cache.commit(plan)
    ticket = cache.promise(3)
    other = begin(cache, text(2, 12))
    with pytest.raises(by.NoRoom):
        cache.begin(parked)
    with pytest.raises(by.NoRoom):
        cache.begin(parked, reserve=4, ticket=ticket)
    assert (parked.state, ticket.state) == ("kept", "open")
    resumed = begin(cache, parked, ticket=ticket)
    assert (parked.state, ticket.state) == ("spent", "spent")
    cache.commit(resumed.plans)
    assert (resumed.cached, resumed.state) == (12, "ready")
    cache.finish([resumed, other])
    assert cache.audit() is None


def test_a_ticket_that_is_dropped_comes_back_late_and_is_counted() -> None:
    cache = by.KVCache(block_size=4, device=9)
    ticket = cache.promise(8)
    del ticket
    gc.collect()
    assert (cache.room().promised, cache.stats()["leaked"]) == (0, 1)


class House:
    """A cache with a ticket of each kind, and another one."""

    def __init__(self) -> None:
        # Wrong on purpose: not for a type checker.
        self.cache: Any = by.KVCache(block_size=4, device=9, host=4)
        self.other: Any = by.KVCache(block_size=4, device=9, host=4)
        self.open = self.cache.promise(2)
        self.spent = self.cache.promise(3)
        self.cache.release(self.spent)
        self.foreign = self.other.promise(1)
        self.parked = self.cache.park(begin(self.cache, text(1, 4)), 4)


Act = Callable[[House], object]
BAD: list[tuple[str, Act, type[by.BlockyardError], str]] = [
    ("none", lambda h: h.cache.promise(0), by.Misuse, "blocks = 0"),
    ("below 0", lambda h: h.cache.promise(-1), by.Misuse, "blocks = -1"),
    ("a half", lambda h: h.cache.promise(0.5), by.Misuse, "blocks = 0.5"),
    ("True", lambda h: h.cache.promise(True), by.Misuse, "blocks = True"),  # noqa: FBT003
    ("text", lambda h: h.cache.promise("4"), by.Misuse, "blocks = 4"),
    ("beyond int64", lambda h: h.cache.promise(2**70), by.Misuse, f"blocks = {2**70}"),
    ("never fits", lambda h: h.cache.promise(9), by.TooLarge, "need 9 blocks, capacity 8"),
    ("ever so large", lambda h: h.cache.promise(2**64 - 1), by.TooLarge, f"need {2**64 - 1}"),
    ("no room", lambda h: h.cache.promise(7), by.NoRoom, "need 7 blocks, free 7"),
    ("release twice", lambda h: h.cache.release(h.spent), by.SpentLease, "ticket"),
    ("release there", lambda h: h.cache.release(h.foreign), by.ForeignLease, "another cache"),
    ("begin again", lambda h: h.cache.begin([1], ticket=h.spent), by.SpentLease, "is spent"),
    ("begin there", lambda h: h.cache.begin([1], ticket=h.foreign), by.ForeignLease, "another"),
    ("resume again", lambda h: h.cache.begin(h.parked, ticket=h.spent), by.SpentLease, "spent"),
    ("no tokens", lambda h: h.cache.begin([], ticket=h.open), by.Misuse, "tokens = 0"),
    ("salt", lambda h: h.cache.begin(h.parked, salt="s", ticket=h.open), by.Misuse, "salt"),
]


@pytest.mark.parametrize(("act", "error", "says"), [pytest.param(*b, id=i) for i, *b in BAD])
def test_it_is_refused_by_name_and_nothing_is_changed(
    act: Act, error: type[by.BlockyardError], says: str
) -> None:
    house = House()
    before, digest = house.cache.stats(), house.cache.digest()
    with pytest.raises(by.BlockyardError, match=re.escape(says)) as caught:
        act(house)
    assert type(caught.value) is error
    after = house.cache.stats()
    assert unchanged(after) == unchanged(before)
    handles = issubclass(error, by.SpentLease | by.ForeignLease)
    assert after["rejected"] - before["rejected"] == handles
    assert house.cache.digest() == digest
    assert (house.open.state, house.foreign.state) == ("open", "open")
    assert house.cache.audit() is None


def test_wrong_kinds_of_arguments_are_type_errors_as_in_any_python_function() -> None:
    house = House()
    ticket: Any = Ticket
    for act in (
        ticket,
        lambda: house.cache.release(house.parked),
        lambda: house.cache.release(3),
        lambda: house.cache.begin([1], ticket=2),
        house.cache.promise,
        lambda: house.cache.digest(1),
    ):
        with pytest.raises(TypeError):
            act()


def test_the_types_are_what_the_stubs_say() -> None:
    cache = by.KVCache(device=9)
    ticket = cache.promise(1)
    assert_type(ticket, Ticket)
    assert_type(ticket.id, int)
    assert_type(ticket.blocks, int)
    assert_type(ticket.state, Literal["open", "spent"])
    assert_type(cache.begin([1], ticket=ticket), by.Lease)
    assert_type(cache.digest(), int)
    with pytest.raises(AttributeError):
        ticket.blocks = 3  # type: ignore[misc]
    assert 0 <= cache.digest() < 2**64


def life(cache: by.KVCache, dice: random.Random, leases: list[by.Lease], tickets: Any) -> None:
    """One verb, by the dice."""
    match dice.randrange(6):
        case 0 | 1:
            prompt = text(dice.randrange(3), dice.randrange(1, 20))
            ticket = tickets.pop() if tickets and dice.random() < 0.5 else None
            try:
                lease = begin(cache, array(prompt), reserve=dice.randrange(8), ticket=ticket)
            except by.NoRoom:
                tickets += [ticket] if ticket else []
            else:
                cache.commit(lease.plans)
                cache.seal(lease, len(prompt))
                leases.append(lease)
        case 2 if leases:
            cache.finish(leases.pop(dice.randrange(len(leases))))
        case 3 if leases:
            cache.grow(leases)
        case 4:
            plan = cache.demote(dice.randrange(1, 4))
            if plan is not None:
                cache.commit(plan, dice.randrange(len(plan) + 1))
        case _:
            try:
                tickets.append(cache.promise(dice.randrange(1, 6)))
            except by.NoRoom:
                cache.release(tickets.pop(0)) if tickets else None


@pytest.mark.parametrize("eviction", ["recency", "heap"])
def test_replicas_that_were_fed_the_same_calls_have_one_digest(eviction: Any) -> None:
    def made() -> tuple[by.KVCache, random.Random, list[by.Lease], list[Ticket]]:
        cache = by.KVCache(block_size=4, device=20, host=8, eviction=eviction)
        return cache, random.Random(5), [], []

    ones, others = made(), made()
    digests = []
    for _ in range(400):
        life(*ones)
        life(*others)
        digests.append(ones[0].digest())
        assert digests[-1] == others[0].digest()
        assert ones[0].digest() == digests[-1], "asking for it does not change it"
    assert len(set(digests)) > 250
    assert ones[0].audit() is None


def test_caches_of_other_configurations_differ_from_the_start() -> None:
    kinds: list[dict[str, Any]] = [{}, {"host": 1}, {"copy_retries": 2}, {"eviction": "heap"}]
    assert len({Cache(device=9, **kind).digest() for kind in kinds}) == len(kinds)


# Run apart: a fork beside pytest's own threads is not what is tested.
FORK = """
import os
import blockyard as by

cache = by.KVCache(block_size=4, device=16)
ticket = cache.promise(3)
if os.fork() == 0:
    refused = 0
    for use in (
        cache.digest, lambda: cache.promise(1), lambda: cache.release(ticket),
        lambda: cache.begin([1], ticket=ticket), lambda: ticket.state,
    ):
        try:
            use()
        except by.Misuse as error:
            refused += "fork" in str(error)
    named = (ticket.blocks, repr(ticket)) == (3, f"Ticket(id={ticket.id}, blocks=3)")
    del ticket
    os._exit(0 if refused == 5 and named else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
cache.release(ticket)
assert cache.stats()["leaked"] == cache.stats()["rejected"] == 0
print("done")
"""


def test_tickets_refuse_in_a_forked_child_and_are_dropped_there_without_a_word() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)  # noqa: S603
    assert done.stdout == "done\n", done.stderr
