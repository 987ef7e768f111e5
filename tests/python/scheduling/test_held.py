"""Requests whose blocks are held when they finish, so that another engine can read them."""

import pytest

import blockyard as by
from blockyard.scheduling.headroom import Watermark
from blockyard.scheduling.request import RequestState
from loop import Loop
from yard import text

pytestmark = pytest.mark.law("INV-36a")


def test_a_finished_request_leaves_a_hold_of_all_that_it_has_sealed() -> None:
    loop = Loop(device=33)
    loop.add("one", text(1, 18), 3, hold=True)
    loop.add("two", text(2, 18), 3)
    loop.finish()
    held = loop.results["one"].held
    assert held is not None
    # Of 18 tokens and the two sampled ones that were computed.
    assert (held.blocks, held.is_held) == (5, True)
    assert bytes(held.keys)[:128] == bytes(loop.cache.keys(text(1, 16)))
    assert loop.results["two"].held is None
    stats = loop.cache.stats()
    assert (stats["leases"], stats["device_pinned"], stats["held_blocks"]) == (0, 5, 5)
    held.release()
    assert loop.cache.stats()["device_pinned"] == 0


def test_each_sample_has_a_hold_of_its_own() -> None:
    loop = Loop(device=33)
    loop.add("one", text(1, 18), 3, n=2, hold=True)
    loop.finish()
    holds = [loop.results["one", at].held for at in range(2)]
    assert all(held is not None and held.is_held for held in holds)
    assert len({held.id for held in holds if held is not None}) == 2


def test_what_is_aborted_or_has_sealed_nothing_is_not_held() -> None:
    loop = Loop(device=33)
    loop.add("short", text(1, 2), 1, hold=True)
    loop.add("gone", text(2, 18), 30, hold=True)
    loop.turn(3)
    loop.scheduler.abort("gone")
    loop.finish()
    assert [loop.results[name].held for name in ("short", "gone")] == [None, None]
    assert loop.cache.stats()["held_blocks"] == 0


def test_what_fails_with_its_engine_is_not_held() -> None:
    loop = Loop(device=33)
    loop.add("one", text(1, 18), 30, hold=True)
    loop.turn(4)
    loop.scheduler.fail("the engine is gone")
    (result,) = loop.scheduler.results()
    assert (result.state, result.held) == ("failed", None)
    assert loop.cache.stats()["held_blocks"] == 0


def test_others_wait_for_a_hold_and_are_told_so() -> None:
    loop = Loop(device=9)
    loop.add("held", text(1, 24), 1, hold=True)
    loop.finish()
    held = loop.results["held"].held
    assert held is not None
    loop.add("large", text(2, 28), 1)
    said: list[str] = []
    for _ in range(66):
        loop.now += 1.0
        loop.turn()
        said = [*loop.scheduler.stalled()]
    (sentence,) = said
    assert "Request 'large' finds no room" in sentence
    assert f"Held for other engines: {held.id}; release them." in sentence
    held.release()
    loop.finish()
    assert loop.results["large"].state == "finished"


def test_where_nothing_can_be_computed_again_rows_wait_for_a_hold() -> None:
    """They would fail, were nothing to come back (INV-11)."""
    loop = Loop(device=9, recompute=False)
    loop.add("held", text(1, 16), 1, hold=True)
    loop.finish()
    held = loop.results["held"].held
    assert held is not None
    loop.add("long", text(2, 12), 12)
    loop.turn(40)
    assert loop.state("long") is not None
    held.release()
    loop.finish()
    assert loop.results["long"].state == "finished"


@pytest.mark.law("INV-36e")
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize(
    ("kept", "most", "turns"),
    [(4, 1, 0), (2, 13, 1)],
    ids=["that-is-due-to-a-row-of-the-same-step", "by-what-it-samples"],
)
def test_no_request_is_admitted_whose_hold_would_leave_less_than_the_headroom(
    kept: int, most: int, turns: int, hold: bool
) -> None:
    """A row gives way to another, and a hold does not: others are admitted at once."""
    loop = Loop(device=9, headroom=Watermark(kept))
    loop.add("runs", text(1, 12), 9)
    for _ in range(turns):
        loop.turn()
    loop.add("new", text(2, 8), most, hold=hold)
    loop.schedule()
    assert loop.state("new") is (RequestState.WAITING if hold else RequestState.PREFILL)
    loop.land()
    loop.output()
    while hold and loop.state("runs") is not None:
        assert not loop.cache.stats()["held_blocks"]
        loop.turn()
    loop.finish()
    held = loop.results["new"].held
    assert (held is not None) is hold
    if held is not None:
        held.release()


@pytest.mark.law("INV-36e")
def test_a_hold_takes_none_of_the_headroom_that_is_kept_already() -> None:
    for blocks, waits in ((2, False), (3, True)):
        loop = Loop(device=11, headroom=Watermark(4))
        loop.add("runs", text(1, 12), 9)
        loop.turn()
        loop.add("new", text(2, 4 * blocks), 1, hold=True)
        loop.turn()
        assert (loop.state("new") is RequestState.WAITING) is waits
        assert loop.cache.room().headroom == 4
        assert loop.cache.stats()["held_blocks"] == (0 if waits else blocks)
        loop.finish()
        held = loop.results["new"].held
        assert held is not None
        held.release()


def test_hold_is_true_or_false() -> None:
    with pytest.raises(by.Misuse, match="hold = 2"):
        by.NewRequest("one", text(1, 4), max_tokens=1, hold=2)  # type: ignore[arg-type]
