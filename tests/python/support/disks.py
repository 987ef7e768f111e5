"""Caches over slot files, and talks that check every byte that they find."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
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


def talks(cache: Any, numbers: Any = range(TALKS), *, at_once: int = 1) -> dict[int, int]:
    """Plays some talks, and checks each byte that was found; returns how much was found of each."""
    plane = cache.crane.device.planes[0]
    found = {}
    for some in batched(numbers, at_once):
        begun = {talk: cache.begin(range(100 * talk, 100 * talk + 4 * BLOCKS)) for talk in some}
        settle(cache)
        for talk, lease in begun.items():
            table = cache.block_tables(lease)[0]
            for block in range(BLOCKS):
                if block < lease.cached // 4:
                    assert (plane[table[block]] == value(talk, block)).all(), (talk, block)
                plane[table[block]] = value(talk, block)
            cache.seal(lease, 4 * BLOCKS)
            found[talk] = lease.cached
        cache.finish(list(begun.values()))
        cache.demote(64)
        settle(cache)
    assert cache.audit() is None
    return found


def batched(numbers: Iterable[int], most: int) -> Iterator[list[int]]:
    rest = iter(numbers)
    while some := list(islice(rest, most)):
        yield some


def play_on(path: str, told: Connection, many: int, seed: int) -> None:
    """Plays any of so many talks until it is killed, and says so before each."""
    chance = random.Random(seed)
    with opened(Path(path)) as cache:
        while True:
            number = chance.randrange(many)
            told.send_bytes(b"a talk")
            talks(cache, [number])


def keys(*numbers: int) -> Any:
    made = np.zeros((len(numbers), 32), np.uint8)
    made[:, 0] = numbers
    return made


def slots(*numbers: int) -> Any:
    return np.array(numbers, np.uint32)


def dies(path: Path) -> Callable[[], None]:
    """Lets every read, write and sync of what is open below `path` fail; returns what undoes it."""
    ours, saved = [], {}
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            target = link.readlink()
            if target.is_relative_to(path) and target.name in {"slots", "table"}:
                ours.append(int(link.name))
    assert len(ours) >= 2
    folder = os.open("/", os.O_RDONLY)
    for number in ours:
        saved[number] = os.dup(number)
        os.dup2(folder, number)
    os.close(folder)

    def revive() -> None:
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)

    return revive
