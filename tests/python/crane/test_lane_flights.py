"""Copies by lanes of the core: none that has ended is overlooked."""

from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers.lane_flights import LaneFlight, LaneFlights
from blockyard.crane.tiers.memory import MemoryTier

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=4)


class Lane:
    """Reports the end of flight 1, once."""

    def __init__(self) -> None:
        self.reports = [[(1, 2, "")]]

    def poll(self) -> list[tuple[int, int, str]]:
        return self.reports.pop() if self.reports else []

    def give_up(self, number: int, *, late: bool = False) -> None:
        raise NotImplementedError


class Cut(dict[Any, Any]):
    """Is interrupted right behind the first removal."""

    @override
    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        raise KeyboardInterrupt


@pytest.mark.law("INV-6")
def test_inv_6_an_end_that_was_interrupted_is_counted() -> None:
    flights: LaneFlights[Lane] = LaneFlights(lambda: None, patience=5.0)
    tier, lane = MemoryTier(LAYOUT, 4), Lane()
    flight: LaneFlight[Lane] = LaneFlight(flights, 2, (tier, tier), down=False)
    flight.open = Cut({lane: None})
    flights.note(flight, lane, [1])
    with pytest.raises(KeyboardInterrupt):
        flights.collect()
    flights.collect()
    assert flight.poll() is not None
    assert flights.ends, "or nobody looks at its receipt any more"


class Ringing(Lane):
    """Ends flight 1, too, but as it is asked and right behind that."""

    rung = 0

    def look(self, _now: float) -> int:
        return self.rung

    @override
    def poll(self) -> list[tuple[int, int, str]]:
        found, self.rung = super().poll() if self.rung else [], 1
        return found


@pytest.mark.law("INV-6")
def test_inv_6_what_ends_while_lanes_are_asked_is_asked_for_again() -> None:
    lane: Any = Ringing()
    flights: LaneFlights[Lane] = LaneFlights(lambda: None, patience=5.0, ringing=[lane], bell=lane)
    tier = MemoryTier(LAYOUT, 4)
    flight: LaneFlight[Lane] = LaneFlight(flights, 2, (tier, tier), down=False)
    flight.open = {lane: None}
    flights.note(flight, lane, [1])
    assert not flights.is_still(), "nobody was asked yet"
    flights.collect()
    assert flight.open
    assert not flights.is_still()
    flights.collect()
    assert not flight.open
    assert flights.is_still()


def test_lanes_that_ring_no_bell_are_asked_until_their_copies_have_ended() -> None:
    flights: LaneFlights[Lane] = LaneFlights(lambda: None, patience=5.0)
    tier, lane = MemoryTier(LAYOUT, 4), Lane()
    lane.reports.append([])
    flight: LaneFlight[Lane] = LaneFlight(flights, 2, (tier, tier), down=False)
    flight.open = {lane: None}
    flights.note(flight, lane, [1])
    flights.collect()
    assert flight.open
    assert not flights.is_still()
    flights.collect()
    assert not flight.open
