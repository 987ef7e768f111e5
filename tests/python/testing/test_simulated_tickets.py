"""Tickets in the simulator: each comes to its end, and a wrong end is noticed."""

from collections.abc import Callable
from typing import Any

import pytest

import blockyard as by
import seeds
from blockyard.scheduling.reservations import Reservations
from blockyard.testing import Event, Scenario, Setup, simulate

PROMISED: tuple[Event, ...] = (
    Event(1, "promise", ("a", 2, 4, "p")),
    Event(2, "promise", ("b", 2, 9, "p")),
    Event(3, "add", ("a", 0, 4, 0, 4, 0)),
    Event(4, "promise", ("c", 1, 2, "q")),
    Event(5, "promise", ("c", 1, 2, "q")),
    Event(6, "promise", ("d", 9, 2, "q")),
    Event(8, "peer", ("p",)),
    Event(9, "add", ("b", 0, 4, 0, 4, 0)),
    Event(10, "promise", ("e", 2, 4, "q")),
    Event(11, "withdraw", ("e",)),
    Event(20, "add", ("c", 0, 4, 0, 4, 0)),
)


def test_a_ticket_comes_to_each_of_its_ends() -> None:
    seen = simulate(Scenario(Setup(), PROMISED)).seen
    ends = ("ticket committed", "ticket released", "2.6 expired", "2.6 peer", "2.6 second")
    assert [seen[end] for end in (*ends, "2.6 spent", "2.6 refused")] == [1, 1, 1, 1, 1, 2, 1]


def refuses(self: Reservations, _right: Any, request: str, *_what: Any, **_named: Any) -> Any:
    raise by.NoRoom(f"{self} has no room for {request}")


def again(self: Reservations, right: Any, request: str, *what: Any, **named: Any) -> Any:
    self._requests.pop(request, None)
    return right(self, request, *what, **named)


def eager(self: Reservations, right: Any, *what: Any, **named: Any) -> Any:
    return right(self, *what, **named | {"running": 0})


def forgets(_self: Reservations, _right: Any, _what: Any) -> Any:
    return []


def late(self: Reservations, right: Any, now: int) -> Any:
    return right(self, max(now - 1, 0))


def keeps(self: Reservations, right: Any, number: int, state: Any) -> Any:
    """An ended ticket is as good as an open one."""
    promise = right(self, number, state)
    self._open[number] = self._requests[promise.request] = promise
    return promise


def miscounts(self: Reservations, right: Any) -> Any:
    return right(self) | {"tickets_open": 3}


@pytest.mark.parametrize(
    ("verb", "wrong", "found"),
    [
        ("open", refuses, "is refused 2 blocks"),
        ("open", again, "has two reservations"),
        ("open", eager, "is promised 10 of"),
        ("expire", forgets, "2.6 expired"),
        ("expire", late, "2.6 expired"),
        ("died", forgets, "2.6 peer"),
        ("_end", keeps, "the reservation of a has ended, and is taken"),
        ("stats", miscounts, "reservations are open"),
    ],
)
def test_a_ticket_that_comes_to_a_wrong_end_is_noticed(
    monkeypatch: pytest.MonkeyPatch, verb: str, wrong: Callable[..., Any], found: str
) -> None:
    seeds.mistaken(monkeypatch, Reservations, verb, wrong)
    events = PROMISED
    if wrong is eager:
        events = Event(1, "add", ("a", 0, 4, 0, 4, 0)), Event(2, "promise", ("d", 10, 2, "q"))
    if wrong is keeps:
        events = PROMISED[0], Event(2, "withdraw", ("a",)), Event(2, "add", ("a", 0, 4, 0, 4, 0))
    assert found in seeds.said(Scenario(Setup(headroom="none"), events))


def test_a_ticket_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is aborted in line."""
    monkeypatch.setattr(by.KVCache, "release", lambda *_: None, raising=False)
    scenario = Scenario(
        Setup(max_num_seqs=1, headroom="none"),
        (
            Event(1, "add", ("a", 0, 4, 0, 8, 0)),
            Event(2, "promise", ("b", 2, 9, "p")),
            Event(3, "add", ("b", 1, 4, 0, 8, 0)),
            Event(4, "abort", ("b", "")),
        ),
    )
    assert "left behind" in seeds.said(scenario)
