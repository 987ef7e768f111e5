"""What a scheduler's requests lose where their blocks are forgotten: work, and no token."""

import pytest

import blockyard as by
from blockyard.scheduling.request import RequestState
from loop import Loop, continuation, squeezed
from yard import text

pytestmark = pytest.mark.law("INV-42", "T21")


def parked(cache: by.KVCache) -> Loop:
    """ "old" runs, and "new" was its victim and is parked."""
    loop = squeezed(cache=cache)
    while loop.state("new") is not RequestState.STOPPING:
        loop.schedule()
        loop.land()
        loop.output()
    loop.ack()
    assert loop.state("new") is RequestState.PARKED
    return loop


def kept(*, recompute: bool = True) -> by.KVCache:
    return by.KVCache(block_size=4, device=9, host=32, ahead=0, recompute=recompute)


@pytest.mark.parametrize("force", [False, True])
def test_a_parked_request_keeps_its_work_or_is_computed_again(force: bool) -> None:
    loop = parked(kept())
    forgotten = loop.cache.forget(keys=loop.cache.keys(text(2, 14)), force=force)
    assert forgotten.kept == [loop.handle().id]
    assert loop.handle().state == ("broken" if force else "kept")
    loop.finish()
    assert loop.cache.stats()["broken"] == force
    assert loop.cache.audit() is None


def test_a_running_request_goes_on_and_is_computed_again_where_it_is_preempted() -> None:
    loop = squeezed(cache=kept())
    for number in (1, 2):
        assert loop.cache.forget(keys=loop.cache.keys(text(number, 14))).blocks == 3
    loop.finish()
    assert loop.told("preempted") > 0
    assert loop.told("parkings") == 0
    assert loop.cache.audit() is None


def test_where_nothing_is_computed_again_a_forced_one_fails_by_name() -> None:
    loop = parked(kept(recompute=False))
    loop.cache.forget(keys=loop.cache.keys(text(2, 14)), force=True)
    loop.finish(failed=["new"])
    assert str(loop.results["new"].reason).startswith("kv_lost")


@pytest.mark.law("INV-41")
@pytest.mark.parametrize("verb", ["forget", "clear"])
def test_who_cannot_be_kept_any_more_gives_way_to_nobody(verb: str) -> None:
    loop = Loop(device=200, host=200, max_num_seqs=1, recompute=False)
    loop.add("low", text(1, 8), 30)
    loop.turn(4)
    if verb == "clear":
        loop.cache.clear()
    else:
        loop.cache.forget(keys=loop.cache.keys(text(1, 8)))
    loop.add("high", text(9, 10), 4, priority=5)
    loop.turn(4)
    assert loop.told("displaced") == 0
    loop.finish()
    assert loop.results["low"].tokens.tolist() == continuation("low", 8, 30)
