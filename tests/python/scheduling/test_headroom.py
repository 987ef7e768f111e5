"""Policies of headroom, in a running batch."""

import math
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.scheduling.engine import Output
from blockyard.scheduling.headroom import Adaptive, FullLength, HeadroomPolicy, Watermark
from blockyard.scheduling.request import RequestState
from loop import Loop, parked
from yard import text


@pytest.mark.law("R1-5")
def test_with_full_length_reserved_no_request_is_ever_preempted() -> None:
    loop = Loop(device=9, headroom=FullLength())
    for name in range(6):
        loop.add(name, text(name + 1, 6), 14)
    loop.finish()
    assert (loop.told("preempted"), loop.told("skipped")) == (0, 0)


@pytest.mark.law("R1-5")
def test_a_watermark_keeps_blocks_from_a_begin_and_gives_them_for_growth() -> None:
    loop = Loop(device=9, headroom=Watermark(4))
    loop.add("one", text(1, 12), 9)
    loop.turn()
    loop.add("two", text(2, 8), 2)
    loop.turn()
    assert (loop.state("two"), loop.scheduler.headroom) == (RequestState.WAITING, 4)
    loop.finish()


def test_what_is_kept_for_growth_decays_with_every_step_and_is_whole_again_on_preemption() -> None:
    reserve = Adaptive(8.0, 0.5)
    loop = Loop(device=33, headroom=reserve)
    loop.add("one", text(1, 12), 40)
    loop.turn(5)
    assert reserve.headroom(2) == int(2 * (8.0 - 5 * 0.5))
    reserve.preempted()
    assert reserve.headroom(2) == 16
    loop.finish()


def test_a_request_that_lacks_headroom_is_told_so_and_who_holds_the_rest() -> None:
    loop = Loop(device=17, host=16, headroom=Watermark(8))
    loop.add("runs", text(1, 12), 9)
    loop.turn()
    loop.add("large", text(2, 40), 4)
    loop.turn()
    said = str(loop.scheduler.explain("large"))
    assert "8 slots are headroom, kept for the growth of what runs." in said
    assert "is shared, or copies read it" not in said
    lease = loop.scheduler.lease("runs")
    assert lease is not None
    assert f"Holders of blocks: 1 (request 'runs' (lease {lease.id}): 4)" in said
    loop.finish()


def test_parked_requests_and_those_with_a_ticket_are_named() -> None:
    loop = parked()
    said = str(loop.scheduler.explain("new"))
    assert "request 'old' (lease " in said
    assert "request 'new' (parked " in said
    loop.finish()
    loop = Loop(device=9)
    ticket = loop.cache.promise(6)
    loop.add("promised", text(3, 30), 2, ticket=ticket)
    loop.add("waits", text(4, 30), 2)
    said = str(loop.scheduler.explain("waits"))
    assert f"The end of request 'promised' (ticket {ticket.id}) would make room." in said
    loop.finish()


# -- no more than the rows can still need ----------------------------------------------------------


class Uncapped(Adaptive):
    """Keeps its blocks for each row, whatever is left of its answer."""

    capped = False  # type: ignore[misc]


def steps(policy: HeadroomPolicy | None, prompt: int, most: int, requests: int) -> int:
    """Steps until all are answered that came at once, on 511 blocks of 16 tokens."""
    cache = by.KVCache(device=512, block_size=16)
    options = by.SchedulerOptions(headroom=policy, stops="in-order")
    scheduler = by.Scheduler(cache, options)
    for name in range(requests):
        scheduler.add(
            by.NewRequest(name, range(1000 * name + 1, 1000 * name + 1 + prompt), max_tokens=most)
        )
    while not scheduler.idle:
        step = scheduler.schedule()
        for plan in cache.dispatch():
            cache.commit(plan)
        tokens = np.ones(len(step.sampling), np.uint32)
        scheduler.on_output(Output(step.number, step.sampling, tokens))
        scheduler.results()
    return scheduler.stats()["steps"]


