"""The prefill engines that a rank may read blocks from, each by its address."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, get_args

import numpy as np

from blockyard._core import Bell, Misuse, Peer
from blockyard._typing import NDArray
from blockyard.shared.endpoints import Carrier, endpoints
from blockyard.shared.single import Single
from blockyard.shared.validate import one_of

__all__ = ["Peers", "TakenOffer", "called"]

_MOST_BOOT: Final = (1 << 32) - 1
_SUMMED: Final = ("got_blocks", "got_bytes", "stale", "corrupt", "failed", "in_flight")


def called(role: str) -> str:
    """Returns the name by which this process is known to the other side of a hand-over.

    Args:
        role: What it is there.
    """
    return f"{role} {socket.gethostname()}:{os.getpid()}"


def _kind(carrier: Carrier, *, reads: bool) -> Callable[..., Peer]:
    if one_of("carrier", carrier, get_args(Carrier)) == "tcp":
        return Peer
    from blockyard.crane.tiers.nixl_peer import NixlPeer  # noqa: PLC0415 - most have no NIXL

    return NixlPeer if reads else partial(Peer, carrier=carrier)


class TakenOffer(NamedTuple):
    """Where the blocks of an offer lie, as one rank has taken it and the others are told."""

    at: str
    """The address of the prefill side."""
    id: bytes
    boot: int
    keys: NDArray[np.uint8]
    """The keys of its blocks, shape (blocks, 32)."""
    slots: NDArray[np.uint32]
    """Their slots there."""
    generations: NDArray[np.uint64]
    """The generations of these slots as they were offered."""
    reader: int
    """The number by which the prefill side knows this reader."""


def _held_bytes(peer: Peer) -> int:
    """Returns bytes of staging that reads of a peer hold which were given up and have not ended."""
    found: int = getattr(peer, "held_bytes", 0)
    return found


class Peers(Single):
    """The peers of one rank. Nothing is connected before the first offer is taken.

    Any thread may use it.

    Args:
        addresses: Where prefill sides listen, as `host:port`: no other address is connected to.
        fields: All that the bytes depend on, by name: a peer that differs in one is refused.
        rank: The rank.
        block_bytes: Bytes of a block on it.
        secret: What both sides know; without one each address must be of this machine's loopback.
        timeout: Seconds without a byte after which a peer has failed.
        carrier: What brings the bytes: "tcp", or "nixl", which reads them out of the prefill side's
            memory.
        reads: Whether blocks are read here, and not by ranks that are told of each offer.

    Raises:
        Misuse: An address is none, or not of the loopback though there is no secret.
        Unsupported: The carrier is not installed.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        addresses: Sequence[str],
        *,
        fields: Mapping[str, str],
        rank: int,
        block_bytes: int,
        secret: bytes | None = None,
        timeout: float = 5.0,
        carrier: Carrier = "tcp",
        reads: bool = True,
    ) -> None:
        self.bell = Bell()
        """What they ring when they have ended a flight."""
        boot, name = 1 + secrets.randbelow(_MOST_BOOT), called("decode")
        kind = _kind(carrier, reads=reads)
        self._peers = {
            address: kind(
                address,
                boot=boot,
                name=name,
                fields=fields,
                rank=rank,
                block_bytes=block_bytes,
                secret=secret,
                timeout=timeout,
                bell=self.bell,
            )
            for address in endpoints(addresses)
        }

    def __len__(self) -> int:
        """Returns how many there are."""
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        """Yields them, in the order in which they were named."""
        return iter(self._peers.values())

    def offering(self) -> Iterator[Peer]:
        """Yields those of which an offer was taken that is open: a few of many."""
        return (peer for peer in self if peer.offering)

    def get(self, address: str) -> Peer | None:
        """Returns the peer at an address; None where none of them is there."""
        return self._peers.get(address)

    def has(self, keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns for each key whether an offer that was taken here has its block.

        Args:
            keys: Keys, shape (blocks, 32).
        """
        found = np.zeros(len(keys), np.bool_)
        for peer in self.offering():
            found |= peer.has(keys)
        return found

    def tell(self, offer: TakenOffer) -> None:
        """Says where the blocks lie of an offer that another rank has taken.

        Call it before the first plan that reads them.

        Raises:
            Misuse: The offer is of none of the peers.
        """
        peer = self._peers.get(offer.at)
        if peer is None:
            raise Misuse(f"an offer of {offer.at}: give all ranks the same peers")
        where = offer.keys, offer.slots, offer.generations
        peer.offer(offer.id, offer.boot, *where, offer.reader)

    def end(self, at: str, number: bytes) -> None:
        """Reads nothing more of an offer that `tell` has named.

        Args:
            at: The address of the prefill side.
            number: The offer's id.
        """
        if (peer := self._peers.get(at)) is not None:
            peer.done(number)

    def stats(self) -> dict[str, int]:
        """Returns the sum of what each has done."""
        every = [peer.stats() for peer in self]
        found = {name: sum(one[name] for one in every) for name in _SUMMED}
        found["held_bytes"] = sum(_held_bytes(peer) for peer in self)
        return found | {"resting": sum(peer.state() != "well" for peer in self)}

    def troubles(self) -> tuple[str, ...]:
        """Returns which of them are left alone for now, or hold staging, a sentence each."""
        said = []
        for address, peer in self._peers.items():
            if peer.state() != "well":
                said.append(
                    f"The peer {address} is left alone, and is tried again soon: {peer.why()}."
                )
            elif held := _held_bytes(peer):
                said.append(
                    f"The peer {address} holds {held} bytes of staging, by reads that were given "
                    "up and have not ended."
                )
        return tuple(said)

    def close(self, patience: float) -> bool:
        """Ends them: nothing is read any more.

        Args:
            patience: Seconds that it may take for all.

        Returns:
            Whether their threads have ended.
        """
        until = time.monotonic() + patience
        for peer in self:
            # All are told first, as each of them may be at a peer that does not answer.
            peer.close(patience=0.0)
        ended = [peer.close(patience=max(0.0, until - time.monotonic())) for peer in self]
        return all(ended)
