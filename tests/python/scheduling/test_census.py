"""How many requests are in each state, what those wait for that wait, and what they have found."""

from collections import Counter
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.scheduling.request import TERMINAL, RequestState
from blockyard.scheduling.scheduler_stats import Census
from busy import Busy
from evacuated import Mover, Store
from loop import Loop, loading, parked, stopping
from yard import publish, publish_below, text

STATES = {
    RequestState.WAITING: "new",
    RequestState.LOADING: "in_loading",
    RequestState.PREFILL: "in_prefill",
    RequestState.DECODE: "in_decode",
    RequestState.STOPPING: "in_stopping",
    RequestState.PARKED: "parked",
    RequestState.RECOMPUTE: "recompute",
    RequestState.MOVING: "moving",
}
REASONS = ("room", "seat", "prefix", "parked", "held")


def check(loop: Loop) -> dict[str, int]:
    """Returns what is said, which is what each request says of itself."""
    stats = loop.scheduler.stats()
    states = Counter(loop.scheduler.state(one) for one in loop.scheduler._lifecycle.ids)
    assert {state: stats[name] for state, name in STATES.items() if stats[name]} == states
    reasons = [stats[f"waiting_{why}"] for why in REASONS]
    assert sum(reasons) == stats["waiting"] == stats["new"] + stats["parked"] + stats["recompute"]
    assert min(reasons) >= 0
    assert stats["waiting_parked"] == stats["parked"]
    return stats


def test_each_state_that_is_no_end_has_its_number() -> None:
    assert set(RequestState) - TERMINAL == set(STATES)
    told = {stat.labels["state"]: stat.name for stat in Census.SCHEMA if stat.family == "requests"}
    assert told == {str(state): name for state, name in STATES.items()}


