"""Policies of headroom, in a running batch."""

import pytest

from blockyard.scheduling.headroom import Adaptive, FullLength, Watermark
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
