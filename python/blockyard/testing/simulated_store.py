"""A simulated store that engines share: it loses, lies, is late, full and down, all by a seed."""

import random
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple

from blockyard._core import Keys, StoreJob
from blockyard.crane.copiers.store_copier import StoreCopier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.stores import Session
from blockyard.stores.address import block_address
from blockyard.stores.lookup import Found
from blockyard.testing.setup import Setup
from blockyard.yard.config import Config

__all__ = ["SimulatedLookup", "SimulatedStore", "StoreWorker"]

_KEY = 32
_PATIENCE = 12.0
"""Ticks after which a copy is given up, and for which a request waits for an answer."""
_NOBODY = "127.0.0.1:1"
"""The address of a peer that is never asked."""
_AT_ONCE = 3
"""Calls that a worker has under way."""


class SimulatedStore:
    """What a store has, and what is wrong with it.

    Args:
        setup: How often it lies and loses, how late it is, and how much it holds.
        seed: Decides each answer.
        seen: Where it counts.
    """

    url = "simulated://"

    def __init__(self, setup: Setup, seed: str, seen: Counter[str]) -> None:
        self._setup = setup
        self._chance = random.Random(seed)  # noqa: S311 - not for cryptography
        self.seen = seen
        self.values: dict[str, bytes] = {}
        self.honest = False
        """Whether nothing goes wrong from now on."""

    def connect(self) -> Session:
        """Returns none: a `StoreWorker` asks it."""
        raise NotImplementedError

    def late(self) -> int:
        """Ticks until the next answer."""
        return self._chance.randint(0, 0 if self.honest else self._setup.store_late)

    def is_down(self) -> bool:
        """Whether the next call is refused."""
        return self._goes_wrong(self._setup.store_fails, "store refuses")

    def put(self, address: str, value: bytes) -> bool:
        """Takes a value, and returns whether it says that it has; to make room it drops others."""
        if not self.honest and len(self.values) >= self._setup.store_values:
            self.seen["store full"] += 1
            if self._chance.random() < 0.5:  # noqa: PLR2004
                return False
            del self.values[self._chance.choice(sorted(self.values))]
        if not self._goes_wrong(self._setup.store_loses, "store loses"):
            self.values[address] = value
        return True

    def get(self, address: str) -> bytes | None:
        """Returns a value; now and then another one, or it with a bit flipped, or cut."""
        value = self.values.get(address)
        if value is None or not self._goes_wrong(self._setup.store_lies, "store lies"):
            return value
        lie = self._chance.randrange(3)
        if lie == 0:
            at = self._chance.randrange(8 * len(value))
            flipped = bytearray(value)
            flipped[at // 8] ^= 1 << at % 8
            return bytes(flipped)
        if lie == 1:
            return self.values[self._chance.choice(sorted(self.values))]
        return value[: self._chance.randrange(len(value))]

    def has(self, address: str) -> bool:
        """Whether a value is there; now and then it says so of one that is not."""
        there = address in self.values
        return there or self._goes_wrong(self._setup.store_lies, "store boasts")

    def delete(self, address: str) -> None:
        """Drops a value."""
        self.values.pop(address, None)

    def _goes_wrong(self, percent: int, name: str) -> bool:
        wrong = not self.honest and self._chance.randrange(100) < percent
        self.seen[name] += wrong
        return wrong


class _Call(NamedTuple):
    """A job under way, and the tick of its answer."""

    due: int
    job: StoreJob
    value: bytes
    """What is put."""


class StoreWorker:
    """Stands for the threads of a rank's `StoreCopier`, one call after the other, by ticks.

    Args:
        store: What it asks; None where there are peers alone.
        config: What a block is.
        setup: Names, and whose the values are.
        rank: The rank.
        clock: Ticks.
    """

    def __init__(
        self,
        store: SimulatedStore | None,
        config: Config,
        setup: Setup,
        rank: int,
        clock: Callable[[], float],
    ) -> None:
        self._shared, self._ranks, self._clock = store, setup.ranks, clock
        layout = config.layout
        assert layout is not None  # noqa: S101 - `config_of` makes one
        identity = {"model": "simulated", "weights": f"{setup.weights}"}
        self.tier = RemoteTier(
            layout,
            setup.remote,
            [] if store is None else [store],
            identity=identity,
            rank=rank,
            limit=60.0,
            ending=0.0,
            peers=[_NOBODY] if store is None else [],
        )
        """The rank's names in it."""
        self._meet()
        self.copier = StoreCopier(self.tier, patience=_PATIENCE, threads=0, clock=clock)
        """What copies from and to it."""
        self._calls: list[_Call] = []

    def _meet(self) -> None:
        """Takes other peers than the tier has, before its copier knows them."""

    @property
    def _store(self) -> SimulatedStore:
        assert self._shared is not None  # noqa: S101 - there is no job without one
        return self._shared

    def turn(self) -> None:
        """Gives the answers that are due, and takes new jobs."""
        now = int(self._clock())
        due = [call for call in self._calls if call.due <= now]
        self._calls = [call for call in self._calls if call.due > now]
        for call in due:
            self._answer(call.job, call.value)
        while len(self._calls) < _AT_ONCE:
            found = self.tier.lane.take("up", 0.0, now) or self.tier.lane.take("down", 0.0, now)
            if found is None:
                return
            job, view = found
            value = bytes(view) if view is not None and job.kind == "put" else b""
            self._calls.append(_Call(now + self._store.late(), job, value))

    def lookup(self) -> "SimulatedLookup":
        """Returns what asks the store about requests."""
        return SimulatedLookup(self._store, self.tier, self._ranks, self._clock)

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._calls)

    def _answer(self, job: StoreJob, value: bytes) -> None:
        store, addresses = self._store, [self.tier.place.address(key) for key in job.keys]
        if not job.ask(0):
            job.fail()
        elif store.is_down():
            job.refused("it is down", 0.0)
            job.fail()
        elif job.kind == "delete":
            for address in addresses:
                store.delete(address)
            job.answered(0.0)
            job.done()
        elif job.kind == "put":
            if store.put(addresses[0], value):
                job.answered(0.0)
                job.done()
            else:
                job.refused("it is full", 0.0)
                job.fail()
        else:
            self._load(job, store.get(addresses[0]))

    def _load(self, job: StoreJob, got: bytes | None) -> None:
        job.answered(0.0)
        if got is None:
            self._store.seen["store misses"] += 1
            job.missing()
        elif job.landed(got):
            self._store.seen["store loads"] += 1
        else:
            # Not what was put, or nobody waits for it any more.
            self._store.seen["store refused or late"] += 1
            job.fail()


