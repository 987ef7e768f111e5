"""Restarts within simulated schedules, and that they would notice what they are there to notice."""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import seeds
from blockyard.crane.persistent import PersistentTiers
from blockyard.scheduling.request import RequestState
from blockyard.shared.restored import Restored
from blockyard.testing import Broken, Event, Scenario, Setup, minimised, simulate, simulated_disk
from blockyard.testing.simulated_disk import SimulatedDisk
from blockyard.yard.cache import KVCache

pytestmark = pytest.mark.law("INV-26", "INV-27", "INV-28", "INV-31")

# As in test_simulator.py, of which these are a part: BLOCKYARD_SEEDS=4000 plays 200 of them.
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "400")) // 20

WANTED = (
    *("closed", "killed", "weights", "engine reset", "aborted", "finished"),
    "rank reset, memory disk kept",
    *(f"restart {fate}" for fate in ("not begun", "void", "torn", "whole")),
    *("restored", "restored, served", "restored, not reported"),
)


def test_a_restart_finds_what_was_written_and_serves_nothing_else() -> None:
    seen: Counter[str] = Counter()
    seeds.play(Scenario.restarting, range(SEEDS), seen)
    seeds.met(seen, WANTED)


@pytest.mark.parametrize("seed", range(4))
def test_a_scenario_is_played_again_from_what_it_prints(seed: int) -> None:
    seeds.plays_again(Scenario.restarting, seed)


@pytest.mark.law("O10")
@pytest.mark.parametrize(
    "seed",
    [
        # An engine is reset before the yard is told of the tick, and plans are dispatched then.
        5261,
        # Parked blocks come down one by one, on a slow disk: no row computes, and nothing stalls.
        6619,
    ],
)
def test_what_was_broken_once_stays_whole(seed: int) -> None:
    simulate(Scenario.restarting(seed))


ONE = Setup(device=16, disk=24, write="through", ahead=8, disk_lasts=True, ends=False)


def add(tick: int, name: str, family: int = 0, most: int = 3) -> Event:
    """A prompt of four blocks and a token."""
    return Event(tick, "add", (name, family, 16, 1, most, 0))


def restart(tick: int, how: str, number: int = 1) -> Event:
    """The end of a process, and another one."""
    return Event(tick, "restart", (how, number))


def twice(how: str, *between: Event, setup: Setup = ONE) -> Scenario:
    """The same prompt before a restart and behind it."""
    return Scenario(setup, (add(1, "a"), *between, restart(40, how), add(42, "b")))


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_was_computed_before_a_restart_is_loaded_behind_it(how: str) -> None:
    ran = simulate(twice(how))
    assert ran.seen["restored"] == ran.seen["restored, served"] == 4
    assert ran.seen["stats disk_hits"] == 4
    assert [str(result.state) for result in ran.results.values()] == ["finished"] * 2


def test_without_a_disk_that_lasts_nothing_is_found() -> None:
    ran = simulate(twice("closed", setup=Setup(device=16, disk=24, write="through", ends=False)))
    assert ran.seen["closed"] == 1
    assert ran.seen["restored"] == ran.seen["stats disk_hits"] == 0
    assert {result.state for result in ran.results.values()} == {RequestState.FINISHED}


@pytest.mark.parametrize("at", [2, 30])
@pytest.mark.parametrize("verb", ["weights", "engine"])
def test_inv_31_a_restart_finds_nothing_that_was_cleared(verb: str, at: int) -> None:
    """Before most of it is computed, by other weights then, or behind that."""
    what = ("recompute",) if verb == "engine" else ()
    ran = simulate(twice("closed", Event(at, verb, what)))
    # An engine that was reset computes what it had again, with the weights that it has.
    assert ran.seen["restored"] == (4 if (verb, at) == ("engine", 2) else 0)


def test_what_runs_when_the_process_ends_begins_again_and_ends_as_it_would_have() -> None:
    """The tokens are compared with those of an undisturbed request by `Requests.end`."""
    events = (
        Event(1, "add", ("a", 0, 8, 4, 20, 0)),
        Event(1, "add", ("b", 0, 8, 4, 20, 0, "salt", "", 2)),
        Event(2, "add", ("c", 1, 8, 4, 20, 0)),
        Event(11, "stall", (9,)),
        Event(12, "abort", ("c", "")),
        Event(12, "restart", ("killed", 5)),
    )
    ran = simulate(Scenario(ONE, events))
    ends = {name: str(result.state) for name, result in ran.results.items()}
    samples = {"('b', 0)": "finished", "('b', 1)": "finished"}
    assert ends == {"a": "finished", "c": "aborted", **samples}


# -- what they would notice

