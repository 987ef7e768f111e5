"""Shared stores are asked about requests that wait, once; nobody waits for them for long."""

from typing import Any, NamedTuple

import pytest

import blockyard as by
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.request import RequestState
from blockyard.scheduling.scheduler import Scheduler
from blockyard.stores.lookup import StoreLookup
from loop import Loop
from memory_stores import MemoryStore
from yard import text

WAITING = RequestState.WAITING


class Said(NamedTuple):
    blocks: int
    others: tuple[()] = ()


class Lookup:
    """Says what the test has it say, and notes each question."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.open: set[Any] = set()
        self.says: Said | None = None
        self.patience: float | None = None

    def ask(self, request: Any, _keys: by.Keys, patience: float | None = None) -> Said | None:
        self.patience = patience
        if request not in self.open:
            self.asked.append(request)
        self.open.add(request)
        if self.says is not None:
            self.open.discard(request)
        return self.says

    def drop(self, request: Any) -> None:
        self.open.discard(request)


def asks(loop: Loop) -> bool:
    return loop.scheduler.asks_stores


def stored(lookup: Any, **keywords: Any) -> Loop:
    cache = by.KVCache(block_size=4, device=33, remote=64)
    return Loop(cache=cache, lookup=lookup, **keywords)


def test_what_a_store_has_is_adopted_and_loaded() -> None:
    lookup = Lookup()
    loop = stored(lookup)
    loop.add("one", 13, 2)
    lookup.says = Said(2)
    loop.schedule()
    assert loop.state("one") is RequestState.LOADING
    assert [(plan.source_tier, len(plan)) for plan in loop.plans] == [("remote", 2)]
    loop.land()
    loop.finish()
    result = loop.results["one"]
    assert (result.cached_tokens.remote, result.cached_tokens.total) == (8, 8)
    assert loop.scheduler.stats()["cached_remote"] == 8
    assert (lookup.asked, lookup.open) == (["one"], set())


def test_a_load_that_fails_is_counted_as_far_as_it_was_good() -> None:
    lookup = Lookup()
    loop = stored(lookup)
    loop.add("one", 13, 2)
    lookup.says = Said(3)
    loop.schedule()
    (plan,) = loop.plans
    loop.plans.clear()
    loop.cache.commit(plan, 1, corrupt=True)
    loop.finish()
    assert loop.results["one"].cached_tokens == (0, 0, 0, 4)
    assert loop.cache.audit() is None


def test_while_the_answer_is_out_it_waits_and_holds_up_no_other() -> None:
    lookup = Lookup()
    loop = stored(lookup, lookup_patience=0.5)
    loop.add("asked", text(1, 9), 2)
    loop.add("short", text(2, 3), 2)
    loop.schedule()
    assert (loop.state("asked"), loop.begun) == (WAITING, ["short"]), "it has no full block"
    assert asks(loop)
    assert lookup.patience == 0.5, "of two patiences, the scheduler's counts"
    said = str(loop.scheduler.explain("asked"))
    assert "waits for a store's answer" in said
    loop.now = 0.49
    loop.output()
    loop.schedule()
    assert loop.state("asked") is WAITING
    loop.now = 0.5
    loop.output()
    loop.schedule()
    assert loop.begun == ["short", "asked"]
    assert not asks(loop)
    assert (lookup.asked, lookup.open) == (["asked"], set()), "once, and dropped"
    assert "store" not in str(loop.scheduler.explain("asked"))
    loop.finish()


def test_a_clock_that_goes_back_ends_the_patience() -> None:
    loop = stored(Lookup())
    loop.now = 100.0
    loop.add("one", 9, 2)
    loop.schedule()
    assert loop.state("one") is WAITING
    loop.now = 5.0
    loop.output()
    loop.schedule()
    assert loop.begun == ["one"]
    loop.finish()


def test_no_patience_asks_and_goes_on_at_once() -> None:
    lookup = Lookup()
    loop = stored(lookup, lookup_patience=0)
    loop.add("one", 9, 2)
    loop.schedule()
    assert (loop.begun, lookup.asked) == (["one"], ["one"])
    loop.finish()


def test_what_the_cache_has_is_not_asked_about() -> None:
    lookup = Lookup()
    lookup.says = Said(0)
    loop = stored(lookup)
    prompt = text(1, 8)
    loop.add("one", [*prompt, 1], 2)
    loop.finish()
    assert lookup.asked == ["one"]
    loop.add("same", [*prompt, 2], 2)
    loop.finish()
    assert lookup.asked == ["one"]
    loop.add("longer", [*prompt, *text(2, 5)], 2)
    loop.finish()
    assert lookup.asked == ["one", "longer"]


def test_one_that_ends_meanwhile_is_asked_about_no_more() -> None:
    lookup = Lookup()
    loop = stored(lookup, lookup_patience=9)
    loop.add("one", 9, 2)
    loop.schedule()
    assert len(lookup.open) == 1
    loop.scheduler.abort("one")
    loop.add("two", 3, 2)
    loop.output()
    loop.schedule()
    assert not lookup.open
    loop.finish()


def test_a_reset_forgets_all_questions_and_asks_again() -> None:
    lookup = Lookup()
    loop = stored(lookup, lookup_patience=9)
    loop.add("one", 9, 2)
    loop.schedule()
    loop.scheduler.reset()
    assert not lookup.open
    lookup.says = Said(1)
    loop.schedule()
    assert lookup.asked == ["one", "one"]
    assert loop.state("one") is RequestState.LOADING


def test_after_new_weights_nobody_is_asked_or_waited_for() -> None:
    lookup = Lookup()
    loop = stored(lookup, lookup_patience=9)
    loop.add("one", 9, 2)
    loop.schedule()
    assert (loop.state("one"), len(lookup.open)) == (WAITING, 1)
    loop.scheduler.update_weights()
    # What the stores have under this identity is of the old weights, and every load of it fails.
    lookup.says = Said(2)
    loop.add("two", text(2, 9), 2)
    loop.schedule()
    assert (loop.begun, lookup.asked, lookup.open) == (["one", "two"], ["one"], set())
    assert not asks(loop)
    assert not loop.plans
    loop.finish()


def test_the_next_ones_are_asked_about_while_all_seats_are_taken() -> None:
    lookup = Lookup()
    lookup.says = Said(0)
    loop = stored(lookup, max_num_seqs=1)
    loop.add("runs", 9, 20)
    loop.schedule()
    loop.add("next", text(5, 9), 2)
    lookup.says = None
    loop.output()
    loop.schedule()
    assert lookup.asked == ["runs", "next"]
    lookup.says = Said(2)
    loop.output()
    loop.schedule()
    assert loop.cache.probe(loop.cache.keys(text(5, 9))).remote == 2, "adopted ahead of its turn"
    loop.finish()


@pytest.mark.law("INV-35b")
def test_no_verb_of_the_scheduler_waits_for_a_store_that_never_answers() -> None:
    store = MemoryStore()
    store.hangs = {"has"}
    now = [0.0]
    lookup = StoreLookup([store], [7], clock=lambda: now[0])
    loop = stored(lookup)
    try:
        for at in range(20):
            loop.add(at, text(at, 9), 2)
        loop.schedule()
        assert store.reached.acquire(timeout=60)
        assert loop.state(0) is WAITING
        loop.now = now[0] = 0.03
        loop.output()
        loop.schedule()
        assert 0 in loop.begun
        # From now on it is known that the store does not answer: nobody is made to wait.
        loop.add("late", text(99, 9), 2)
        loop.finish()
        assert len(loop.results) == 21
        assert store.calls == ["has"], "one question is out, and no second one"
    finally:
        store.go.set()
        lookup.close()


@pytest.mark.parametrize("patience", [-1, "soon", float("nan"), None])
def test_a_patience_that_is_none_is_refused(patience: Any) -> None:
    with pytest.raises(by.Misuse, match="lookup_patience = "):
        SchedulerOptions(lookup_patience=patience)


def test_without_names_nobody_is_asked() -> None:
    lookup = Lookup()
    cache = by.KVCache(block_size=4, device=33)
    scheduler = Scheduler(cache, lookup=lookup)
    scheduler.add(by.NewRequest("one", range(9), max_tokens=2))
    scheduler.schedule()
    assert not lookup.asked
