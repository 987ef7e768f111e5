"""Stores in memory: an honest one, and one that lies, hangs, refuses and dies."""

import random
import threading
from collections.abc import Iterator, Sequence

import blockyard as by


class MemoryStore:
    """A store that other sessions share, with what may go wrong. Its lies have a seed.

    Each call is counted. While `hangs`, calls wait until `go` is set.
    """

    def __init__(self, url: str = "memory://one", *, seed: int = 0) -> None:
        self.url = url
        self.values: dict[str, bytes] = {}
        self.ttls: dict[str, float | None] = {}
        self.calls: list[str] = []
        self.callers: set[int] = set()
        self.sessions = 0
        self.closed = 0
        self.down = ""
        """Why calls are refused."""
        self.full = False
        self.keeps = False
        """Whether a put leaves what is there."""
        self.broken = False
        """Whether a session's close breaks out of its thread."""
        self.lies = 0.0
        self.hangs: set[str] = set()
        self.go = threading.Event()
        self.reached = threading.Semaphore(0)
        self._chance = random.Random(seed)

    def connect(self) -> "MemorySession":
        if self.down:
            raise by.Unavailable(self.down)
        self.sessions += 1
        return (KeepingSession if self.keeps else MemorySession)(self)

    def call(self, what: str) -> None:
        self.calls.append(what)
        self.callers.add(threading.get_ident())
        if what in self.hangs:
            self.reached.release()
            assert self.go.wait(60)
        if self.down:
            raise by.Unavailable(self.down)

    def lied(self, value: bytes) -> bytes | None:
        """Another value, a flipped bit, a part of it, or nothing."""
        how = self._chance.randrange(4)
        if how == 0:
            at = self._chance.randrange(8 * len(value))
            flipped = bytearray(value)
            flipped[at // 8] ^= 1 << at % 8
            return bytes(flipped)
        if how == 1:
            return self._chance.choice(list(self.values.values()))
        return value[: self._chance.randrange(len(value))] if how == 2 else None

    def blocks(self) -> dict[str, bytes]:
        """What it has beside the clear text of identities."""
        return {name: it for name, it in self.values.items() if not name.endswith("/identity")}


class MemorySession:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def put(self, address: str, value: memoryview, ttl: float | None = None) -> None:
        self.store.call("put")
        if self.store.full:
            raise by.Unavailable("it is full")
        if not (isinstance(self, KeepingSession) and address in self.store.values):
            self.store.values[address], self.store.ttls[address] = bytes(value), ttl

    def get(self, address: str, into: memoryview) -> memoryview | bytes | None:
        self.store.call("get")
        value = self.store.values.get(address)
        if value is not None and self.store._chance.random() < self.store.lies:
            value = self.store.lied(value)
        if value is None or len(value) != len(into) or self.store._chance.random() < 0.5:
            return value
        into[:] = value
        return into

    def has(self, addresses: Sequence[str]) -> list[bool]:
        self.store.call("has")
        return [address in self.store.values for address in addresses]

    def delete(self, addresses: Sequence[str]) -> int:
        self.store.call("delete")
        return sum(self.store.values.pop(one, None) is not None for one in addresses)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        self.store.call("list")
        return iter([(n, len(it)) for n, it in self.store.values.items() if n.startswith(prefix)])

    def close(self) -> None:
        self.store.closed += 1
        if self.store.broken:
            raise SystemExit


class KeepingSession(MemorySession):
    keeps = True


class Turned:
    """A clock that the test turns."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
