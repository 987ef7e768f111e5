"""Seeds of a simulated engine with groups of layers, and that they notice each clause of the laws
that is left out. G1 G3 G4 G8 G10 G11 G12 G13
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
import seeds
from blockyard.connectors import agreement, group_loads, hybrid_connector
from blockyard.connectors.agreement import Agreement
from blockyard.connectors.connector import Connector
from blockyard.connectors.group_loads import GroupLoad, GroupLoads
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.rider_copies import RiderCopies
from blockyard.connectors.riders import Rider
from blockyard.shared.groups import RecurrentState, SlidingWindow
from blockyard.testing.own_groups import MIXES, OwnGroups

# More, as in test_simulator.py.
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "100"))
TICKS = 160
PARTS = 4

WANTED = (
    *("loaded", "undone", "kept", "not kept", "asked again", "engine is full", "slid"),
    *("running state", "checkpoint", "fence", "aborted loading", "rotten block", "withdrawn"),
    *("clears", "restarts", "resets", "restored", "restored rider", "restored without its spine"),
    *(f"{way}{of}" for of in ("", " of a rider") for way in ("device to host", "host to device")),
    *(f"{way}{of}" for of in ("", " of a rider") for way in ("host to disk", "disk to device")),
    "device to disk of a rider",
)


def play(seed: int, *, faults: bool = True) -> Counter[str]:
    """Plays a seed with the mix whose turn it is."""
    engine = OwnGroups(seed, MIXES[list(MIXES)[seed % len(MIXES)]], faults=faults)
    engine.run(TICKS)
    return engine.seen


@pytest.mark.law("G1", "G3", "G4", "G8", "G10", "G11", "G13")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_to_an_engine_with_groups_is_kept_whatever_happens(
    part: int, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        try:
            seen.update(play(seed, faults=seed % 5 > 0))
        except by.BlockyardError as error:
            pytest.fail(f"seed {seed}: {error}")
        except AssertionError as broken:
            pytest.fail(f"seed {seed}: {broken}")
    seeds.met_in_parts(seen, WANTED, PARTS, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_played_the_same_again(seed: int) -> None:
    assert play(seed) == play(seed)


# -- what they would notice --------------------------------------------------------------------

Wrong = Callable[..., Any]


def notices(faults: bool, seeds: int = 150) -> str:
    """Returns what the first seed says that notices a mistake."""
    for seed in range(seeds):
        try:
            play(seed, faults=faults)
        except (AssertionError, by.BlockyardError, KeyError) as said:
            return f"{type(said).__name__}: {said}"
    return "nothing"


def patch(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, wrong: Wrong) -> None:
    right = getattr(of, name)

    def other(*given: Any, **named: Any) -> Any:
        return wrong(right, *given, **named)

    monkeypatch.setattr(of, name, other)


def spine_alone(right: Wrong, self: Agreement, keys: by.Keys, after: int, found: Any) -> Any:
    *_, far = right(self, keys, after, found)
    return far, False, None, None, far


def in_flight_is_there(right: Wrong, self: Agreement, *asked: Any) -> Any:
    blocks, _, *why = right(self, *asked)
    return blocks, False, *why


def last_block_alone(right: Wrong, riders: Any, blocks: int) -> list[int]:
    return [max(start, blocks - 1) for start in right(riders, blocks)]


def rounded_inwards(_right: Wrong, self: SlidingWindow, length: int, size: int) -> range:
    first = max(0, length - self.tokens + 1)
    return range(-(-first // size), -(-length // size))


def state_before(right: Wrong, self: RecurrentState, length: int, size: int) -> range:
    needs = right(self, length, size)
    return range(needs.start - 1, needs.stop - 1) if needs.start else needs


def ends_with_the_spine(
    right: Wrong, self: Any, request: Any, load: GroupLoad, *what: Any, **named: Any
) -> None:
    right(self, request, load, *what, **named)
    if 0 not in load.left and load.left:
        load.left.clear()
        right(self, request, load, *what, **named)


def spines_good_prefix(_right: Wrong, self: GroupLoad, size: int) -> int:
    return self.length if self.has_spine else self.first * size


def the_engines_own_too(right: Wrong, self: OwnGroups, row: Any, local: int, *more: Any) -> bool:
    is_held: bool = right(self, row, local, *more)
    has, loads = self._tables(row, local), self._connector._loads

    def make(path: Any, *asked: Any) -> GroupLoad:
        load = GroupLoads.make(loads, path, *asked)
        for rider in () if load.resumes else loads._riders:
            needs = rider.needs(load.length)
            if needs.start < load.first and rider.number in load.parts:
                ids = has[self._groups.numbers[rider.number]][needs.start :]
                ids += load.parts[rider.number][1]
                load.parts[rider.number] = path.row(rider.cache, needs), ids, 0
        return load

    vars(loads)["make"] = make
    return is_held


def nothing_of_riders(_right: Wrong, _self: Rider, *_: Any) -> None:
    return None


def without_room(right: Wrong, *given: Any) -> Any:
    try:
        return right(*given)
    except by.NoRoom:
        return None


def null_blocks_too(
    _right: Wrong, self: Rider, table: Any, told: Any, length: int, null: int
) -> Any:
    if self.is_state:
        return [(block, told[self.number].get(length, null)) for block in self.needs(length)]
    return [(block, table[block]) for block in self.needs(length) if block < len(table)]


def the_current_state(
    right: Wrong, self: Rider, table: Any, told: Any, length: int, null: int
) -> Any:
    if self.is_state and told[self.number]:
        last = max(told[self.number])
        return [(block, told[self.number][last]) for block in self.needs(length)]
    return right(self, table, told, length, null)


def the_spines_fence(right: Wrong, self: HybridConnector, written: Any = (), *more: Any) -> Any:
    made = right(self, written, *more)
    return made._replace(fence=self.caches[0].must_finish(written))


def other_groups_unasked(_right: Wrong, self: GroupLoads, request: Any, load: GroupLoad) -> bool:
    caches, self._caches = self._caches, ()
    try:
        return bool(_right(self, request, load))
    finally:
        self._caches = caches


def all_for_the_spine(_right: Wrong, outcomes: Any, *_: Any) -> dict[int, list[by.Outcome]]:
    return {0: list(outcomes)}


def no_clear(_right: Wrong, self: RiderCopies) -> None:
    for rider in self._riders:
        rider.drop()


def the_spines_floor(right: Wrong, self: OwnGroups) -> None:
    right(self)
    self._copies.floors[1:] = [0] * (len(self._words) - 1)


def no_flush(_right: Wrong, self: RiderCopies, path: Any, held: Any) -> None:
    for rider, own in zip(self._riders, held, strict=True):
        rider.add(path, own)
    self.has_offloads = True


MISTAKES: dict[str, tuple[bool, Any, str, Wrong]] = {
    "agree": (False, Agreement, "of", spine_alone),
    "ceil": (False, SlidingWindow, "needs", rounded_inwards),
    "contig": (False, agreement, "starts", last_block_alone),
    "exact": (False, RecurrentState, "needs", state_before),
    "air": (False, Agreement, "of", in_flight_is_there),
    "own": (True, OwnGroups, "_hold_local", the_engines_own_too),
    "together": (True, GroupLoads, "_end_part", ends_with_the_spine),
    "void": (True, group_loads.GroupLoad, "tokens", spines_good_prefix),
    "again": (True, Connector, "failed", lambda *_: None),
    "keepall": (False, Rider, "save", nothing_of_riders),
    "budget": (False, Rider, "save", without_room),
    "null": (False, Rider, "held", null_blocks_too),
    "told": (False, Rider, "held", the_current_state),
    "fence": (False, HybridConnector, "step", the_spines_fence),
    "soon": (False, GroupLoads, "_ask", other_groups_unasked),
    "route": (False, hybrid_connector, "outcomes_by_group", all_for_the_spine),
    "clearall": (True, RiderCopies, "clear", no_clear),
    "floorall": (True, OwnGroups, "_clear", the_spines_floor),
    "offloads planned late": (False, RiderCopies, "offload", no_flush),
}


@pytest.mark.parametrize("clause", MISTAKES)
def test_a_clause_that_is_left_out_is_noticed(clause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, of, name, wrong = MISTAKES[clause]
    patch(monkeypatch, of, name, wrong)
    assert notices(faults) != "nothing"
