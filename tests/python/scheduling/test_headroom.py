"""Policies of headroom, in a running batch."""

from blockyard.scheduling.headroom import Adaptive, FullLength, Watermark
from blockyard.scheduling.request import RequestState
from loop import Loop
from yard import text


def test_with_full_length_reserved_no_request_is_ever_preempted() -> None:
    loop = Loop(device=9, headroom=FullLength())
    for name in range(6):
        loop.add(name, text(name + 1, 6), 14)
    loop.finish()
    assert (loop.told("preempted"), loop.told("skipped")) == (0, 0)


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
