"""A peer that a test has say what it likes, and a decode side over some of them."""

from typing import Any

import numpy as np

import blockyard as by
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.offer import Offer

AT = "127.0.0.1:7000"


def rows(keys: Any) -> Any:
    return np.frombuffer(bytes(keys), np.uint8).reshape(-1, 32)


class FakePeer:
    """Notes what it is asked, and answers a take when the test says so."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.answers: list[tuple[int, int, str]] = []
        self.there: set[bytes] = set()
        self.rests = False

    def shut(self, *, down: bool, now: float) -> bool:
        return self.rests and not down and now >= 0

    def take(self, number: int, id: bytes, boot: int, keys: Any, _now: float) -> None:  # noqa: A002
        self.said.append(("take", id, boot, len(keys)))
        self.number = number

    def answer(self, blocks: int, keys: Any = b"", why: str = "") -> None:
        every = rows(keys)
        self.there |= {bytes(key) for key in every[:blocks]}
        self.answers.append((self.number, blocks, why))

    def taken(self) -> list[tuple[int, int, str]]:
        found, self.answers = self.answers, []
        return found

    def why(self) -> str:
        return 'weights is "v1" there, and "v2" here'

    def blocks(self, _id: bytes) -> Any:
        keys = rows(b"".join(sorted(self.there)))
        return keys, np.arange(len(keys), dtype=np.uint32), np.ones(len(keys), np.uint64), 77

    def has(self, keys: Any) -> Any:
        return np.array([bytes(key) in self.there for key in keys], np.bool_)

    def done(self, id: bytes) -> None:  # noqa: A002 - as the binding
        self.said.append(("done", id))
        self.there.clear()

    def refuse(self, id: bytes, why: str) -> None:  # noqa: A002
        self.said.append(("refuse", id, why))
        self.there.clear()


class FakePeers:
    def __init__(self, **peers: FakePeer) -> None:
        self.every = peers or {AT: FakePeer()}

    def __iter__(self) -> Any:
        return iter(self.every.values())

    def get(self, at: str) -> FakePeer | None:
        return self.every.get(at)

    def has(self, keys: Any) -> Any:
        found = np.zeros(len(keys), np.bool_)
        for peer in self.every.values():
            found |= peer.has(keys)
        return found


class Told:
    """Another rank."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def tell(self, offer: Any) -> None:
        self.said.append(("tell", offer.at, offer.id, len(offer.keys), offer.reader))

    def end(self, at: str, number: bytes) -> None:
        self.said.append(("end", at, number))


class Rig:
    """A cache with a decode side, whose clock the test turns."""

    def __init__(
        self,
        *,
        device: int = 33,
        names: int = 64,
        lookup: Any = None,
        ranks: Any = (),
        **more: Any,
    ) -> None:
        self.now = 0.0
        self.cache = by.KVCache(block_size=4, device=device, remote=names, remote_writes=False)
        self.peers = FakePeers()
        self.peer = self.peers.every[AT]
        every: Any = self.peers
        self.side = DecodeSide(
            self.cache, every, lookup=lookup, ranks=ranks, clock=lambda: self.now, **more
        )

    def keys(self, tokens: int, first: int = 0) -> by.Keys:
        return self.cache.keys(range(first, first + tokens))


def offer(number: int = 1, at: str = AT) -> Offer:
    return Offer(bytes([number]) * 16, at, 9)
