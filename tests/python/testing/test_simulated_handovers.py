"""Simulations of hand-overs between two engines, of which either is killed, stopped and cleared.

They would notice what they are there to notice. 36a 36b 36c 36d 36e 36f
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seeds
from blockyard.handover.decode_side import DecodeSide
from blockyard.scheduling.lookups import Lookups
from blockyard.testing import Event, Scenario, Setup, simulate
from blockyard.testing.setup import ONCE_READ
from blockyard.testing.simulated_decode import DecodeEngine
from blockyard.testing.simulated_handovers import HandOvers
from blockyard.testing.simulated_peers import Block, SimulatedPeer
from blockyard.yard.asking import Asking
from blockyard.yard.cache import KVCache

pytestmark = pytest.mark.law("INV-36a", "INV-36b", "INV-36c", "INV-36d", "INV-36e", "INV-36f")
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "1000"))
PARTS = 4
RACES = (
    *(f"race 1 {when}" for when in ("before", "during", "good before stale")),
    *(f"race 2 killed {when}" for when in ("before the offer", "in a read", "with an offer")),
    *("race 3 stopped in a read", "handover late bytes", "race 4 another boot"),
    *(f"race 5 killed while {state}" for state in ("waiting", "loading")),
    *("race 6 nobody has read", "race 6 offer of a request that is gone"),
    *("handover done lost", "handover done twice", "race 7 done after the end"),
    *(f"race 8 {what}" for what in ("two readers", "one of two is done", "offered again")),
    "race 9 two offers with one prefix",
    *(f"race 10 {what}" for what in ("clear", "weights", "reset", "forget", "abort", "room")),
    *(f"race 11 {what}" for what in ("clear", "rank", "reset")),
    *("race 12 aborted in the read", "race 13 preempted after landing"),
    *("race 14 two requests of one offer", "race 15 another has the same block"),
    *("race 16 nothing can be asked", "race 17 a lease has ended"),
    *("race 17 renewed after its end", "race 18 one before an older one", "race 19 clock"),
    *("race 20 ranks land unlike counts", "race 21 the peer rests", "race 21 no read begins"),
)
WANTED = (
    *RACES,
    *(f"handover {what}" for what in ("abandoned take", "corrupt", "flight late", "full", "stale")),
    *(f"handover message {fate}" for fate in ("late", "lost", "twice")),
    *(f"handover offer {fate}" for fate in ("late", "lost", "twice", "foreign", "malformed")),
    *("handover requests that took blocks over", "finished", "aborted"),
)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_answer_is_that_of_one_engine_and_every_race_is_met(
    part: int, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    seeds.play(Scenario.handing_over, range(part, SEEDS, PARTS), seen)
    seeds.met_in_parts(seen, WANTED, PARTS, tmp_path)


@pytest.mark.parametrize(
    "seed",
    [
        # A request that was asked about waits for a prefix that another one computes.
        700192,
        # A copy of an offer that was given up is in the air until a reset, and its names as long.
        722126,
    ],
)
def test_what_was_broken_once_stays_whole(seed: int) -> None:
    simulate(Scenario.handing_over(seed))


def test_a_scenario_is_played_again_from_what_it_prints() -> None:
    seeds.plays_again(Scenario.handing_over, 3)


def scenario(*events: Event, **more: Any) -> Scenario:
    """Two engines, and three prompts of six blocks and no more, one after the other."""
    asks = (
        Event(tick, "add", (f"r{tick}", family, 24, 1, 3, 0, "", ""))
        for tick, family in ((1, 0), (30, 1), (60, 2))
    )
    given: dict[str, Any] = {"device": 14, "remote": 400, "second": "decode", "store_values": 0}
    return Scenario(Setup(**(given | more)), tuple(sorted((*asks, *events))))


def happens(tick: int, word: str, number: int = 0) -> Event:
    return Event(tick, "handover", (word, number))


def test_undisturbed_all_full_blocks_are_taken_over() -> None:
    found = simulate(scenario()).seen
    assert found["handover requests that took blocks over"] == 3
    assert found["handover blocks landed"] == 18
    assert found["stats offers_ended_by_done"] == 3


@pytest.mark.parametrize(
    ("word", "number", "blocks"),
    [("slow", 0, 18), ("prefill forget", 100, 12), ("prefill kill", 101, 12), ("cut", 100, 12)],
)
def test_what_befalls_one_read_costs_one_request_its_blocks(
    word: str, number: int, blocks: int
) -> None:
    found = simulate(scenario(happens(2, word, number), happens(2, "slow", 4))).seen
    assert found["finished"] >= 3
    assert blocks <= found["handover blocks landed"] <= 18


def test_an_offer_that_comes_when_nobody_waits_is_refused_at_once() -> None:
    found = simulate(scenario(happens(2, "offer late", 30))).seen
    assert found["stats offers_ended_by_unread"] + found["stats offers_ended_by_done"] == 3
    assert found["handover requests that took blocks over"] == 2


def test_race_21_a_peer_that_hangs_in_reads_is_left_alone_and_what_it_offered_is_computed() -> None:
    """A socket's read holds no staging: at its deadline it ends, and its slots are free."""
    asks = [Event(1, "add", (f"r{at}", at, 8, 1, 3, 0, "", "")) for at in range(5)]
    large = Event(90, "add", ("large", 9, 40, 1, 3, 0, "", ""))
    faults = happens(1, "offer late", 15), happens(2, "prefill stop", ONCE_READ + 40)
    setup = Setup(device=40, remote=400, second="decode", store_values=0, patience=40)
    found = simulate(Scenario(setup, tuple(sorted((*asks, large, *faults))))).seen
    assert (found["race 3 stopped in a read"], found["handover flight late"]) == (1, 3)
    assert (found["race 21 the peer rests"], found["race 21 no read begins"]) == (1, 1)
    assert found["handover requests that took blocks over"] == 1, "the one that came after it"


