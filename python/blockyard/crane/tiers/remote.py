"""Stores and peers, as a tier: its slots are names, and its bytes are elsewhere."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import numpy as np

from blockyard._core import Misuse, StoreLane
from blockyard._typing import NDArray
from blockyard.crane.tiers.peers import Peers
from blockyard.crane.tiers.remote_stats import REMOTE_STATS
from blockyard.shared.endpoints import Carrier, read_secret
from blockyard.shared.layout import KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.single import Single
from blockyard.shared.validate import bounded, integer, shown
from blockyard.stores import Store
from blockyard.stores.address import block_address, tail_address
from blockyard.stores.identity import fields_of, number_of

__all__ = ["RemoteTier", "StorePlace", "is_tail"]

_RECORD: Final = 128
"""Bytes of a value before the block's."""
_BUFFERS: Final = 64
"""Buffers at most: each thread has one at a time."""
_NAMELESS: Final = bytes(24)
"""What the key of a block without one begins with; its number follows."""
_log = Limited("blockyard", 0)


class StorePlace(NamedTuple):
    """Where the values of a rank stand in a store."""

    identity: int
    rank: int
    group: int
    boot: int
    """A random number of this process, for blocks without a key."""

    def address(self, key: bytes) -> str:
        """Returns the address of a block."""
        if not is_tail(key):
            return block_address(self.identity, self.rank, key, self.group)
        number = int.from_bytes(key[len(_NAMELESS) :], "little")
        return tail_address(self.identity, self.rank, self.boot, number, self.group)


def is_tail(key: bytes) -> bool:
    """Whether it stands for the key of a block without one, as a parked tail is."""
    return key.startswith(_NAMELESS)


class _Deleting(Protocol):
    """What copies from and to stores."""

    def delete(self, keys: NDArray[np.uint8]) -> object:
        """Has every store delete values; returns a receipt."""


class _Threads(Protocol):
    """What asks the stores."""

    def start(self) -> None:
        """Starts them."""

    def close(self, patience: float) -> bool:
        """Waits for their end; returns whether it has come."""