@pytest.mark.law("R1-5")
@pytest.mark.parametrize(
    ("prompt", "most", "requests"),
    [
        (160, 8, 200),
        (160, 16, 200),
        (160, 32, 200),
        (160, 60, 200),
        (160, 200, 400),
        (500, 60, 100),
    ],
)
def test_the_default_takes_no_more_steps_than_the_better_of_two(
    prompt: int, most: int, requests: int
) -> None:
    """All that each may need promised, or 16 blocks for each row: at most 2 % more (R1-5)."""
    policies = FullLength(), Uncapped(short=0), None
    full, sixteen, default = (steps(policy, prompt, most, requests) for policy in policies)
    assert default <= 1.02 * min(full, sixteen)


@pytest.mark.law("R1-5")
def test_what_is_kept_is_what_the_rows_can_still_need() -> None:
    """Of two rows of 40 tokens each, at every step of them (R1-5)."""
    loop = Loop(device=65, headroom=Adaptive(16.0, 0.0, short=0), host=64)
    for name in (1, 2):
        loop.add(name, text(name, 9), 40)
    loop.turn()
    while loop.scheduler.running:
        left = [12 - lease.blocks for lease in map(loop.scheduler.lease, (1, 2)) if lease]
        assert loop.scheduler.growth <= sum(left)
        loop.schedule()
        # Between two counts at most 16 tokens of each row pass.
        assert sum(left) - 2 <= loop.scheduler.headroom <= sum(left) + 2 * 4
        loop.land()
        loop.output()
        loop.ack()
    loop.finish()


@pytest.mark.law("R1-5")
@pytest.mark.parametrize("gone", ["held", "stopped", "ended"])
def test_who_does_not_run_needs_nothing(gone: str) -> None:
    loop = Loop(device=65, headroom=Adaptive(16.0, 0.0, short=0), host=64)
    for name in (1, 2):
        loop.add(name, text(name, 8), 40)
    loop.turn(2)
    assert loop.scheduler.growth == 18
    if gone == "held":
        loop.scheduler.hold(1)
    elif gone == "stopped":
        loop.scheduler.abort(1)
    else:
        loop.schedule()
        loop.output(ends=[1])
    assert loop.scheduler.growth == 9
    loop.schedule()
    assert loop.scheduler.headroom == 9
    loop.scheduler.unhold(2)
    loop.output()
    for name in (1, 2):
        if loop.state(name) is not None:
            loop.scheduler.unhold(name)
    loop.finish()


@pytest.mark.law("R1-5")
def test_a_short_answer_is_promised_in_full_and_a_fixed_number_is_kept() -> None:
    loop = Loop(device=65, headroom=Adaptive(), max_num_seqs=8)
    for name in range(3):
        loop.add(name, text(name + 1, 8), 17)
    loop.turn()
    assert (loop.scheduler.growth, loop.scheduler.headroom) == (0, 0)
    lease = loop.scheduler.lease(0)
    assert lease is not None
    assert lease.promised >= 3
    loop.finish()
    assert loop.told("preempted") == 0
    loop = Loop(device=65, headroom=Watermark(12))
    loop.add("one", text(1, 8), 4)
    loop.turn(2)
    assert (loop.scheduler.growth, loop.scheduler.headroom) == (0, 12)
    loop.finish()


@pytest.mark.parametrize("short", [-1, 1.5, None, True])
def test_the_length_that_is_promised_is_a_number_of_tokens(short: Any) -> None:
    with pytest.raises(by.Misuse, match="short"):
        Adaptive(short=short)


@pytest.mark.parametrize("name", ["blocks", "decay"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1_000_000, "2", None, True])
def test_what_is_kept_for_each_is_a_number(name: str, value: Any) -> None:
    given = {name: value}
    with pytest.raises(by.Misuse, match=name):
        Adaptive(**given)
