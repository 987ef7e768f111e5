"""Some hundreds of simulations of an engine that gives out its block ids itself, and that they
would notice what they are there to notice. E1 E2 E4 E5 E6 E7
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
import seeds
from blockyard.connectors.connector import Connector
from blockyard.connectors.loads import Load, Loads
from blockyard.testing import Event, Scenario, Setup, simulate
from blockyard.testing.copies import Copies

# More, as in test_simulator.py; below some 400 not all of `WANTED` comes to pass.
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "400"))
PARTS = 4

WANTED = (
    *(f"2.3 {way} {end}" for way in ("down", "up") for end in ("failed", "unknown")),
    *(f"2.3 {way} disk {end}" for way in ("to", "from") for end in ("failed", "unknown")),
    *(f"2.3 {fate}" for fate in ("twice", "late", "foreign")),
    *(f"copy {cause}" for cause in ("failed", "corrupt", "dead")),
    *(f"abort in {state}" for state in ("waiting", "loading", "prefill", "decode", "parked")),
    *(f"rank reset, memory {memory}" for memory in ("kept", "lost")),
    *(f"plans {way}" for way in ("down", "up", "to disk", "from disk")),
    *("E1 fence", "E2 asked again", "E4 came back", "E4 cut", "engine reset", "no room below"),
    *("finished", "aborted", "loads", "preempted", "stats host_hits", "stats disk_hits"),
    *("stats broken", "hint"),
)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_to_such_an_engine_is_kept_whatever_happens(
    part: int, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    seeds.play(Scenario.own_blocks, range(part, SEEDS, PARTS), seen)
    seeds.met_in_parts(seen, WANTED, PARTS, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_a_scenario_is_played_again_from_what_it_prints(seed: int) -> None:
    seeds.plays_again(Scenario.own_blocks, seed)


@pytest.mark.parametrize(
    "event",
    [
        Event(1, "weights"),
        Event(1, "pause_decoding", ("a",)),
        Event(1, "promise", ("a", 1, 1, "p")),
    ],
)
def test_what_such_an_engine_does_not_know_is_refused_by_name(event: Event) -> None:
    with pytest.raises(by.Misuse, match=f"{event.verb}.*'add'"):
        simulate(Scenario(Setup(blocks="engine"), (event,)))


# -- what it would notice ----------------------------------------------------------------------


def broken(
    monkeypatch: pytest.MonkeyPatch,
    of: type,
    verb: str,
    wrong: Callable[..., Any],
    likely: int = 0,
) -> str:
    """What the first seed says that notices a class with this verb; a likely one goes first."""
    seeds.mistaken(monkeypatch, of, verb, wrong)
    return seeds.noticed(Scenario.own_blocks, (likely, *range(200)))


def test_a_fence_that_is_not_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E1"""

    def wrong(_self: Any, _right: Any, _ids: Any) -> None:
        return None

    assert "holds something else" in broken(monkeypatch, by.KVCache, "must_finish", wrong)


def test_a_count_that_is_no_minimum_over_ranks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E2"""

    def wrong(self: Connector, right: Any, outcomes: Any, **named: Any) -> Any:
        believed, first = [], vars(self).setdefault("first", {})
        for one in outcomes:
            good = first.setdefault(one.flight, one.good)
            cause = None if good > one.good else one.cause
            believed.append(one._replace(good=max(good, one.good), cause=cause))
        return right(self, believed, **named)

    # The yard's counters would say so, too.
    monkeypatch.setattr(Copies, "compare", lambda *_: None)
    assert "of rank" in broken(monkeypatch, Connector, "commit", wrong, likely=101)


def test_tokens_that_have_not_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E4"""

    def wrong(self: Load, right: Any, block_size: int) -> int:
        return int(right(self, block_size)) + self.failed * block_size

    assert "holds something else" in broken(monkeypatch, Load, "tokens", wrong)


def test_what_is_kept_and_not_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E6"""

    hoard: list[by.Parked] = []

    def wrong(self: Connector, _right: Any, row: Any) -> None:
        # A handle that is dropped gives its keeps up by itself.
        hoard.append(row.kept)
        row.kept = row.keeping = None
        self._waiting.pop(row, None)

    assert "E6" in broken(monkeypatch, Connector, "_release", wrong)


def test_a_load_that_is_never_named_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E5"""

    def wrong(self: Loads, right: Any) -> Any:
        return [(name, load) for name, load in right(self) if not load.failed]

    assert "stuck" in broken(monkeypatch, Loads, "done", wrong)


def test_ids_that_are_given_back_too_early_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E1"""

    def wrong(self: Connector, right: Any, *what: Any) -> bool:
        right(self, *what)
        return False

    assert broken(monkeypatch, Connector, "finished", wrong) != "nothing"


def test_replicas_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7"""
    calls = 0

    def wrong(self: Connector, right: Any, *what: Any) -> Any:
        nonlocal calls
        calls += 1
        return right(self, *what) if calls % 2 else None

    assert "E7" in broken(monkeypatch, Connector, "matched", wrong)
