"""Calls of a connector over several groups that Ctrl-C ends anywhere: no load is lost."""

import linecache
from collections.abc import Callable

import pytest

import blockyard as by
from hybrid_front import SIZE, Front
from interrupted import Places

NAMES = ("one", "two", "three")


def begins(front: Front, name: str, keys: by.Keys) -> None:
    """Admits a request with all that lies below."""
    found = front.ask.matched(name, keys)
    if found is not None:
        front.ask.allocated(name, front.tables(-(-found // SIZE)) if found else ())


def play(front: Front, loading: set[object]) -> Callable[[], None]:
    """Returns a program with a checkpoint, a keep, three loads, and an end while one loads."""
    keys, other = front.keys(33), front.keys(30, 500)

    def run() -> None:
        front.offloaded(keys, 16, 32)
        begins(front, "one", keys)
        loading.add("one")
        front.carry()
        loading.difference_update(front.ask.arrived())
        begins(front, "two", other)
        tables = front.tables(8)
        front.ask.preempted("two", other, tables, 29, front.states(tables, 8, 24))
        front.carry()
        begins(front, "two", other)
        loading.add("two")
        begins(front, "three", keys)
        made = front.step()
        front.ask.finished("three")
        front.land(*made.down, *made.up)
        loading.difference_update(front.ask.arrived())
        for name, own in ("two", other), ("one", keys):
            tables = front.tables(len(own))
            states = front.states(tables, len(own) * SIZE // 8 * 8)
            front.ask.finished(name, own, tables, states=states, retention="retain")
        front.carry()

    return run


def settle(front: Front, loading: set[object]) -> None:
    """Goes on after an interrupt: each load ends, and nothing is held when all requests have."""
    front.ids = iter([*range(1, 256)] * 9)

    def go_on() -> None:
        for _ in range(4):
            for cache in front.caches:
                # No worker has them, where an interrupt took the orders.
                lost = cache.unreported(0)
                own = by.Cause.FAILED, lost.yard, lost.group
                front.ask.commit([by.Outcome(one, 0, 0, *own) for one in lost.flights])
            front.carry()
            loading.difference_update(front.ask.arrived())

    go_on()
    assert not loading, "it never ends"
    loading.update(name for name in NAMES if front.ask.finished(name))
    go_on()
    assert not loading, "its ids are never free"
    assert not front.ask.is_busy
    for cache in front.caches:
        stats = cache.stats()
        assert not any(stats[name] for name in ("flights", "parked", "host_pinned"))
    keys = front.keys(33, 900)
    front.offloaded(keys, 32)
    for name in NAMES:
        begins(front, name, keys)
        front.carry()
        assert front.ask.arrived() == {name: 32}
        front.ask.finished(name)


@pytest.mark.law("G8", "G10")
def test_an_interrupt_anywhere_leaves_no_load_that_never_ends() -> None:
    places, tried = Places("connectors"), 0
    places.during(play(Front("F S8"), set()), None)
    for place in places.each():
        line = linecache.getline(place.file, place.line).strip()
        if line in {"return arrived", "self._done.clear()"}:
            continue  # The answer itself is lost on its way to the caller.
        tried += 1
        front, loading = Front("F S8"), set[object]()
        if places.during(play(front, loading), place):
            settle(front, loading)
    assert tried > 500
