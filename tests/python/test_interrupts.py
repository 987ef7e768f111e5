"""Ctrl-C at any line: after a reset nothing is lost, nothing stands still, and all bytes are right.

More, and other seeds: BLOCKYARD_INTERRUPTS=2000 python -m pytest tests/python/test_interrupts.py
"""

import os
import sys
from typing import Any

import pytest

from blockyard.shared.plan import Cause
from interrupted import Interrupter, Program
from interrupted_verbs import CUTS, LOCAL_CUTS, Local, Ranks, interrupt
from interrupted_worker import WORKER_CUTS, Desk

INTERRUPTS = int(os.environ.get("BLOCKYARD_INTERRUPTS", "0"))


def test_a_program_that_is_interrupted_at_any_line_loses_nothing() -> None:
    times = read = seed = 0
    while times < (INTERRUPTS or 150):
        program = Program(seed)
        try:
            program.run(5)
        except BaseException as error:
            error.add_note(f"seed {seed}, interrupted last at {program.interrupter.where}")
            raise
        times += program.interrupter.times
        read += program.engine.memory.read
        seed += 1
    assert read > times


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CUTS)
def test_ranks_whose_verb_is_interrupted_at_each_line_lose_nothing(name: str, ranks: int) -> None:
    interrupt(CUTS[name], lambda: Ranks(ranks), more=INTERRUPTS > 0)


@pytest.mark.parametrize("name", LOCAL_CUTS)
def test_a_cache_whose_verb_is_interrupted_at_each_line_loses_nothing(name: str) -> None:
    interrupt(LOCAL_CUTS[name], Local, more=INTERRUPTS > 0)


@pytest.mark.parametrize("name", WORKER_CUTS)
def test_a_worker_whose_verb_is_interrupted_at_each_line_loses_nothing(name: str) -> None:
    interrupt(WORKER_CUTS[name], Desk, more=INTERRUPTS > 0)


def test_a_close_that_times_out_is_called_again_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(1)
    (crane,), (copier,) = ranks.cranes, ranks.copiers
    device: Any = crane.device
    slow = Interrupter(timeout=True)
    monkeypatch.setattr(copier, "close", lambda: slow.during(0, crane.stats))
    with pytest.raises(TimeoutError):
        slow.during(sys.maxsize, crane.close)
    assert copier.held, "it writes still"
    assert device.planes, "and its memory is there"
    monkeypatch.undo()
    crane.close()
    assert not copier.held
    assert not device.planes
    assert {outcome.cause for outcome in crane.poll()} == {Cause.DEAD}


def test_what_was_cut_off_is_dead_after_a_reset_where_nobody_has_polled_before() -> None:
    ranks = Ranks(1)
    CUTS["poll, with a copy cut off"].before(ranks)
    ranks.cranes[0].reset()
    assert Cause.LOST not in {outcome.cause for outcome in ranks.cranes[0].poll()}


def test_a_crane_whose_close_was_interrupted_is_closed_when_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(1)
    copier, crane = ranks.copiers[0], ranks.cranes.pop()

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(copier, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        crane.close()
    monkeypatch.undo()
    assert crane.closed
    assert copier.held
    with pytest.warns(ResourceWarning, match="Crane of rank 0 was dropped and not closed"):
        del crane
    assert not copier.held