SLOW = dataclasses.replace(ONE, disk_polls=12)
# What is under way has met several fates; a rank has what another has not; `c` is the last to use
# what `a` had written before `b`; two requests are parked.
TORN = Scenario(SLOW, (add(1, "a"), restart(10, "killed", 3), add(11, "b")))
RANKS = Scenario(dataclasses.replace(SLOW, ranks=2), (add(1, "a"), restart(10, "killed", 1)))
USED = Scenario(
    ONE,
    (
        *(add(1, "a"), add(14, "b", family=1), restart(40, "killed"), add(41, "c")),
        *(restart(70, "closed"), restart(80, "killed")),
    ),
)
PARKED = Scenario(
    dataclasses.replace(ONE, device=14, write="on-evict", headroom="none"),
    (*(add(1, name, family=at, most=30) for at, name in enumerate("abc")), restart(26, "killed")),
)
OTHER_WEIGHTS = Scenario(ONE, (add(1, "a"), Event(2, "weights"), restart(30, "killed")))
CLEARED = twice("closed", Event(30, "weights"))


@pytest.mark.parametrize(
    ("scenario", "happened", "times"),
    [
        (RANKS, "restored", 2),
        (USED, "restored", 24),
        (PARKED, "stats parkings", 2),
    ],
)
def test_what_is_to_be_noticed_has_its_occasion(
    scenario: Scenario, happened: str, times: int
) -> None:
    assert simulate(scenario).seen[happened] == times


def test_what_is_torn_is_a_miss() -> None:
    seen = simulate(TORN).seen
    fates = [seen[f"restart {fate}"] for fate in ("not begun", "void", "torn", "whole")]
    assert (fates, seen["restored"]) == ([0, 1, 1, 2], 3)
    assert (seen["restored, served"], seen["restored, torn"]) == (2, 1)


def no_order(_self: PersistentTiers, _right: Any, _slots: Any) -> None:
    """A clean close keeps no order."""


def old_order(self: SimulatedDisk, right: Any) -> Restored:
    """The order is that of another epoch: of the last clean close, whatever came behind it."""
    self._order = self.run, self._order[1]
    found: Restored = right(self)
    return found


def reversed_rows(self: KVCache, right: Any, tier: str, *rows: Any) -> None:
    right(self, tier, *(row[::-1].copy() for row in rows))


def fewer(self: SimulatedDisk, right: Any) -> Restored:
    """A block is lost."""
    found: Restored = right(self)
    return found.take(np.arange(len(found)) > 0)


def not_cleared(self: PersistentTiers, _right: Any, *, forget: bool = False) -> None:
    for tier in self._tiers if forget else ():
        tier.forget()


def not_forgotten(self: PersistentTiers, right: Any, *, forget: bool = False) -> None:
    del forget
    right(self)


def one_sum(_self: SimulatedDisk, _right: Any, _slot: int, _planes: Any) -> int:
    """No checksum differs: what is torn is served."""
    return 0


@pytest.mark.parametrize(
    ("of", "verb", "wrong", "scenario", "found"),
    [
        (PersistentTiers, "keep_order", no_order, USED, "restored blocks leave in the order"),
        (SimulatedDisk, "restored", old_order, USED, "restored blocks leave in the order"),
        (KVCache, "restore", reversed_rows, USED, "restored blocks leave in the order"),
        (SimulatedDisk, "restored", fewer, USED, "INV-27: a restart does not find"),
        (PersistentTiers, "clear", not_cleared, CLEARED, "INV-28, INV-31: a restart finds"),
        (PersistentTiers, "clear", not_forgotten, OTHER_WEIGHTS, "INV-28, INV-31: a restart finds"),
        (SimulatedDisk, "sum", one_sum, TORN, "holds something else"),
    ],
)
def test_a_restart_that_goes_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    of: type,
    verb: str,
    wrong: Callable[..., Any],
    scenario: Scenario,
    found: str,
) -> None:
    seeds.mistaken(monkeypatch, of, verb, wrong)
    with pytest.raises(Broken, match=found):
        simulate(scenario)


def test_ranks_that_are_not_compared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Restored, "agreed", staticmethod(lambda ranks: ranks[0]))
    with pytest.raises(Broken, match="INV-28: not all ranks have"):
        simulate(RANKS)


def test_a_part_of_a_parked_request_that_comes_back_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulated_disk, "is_anonymous", lambda _key: False)
    with pytest.raises(Broken, match="INV-28, INV-31: a restart finds"):
        simulate(PARKED)


def test_a_failure_is_minimised_to_the_restart_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PersistentTiers, "clear", lambda _self, **_: None)
    scenario = CLEARED.with_events((*CLEARED.events, Event(20, "stall", (2,)), add(5, "c")))
    verbs = [event.verb for event in minimised(scenario).events]
    assert verbs == ["add", "weights", "restart"]
