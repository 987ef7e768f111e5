"""How many tokens of a prompt were found, and where: each request's result says it."""

import pytest

import blockyard as by
from blockyard.scheduling.cached_tokens import CachedTokens
from blockyard.scheduling.request import RequestState
from loop import Loop
from yard import free_for_all, publish, publish_below, text


def said(loop: Loop, request: str) -> CachedTokens:
    """What the result of a request says, which is what was said while it ran."""
    running = loop.scheduler.cached_tokens(request)
    loop.finish()
    assert loop.scheduler.cached_tokens(request) is None
    cached = loop.results[request].cached_tokens
    assert running in (None, cached)
    return cached


@pytest.mark.law("O6")
@pytest.mark.parametrize("prompt", [15, 16, 17])
@pytest.mark.parametrize("tier", ["device", "host"])
def test_a_result_says_which_tier_had_how_much_of_its_prompt(tier: str, prompt: int) -> None:
    """Of a prompt that was found whole the last token is computed again (O6)."""
    loop = Loop(device=17, host=16)
    (publish if tier == "device" else publish_below)(loop.cache, text(1, 17))
    loop.add("one", text(1, prompt), 2)
    assert loop.scheduler.cached_tokens("one") is None
    loop.turn(3)
    wanted = CachedTokens(**{tier: min(prompt - 1, prompt // 4 * 4)})
    assert said(loop, "one") == wanted
    assert wanted.total == sum(wanted)


@pytest.mark.law("O6")
def test_a_part_on_the_device_and_the_rest_below_are_told_apart() -> None:
    loop = Loop(device=17, host=16)
    publish_below(loop.cache, text(1, 16))
    publish(loop.cache, text(1, 4))
    loop.add("one", text(1, 20), 2)
    loop.turn(3)
    assert said(loop, "one") == CachedTokens(device=4, host=12)


def test_what_was_found_is_that_of_the_first_begin_whatever_happens_later() -> None:
    """It is preempted, parked and comes back: all of its tokens are found then."""
    loop = Loop(device=17, host=64, max_num_seqs=1)
    publish(loop.cache, text(1, 8))
    loop.add("one", text(1, 14), 20)
    loop.turn(4)
    loop.add("high", text(2, 30), 4, priority=1)
    while loop.told("resumes") == 0:
        loop.turn()
    assert said(loop, "one") == CachedTokens(device=8)
    assert loop.results["high"].cached_tokens == CachedTokens()


def test_nor_does_it_change_where_all_is_computed_again() -> None:
    loop = Loop(device=17, max_num_seqs=1, preempt_mode="recompute")
    loop.add("one", text(1, 14), 20)
    loop.turn(4)
    loop.add("high", text(2, 5), 4, priority=1)
    while loop.state("one") is not RequestState.DECODE or "high" not in loop.results:
        loop.turn()
    assert said(loop, "one") == CachedTokens()


@pytest.mark.law("T4")
@pytest.mark.parametrize(("good", "found"), [(0, 0), (2, 8), (3, 12)])
def test_of_a_load_that_comes_short_only_what_is_good_counts(good: int, found: int) -> None:
    loop = Loop(device=17, host=16)
    publish_below(loop.cache, text(1, 12))
    loop.add("one", text(1, 14), 2)
    loop.schedule()
    for plan in loop.plans:
        loop.cache.commit([by.Outcome(plan.flight, 0, good)])
    loop.plans.clear()
    loop.output()
    loop.turn()
    assert said(loop, "one") == CachedTokens(host=found)


def test_samples_find_what_the_first_one_has_computed() -> None:
    loop = Loop()
    loop.add("one", text(1, 10), 3, n=2)
    loop.finish()
    cached = [loop.results["one", sample].cached_tokens for sample in range(2)]
    assert cached == [CachedTokens(), CachedTokens(device=8)]


@pytest.mark.parametrize("how", ["abort while waiting", "abort", "fail", "cannot read"])
def test_each_end_says_what_was_found_by_then(how: str) -> None:
    loop = Loop()
    publish(loop.cache, text(1, 8))
    loop.add("one", text(1, 14), 20, read_prefix=how != "cannot read")
    if how != "abort while waiting":
        loop.turn(3)
    if how == "fail":
        loop.scheduler.fail()
        loop.look()
        assert loop.results["one"].cached_tokens == CachedTokens(device=8)
        return
    if how != "cannot read":
        loop.scheduler.abort("one")
    wanted = CachedTokens(device=8) if how == "abort" else CachedTokens()
    loop.finish()
    assert loop.results["one"].cached_tokens == wanted


@pytest.mark.law("T33")
def test_a_reset_changes_nothing_of_it() -> None:
    loop = Loop()
    publish(loop.cache, text(1, 8))
    loop.add("one", text(1, 14), 6)
    loop.turn(3)
    loop.scheduler.reset()
    loop.bound.clear()
    assert said(loop, "one") == CachedTokens(device=8)
    assert free_for_all(loop.cache) == 32
