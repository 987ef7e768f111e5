"""A cache whose device is the engine's: its ids are numbers in plans."""

from collections.abc import Callable

import numpy as np
import pytest

import blockyard as by
from blockyard.shared.plan import Cause, Outcome


def cache(host: int = 8, ahead: int | None = 0) -> by.KVCache:
    return by.KVCache(engine=32, host=host, disk=8, block_size=4, ahead=ahead)


def land(own: by.KVCache, good: int | None = None, cause: Cause | None = None) -> list[by.Plan]:
    """Every copy in the air ends, with so many good blocks; what was copied."""
    plans = own.dispatch()
    counts = [len(plan) if good is None else good for plan in plans]
    own.commit(
        [Outcome(plan.flight, 0, count, cause) for plan, count in zip(plans, counts, strict=True)]
    )
    assert own.audit() is None
    return plans


def awaited(answer: object) -> int:
    assert isinstance(answer, by.Soon)
    return answer.flight


def test_blocks_go_down_and_come_up_by_the_engines_ids() -> None:
    own = cache()
    keys = own.keys(range(18))
    plan = own.offload(keys, np.arange(3, 7))
    assert plan is not None
    assert (plan.source_tier, plan.destination_tier) == ("device", "host")
    assert plan.sources.tolist() == [3, 4, 5, 6]
    found = own.find(keys)
    assert (found.host, found.stop, found.flight) == (0, "filling", plan.flight)
    assert own.must_finish([1, 6]) == plan.flight
    assert own.must_finish([1, 7]) is None
    assert land(own) == [plan]
    assert own.ended() == {plan.flight: 4}
    assert own.ended() == {}
    assert (own.find(keys).host, own.find(keys, 3).host, own.find(keys).stop) == (4, 1, "whole")
    answer = own.fetch(keys, [20, 9], first=1)
    assert isinstance(answer, list)
    (up,) = answer
    assert (up.source_tier, up.destination_tier) == ("host", "device")
    assert up.destinations.tolist() == [20, 9]
    assert awaited(own.fetch(keys, [21, 10], first=1)) == up.flight
    assert own.stats()["device_capacity"] == 2, "what is being filled"
    land(own)
    assert own.stats()["device_capacity"] == 0
    assert own.stats()["host_hits"] == 2


def test_a_request_is_kept_with_its_tail_and_given_up() -> None:
    own = cache()
    kept = own.save_request(own.keys(range(10)), [0, 1, 2], 10)
    assert (kept.state, kept.computed, kept.blocks, kept.on_device) == ("kept", 10, 3, 0)
    assert [len(plan) for plan in kept.plans] == [3]
    assert awaited(own.fetch(kept, [5, 6, 7])) == kept.plans[0].flight
    land(own, 2)
    assert (kept.state, kept.computed, kept.blocks, kept.below) == ("incomplete", 8, 2, (2, 0, 0))
    assert isinstance(own.fetch(kept, [5, 6]), list)
    land(own, 0, Cause.CORRUPT)
    assert (kept.state, kept.blocks) == ("broken", 0)
    own.abandon(kept)
    assert kept.state == "spent"
    with pytest.raises(by.SpentLease):
        own.abandon(kept)
    assert own.stats()["parked"] == 0


def test_rows_of_a_step_cross_once_and_none_is_offloaded_where_one_is_wrong() -> None:
    own = cache()
    rows = [own.keys(range(start, start + 8)) for start in (0, 100, 200)]
    plans = own.offload(rows, [[0, 1], np.array([2, 3]), [4]], [0, 0, 1])
    assert [plan is not None and plan.sources.tolist() for plan in plans] == [[0, 1], [2, 3], [4]]
    land(own)
    assert own.offload(rows[:2], [[0, 1], [2, 3]]) == [None, None]
    before = own.digest()
    with pytest.raises(by.Misuse, match="ids = 32: the engine has no such block"):
        own.offload([own.keys(range(50, 54)), own.keys(range(60, 64))], [[7], [32]])
    assert own.digest() == before
    own.used(rows)
    assert own.audit() is None


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("by_hand", [False, True])
def test_what_has_missed_its_deadline_has_no_good_block_then_or_later(by_hand: bool) -> None:
    """What it reads may be written from then on, and what it writes not before it has ended."""
    own = by.KVCache(engine=8, host=8, block_size=4, deadline=3)

    def late(plan: by.Plan, now: int) -> None:
        own.dispatch()
        if by_hand:
            assert own.mark_unknown(plan) == 1
        else:
            own.commit([], now=now)
            assert own.ended() == {plan.flight: 0}
        assert own.stats()["flights_unknown"] == own.stats()["overdue"]

    keys = own.keys(range(8))
    plan = own.offload(keys, [0, 1])
    assert plan is not None
    late(plan, 3)
    assert own.must_finish([1]) is None
    assert (own.find(keys).stop, own.stats()["host_quarantined"]) == ("missing", 2)
    own.commit([Outcome(plan.flight, 0, 2)])
    assert own.ended() == {plan.flight: 0}
    assert (own.find(keys).stop, own.stats()["host_quarantined"]) == ("missing", 0)
    own.offload(keys, [0, 1])
    land(own)
    own.ended()
    fetch = own.fetch(keys, [4, 5])
    assert isinstance(fetch, list)
    late(fetch[0], 6)
    assert own.must_finish([5]) == fetch[0].flight
    own.commit([Outcome(fetch[0].flight, 0, 2)])
    assert (own.ended(), own.must_finish([5])) == ({fetch[0].flight: 0}, None)
    assert own.audit() is None


