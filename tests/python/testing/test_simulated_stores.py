"""Simulations of engines over a shared store that loses, lies, is late, full and down.

They would notice what they are there to notice. 35a 35b 35c
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import seeds
from blockyard._core import StoreLane
from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.lane_flights import LaneFlight, LaneFlights
from blockyard.crane.tiers import remote
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import Move, RequestState
from blockyard.shared.plan import Cause
from blockyard.stores.identity import fields_of
from blockyard.testing import Event, Scenario, Setup, simulate
from blockyard.testing.simulated_store import StoreWorker

pytestmark = pytest.mark.law("INV-35a", "INV-35b", "INV-35c")
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "16"))
PARTS = 4
WANTED = (
    *(f"store {what}" for what in ("boasts", "found", "full", "lies", "loads", "loses")),
    *(f"store {what}" for what in ("misses", "refused or late", "refuses")),
    *("plans to store", "plans from store", "2.3 from store failed", "2.3 to store failed"),
    *("forget names", "forget values", "stats remote_hits", "stats remote_evicted", "finished"),
    *(f"evacuate in {state}" for state in ("decode", "loading", "parked", "prefill", "waiting")),
    *("abort in moving", "evacuate all", "moved", "stats moved_blocks", "stats unmoved_blocks"),
)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_byte_of_a_store_is_served_that_is_not_what_was_asked_for(
    part: int, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    seeds.play(Scenario.sharing, range(part, SEEDS, PARTS), seen)
    seeds.met_in_parts(seen, WANTED, PARTS, tmp_path)


# One of an engine over the cache's blocks, and one of an engine that gives out its own.
@pytest.mark.parametrize("seed", range(2))
def test_a_scenario_is_played_again_from_what_it_prints(seed: int) -> None:
    seeds.plays_again(Scenario.sharing, seed)


# Two engines, one after the other, with one prompt.
ASKS = tuple(
    Event(tick, "add", (f"r{tick}", family, 24, 1, 2, 0, "", ""))
    for tick, family in ((1, 0), (20, 1), (40, 2), (60, 0), (80, 1), (100, 2))
)


def pair(second: str, **more: Any) -> Scenario:
    """Engines whose device is so small that they ask the store again."""
    given: dict[str, Any] = {
        "device": 12,
        "remote": 400,
        "write": "through",
        "ahead": 4,
        "second": second,
    }
    return Scenario(Setup(**(given | more)), ASKS)


def test_what_one_engine_has_put_the_other_loads() -> None:
    found = simulate(pair("alike")).seen
    assert found["store loads"] > 0
    assert found["stats remote_hits"] > 0


@pytest.mark.law("INV-36h")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("tick", [4, 9, 14])
def test_inv_36h_what_moves_is_found_by_the_other_engine_and_on_all_its_ranks(
    tick: int, ranks: int
) -> None:
    asks = (Event(1, "add", ("r", 0, 24, 1, 18, 0)), Event(tick, "evacuate", ("r", 100)))
    setup = Setup(device=14, remote=400, second="alike", ranks=ranks, write="on-evict")
    found = simulate(Scenario(setup, asks)).seen
    # Each of both has moved its own, and finished the other's.
    assert (found["moved"], found["finished"], found["stats unmoved_blocks"]) == (2, 2, 0)
    assert found["stats moved_blocks"] >= 2 * 6
    assert found["stats cached"] >= 2 * 24


@pytest.mark.law("INV-36h")
def test_a_token_that_is_lost_on_the_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Lifecycle, right: Callable[..., None], entry: Any, *how: Any) -> None:
        right(self, entry, *how)
        result = self._results[entry]
        if result.state is RequestState.MOVED:
            self._results[entry] = result._replace(tokens=result.tokens[:-1])

    seeds.mistaken(monkeypatch, Lifecycle, "end", end)
    assert "INV-36h" in seeds.noticed(Scenario.sharing, range(0, 64, 2))


# The store is full, or has too few names: one moves on in vain until its limit.
@pytest.mark.parametrize("seed", [900324, 900402])
def test_seeds_that_have_found_something_are_played_for_ever(seed: int) -> None:
    simulate(Scenario.sharing(seed))


@pytest.mark.law("INV-36h")
def test_one_that_moves_on_behind_its_limit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.mistaken(monkeypatch, Move, "is_over", lambda *_: False)
    assert "behind their limits" in seeds.noticed(Scenario.sharing, [900324])


@pytest.mark.parametrize("second", ["weights", "shape"])
def test_engines_that_differ_share_nothing(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second one never meets a value of the first: it asks for addresses of its own.
    asked: dict[int, set[int]] = {}

    def load(self: StoreWorker, right: Callable[..., None], job: Any, got: Any) -> None:
        asked.setdefault(self.tier.place.identity, set()).add(id(self))
        right(self, job, got)

    seeds.mistaken(monkeypatch, StoreWorker, "_load", load)
    simulate(pair(second, device=8))
    assert all(len(workers) == 1 for workers in asked.values()), asked


def test_a_store_that_lies_costs_blocks_and_no_token() -> None:
    found = simulate(pair("alike", store_lies=60)).seen
    assert found["store lies"] > 0
    assert found["store refused or late"] > 0


def test_a_store_whose_word_is_taken_for_content_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def poll(self: LaneFlight[Any], right: Callable[..., Any]) -> Any:
        landed = right(self)
        whole = landed is None or landed.cause is None
        return landed if whole else Landed(landed.good + 1)

    seeds.mistaken(monkeypatch, LaneFlight, "poll", poll)
    said = seeds.noticed(lambda _: pair("alike", store_lies=60), range(1))
    assert "holds something else" in said


def test_an_identity_without_weights_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fields_of

    def blind(identity: Any, layout: Any) -> Any:
        return dict(right(identity, layout)) | {"weights": "any"}

    monkeypatch.setattr(remote, "fields_of", blind)
    assert "holds something else" in seeds.noticed(lambda _: pair("weights"), range(1))


def test_an_identity_without_the_rank_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StoreLane

    def lane(*what: Any, **named: Any) -> Any:
        return right(*what, **(named | {"rank": 0}))

    monkeypatch.setattr(remote, "StoreLane", lane)
    monkeypatch.setattr(
        remote, "block_address", lambda identity, _rank, key, _group: f"{identity} {key.hex()}"
    )
    assert "holds something else" in seeds.noticed(lambda _: pair("alike", ranks=2), range(1))


def test_a_landing_after_the_deadline_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(self: LaneFlights[Any], right: Callable[[Any], Any]) -> Any:
        # The flight has failed, and its lane does not hear of it: the slots are another's by then.
        for lane, flights in self.flying.items():
            for number, flight in list(flights.items()):
                if not flight.down and self.clock() > flight.begun + 2:
                    flight.end(lane, 0, Cause.FAILED)
                    del flights[number]
        return right(self)

    seeds.mistaken(monkeypatch, LaneFlights, "collect", collect)

    def late(seed: int) -> Scenario:
        more: dict[str, Any] = {
            "store_values": 1000,
            "store_late": 10,
            "store_lies": 0,
            "store_fails": 0,
        }
        scenario = Scenario.sharing(2 * seed)
        return Scenario(replace(scenario.setup, remote=400, **more), scenario.events)

    assert "holds something else" in seeds.noticed(late, range(19, 24))
