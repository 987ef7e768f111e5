"""A naive model of what a disk may return, beside random histories with restarts and kills.

The model knows which talks were played, how many blocks are durable, and which weights have made
which bytes. A kill is a copy of the folder, made at any moment, that the next owner opens: what a
process that has died leaves.
"""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import blockyard as by
from blockyard._typing import override
from blockyard.crane.tiers import planes_of
from disks import LAYOUT, OURS, settle

pytestmark = pytest.mark.law("INV-26", "INV-27", "INV-28", "INV-31", "INV-32")

TALKS, BLOCKS = 8, 3
TOKENS = BLOCKS * LAYOUT.block_size
#: So that nothing is evicted: what was durable once stays.
SLOTS = 4 * TALKS * BLOCKS
WAYS: list[dict[str, Any]] = [
    {},
    {"host": 6},
    {"host": 6, "write": {"device": "through", "host": "through"}},
    {"write": "through"},
]


class Disk(RuleBasedStateMachine):
    """A cache over a disk, and what it may find."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="blockyard-model-"))
        self.folders = 0
        self.way = WAYS[0]
        self.weights = 0
        """Those that compute now; 0 are those that the namespace names."""
        self.epoch = 0
        """How often all was cleared: each epoch has bytes of its own."""
        self.durable = 0
        """Blocks that a restart must find."""
        self.cleared = 0
        """Blocks on the disk that were cleared, and not written over."""
        self.may: set[int] = set()
        """Talks that it may find."""
        self.cache: Any = None
        self._open()

    @property
    def path(self) -> Path:
        return self.root / str(self.folders)

    def _open(self) -> None:
        given: dict[str, Any] = {"device": 2 * BLOCKS + 1, "disk": SLOTS, **self.way}
        self.cache = by.local(LAYOUT, disk_path=self.path, namespace=OURS, **given)
        assert self.cache.restored <= len(self.may) * BLOCKS
        assert self.cache.restored >= self.durable
        self.durable, self.cleared = self.cache.restored, 0

    def _bytes(self, talk: int) -> Any:
        first = 11 * talk + 71 * self.weights + 131 * self.epoch
        return ((first + 3 * np.arange(BLOCKS)) % 255 + 1)[:, None, None].astype(np.uint8)

    @rule(talk=st.integers(0, TALKS - 1), settles=st.booleans())
    def play(self, talk: int, settles: bool) -> None:
        """Plays a talk; every byte that is found is of these weights, and of this epoch."""
        cache = self.cache
        (kv,) = planes_of(cache.crane.device)
        lease = None
        while lease is None:
            with suppress(by.NoRoom):
                lease = cache.begin(range(1000 * talk, 1000 * talk + TOKENS))
            cache.step()
        while lease.state == "loading":
            cache.step()
        hits = lease.cached // LAYOUT.block_size
        table = cache.block_tables(lease)[0][:BLOCKS]
        assert (kv[table[:hits]] == self._bytes(talk)[:hits]).all()
        kv[table] = self._bytes(talk)
        cache.seal(lease, TOKENS)
        cache.finish(lease)
        if not self.weights:
            self.may.add(talk)
        if settles:
            self.settle()

    @rule()
    def settle(self) -> None:
        """Has all that was played go down, and waits until it is durable."""
        for _ in range(3):
            for tier in ("device", "host")[: 2 if "host" in self.way else 1]:
                self.cache.demote(SLOTS, tier=tier)
            settle(self.cache)
        if not self.weights:
            # None is evicted, as there is room for all.
            self.durable = self.cache.stats()["disk_idle"] - self.cleared

    @rule()
    def clear(self) -> None:
        """Clears, after which every talk has other bytes."""
        self.cache.clear()
        self._forget()

    @rule()
    def change_weights(self) -> None:
        """Gets weights that the namespace does not name."""
        self.cache.update_weights()
        self.weights += 1
        self._forget()

    def _forget(self) -> None:
        self.epoch += 1
        self.durable, self.cleared = 0, self.cache.stats()["disk_idle"]
        self.may = set()

    @rule(way=st.sampled_from(WAYS))
    def restart(self, way: dict[str, Any]) -> None:
        """Closes it, and opens it again: with the weights that the namespace names."""
        self.cache.close()
        self._again(way)

    @rule(way=st.sampled_from(WAYS))
    def kill(self, way: dict[str, Any]) -> None:
        """Dies at this moment."""
        before = self.path
        self.folders += 1
        shutil.copytree(before, self.path)
        self.cache.close()
        shutil.rmtree(before)
        self._again(way)

    def _again(self, way: dict[str, Any]) -> None:
        self.way = way
        if self.weights:
            # What they have computed is gone, and so is what was before them.
            self.weights = 0
            self.epoch += 1
        self._open()

    @precondition(lambda self: self.cache is not None)
    @invariant()
    def sound(self) -> None:
        """No law of the cache is broken."""
        assert self.cache.audit() is None
        assert self.cache.stats()["corrupt"] == 0

    @override
    def teardown(self) -> None:
        """Removes all of it."""
        self.cache.close()
        shutil.rmtree(self.root)


Disk.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestDisk = Disk.TestCase
