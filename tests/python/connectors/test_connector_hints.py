"""What ended requests have said is told of their blocks, those on their way down too."""

from collections.abc import Iterable
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.connector import Connector

NOTHING = {"ended": True, "retention": "ordinary", "next_use": None, "priority": None, "ttl": None}


class Noted(by.KVCache):
    """A cache that notes what it is told of paths."""

    told: list[tuple[list[bytes], dict[str, Any]]]

    @override
    def used(self, rows: Iterable[by.Keys], **hints: Any) -> None:
        paths = list(rows)
        self.told.append(([bytes(keys) for keys in paths], hints))
        super().used(paths, **hints)


class Front:
    """A connector, and copies that land when a test says so."""

    def __init__(self, **config: Any) -> None:
        given = {"engine": 64, "host": 64, "block_size": 4} | config
        self.cache = Noted(**given)
        self.cache.told = []
        self.ask = Connector(self.cache)

    def keys(self, first: int, blocks: int = 2) -> by.Keys:
        return self.cache.keys(range(1000 * first, 1000 * first + 4 * blocks))

    def step(self) -> list[by.Plan]:
        made = self.ask.step()
        assert self.cache.audit() is None
        return [*made.down, *made.up]

    def land(self, plans: Iterable[by.Plan], good: int | None = None) -> None:
        cause = None if good is None else by.Cause.FAILED
        self.ask.commit(
            by.Outcome(plan.flight, 0, len(plan) if good is None else good, cause) for plan in plans
        )

    def said(self) -> list[tuple[list[bytes], dict[str, Any]]]:
        """What was told beside that something runs."""
        told, self.cache.told = self.cache.told, []
        return [(paths, hints) for paths, hints in told if hints]


def test_a_hint_is_told_once_in_the_step_that_offloads() -> None:
    front = Front()
    keys = front.keys(1)
    front.ask.finished("one", keys, [1, 2], retention="session-ended", next_use=3, ttl=7)
    assert front.said() == []
    plans = front.step()
    hints = {"retention": "session-ended", "next_use": 3.0, "priority": None, "ttl": 7}
    assert front.said() == [([bytes(keys)], {"ended": True} | hints)]
    front.land(plans)
    front.step()
    assert front.said() == []


@pytest.mark.parametrize("eviction", ["learned", "heap"])
def test_an_order_that_learns_hears_of_every_end(eviction: str) -> None:
    front = Front(eviction=eviction)
    keys = [front.keys(number) for number in range(3)]
    for number, one in enumerate(keys):
        front.ask.finished(number, one, [2 * number, 2 * number + 1])
    front.land(front.step())
    assert front.said() == [([bytes(one) for one in keys], NOTHING)]


def test_what_lies_below_already_is_told_at_once() -> None:
    front = Front()
    keys = front.keys(1)
    front.ask.finished("one", keys, [1, 2])
    front.land(front.step())
    front.ask.finished("two", keys, [3, 4], priority=90)
    front.step()
    assert front.said() == [([bytes(keys)], NOTHING | {"priority": 90})]


def test_all_that_say_the_same_are_told_in_one_call() -> None:
    front = Front()
    keys = [front.keys(number) for number in range(5)]
    for number, one in enumerate(keys):
        said: dict[str, Any] = {"next_use": 60} if number % 2 else {"retention": "session-ended"}
        front.ask.finished(number, one, [2 * number, 2 * number + 1], **said)
    front.land(front.step())
    front.step()
    said_of = {hints["retention"]: paths for paths, hints in front.said()}
    assert said_of == {
        "session-ended": [bytes(one) for one in keys[::2]],
        "ordinary": [bytes(one) for one in keys[1::2]],
    }


def test_an_order_that_learns_nothing_is_told_nothing_without_a_hint() -> None:
    front = Front()
    for number in range(3):
        front.ask.finished(number, front.keys(number), [2 * number, 2 * number + 1])
    front.land(front.step())
    front.step()
    assert front.cache.told == []


def test_one_that_offloads_nothing_says_nothing() -> None:
    front = Front()
    front.ask.finished("aborted", next_use=3)
    front.ask.finished("short", front.keys(1), [], next_use=3)
    front.land(front.step())
    front.step()
    assert front.cache.told == []


@pytest.mark.parametrize("end", ["clear", "reset"])
def test_at_the_end_of_an_epoch_and_of_an_engine_it_is_forgotten(end: str) -> None:
    front = Front()
    front.ask.finished("waits", front.keys(2), [3, 4], next_use=3)
    (front.ask.clear if end == "clear" else front.ask.reset)()
    front.land(front.step())
    assert front.said() == []


def test_those_that_run_are_touched_after_those_that_ended() -> None:
    front = Front()
    keys = front.keys(1)
    front.ask.finished("one", keys, [1, 2])
    front.land(front.step())
    front.ask.matched("runs", keys, 2)
    front.ask.allocated("runs")
    front.ask.finished("two", keys, [1, 2], retention="session-ended")
    front.step()
    assert [bool(hints) for _, hints in front.cache.told] == [True, False]


@pytest.mark.parametrize(
    ("hints", "says"),
    [
        ({"retention": "session-end"}, "retention = 'session-end': did you mean 'session-ended'"),
        ({"next_use": -0.5}, r"next_use = -0\.5"),
        ({"next_use": float("nan")}, "next_use = nan"),
        ({"priority": 101}, "priority = 101: must be an integer from 0 to 100"),
        ({"priority": -1}, "priority = -1"),
        ({"ttl": True}, "ttl = True"),
    ],
)
def test_a_hint_that_cannot_be_ends_nothing(hints: dict[str, Any], says: str) -> None:
    front = Front()
    keys = front.keys(1)
    front.ask.matched("one", keys)
    front.ask.allocated("one")
    with pytest.raises(by.Misuse, match=says):
        front.ask.finished("one", keys, [1, 2], **hints)
    assert front.step() == []
    front.ask.finished("one", keys, [1, 2])
    front.land(front.step())
    assert front.cache.find(keys).host == 2