class RemoteTier(Single):
    """The blocks of one rank in stores that other engines share, or that peers hand over.

    A slot is a name that the yard remembers, and has no memory. Every block stands in a store as
    one value of all its planes on this rank, also of those that ranks share. Engines of another
    identity never meet it. A value may vanish at any moment. Nothing is written to a peer: without
    stores give the yard `remote_writes=False`.

    Args:
        layout: What a block is.
        blocks: How many names there are, 1 or more.
        stores: The stores, in order, as `open_store` makes them: a put goes to the first that takes
            it, a get asks one after the other, a delete goes to all. There may be none where there
            are peers.
        identity: As in `DiskTier`: it names `model` and `weights` at least.
        rank: The rank.
        group: The number of the group of layers.
        staging: Bytes of memory that values pass through, of which each way has half. Two values
            fit at least.
        limit: Seconds; a store is left alone for a while where the 99th percentile of its last
            calls took longer.
        ending: Seconds that `close` takes at most.
        peers: Where prefill sides listen whose offers are taken, as `host:port`.
        secret_file: A file with the secret that these know, too; without one they must be of this
            machine's loopback.
        carrier: What brings the bytes of peers, as in `Peers`.

    Raises:
        Misuse: A value is out of range, there is neither store nor peer, or `identity` does not
            name model and weights.
        Unavailable: There are no weights at a path.
        Unsupported: The carrier is not installed.
    """

    SCHEMA = REMOTE_STATS
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        layout: KVLayout,
        blocks: int,
        stores: Sequence[Store] = (),
        *,
        identity: Mapping[str, str | os.PathLike[str]],
        rank: int = 0,
        group: int = 0,
        staging: int = 64 << 20,
        limit: float = 2.0,
        ending: float = 2.0,
        peers: Sequence[str] = (),
        secret_file: str | os.PathLike[str] | None = None,
        carrier: Carrier = "tcp",
    ) -> None:
        self.name = "remote"
        self.layout = layout
        self.blocks = integer("blocks", blocks, most=(1 << 32) - 1)
        self.rank = integer("rank", rank, least=0, most=layout.ranks - 1)
        self.nbytes = 0
        """Bytes of memory: staging alone, which is not counted."""
        self.stores: tuple[Store, ...] = tuple(_checked(stores, needed=not peers))
        """The stores, in order."""
        self.fields = MappingProxyType(fields_of(identity, layout))
        """All that the bytes depend on, by name."""
        group = integer("group", group, least=0, most=(1 << 16) - 1)
        number = number_of(self.fields)
        self.place = StorePlace(number, self.rank, group, secrets.randbits(64))
        """Where its values stand."""
        value = _RECORD + layout.block_bytes
        self.lane = StoreLane(
            number,
            rank=self.rank,
            group=group,
            block_bytes=layout.block_bytes,
            stores=len(self.stores),
            buffers=min(max(integer("staging", staging) // value, 2), _BUFFERS),
            limit=limit,
        )
        """What copies from and to stores go through."""
        self.peers = Peers(
            peers,
            fields=self.fields,
            rank=self.rank,
            block_bytes=layout.block_bytes,
            secret=read_secret(secret_file),
            carrier=carrier,
        )
        """What copies of handed over blocks come from."""
        self.copier: _Deleting | None = None
        """What copies from and to it: its reports are for one."""
        self.threads: _Threads | None = None
        """The threads that ask the stores, where there is a copier."""
        self._ending = ending
        self._left: list[int] = []
        """After its close: for each store, values that it has not deleted."""

    def next_stamp(self) -> int:
        """Returns 0: its values have no stamps, as `crane.voids.Voiding` asks for them."""
        return 0

    def void(self, keys: NDArray[np.uint8], _spared: NDArray[np.uint8], _before: int) -> object:
        """Deletes values in every store, as `crane.voids.Voiding`: of these keys and no others.

        Args:
            keys: As there.

        Raises:
            Misuse: No `StoreCopier` copies from and to it.
        """
        if self.copier is None:
            raise Misuse("these stores have no StoreCopier: they cannot forget blocks")
        return self.copier.delete(keys)

    def void_last(self, keys: NDArray[np.uint8], _spared: NDArray[np.uint8], _before: int) -> None:
        """Deletes values by its close, as `crane.voids.Voiding`.

        Args:
            keys: As there.
        """
        if self.threads is not None and self.stores:
            self.threads.start()
            self.lane.delete(keys)

    def forget(self) -> None:
        """Fails every copy from now on, as `tiers.Forgetting`.

        The stores have, under this identity, what other engines compute with the weights that it
        names. Those of an engine that has changed its own are of another identity.
        """
        self.lane.stop()
        self.peers.close(0.0)

    def stats(self) -> dict[str, int]:
        """Returns what was done; `SCHEMA` has units and meanings. Any thread may ask."""
        peers = {f"peer_{name}": count for name, count in self.peers.stats().items()}
        found = self.lane.stats() | peers
        return {stat.name: found[stat.name.removeprefix("remote_")] for stat in self.SCHEMA}

    @property
    def busy(self) -> bool:
        """Whether copies from or to it have not ended. Any thread may ask."""
        return self.lane.stats()["in_flight"] + self.peers.stats()["in_flight"] > 0

    @property
    def undeleted(self) -> dict[str, int]:
        """For each store, by URL, values whose deletion it has not confirmed. Any thread may ask.

        0 says that it has answered. Of deletes that wait for copies, `Crane.undeleted` knows, too.
        """
        left = self._left or [undeleted for _, _, undeleted in self.lane.states()]
        return {store.url: count for store, count in zip(self.stores, left, strict=True)}

    def troubles(self) -> tuple[str, ...]:
        """Returns what is wrong with its stores, a sentence each. Any thread may ask."""
        lines = []
        every = zip(self.stores, self.lane.states(), self.lane.why(), strict=True)
        for store, (down, up, undeleted), why in every:
            ill = [way for way, state in (("puts", down), ("gets", up)) if state != "well"]
            if ill:
                lines.append(
                    f"The store {store.url} takes no {' and no '.join(ill)}, and is tried again "
                    f"soon: {why}."
                )
            if undeleted:
                lines.append(f"{store.url} has not deleted {undeleted} values yet.")
        held = self.lane.stats()["held"]
        if held:
            lines.append(f"{held} staging buffers are held by calls that were given up.")
        return (*lines, *self.peers.troubles())

    def close(self) -> None:
        """Ends the threads, after a last try to delete what is to be deleted.

        A thread that a client holds is left behind, with its buffer and nothing else.
        """
        until = time.monotonic() + self._ending
        self.peers.close(self._ending / 2)
        self._left = self._left or self.lane.close(patience=self._ending / 2)
        ended = self.threads is None or self.threads.close(max(0.0, until - time.monotonic()))
        for store, undone, why in zip(self.stores, self._left, self.lane.why(), strict=False):
            if undone:
                said = why or "no answer"
                _log.warning("%s: %d values were not deleted: %s", store.url, undone, said)
        if not ended:
            _log.warning("a store does not answer: its threads are left behind")

    def drop(self) -> None:
        """Closes it for a finalizer, and waits for no thread."""
        self.lane.close(patience=0.0)
        self.peers.close(0.0)


def _checked(stores: object, *, needed: bool) -> list[Store]:
    """Returns stores, if they are such."""
    if isinstance(stores, str) or not isinstance(stores, Sequence):
        raise Misuse(f"stores = {shown(stores)}: give a list of stores, as open_store makes them")
    found = bounded("stores", stores)
    if not found and needed:
        raise Misuse('stores = []: give one or more, as in stores=["redis://127.0.0.1:6379"]')
    for store in found:
        if not hasattr(store, "connect") or not hasattr(store, "url"):
            raise Misuse(f"stores have {shown(store)}: give stores, as open_store makes them")
    return list(stores)
