"""Refusals are whole: a verb that takes several things, of which the last is bad, takes none.

Each row has a verb with good values, and what may stand behind them. The verb is refused with every
one of these, by an error that has a type, and nothing is changed; with the good values alone it is
not refused afterwards.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.scheduling.engine import Ack, Output
from cranes import SMALL
from loop import Loop, column
from yard import begin, plan_of, text, unchanged

Verb = Callable[[Any, Any], object]
NO_VALUES: tuple[Any, ...] = (None, "x", 1.5, object(), [1], True)
"""What is no integer, no handle, and no row of anything."""


class House:
    """A cache with leases and flights, another one, and an empty one with three tiers."""

    def __init__(self) -> None:
        # Wrong on purpose: not for a type checker.
        self.cache: Any = by.KVCache(block_size=4, device=32, host=16, deadline=9)
        self.other: Any = by.KVCache(block_size=4, device=32, host=16)
        self.empty: Any = by.KVCache(block_size=4, device=8, host=8, disk=8)
        self.leases = [begin(self.cache, text(name, 8), reserve=8) for name in (1, 2)]
        self.foreign = begin(self.other, text(1, 8))
        self.spent = begin(self.cache, text(3, 8))
        self.cache.finish(self.spent)
        self.plans: list[Any] = []
        for lease in self.leases:
            self.cache.seal(lease, 8)
            self.plans.append(self.cache.demote(2, of=lease))
            self.cache.append(lease, [7, 8])
            self.cache.grow(lease, 2)
        for cache in (self.cache, self.other):
            cache.dispatch()

    def seen(self) -> object:
        caches = self.cache, self.other, self.empty
        assert not any(cache.audit() for cache in caches)
        rows = [(lease.appended, lease.tokens, lease.sealed, lease.state) for lease in self.leases]
        return rows, [(unchanged(cache.stats()), cache.digest()) for cache in caches]

    def handles(self) -> Sequence[Any]:
        return self.leases


def outcome(house: House, at: int, *rest: Any) -> by.Outcome:
    flight = house.plans[at].flight
    return by.Outcome(flight, *rest) if rest else by.Outcome(flight, 0, 2, None)


KEYS = np.arange(64, dtype=np.uint8).reshape(2, 32)
ROOTS = np.zeros((2, 32), np.uint8)

Bad = Callable[[Any], Sequence[Any]]


def no_values(_: object) -> Sequence[Any]:
    return NO_VALUES


def numbers(*more: Any) -> Bad:
    return lambda _: (*NO_VALUES, -1, 2**70, *more)


def handles(house: House) -> Sequence[Any]:
    return *NO_VALUES, house.foreign, house.spent, house.plans[0]


def flights(house: House) -> Sequence[Any]:
    foreign = plan_of([1], flight=1 << 32 | 77)
    return *NO_VALUES, -1, 0, 77, 2**70, foreign, house.leases[0]


def outcomes(house: House) -> Sequence[Any]:
    second = house.plans[1].flight
    wrong: list[Any] = [
        (0, 3, None),
        (0, -1, None),
        ("0", 2, None),
        (0, 1.5, None),
        (0, 1, "corrupt"),
    ]
    return *NO_VALUES, house.plans[1], *(by.Outcome(second, *one) for one in wrong)


LEASES: dict[str, tuple[Verb, Any, Bad]] = {
    "append": (lambda h, rows: h.cache.append(rows, [1] * len(rows)), handles, handles),
    "grow": (lambda h, rows: h.cache.grow(rows), handles, handles),
    "trim": (lambda h, rows: h.cache.trim(rows, 9), handles, lambda h: (*handles(h), h.leases[0])),
    "seal": (lambda h, rows: h.cache.seal(rows, 9), handles, handles),
    "dedup": (lambda h, rows: h.cache.dedup(rows), handles, handles),
    "tables": (lambda h, rows: h.cache.block_tables(rows), handles, handles),
    "mapping": (lambda h, rows: h.cache.slot_mapping(rows, 2), handles, handles),
    "finish": (lambda h, rows: h.cache.finish(rows), handles, no_values),
}
VALUES: dict[str, tuple[Verb, Any, Bad]] = {
    "tokens": (lambda h, all_: h.cache.append(h.leases, all_), [1, 2], numbers(2**32)),
    "counts": (lambda h, all_: h.cache.append(h.leases, [1, 2], all_), [1, 1], numbers(2)),
    "grown": (lambda h, all_: h.cache.grow(h.leases, all_), [1, 1], numbers()),
    "lengths": (lambda h, all_: h.cache.trim(h.leases, all_), [9, 9], numbers(0, 7, 11)),
    "computed": (lambda h, all_: h.cache.seal(h.leases, all_), [9, 9], numbers(11)),
    "first": (lambda h, all_: h.cache.slot_mapping(h.leases, all_), [1, 1], numbers(12)),
    "good": (lambda h, all_: h.cache.commit(h.plans, all_), [2, 1], numbers(3)),
    "withdraw": (lambda h, all_: h.cache.withdraw("host", all_), [0, 1], numbers(16)),
    "restore": (
        lambda h, all_: h.empty.restore("disk", all_, KEYS, ROOTS),
        [0, 1],
        numbers(8, 0),
    ),
}
FLIGHTS: dict[str, tuple[Verb, Any, Bad]] = {
    "commit": (lambda h, all_: h.cache.commit(all_, 1), lambda h: h.plans, flights),
    "commit from an iterator": (
        lambda h, all_: h.cache.commit(iter(all_), 1),
        lambda h: h.plans,
        flights,
    ),
    "abort": (lambda h, all_: h.cache.abort(all_), lambda h: h.plans, flights),
    "unknown": (lambda h, all_: h.cache.mark_unknown(all_), lambda h: h.plans, flights),
    "outcomes": (
        lambda h, all_: h.cache.commit(all_),
        lambda h: [outcome(h, 0), outcome(h, 1)],
        outcomes,
    ),
}


def refused(world: Any, verb: Verb, good: list[Any], bad: Sequence[Any]) -> None:
    """The good values with each bad one in the place of the last, and behind it."""
    before = world.seen()
    for wrong in bad:
        for given in ([*good[:-1], wrong], [*good, wrong]):
            with pytest.raises((by.BlockyardError, TypeError)):
                verb(world, given)
            assert world.seen() == before, f"{given!r} was refused and has changed something"
    verb(world, good)


@pytest.mark.parametrize("name", LEASES)
def test_of_a_batch_with_a_bad_lease_no_row_is_served(name: str) -> None:
    house = House()
    verb, _, bad = LEASES[name]
    twice = [one for one in bad(house) if one is house.leases[0]]
    others = [one for one in bad(house) if one is not house.leases[0]]
    before = house.seen()
    for one in twice:
        with pytest.raises(by.Misuse):
            verb(house, [*house.leases, one])
        assert house.seen() == before
    refused(house, verb, list(house.leases), others)


@pytest.mark.parametrize("name", VALUES)
def test_of_numbers_with_a_bad_one_none_is_taken(name: str) -> None:
    house = House()
    verb, good, bad = VALUES[name]
    # As many as rows, the last of which is bad; and one too many.
    refused(house, verb, good, bad(house))


@pytest.mark.parametrize("name", FLIGHTS)
def test_of_flights_with_a_bad_one_none_ends(name: str) -> None:
    house = House()
    verb, good, bad = FLIGHTS[name]
    refused(house, verb, good(house), bad(house))


def test_a_refused_number_of_a_step_takes_no_outcome() -> None:
    house = House()
    before = house.seen()
    given = [outcome(house, 0), outcome(house, 1)]
    for wrong in (-1, "x", 1.5, 2**70):
        for named in (given, house.plans, iter(house.plans), iter(given)):
            with pytest.raises((by.BlockyardError, TypeError)):
                house.cache.commit(named, done=wrong)
            if wrong != 2**70:
                with pytest.raises((by.BlockyardError, TypeError)):
                    house.cache.commit(named, now=wrong)
            assert house.seen() == before
    assert house.cache.commit(iter(given)) == 2


def test_flights_are_named_by_all_that_holds_numbers_and_are_waited_for_no_more() -> None:
    for named in (
        np.int64,
        np.array,
        lambda flight: np.array([flight]),
        lambda flight: iter([flight]),
        lambda flight: {flight},
    ):
        house = House()
        for plan in house.plans:
            assert house.cache.commit(named(plan.flight), 2) == 1
        house.cache.commit([], now=50)
        assert house.cache.stats()["flights_unknown"] == 0


# -- an engine's own blocks ------------------------------------------------------------------------


class Own:
    """The bookkeeping of an engine that gives out its own blocks, and what its scheduler asks."""

    def __init__(self) -> None:
        self.cache: Any = by.KVCache(block_size=4, engine=16, host=16)
        wide: Any = by.KVCache(block_size=8, engine=16, host=16)
        self.ask: Any = Connector(self.cache)
        self.keys = [self.cache.keys(text(name, 12)) for name in range(3)]
        self.wide = wide.keys(text(1, 16))
        for name in "ab":
            self.ask.matched(name, self.keys[0])
            self.ask.allocated(name)

    def seen(self) -> object:
        assert self.cache.audit() is None
        ask = self.ask
        offloads = [(keys, list(ids), first) for keys, ids, first in ask._offloads]
        marks = ask._freed.known()
        held = offloads, marks, list(ask._rows), list(ask._uses.running), len(ask._uses.ended)
        return held, unchanged(self.cache.stats()), self.cache.digest()


OWN: dict[str, tuple[Verb, list[Any], Sequence[Any]]] = {
    "fetch": (lambda o, ids: o.cache.fetch(o.keys[0], ids), [0, 1], (16, 0)),
    "offload": (lambda o, ids: o.cache.offload(o.keys[0], ids), [0, 1], (16, 0)),
    "offload rows": (
        lambda o, ids: o.cache.offload(o.keys[:2], [[0, 1], ids]),
        [2, 3],
        (16, 2),
    ),
    "must_finish": (lambda o, ids: o.cache.must_finish(ids), [0, 1], (16,)),
    "keep": (lambda o, ids: o.cache.save_request(o.keys[0], ids, 8), [0, 1], (16, 0)),
    "connector offload": (lambda o, ids: o.ask.offload(o.keys[0], ids), [0, 1], (16, 0)),
    "finished": (lambda o, ids: o.ask.finished("a", o.keys[0], ids), [0, 1], (16, 0)),
    "written": (lambda o, ids: o.ask.step(ids), [0, 1], (16,)),
    "victims": (lambda o, ids: o.ask.step([0], ids), [0, 1], (16,)),
    "overwritten": (lambda o, ids: o.ask.step([0], (), ids), [0, 1], (16,)),
    "preempted": (lambda o, ids: o.ask.preempted("b", o.keys[0], ids, 8), [0, 1], ()),
}


@pytest.mark.parametrize("name", OWN)
def test_of_ids_with_a_bad_one_none_is_taken(name: str) -> None:
    own = Own()
    verb, good, more = OWN[name]
    before = own.seen()
    for wrong in (None, "x", 1.5, object(), [1], True, -1, 2**70, *more):
        with pytest.raises((by.BlockyardError, TypeError)):
            verb(own, [good[0], wrong])
        assert own.seen() == before, f"{wrong!r} was refused and has changed something"
    verb(own, good)


def test_of_rows_of_keys_with_a_bad_one_none_is_used_or_offloaded() -> None:
    own = Own()
    before = own.seen()
    for wrong in (*NO_VALUES, own.wide):
        verbs: list[Callable[[], object]] = [
            lambda: own.cache.used([own.keys[0], wrong]),  # noqa: B023 - called at once
            lambda: own.cache.offload([own.keys[0], wrong], [[0], [1]]),  # noqa: B023
            lambda: own.ask.offload(wrong, [0]),  # noqa: B023
        ]
        for verb in verbs:
            with pytest.raises((by.BlockyardError, TypeError)):
                verb()
            assert own.seen() == before, f"{wrong!r}"


def test_a_bad_row_of_one_request_takes_no_offload_from_another() -> None:
    own = Own()
    own.ask.offload(own.keys[1], [4, 5])
    for wrong in ([0, 16], [0, 0], [None]):
        with pytest.raises(by.Misuse):
            own.ask.offload(own.keys[2], wrong)
        with pytest.raises(by.Misuse):
            own.ask.finished("a", own.keys[0], wrong)
    assert [len(plan) for plan in own.ask.step().down] == [2]


def test_ids_that_are_refused_in_a_step_leave_its_plans_to_the_next() -> None:
    own = Own()
    own.ask.offload(own.keys[1], [4, 5])
    for wrong in ("x", [None], ["x"], [16]):
        with pytest.raises((by.Misuse, TypeError)):
            own.ask.step([4], (), wrong)
    assert [len(plan) for plan in own.ask.step([4], (), [4]).down] == [2]


# -- the crane -------------------------------------------------------------------------------------


def test_of_plans_with_a_bad_one_none_is_copied() -> None:
    device, host = (MemoryTier(SMALL, 8, name=name) for name in ("device", "host"))
    with Crane(SMALL, device=device, host=host) as crane:
        good = [plan_of([0], flight=1 << 32 | 1), plan_of([1], flight=1 << 32 | 2)]
        submit: Any = crane.submit
        wrong = plan_of([9], flight=1 << 32 | 3), plan_of([1], flight=1 << 32 | 3, way="disk host")
        for bad in (*NO_VALUES, good[0], *wrong):
            with pytest.raises((by.BlockyardError, TypeError)):
                submit([*good, bad])
            assert (crane.in_flight, crane.stats()["crane_flights"], crane.poll()) == (0, 0, [])
        crane.submit(iter(good))
        assert crane.stats()["crane_flights"] == 2


# -- a scheduler -----------------------------------------------------------------------------------


class Row:
    """A scheduler with two rows in flight, of which one stops."""

    def __init__(self) -> None:
        self.loop = Loop(max_num_seqs=2)
        for name in ("one", "two"):
            self.loop.add(name, text(ord(name[0]), 6), 8)
        self.loop.schedule()
        self.loop.output()
        self.loop.scheduler.abort("two")
        self.loop.schedule()
        self.output = self.loop.compute()
        self.ack = Ack(*self.loop.stops[0])
        self.scheduler: Any = self.loop.scheduler

    def seen(self) -> object:
        scheduler = self.scheduler
        names: tuple[Hashable, ...] = scheduler.requests
        rows = [(scheduler.sampled(name), scheduler.lease(name).appended) for name in names]
        return names, rows, scheduler.stats(), self.loop.cache.digest()

    def answer(self, **fields: Any) -> object:
        values = {name: getattr(self.output, name) for name in Output.__slots__}
        return self.scheduler.on_output(Output(**{**values, **fields}))


def acks(row: Row) -> Sequence[Any]:
    bad: Any = [["list"], 0, 0], ["two", 0.5, 0], ["two", 0, None], [np.zeros(2), 0, 0]
    return *NO_VALUES, ("two", 0, 1), *(Ack(*one) for one in bad), row.output


def test_of_acks_with_a_bad_one_none_is_taken_and_no_token_either() -> None:
    row = Row()
    before = row.seen()
    for bad in acks(row):
        for given in ((row.ack, bad), [row.ack, bad]):
            with pytest.raises(by.Misuse):
                row.answer(acks=given)
            with pytest.raises(by.Misuse):
                row.scheduler.on_acks(given)
            assert row.seen() == before, f"{bad!r}"
    for no_acks in (None, 0, False, 7, row.ack):
        with pytest.raises(by.Misuse, match="acks = "):
            row.answer(acks=no_acks)
        assert row.seen() == before, f"{no_acks!r}"
    # What can be gone through only once is taken, too.
    row.answer(acks=iter([row.ack]))
    assert row.scheduler.state("two") is None
    assert len(row.scheduler.sampled("one")) == 2


@pytest.mark.parametrize("name", ["seats", "tokens", "counts", "ended", "step"])
def test_of_an_output_with_a_bad_field_nothing_is_taken(name: str) -> None:
    row = Row()
    before = row.seen()
    wrong: list[Any] = ["x", 1.5, [0], (0,), object(), column(0, 0, 0), column(9), np.zeros((1, 1))]
    wrong += [np.array([None]), np.array(["x"])] + [None] * (name not in ("counts", "ended"))
    for bad in wrong:
        with pytest.raises(by.Misuse):
            row.answer(**{name: bad}, acks=(row.ack,))
        assert row.seen() == before, f"{bad!r}"
    row.answer(acks=(row.ack,))


def test_of_seats_with_a_bad_one_none_is_acked() -> None:
    row = Row()
    before = row.seen()
    for bad in (None, "x", 1.5, -1, True, 2**40, [1]):
        with pytest.raises(by.Misuse):
            row.scheduler.reconcile([0, bad], 2)
        assert row.seen() == before, f"{bad!r}"


def test_of_samples_with_a_bad_field_none_is_added() -> None:
    row = Row()
    before = row.seen()
    wrong: list[dict[str, Any]] = [
        {"n": 0},
        {"n": None},
        {"ticket": 3},
        {"hints": by.Hints(ttl=-1)},
        {"keys": "x"},
        {"media": [(0, 2, "a"), None]},
        {"media": [(0, 2, "a"), (1, 9, "b")]},
        {"prompt": [1, 2, None]},
        {"prompt": [1, 2, -1]},
    ]
    for fields in wrong:
        given: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 2, "n": 3} | fields
        with pytest.raises((by.BlockyardError, TypeError)):
            row.scheduler.add(by.NewRequest("new", given.pop("prompt"), **given))
        assert row.seen() == before, f"{fields!r}"
    assert len(row.scheduler.add(by.NewRequest("new", [1, 2, 3], max_tokens=2, n=3))) == 3
