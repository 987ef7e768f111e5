"""What is parked in shared stores may be lost: it is only what can be computed again."""

from typing import Any

import pytest

import blockyard as by
from blockyard.yard.parking import Parking
from yard import begin, text


@pytest.mark.parametrize("sizes", [{"host": 4}, {"host": 4, "disk": 4}, {"disk": 4}])
def test_what_must_be_parked_is_promised_no_name_of_a_store(sizes: dict[str, Any]) -> None:
    cache = by.KVCache(block_size=4, device=33, remote=64, recompute=False, **sizes)
    parking = Parking(cache, cache.config)
    assert parking.largest()[0] == 4
    assert parking.promise(begin(cache, text(1, 40))) is None, "no tier but the stores has room"
    ticket = parking.promise(begin(cache, text(2, 16)))
    assert ticket is not None
    cache.release(ticket)


def test_what_may_be_parked_is_promised_no_name_of_a_store_either() -> None:
    cache = by.KVCache(block_size=4, device=33, host=4, remote=64)
    parking = Parking(cache, cache.config)
    assert parking.promise(begin(cache, text(1, 40))) is None