class SimulatedLookup:
    """Asks a simulated store, and has the answer some ticks later: `Lookup`.

    Args:
        store: What it asks.
        tier: Where the values of a rank stand.
        ranks: Ranks, of which each block is asked of one.
        clock: Ticks.
    """

    def __init__(
        self, store: SimulatedStore, tier: RemoteTier, ranks: int, clock: Callable[[], float]
    ) -> None:
        self._store, self._place, self._ranks, self._clock = store, tier.place, ranks, clock
        self._due: dict[Hashable, float] = {}

    def ask(self, request: Hashable, keys: Keys, _patience: float | None = None) -> Found | None:
        """Returns how many leading blocks the store says that it has; None until then."""
        now = self._clock()
        if now < self._due.setdefault(request, now + self._store.late()):
            return None
        self.drop(request)
        data, blocks = bytes(keys), 0
        while blocks < len(keys):
            key = data[blocks * _KEY : (blocks + 1) * _KEY]
            identity, rank = self._place.identity, key[-1] % self._ranks
            if not self._store.has(block_address(identity, rank, key)):
                break
            blocks += 1
        self._store.seen["store found"] += blocks > 0
        return Found(blocks)

    def drop(self, request: Hashable) -> None:
        """Forgets a question."""
        self._due.pop(request, None)
