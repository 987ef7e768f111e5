"""Waiting requests sorted by rank, and what a place among them costs."""

import re
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.scheduling import rank_order
from blockyard.scheduling.rank_order import RankOrder
from blockyard.scheduling.request import Request
from blockyard.scheduling.scheduler import Scheduler
from interrupted import Place, Places
from loop import Loop
from opcodes import opcodes
from yard import text

RANKS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 10**6)), unique=True, max_size=120)


class Ranked:
    """A request as far as its order goes."""

    def __init__(self, rank: tuple[int, int]) -> None:
        self.rank = rank


@given(ranks=RANKS, removals=st.lists(st.integers(0, 200), max_size=150))
def test_it_is_a_sorted_list(ranks: list[tuple[int, int]], removals: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_order, "_SHORT", 3)
        order, model = RankOrder(), dict[tuple[int, int], Request]()
        # Each removal is followed by an addition, where any are left.
        rest, gone = iter(ranks), iter(removals)
        for rank in rest:
            model[rank] = cast("Request", Ranked(rank))
            order.add(model[rank])
            for at in gone:
                removed = sorted(model)[at % len(model)]
                order.remove(model.pop(removed))
                break
            places = sorted(model)
            assert list(order) == [model[place] for place in places]
            assert (len(order), bool(order)) == (len(model), bool(model))
            assert order.first is (model[places[0]] if places else None)
            for some in (*places, rank, (-3, 0), (3, 0)):
                assert order.count_before(some) == sum(place < some for place in places)


@pytest.mark.parametrize("verb", ["abort", "pause_decoding"])
def test_a_removal_that_is_interrupted_anywhere_is_made_good_by_a_reset(verb: str) -> None:
    places = Places("scheduling/queue.py", "scheduling/rank_order.py")

    def interrupted(place: Place | None) -> Scheduler:
        loop = Loop(max_num_seqs=1)
        loop.scheduler.add(by.NewRequest("runs", text(1, 12), max_tokens=2, n=2))
        loop.schedule()
        loop.add("waits", text(2, 12), 2)
        places.during(lambda: getattr(loop.scheduler, verb)("waits"), place)
        return loop.scheduler

    interrupted(None)
    tried = 0
    for place in places.each():
        tried += 1
        scheduler = interrupted(place)
        assert re.search("requests are before it|It is held", str(scheduler.explain("waits")))
        # The sample that runs ends in the reset, so that the other one comes to the queue.
        scheduler.reset(requests="abort")
        assert scheduler.requests == (("runs", 1), "waits")
        assert len(scheduler._queue) == 2
    assert tried > 10


@pytest.mark.parametrize("state", ["in line", "aside", "held", "each of its own priority"])
def test_explain_costs_the_same_however_many_wait(state: str) -> None:
    costs = []
    for waiting in (100, 10_000):
        loop = Loop(device=9, max_num_seqs=2)
        loop.add("runs", text(1, 28), 4)
        loop.turn()
        for number in range(waiting):
            prompt = text(1 if state == "aside" else 2, 30)
            priority = number if state == "each of its own priority" else 0
            loop.scheduler.add(by.NewRequest(number, prompt, max_tokens=2, priority=priority))
            if state == "held" and number:
                loop.scheduler.pause_decoding(number)
        loop.turn()
        assert "requests are before it" in str(loop.scheduler.explain(0))
        names = [0] if state == "held" else [0, waiting // 2, waiting - 1]
        costs.append(max(opcodes(lambda: loop.scheduler.explain(name)) for name in names))  # noqa: B023
    assert costs[1] <= 1.5 * costs[0]
