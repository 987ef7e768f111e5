"""Caches over slot files, and talks that check every byte that they find."""

import time
from pathlib import Path
from typing import Any

import numpy as np

import blockyard as by

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4, dtype="float32")
OURS = {"model": "a model", "weights": "v1"}
TALKS, BLOCKS = 10, 4


def opened(path: Path, **more: Any) -> Any:
    given: dict[str, Any] = {"device": 9, "disk": 64, "disk_path": path, "namespace": OURS} | more
    return by.local(LAYOUT, **given)


def settle(cache: Any) -> None:
    until = time.monotonic() + 30
    while cache.step() or cache.stats()["flights"]:
        assert time.monotonic() < until
        time.sleep(1e-4)


def value(talk: int, block: int) -> int:
    return (17 * talk + 5 * block) % 251 + 1


def talks(cache: Any, numbers: Any = range(TALKS)) -> dict[int, int]:
    """Plays some talks, and checks each byte that was found; returns how much was found of each."""
    plane = cache.crane.device.planes[0]
    found = {}
    for talk in numbers:
        lease = cache.begin(range(100 * talk, 100 * talk + 4 * BLOCKS))
        settle(cache)
        table = cache.block_tables(lease)[0]
        for block in range(BLOCKS):
            if block < lease.cached // 4:
                assert (plane[table[block]] == value(talk, block)).all(), (talk, block)
            plane[table[block]] = value(talk, block)
        cache.seal(lease, 4 * BLOCKS)
        found[talk] = lease.cached
        cache.finish(lease)
        cache.demote(64)
        settle(cache)
    assert cache.audit() is None
    return found


def keys(*numbers: int) -> Any:
    made = np.zeros((len(numbers), 32), np.uint8)
    made[:, 0] = numbers
    return made


def slots(*numbers: int) -> Any:
    return np.array(numbers, np.uint32)
