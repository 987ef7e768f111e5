"""Hints of a request's end: what the cache takes of them, and what it refuses."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.shared.hints import Hints
from yard import begin, text

EVICTIONS = ["recency", "learned", "heap"]

GOOD: list[dict[str, Any]] = [
    {},
    {"retention": "session-ended", "next_use": 0},
    {"next_use": 12.5, "priority": 0, "ttl": 0},
    {"next_use": 1e300, "priority": 100, "ttl": 2**32 - 1},
    {"next_use": np.float32(3), "priority": np.int64(35), "ttl": np.uint8(9)},
    {"retention": "retain", "next_use": None, "priority": None, "ttl": None},
]
SECONDS = "give seconds, a finite number that is not negative"
BAD = [
    ({"retention": "forever"}, "retention = ", "retain"),
    ({"next_use": -1}, "next_use = -1: ", SECONDS),
    ({"next_use": -1e-9}, "next_use = -1e-09: ", SECONDS),
    ({"next_use": float("nan")}, "next_use = nan: ", SECONDS),
    ({"next_use": float("inf")}, "next_use = inf: ", SECONDS),
    ({"next_use": "soon"}, "next_use = ", SECONDS),
    ({"next_use": True}, "next_use = True: ", SECONDS),
    ({"next_use": np.True_}, "next_use = ", SECONDS),
    ({"next_use": [1]}, "next_use = [1]: ", SECONDS),
    ({"next_use": 10**400}, "next_use = 1", SECONDS),
    ({"priority": -1}, "priority = -1: ", "an integer from 0 to 100"),
    ({"priority": 101}, "priority = 101: ", "an integer from 0 to 100"),
    ({"priority": 2**70}, "priority = 1180591620717411303424: ", "an integer from 0 to 100"),
    ({"priority": 1.5}, "priority = 1.5: ", "an integer from 0 to 100"),
    ({"priority": True}, "priority = True: ", "an integer from 0 to 100"),
    ({"priority": "high"}, "priority = ", "an integer from 0 to 100"),
    ({"ttl": -1}, "ttl = -1: ", ""),
    ({"ttl": 2**32}, "ttl = 4294967296: ", ""),
    ({"ttl": 0.5}, "ttl = 0.5: ", ""),
    ({"ttl": False}, "ttl = False: ", ""),
    ({"ttl": "soon"}, "ttl = ", ""),
]


def refused(act: Callable[..., object], hints: dict[str, Any], *says: str) -> None:
    with pytest.raises(by.Misuse) as caught:
        act(**hints)
    assert all(word in str(caught.value) for word in says), caught.value


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("host_copies", ["first", "last", None])
def test_every_order_takes_every_hint(eviction: Any, host_copies: Any) -> None:
    made = {"eviction": eviction, "host_copies": host_copies, "host": 8, "block_size": 4}
    cache, below = by.KVCache(device=8, **made), by.KVCache(engine=8, **made)
    keys = below.keys(text(1, 8))
    plan = below.offload(keys, [1, 2])
    assert plan is not None
    below.commit(plan)
    for number, hints in enumerate(GOOD):
        lease = begin(cache, text(number, 9))
        cache.seal(lease, 9)
        cache.finish(lease, **hints)
        below.used([keys], **hints)
        assert cache.audit() is below.audit() is None
    assert below.find(keys).host == 2


@pytest.mark.parametrize(("hints", "names", "says"), BAD)
def test_a_hint_that_cannot_be_is_named_and_nothing_is_ended(
    hints: dict[str, Any], names: str, says: str
) -> None:
    cache, below = by.KVCache(device=8), by.KVCache(engine=8, host=8)
    lease = begin(cache, text(1, 9))
    refused(lambda **kwargs: cache.finish(lease, **kwargs), hints, names, says)
    refused(lambda **kwargs: below.used([below.keys(text(1, 16))], **kwargs), hints, names, says)
    assert lease.state == "ready"
    cache.finish(lease)
    assert cache.audit() is None


@pytest.mark.parametrize(("hints", "names", "says"), BAD)
def test_the_python_side_refuses_what_the_core_refuses(
    hints: dict[str, Any], names: str, says: str
) -> None:
    refused(Hints.checked, hints, names, says)
    if "priority" in hints or "ttl" in hints:
        refused(lambda **kwargs: Hints.checked(**kwargs, prefix="retention_"), hints, "retention_")


@pytest.mark.parametrize("hints", GOOD)
def test_the_python_side_takes_what_the_core_takes(hints: dict[str, Any]) -> None:
    checked = Hints.checked(**hints)
    assert checked == Hints(**hints)
    assert {type(value) for value in checked} <= {str, float, int, type(None)}
    cache = by.KVCache(device=8)
    cache.finish(begin(cache, text(1, 9)), **checked._asdict())


def test_the_nearest_word_is_offered() -> None:
    for word, near in (("session-end", "session-ended"), ("retained", "retain")):
        says = re.escape(f"retention = {word!r}: did you mean {near!r}")
        with pytest.raises(by.Misuse, match=says):
            Hints.checked(word)
