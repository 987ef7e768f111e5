"""The memory of a prefill side, where NIXL reads it: registered, and described for who may."""

import ctypes
import json
import os
import weakref
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from blockyard._core import SlotGenerations, Unsupported
from blockyard._typing import NDArray
from blockyard.crane.tiers.nixl_process import registered, wheel
from blockyard.shared.extras import install

__all__ = ["Described", "NixlSource", "needed_wheel"]

_GAP: Final = 512
"""Generations that are read between two that are wanted, at most: fewer reads cost less."""
_WORD: Final = 8
"""Bytes of a generation."""
_MOST_ADDRESS: Final = 1 << 62


def needed_wheel() -> str:
    """Returns the module that has NIXL's agent.

    Raises:
        Unsupported: No wheel of it is installed.
    """
    found = wheel()
    if found is None:
        raise Unsupported(
            f'carrier = "nixl": NIXL is not installed: {install("nixl")}; where PyTorch is not '
            "wanted, pip install --no-deps nixl-cu12"
        )
    return found


@dataclass
class Described:
    """Where a prefill side's blocks are: piece p of slot s is at `address[p] + s * stride[p]`."""

    agent: bytes
    """The metadata of NIXL's agent there."""
    address: NDArray[np.uint64]
    stride: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    """Bytes of each piece, in the order in which they make a block."""
    blocks: int
    generations: int
    """Where the generation of slot 0 is."""

    def __post_init__(self) -> None:
        """Notes where each piece is in a block, and whether those of two slots adjoin."""
        self.offset = np.cumsum(self.nbytes, dtype=np.uint64) - self.nbytes
        self.is_dense = bool((self.stride == self.nbytes).all())
        cuts = np.flatnonzero(np.diff(self.nbytes)) + 1
        self._alike = np.split(np.arange(len(self.nbytes)), cuts)

    def to_bytes(self) -> bytes:
        """Returns it as it is sent."""
        pieces = np.stack([self.address, self.stride, self.nbytes], 1).tolist()
        return json.dumps(
            {
                "agent": b64encode(self.agent).decode(),
                "pieces": pieces,
                "blocks": self.blocks,
                "generations": self.generations,
            }
        ).encode()

    @classmethod
    def of(cls, said: bytes, block_bytes: int) -> "Described | None":
        """Returns what was sent; None where it is malformed, or of blocks of another size."""
        try:
            found = json.loads(said)
            pieces = np.array(found["pieces"], np.uint64)
            address, stride, nbytes = pieces.reshape(len(pieces), 3).T
            made = cls(
                b64decode(found["agent"], validate=True),
                address,
                stride,
                nbytes,
                int(found["blocks"]),
                int(found["generations"]),
            )
            end = int(address.max()) + int(stride.max()) * made.blocks
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None
        is_whole = sum(made.nbytes.tolist()) == block_bytes and made.nbytes.all()
        is_there = made.blocks > 0 and 0 <= made.generations < _MOST_ADDRESS > end
        return made if is_whole and is_there else None

    def bytes_of(self, slots: NDArray[np.uint32], begin: int = 0) -> NDArray[np.uint64]:
        """Returns what is read of slots, as `Reading.bytes_`.

        In staging each piece of all of them lies together, from `begin` on.
        """
        count = len(slots)
        here = self.offset * np.uint64(count) + np.uint64(begin)
        cuts = np.arange(1, count)
        if self.is_dense:
            # What lies side by side on both sides is one read.
            cuts = np.flatnonzero(np.diff(slots) != 1) + 1
        if not len(cuts):
            there = self.address + self.stride * np.uint64(slots[0])
            return _rows(here, there, self.nbytes * np.uint64(count))
        rows = np.append(0, cuts)
        lengths = np.append(cuts, count) - rows
        nbytes, slots = self.nbytes[:, None], slots[rows].astype(np.uint64)
        there = self.address[:, None] + self.stride[:, None] * slots
        here = here[:, None] + nbytes * rows.astype(np.uint64)
        return _rows(here, there, nbytes * lengths.astype(np.uint64))

    def places(
        self, base: int, count: int, at: int = 0
    ) -> list[tuple[NDArray[np.uint64], int, int]]:
        """Returns where blocks then are, as `Peer.land` takes it.

        Args:
            base: Where those begin in this process that were read together.
            count: How many these are.
            at: Which of them is the first.
        """
        begins = self.offset * np.uint64(count) + self.nbytes * np.uint64(at) + np.uint64(base)
        each = ((part, int(self.nbytes[part[0]])) for part in self._alike)
        return [(begins[part], nbytes, nbytes) for part, nbytes in each]

    def generations_of(
        self, slots: NDArray[np.uint32], begin: int = 0
    ) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """Returns what is read of the generations, and where among it that of each slot is."""
        each = slots.astype(np.int64)
        low, high = int(each.min()), int(each.max())
        if high - low < _GAP * len(each):
            here, nbytes = (begin, self.generations + _WORD * low), _WORD * (high + 1 - low)
            rows = np.array([[[first, nbytes, 0]] for first in here], np.uint64)
            return rows, each - low
        sorted_ = np.unique(each)
        cuts = np.flatnonzero(np.diff(sorted_) > _GAP)
        begins = sorted_[np.append(0, cuts + 1)]
        lengths = sorted_[np.append(cuts, len(sorted_) - 1)] + 1 - begins
        offsets = np.cumsum(lengths) - lengths
        run = np.searchsorted(begins, each, "right") - 1
        index = offsets[run] + each - begins[run]
        here, there = begin + _WORD * offsets, self.generations + _WORD * begins
        return _rows(here, there, _WORD * lengths), index


