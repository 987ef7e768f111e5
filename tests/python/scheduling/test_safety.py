"""Where nothing can be recomputed, none is lost, as the blocks of each sequence count."""

from typing import Any

import pytest

from blockyard.scheduling.request import RequestState
from loop import Loop
from yard import text


@pytest.mark.law("INV-25")
def test_of_two_pairs_that_hold_the_same_one_leaves_though_it_frees_nothing() -> None:
    """Two hold the same blocks: these are free when both have left, and neither frees any alone."""
    loop = Loop(device=16, host=32, size=1)
    leases = []
    for family in (1, 2):
        pair = [loop.cache.begin(texts(family, 5)) for _ in range(2)]
        loop.cache.seal(pair, 5)
        assert loop.cache.dedup(pair) == 5
        leases += pair
    kept = loop.cache.promise(5)
    seats = loop.scheduler._shared.seats
    for name, lease in enumerate(leases):
        loop.add(name, texts(1 + name // 2, 5), 5)
        entry = loop.scheduler._queue.pop()
        assert entry is not None
        loop.scheduler._batch.begin_decode(seats.bind(entry, lease, loop.cache.limit()))
    seats.scheduled[:4] = seats.computed[:4] = 5
    assert [loop.cache.exclusive_blocks(lease) for lease in leases] == [0] * 4
    grown = loop.scheduler._batch.grow()
    assert (grown.seats, len(grown.skipped)) == ([], 4)
    assert loop.scheduler._pressure._preemptor.victims(grown, 0) == []
    victim = loop.scheduler._pressure._preemptor.last_resort()
    assert victim is not None
    assert victim.request.id == 3
    loop.cache.release(kept)
    loop.cache.finish(leases)


def texts(first: int, most: int) -> list[int]:
    """Tokens: prompts that begin alike are continued alike."""
    return [(first * 31 + at) % 900 for at in range(most)]


@pytest.mark.law("INV-25")
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("way", [(9, 20, (8, 8)), (13, 30, (11, 10)), (13, 5, (5, 12))])
def test_a_request_holding_twice_what_a_parked_one_keeps_makes_room_for_itself(
    way: Any, recompute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that sample the same hold each other's blocks beside their own (INV-25)."""
    device, host, (first, second) = way
    monkeypatch.setattr("loop.continuation", lambda _one, at, most: texts(1, at + most)[at:])
    loop = Loop(device=device, host=host, size=1, recompute=recompute)
    loop.add("A", [1], first)
    loop.turn()
    loop.add("B", [1], second, priority=5)
    if device == 13 and host == 30:
        loop.add("C", [9], 5, priority=-1)
    loop.finish(600)
    for name, most in (("A", first), ("B", second)):
        result = loop.results[name]
        assert result.tokens.tolist() == texts(1, 1 + most)[1 : 1 + len(result.tokens)]
        assert result.state is RequestState.FINISHED or result.reason.startswith("kv_lost")
        assert not recompute or result.state is RequestState.FINISHED


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that begin alike sample alike."""
    monkeypatch.setattr("loop.continuation", lambda _one, at, most: texts(1, at + most)[at:])


@pytest.mark.law("INV-11")
@pytest.mark.usefixtures("same")
@pytest.mark.parametrize("stops", ["acked", "in-order"])
def test_inv_11_of_two_that_sample_alike_neither_is_lost(stops: Any) -> None:
    """Each needs 6 blocks of 7, and one of them fits on the host: held twice, it would not."""
    loop = Loop(device=8, host=6, size=1, recompute=False, stops=stops)
    for name in "AB":
        loop.add(name, texts(1, 3), 4)
    loop.finish()
    for name in "AB":
        result = loop.results[name]
        assert (result.state, result.tokens.tolist()) == (RequestState.FINISHED, texts(1, 7)[3:])
    assert (loop.told("parkings"), loop.cache.stats()["deduped"]) == (1, 2)


@pytest.mark.law("INV-11")
@pytest.mark.usefixtures("same")
@pytest.mark.parametrize("spare", range(4))
@pytest.mark.parametrize("size", range(1, 5))
@pytest.mark.parametrize("many", [2, 3, 5])
def test_inv_11_of_many_that_sample_alike_none_is_lost(many: int, size: int, spare: int) -> None:
    each = -(-(3 + 9 * size - 1) // size)
    loop = Loop(device=1 + each + spare, host=each * (many - 1), size=size, recompute=False)
    for name in range(many):
        loop.add(name, texts(1, 3), 9 * size)
    loop.finish(2000)
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("INV-11")
def test_inv_11_the_largest_is_not_parked_where_the_others_then_could_not_be() -> None:
    """Of 12, 7 and 7 blocks the host holds 14: beside 10 of the 12, neither other one fits."""
    loop = Loop(device=13, host=14, size=1, recompute=False)
    loop.add("large", [1], 12)
    loop.turn(9)
    for name in (2, 3):
        loop.add(name, [name], 7, priority=1)
    loop.finish(1000)
    assert loop.told("preempted") > 0
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("INV-25")
def test_inv_25_blocks_that_only_parked_ones_keep_leave_where_none_runs() -> None:
    """Two keep one path and two another: none has room to come back, or frees any alone."""
    loop = Loop(device=12, host=32, size=1, recompute=False)
    names = (1, 2, 3, 4)
    for name in names:
        loop.add(name, texts((name + 1) // 2, 6), 2)
    for entry in [loop.scheduler._queue.pop() for _ in names]:
        assert entry is not None
        lease = loop.cache.begin(entry.new.prompt)
        loop.cache.seal(lease, 5)
        entry.park(loop.cache.park(lease, 5))
        loop.scheduler._queue.push(entry)
    kept = loop.cache.promise(1)
    handles = [loop.handle(name) for name in names]
    assert [(handle.on_device, handle.alone) for handle in handles] == [(5, 0)] * 4
    loop.turn(3)
    assert loop.state(1) is not RequestState.PARKED
    loop.cache.release(kept)
    loop.finish()
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


@pytest.mark.law("INV-25")
@pytest.mark.parametrize(("size", "prompt", "most"), [(1, 7, 1), (4, 28, 1), (4, 24, 5)])
def test_inv_25_a_prompt_that_fills_the_device_begins_again_where_nothing_is_recomputed(
    size: int, prompt: int, most: int
) -> None:
    """Its last block has no room beside the copy in which its last token is computed."""
    loop = Loop(device=8, host=8, size=size, recompute=False)
    for name in ("first", "second"):
        loop.add(name, text(1, prompt), most)
        loop.finish()
    assert {result.state for result in loop.results.values()} == {RequestState.FINISHED}


def held_and_parked() -> Loop:
    """ "low" is held and parked on a small host, and "first" could not be parked beside it."""
    loop = Loop(device=9, host=4, recompute=False, max_num_seqs=1, max_overtakes=0)
    loop.add("low", text(1, 5), 14)
    loop.turn(2)
    loop.scheduler.hold("low")
    loop.add("short", text(2, 5), 2)
    while loop.state("short"):
        loop.turn()
    assert loop.state("low") is RequestState.PARKED
    loop.add("first", text(3, 10), 6, priority=1)
    loop.turn(3)
    assert loop.state("first") is RequestState.WAITING
    return loop


def test_inv_25_a_request_begins_when_the_work_that_it_waited_for_turns_out_to_be_lost() -> None:
    loop = held_and_parked()
    loop.scheduler.reset()
    loop.bound.clear()
    loop.scheduler.unhold("low")
    loop.finish()
    assert loop.results["low"].reason == "kv_lost: what was kept of it is gone"
    assert loop.results["first"].state is RequestState.FINISHED


@pytest.mark.parametrize("tier", ["device", "host"])
def test_inv_25_a_request_that_could_not_be_parked_begins_when_a_tier_grows(tier: Any) -> None:
    loop = held_and_parked()
    loop.cache.resize(tier, 10 if tier == "device" else 5)
    loop.turn(8)
    assert loop.results["first"].state is RequestState.FINISHED
    loop.scheduler.unhold("low")
    loop.finish()
    assert loop.results["low"].state is RequestState.FINISHED