def test_a_reset_ends_what_was_in_the_air_and_breaks_what_is_kept() -> None:
    own = cache()
    keys = own.keys(range(8))
    own.offload(keys, [0, 1])
    land(own)
    own.ended()
    kept = own.save_request(own.keys(range(100, 108)), [2, 3], 8)
    fetch = own.fetch(keys, [4, 5])
    assert isinstance(fetch, list)
    own.dispatch()
    own.reset(0)
    assert own.ended() == {kept.plans[0].flight: 0, fetch[0].flight: 0}
    assert (kept.state, own.find(keys).host, own.must_finish(range(8))) == ("broken", 0, None)
    own.abandon(kept)
    assert own.audit() is None


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda own, keys: own.offload(keys, [99]), "ids = 99: the engine has no such block"),
        (lambda own, keys: own.offload(keys, [1, 1]), "ids = 1: it comes twice"),
        (
            lambda own, keys: own.offload([keys, own.keys(range(90, 98))], [[1, 2], [3, 1]]),
            "ids = 1: it comes twice, with two keys",
        ),
        (lambda own, keys: own.offload(keys, [1, 2, 3]), "ids = 3: give no more ids than"),
        (lambda own, keys: own.offload([keys], [[1]], [0, 0]), "first has 2 rows, and keys 1"),
        (lambda own, keys: own.offload([keys, 3], [[1], [2]]), "pass Keys, or a list of them"),
        (lambda own, keys: own.fetch(keys, [1], first=2), "ids = 1: give no more ids than"),
        (lambda own, _: own.fetch(3, [1]), "what is <class 'int'>: pass Keys, or what save_"),
        (lambda own, keys: own.save_request(keys, [1], 8), "ids = 1: give an id for each block"),
        (
            lambda own, keys: own.save_request(keys, [1, 2, 3, 4], 13),
            "keys = 2: give a key for each",
        ),
        (lambda own, keys: own.save_request(keys, [1], 0), "tokens = 0"),
        (lambda own, _: own.must_finish([-1]), r"ids\[0\] = -1"),
        (lambda own, keys: own.find(keys, 3), "after = 3"),
        (lambda own, _: own.begin(range(9)), "on a cache whose device is the engine's"),
        (lambda own, _: own.resize("device", 40), "on a cache whose device is the engine's"),
        (lambda own, keys: own.promote(keys), "on a cache whose device is the engine's"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    call: Callable[[by.KVCache, by.Keys], object], says: str
) -> None:
    own = cache()
    keys = own.keys(range(8))
    own.offload(keys, [0, 1])
    before = own.digest()
    with pytest.raises(by.Misuse, match=says):
        call(own, keys)
    assert own.digest() == before


def test_keys_of_blocks_of_another_size_and_another_cache_are_told() -> None:
    own, other = cache(), cache()
    with pytest.raises(by.Misuse, match="blocks of"):
        own.find(by.KVCache(device=8, block_size=8).keys(range(16)))
    kept = other.save_request(other.keys(range(4)), [0], 4)
    with pytest.raises(by.ForeignLease):
        own.fetch(kept, [1])
    other.abandon(kept)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"engine": 0}, "engine = 0: must be an integer >= 1"),
        ({"engine": 8, "device": 8}, "device = 8, engine = 8: give device, the size"),
        ({"host": 8}, "device is missing"),
        ({"engine": -1}, "engine = -1: must be an integer >= 0"),
        ({"engine": "1 GiB"}, "without a layout the bytes of a block are unknown"),
    ],
)
def test_an_engine_and_a_device_exclude_each_other(sizes: dict[str, object], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        by.Config.of(sizes)


def test_a_cache_that_owns_its_device_has_none_of_these_verbs() -> None:
    own = by.KVCache(device=8, host=8, block_size=4)
    keys = own.keys(range(8))
    calls: list[Callable[[], object]] = [
        lambda: own.find(keys),
        lambda: own.fetch(keys, [1]),
        lambda: own.offload(keys, [1]),
        lambda: own.save_request(keys, [1, 2], 8),
        lambda: own.must_finish([1]),
        lambda: own.used([keys]),
        own.ended,
    ]
    for call in calls:
        with pytest.raises(by.Misuse, match="on a cache that owns its device"):
            call()


def test_the_configuration_of_an_engine_says_the_same_again() -> None:
    config = by.Config(engine=40, host=10, disk=20, block_size=8)
    assert by.Config.of(config.to_mapping()) == config
    assert (config.device_blocks, config.blocks_of("device"), config.ahead_of("host")) == (
        40,
        40,
        2,
    )
    other = by.Config(engine=50, host=10)
    assert other.fingerprint == by.Config(engine=7, host=3).fingerprint
    assert other.fingerprint != by.Config(device=50, host=10).fingerprint


def test_what_comes_to_the_host_goes_on_ahead_of_need() -> None:
    own = cache(host=4, ahead=None)
    own.offload(own.keys(range(16)), [0, 1, 2, 3])
    land(own)
    plans = land(own)
    assert [(plan.source_tier, plan.destination_tier) for plan in plans] == [("host", "disk")]