def _rows(here: NDArray[Any], there: NDArray[Any], nbytes: NDArray[Any]) -> NDArray[np.uint64]:
    rows = np.zeros((2, nbytes.size, 3), np.uint64)
    rows[0, :, 0], rows[1, :, 0], rows[:, :, 1] = here.ravel(), there.ravel(), nbytes.ravel()
    return rows


GENERATION_ROOM: Final = _GAP * _WORD
"""Bytes that the generations of a block take at most in staging."""


class NixlSource:
    """Registers a prefill side's planes, and its generations, with an agent in this process.

    Whoever gets `memory` may read all of them, whatever was offered.

    Args:
        planes: As `memory_places` gives them, in one row.
        blocks: Slots.
        generations: Those of the slots.
        memory: What keeps the planes where they are.

    Raises:
        Unsupported: NIXL is not installed, or pieces of a plane lie in descending order.
        Unavailable: Its agent does not start: what the environment says of UCX may be wrong.
    """

    def __init__(
        self,
        planes: Sequence[tuple[NDArray[np.uint64], int, int]],
        blocks: int,
        generations: SlotGenerations,
        memory: object = None,
    ) -> None:
        module = needed_wheel()
        if any(stride <= 0 for _, stride, _ in planes):
            raise Unsupported('carrier = "nixl": a plane has its blocks in descending order')
        pieces = _joined(planes)
        ends = [(at, at + stride * (blocks - 1) + nbytes) for at, stride, nbytes in pieces]
        ends.append((generations.address, generations.address + _WORD * generations.slots))
        regions = [(first, end - first) for first, end in _merged(ends)]
        name = f"prefill {os.getpid()} {os.urandom(8).hex()}"
        agent, metadata = registered(module, name, regions)
        # A forked child must not end the agent: it has the same descriptors, and takes the sockets
        # out of the set at which the parent waits. This reference keeps it, there.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(agent))
        self._end = weakref.finalize(self, _end, os.getpid(), [generations, memory, agent])
        address, stride, nbytes = np.array(pieces, np.uint64).T
        blocks = min(blocks, generations.slots)
        described = Described(metadata, address, stride, nbytes, blocks, generations.address)
        self.memory = described.to_bytes()
        """What a decode side is told."""

    def close(self) -> None:
        """Ends the agent: nothing is read any more when it returns. A forked child's goes on."""
        self._end()


def _end(pid: int, kept: list[object]) -> None:
    if pid == os.getpid():
        agent = ctypes.py_object(kept[-1])
        ctypes.pythonapi.Py_DecRef(agent)
        del agent
        while kept:
            kept.pop()  # the agent first: it reads the others


def _joined(
    planes: Sequence[tuple[NDArray[np.uint64], int, int]],
) -> list[tuple[int, int, int]]:
    """Returns pieces as address, stride and bytes; those side by side in a block are one."""
    joined: list[tuple[int, int, int]] = []
    for addresses, stride, nbytes in planes:
        for address in addresses.tolist():
            if joined:
                at, before, size = joined[-1]
                if before == stride and at + size == address and size + nbytes <= stride:
                    joined[-1] = (at, stride, size + nbytes)
                    continue
            joined.append((address, stride, nbytes))
    return joined


def _merged(ends: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns regions without overlap."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ends):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged
