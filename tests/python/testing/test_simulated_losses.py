"""Outcomes are lost on their way from two ranks: nothing stands still, and nothing is lost."""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from blockyard.testing import Broken, Scenario, simulate
from blockyard.testing.setup import Setup
from blockyard.testing.simulated_processes import Processes

# As in test_simulator.py, of which these are a part: BLOCKYARD_SEEDS=2400 plays 60 of them.
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "400")) // 40

WANTED = ("outcome lost", "outcome asked for", "plans down", "plans up", "plans to disk")


class Still:
    """The most ticks in which no request that waits or runs has come on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ticks = 0
        self._seen: tuple[int, int] | None = None
        tick = Processes._tick

        def watched(play: Processes, **named: Any) -> None:
            tick(play, **named)
            done = len(play.requests.results) + play._engine.emitted.total()
            if self._seen is None or done != self._seen[0] or not play.requests.unfinished:
                self._seen = done, play.now
            self.ticks = max(self.ticks, play.now - self._seen[1])

        monkeypatch.setattr(Processes, "_tick", watched)

    def of(self, scenario: Scenario, seen: Counter[str]) -> int:
        """How long a play stands still."""
        self.ticks, self._seen = 0, None
        seen.update(simulate(scenario).seen)
        return self.ticks


def longest(setup: Setup) -> int:
    """The longest of its deadlines."""
    deadline = setup.deadline
    assert deadline is not None
    return max(deadline.values()) if isinstance(deadline, Mapping) else deadline


def losing(seed: int, percent: int) -> Scenario:
    """Two ranks with a host and a disk, which are asked more often than a deadline passes."""
    scenario = Scenario.losing(seed, percent)
    host, disk = scenario.setup.host or 12, scenario.setup.disk or 24
    setup = dataclasses.replace(scenario.setup, ranks=2, asks=4, host=host, disk=disk)
    return Scenario(setup, scenario.events)


@pytest.mark.law("INV-6", "INV-25")
def test_where_outcomes_are_lost_nothing_stands_still_longer_than_the_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A play checks every answer, audits, and ends only when nothing is held."""
    still, seen = Still(monkeypatch), Counter[str]()
    for seed in range(SEEDS):
        scenario = losing(seed, 5)
        try:
            undisturbed = still.of(losing(seed, 0), Counter())
            ticks = still.of(scenario, seen)
        except Broken as broken:
            pytest.fail(f"seed {seed}: {broken}\n{scenario!r}")
        assert ticks <= undisturbed + longest(scenario.setup), f"seed {seed}"
    assert [what for what in WANTED if not seen[what]] == []
    assert seen["failed"] == 0