# -- mistakes that these are there to notice -----------------------------------------------------


def noticed(more: Callable[[int], Scenario] = Scenario.handing_over, most: int = 120) -> str:
    return seeds.noticed(more, range(most))


def test_a_block_whose_generation_nobody_compares_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def came(self: SimulatedPeer, right: Callable[..., None], place: Any, block: Block) -> None:
        right(self, place, block._replace(now=block.generation))

    seeds.mistaken(monkeypatch, SimulatedPeer, "_came", came)
    assert "holds something else" in noticed()


def test_a_prompt_that_is_asked_for_before_there_is_room_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def route(self: HandOvers, right: Callable[..., None], name: str, routed: Any) -> None:
        self._ask_prefill(name, routed)
        right(self, name, routed)

    seeds.mistaken(monkeypatch, HandOvers, "_route", route)
    assert "INV-36e" in noticed(most=2)


def test_a_ticket_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: DecodeEngine, right: Callable[..., None], ask: Any, request: Any) -> None:
        kept.append(self._tickets.pop(ask.name, None))
        right(self, ask, request)

    kept: list[Any] = []
    seeds.mistaken(monkeypatch, DecodeEngine, "_add", add)
    assert noticed(most=2) != "nothing"


def test_an_offer_that_is_never_said_to_be_done_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeSide, "over", lambda *_: None)
    assert "keeps what it has" in noticed(most=10)


def test_a_take_that_is_out_when_its_request_leaves_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def told(self: SimulatedPeer, right: Callable[..., None], number: int, *what: Any) -> None:
        if number in self._takes:
            self._takes[number].is_wanted = True
        right(self, number, *what)

    seeds.mistaken(monkeypatch, SimulatedPeer, "_told", told)
    assert noticed() != "nothing"


def test_an_abort_of_a_request_that_was_never_asked_about_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lookups, "leave", lambda self, *_: self.purge())
    late = scenario(Event(1, "abort", ("r1", "waiting")), patience=400, max_num_seqs=1)
    assert "keeps what it has" in seeds.noticed(lambda _: late, range(1))


def test_a_side_that_hears_of_nothing_after_new_weights_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(self: Asking, right: Callable[[Any], None]) -> None:
        right(self)
        self._taking = None

    seeds.mistaken(monkeypatch, Asking, "stop", stop)
    late = scenario(happens(20, "decode weights"), patience=400)
    assert "keeps what it has" in seeds.noticed(lambda _: late, range(1))


def test_an_offer_of_other_weights_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "has_own_weights", False)
    late = scenario(happens(20, "prefill weights"))
    assert "holds something else" in seeds.noticed(lambda _: late, range(1))