class Checked(Busy):
    """A loop that is checked whenever the engine has answered."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.seen = Counter[str]()

    @override
    def look(self) -> None:
        super().look()
        self.seen.update(name for name, number in check(self).items() if number)


@pytest.mark.law("O6")
def test_each_request_counts_in_its_state_through_preemptions_samples_holds_and_aborts() -> None:
    seen = Counter[str]()
    for mode in ("recompute", "park"):
        loop = Checked(preempt_mode=mode)
        for turn in range(250):
            loop.once()
            if turn % 40 == 0:
                loop.scheduler.add(
                    by.NewRequest(("n", turn), text(50 + turn, 9), max_tokens=9, n=3)
                )
            if turn % 12 == 5:
                loop.scheduler.pause_decoding(loop.scheduler._lifecycle.ids[0])
            if turn % 12 == 7:
                for one in loop.scheduler._lifecycle.ids:
                    loop.scheduler.resume_decoding(one)
            if turn % 50 == 49:
                loop.scheduler.abort(loop.scheduler._lifecycle.ids[-1])
            check(loop)
        seen += loop.seen
        loop.local.close()
    reasons = [f"waiting_{why}" for why in REASONS]
    wanted = (*STATES.values(), *reasons, "forked", "preempted")
    # It has no store to which any could move.
    assert [one for one in wanted if not seen[one]] == ["moving"]


def test_a_request_that_has_ended_counts_no_more_though_its_seat_waits_for_an_ack() -> None:
    loop = stopping()
    assert check(loop)["in_stopping"] == 1
    loop.scheduler.fail("gone")
    stats = check(loop)
    assert (stats["in_stopping"], stats["stopping"], stats["seats"]) == (0, 1, 2)
    loop.scheduler.reset()
    assert check(loop)["seats"] == 0


def test_states_are_told_of_what_loads_stops_is_parked_and_is_computed_again() -> None:
    assert check(loading())["in_loading"] == 1
    assert check(parked())["parked"] == 1
    loop = stopping()
    loop.ack()
    assert check(loop)["recompute"] == 1
    loop.finish()
    moves = Mover(Store())
    moves.add("one", 9, 9)
    moves.turn(3)
    moves.scheduler.evacuate("one")
    moves.turn(2, lands=False)
    assert check(moves)["moving"] == 1
    moves.finish()
    assert sum(check(loop)[name] for name in STATES.values()) == 0


def test_a_request_waits_for_one_reason() -> None:
    loop = Loop(device=17, host=32, max_num_seqs=2)
    loop.add("runs", text(1, 30), 8)
    loop.turn()
    loop.add("large", text(2, 50), 2)
    loop.add("same", text(2, 50), 2)
    loop.add("held", text(3, 4), 2)
    loop.scheduler.pause_decoding("held")
    loop.turn()
    stats = check(loop)
    assert (stats["waiting"], stats["waiting_held"], stats["waiting_room"]) == (3, 1, 2)
    loop.scheduler.resume_decoding("held")
    loop.finish()
    assert check(loop)["waiting"] == 0


def test_samples_wait_for_the_prompt_of_the_first_and_others_for_a_seat() -> None:
    loop = Loop(max_num_seqs=1)
    loop.scheduler.add(by.NewRequest("n", text(1, 9), max_tokens=2, n=3))
    loop.add("other", text(2, 9), 2)
    stats = check(loop)
    assert (stats["waiting"], stats["waiting_prefix"], stats["waiting_seat"]) == (4, 2, 2)
    loop.schedule()
    stats = check(loop)
    assert (stats["in_prefill"], stats["waiting_prefix"], stats["waiting_seat"]) == (1, 2, 1)
    loop.finish()


# -- what was found, by tier -----------------------------------------------------------------------


def found(loop: Loop) -> tuple[int, int, int]:
    """Tokens found on each tier, which together are those that the cache has counted."""
    stats = loop.scheduler.stats()
    tiers = stats["cached_device"], stats["cached_host"], stats["cached_disk"]
    assert sum(tiers) == loop.cache.stats()["cached"]
    return tiers


@pytest.mark.law("O6")
@pytest.mark.parametrize("prompt", [15, 16, 17])
def test_what_was_found_is_counted_by_the_tier_that_had_it(prompt: int) -> None:
    # Of a prompt of 16 all four blocks are found, and the last token is computed again.
    tokens = min(prompt - 1, prompt // 4 * 4)
    loop = Loop(device=17, host=16)
    publish(loop.cache, text(1, 17))
    loop.add("device", text(1, prompt), 2)
    before = loop.cache.stats()["cached"]
    loop.turn()
    assert loop.told("cached_device") == loop.cache.stats()["cached"] - before == tokens
    assert loop.told("cached_host") == 0

    loop = Loop(device=17, host=16)
    publish_below(loop.cache, text(1, 17))
    before = loop.cache.stats()["cached"]
    loop.add("host", text(1, prompt), 2)
    loop.turn()
    assert loop.told("cached_host") == loop.cache.stats()["cached"] - before == tokens
    assert loop.told("cached_device") == 0
    loop.finish()


@pytest.mark.law("O6")
def test_the_tiers_together_have_what_the_cache_has_counted() -> None:
    loop = Busy()
    for _ in range(400):
        loop.once()
        found(loop)
    tiers = found(loop)
    assert all(tiers), tiers
    stats = loop.scheduler.stats()
    assert stats["resumes"] > 0, "what comes back was found by nobody"
    loop.local.close()


def test_a_prompt_that_may_not_read_the_cache_has_found_nothing() -> None:
    loop = Loop()
    publish(loop.cache, text(1, 16))
    loop.add("one", text(1, 16), 2, read_prefix=False)
    loop.turn()
    assert found(loop) == (0, 0, 0)
    assert loop.cache.stats()["tokens"] == 32
    loop.finish()


def test_a_cache_without_a_scheduler_tells_the_sum() -> None:
    metrics = [stat.metric for stat in by.KVCache.schema() if stat.family == "cached_tokens"]
    assert metrics == ["cached_tokens"]
