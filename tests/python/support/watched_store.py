"""A store that says which values it has acknowledged, and lies in a part of its answers."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from blockyard.stores import Session, Store


class WatchedStore:
    """A store around another.

    Args:
        store: The other one.
        tell: Called with "putting" and an address before each put, and with "acknowledged" after.
        lies: The part of its answers that are wrong.
        seed: Seed of its lies.
    """

    def __init__(
        self,
        store: Store,
        tell: Callable[[str, str], object] = lambda _what, _address: None,
        *,
        lies: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.inner = store
        self.tell = tell
        self.told: Counter[str] = Counter()
        """Lies by kind."""
        self.others: list[str] = []
        """Addresses that it has heard of."""
        self._lies = lies
        self._chance = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    def connect(self) -> "WatchedSession":
        return WatchedSession(self, self.inner.connect())

    def lie(self, kinds: Sequence[str]) -> str:
        """One of these lies; "" for the truth."""
        with self._lock:
            if self._chance.random() >= self._lies:
                return ""
            kind = self._chance.choice(kinds)
            self.told[kind] += 1
            return kind

    def below(self, most: int) -> int:
        with self._lock:
            return self._chance.randrange(most)


class WatchedSession:
    def __init__(self, store: WatchedStore, inner: Session) -> None:
        self._store = store
        self._inner = inner

    def put(self, address: str, value: memoryview, ttl: float | None = None) -> None:
        self._store.tell("putting", address)
        self._store.others.append(address)
        kind = self._store.lie(("put lost", "put flipped", "put cut"))
        if kind == "put flipped":
            value = memoryview(self._flipped(value))
        elif kind == "put cut":
            value = value[: self._store.below(value.nbytes)]
        if kind != "put lost":
            self._inner.put(address, value, ttl)
        self._store.tell("acknowledged", address)

    def get(self, address: str, into: memoryview) -> memoryview | bytes | None:
        self._store.others.append(address)
        kind = self._store.lie(("lost", "flipped", "cut", "another's"))
        if kind == "lost":
            return None
        if kind == "another's":
            address = self._store.others[self._store.below(len(self._store.others))]
        found = self._inner.get(address, into)
        if found is None or not len(found):
            return found
        if kind == "flipped":
            return self._flipped(found)
        return found[: self._store.below(len(found))] if kind == "cut" else found

    def has(self, addresses: Sequence[str]) -> list[bool]:
        found = self._inner.has(addresses)
        kind = self._store.lie(("all there", "none there"))
        return [kind == "all there"] * len(found) if kind else found

    def delete(self, addresses: Sequence[str]) -> int:
        return self._inner.delete(addresses)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        return self._inner.list(prefix)

    def close(self) -> None:
        self._inner.close()

    def _flipped(self, value: memoryview | bytes) -> bytes:
        wrong = bytearray(value)
        wrong[self._store.below(len(wrong))] ^= 1 << self._store.below(8)
        return bytes(wrong)
