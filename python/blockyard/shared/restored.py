"""What tiers that outlive a process have from before, and what all ranks agree on of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from blockyard._core import Misuse
from blockyard._typing import NDArray
from blockyard.shared.log import Limited

__all__ = ["MOST_ROWS", "Restored"]

_log = Limited("blockyard", 0)
MOST_ROWS: Final = 1 << 25
"""Blocks that one call of the yard takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """What one rank's tier has from before, the next to be evicted first.

    A block is whole where every rank has it of one plan. `agreed` finds those, for
    `KVCache.restore`.

    Args:
        slots: Shape (blocks,).
        keys: Shape (blocks, 32).
        parents: The keys of the blocks before them in their sequences, likewise; zeros for the
            first ones, or their roots, as in `Plan.parents`.
        stamps: When each was written, as this rank counts, shape (blocks,).
        run: The number of the tier's owner, the upper half of the stamps that it gives.
        share: The slots that this rank has a part of, as (first, step): 0 and 1 for all of them.
            Where ranks have the same bytes, each has the slots of its own alone.
        plans: The number of the plan that has written each, shape (blocks,), the same on all ranks.
            None, or 0 for a block, where nobody has said: then all ranks must have one stamp.
    """

    slots: NDArray[np.uint32]
    keys: NDArray[np.uint8]
    parents: NDArray[np.uint8]
    stamps: NDArray[np.uint64]
    run: int = 1
    share: tuple[int, int] = (0, 1)
    plans: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """Returns the number of blocks."""
        return len(self.slots)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "Restored":
        """Returns some of its rows, in the order that is given."""
        some = self.slots[rows], self.keys[rows], self.parents[rows], self.stamps[rows]
        return Restored(*some, self.run, self.share, self.numbers()[rows])

    def numbers(self) -> NDArray[np.uint32]:
        """Returns `plans`, zeros where they are None."""
        return np.zeros(len(self), np.uint32) if self.plans is None else self.plans

    def ordered(self, slots: NDArray[np.uint32]) -> "Restored":
        """Returns its rows in an order of slots; those of other slots come last, as they are.

        Args:
            slots: The next to be evicted first, as `KVCache.eviction_order` at a clean end.
        """
        place = np.full(int(self.slots.max(initial=0)) + 1, len(slots))
        slots = slots[slots < len(place)]
        place[slots] = np.arange(len(slots))
        return self.take(np.argsort(place[self.slots], kind="stable"))

    @staticmethod
    def agreed(ranks: Sequence["Restored"]) -> "Restored":
        """Returns what all ranks have alike: the same slots, keys and plans, each key once.

        What a rank has not written, or has cleared while others have not, is restored on none; the
        log says how many blocks that are, and of which rank. Stamps are rank 0's. Of more than
        33,554,432 blocks those that are to be evicted last are restored.

        Args:
            ranks: What each rank's tier has, rank 0 first.

        Raises:
            Misuse: There is none.
        """
        if not ranks:
            raise Misuse("ranks = []: give what each rank's tier has, rank 0 first")
        for number, one in enumerate(ranks):
            if not isinstance(one, Restored):
                raise Misuse(
                    f"ranks[{number}] = {one!r}: must be what `persistent.restored()` gave; where "
                    "a rank has no disk, nothing is restored on any"
                )
        shared = any(one.share != (0, 1) for one in ranks)
        found = _union(ranks) if shared else ranks[0]
        alike = np.ones(len(found), bool)
        others = [0] * len(ranks)
        for number, one in enumerate(ranks):
            first, step = one.share
            theirs = found.slots % step == first
            there, same = _compared(found, one)
            alike &= ~theirs | same
            others[number] = int((theirs & there & ~same).sum())
        if not shared:
            _say_lost(ranks, others, int(alike.sum()))
        rows = _once(found, np.flatnonzero(alike))[-MOST_ROWS:]
        return replace(found.take(rows), run=max(one.run for one in ranks), share=(0, 1))

    @staticmethod
    def joined(some: Sequence["Restored"]) -> "Restored":
        """Returns the rows of several, one after the other, as of the first.

        Args:
            some: One at least.
        """
        return replace(
            some[0],
            slots=np.concatenate([one.slots for one in some]),
            keys=np.concatenate([one.keys for one in some]),
            parents=np.concatenate([one.parents for one in some]),
            stamps=np.concatenate([one.stamps for one in some]),
            plans=np.concatenate([one.numbers() for one in some]),
        )


def _once(found: Restored, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Returns these rows, but of several with one key the one that was written last."""
    # Whole keys are sorted where a part of them says that there are such.
    heads = np.ascontiguousarray(found.keys[rows, :8]).view(np.uint64).ravel()
    order = np.argsort(heads)
    again = np.flatnonzero(heads[order[1:]] == heads[order[:-1]])
    several = np.zeros(len(rows), bool)
    several[order[again]] = several[order[again + 1]] = True
    some = rows[several]
    later = some[np.argsort(found.stamps[some], kind="stable")[::-1]]
    _, kept = np.unique(found.keys[later].view("V32"), return_index=True)
    return np.sort(np.concatenate([rows[~several], later[kept]]))


def _union(ranks: Sequence[Restored]) -> Restored:
    """Returns all rows of ranks that have slots of their own, those of each in its order."""
    joined = Restored.joined(ranks)
    places = np.concatenate([np.arange(len(one)) / max(1, len(one)) for one in ranks])
    _, once = np.unique(joined.slots, return_index=True)
    return joined.take(once[np.argsort(places[once], kind="stable")])


def _say_lost(ranks: Sequence[Restored], others: Sequence[int], alike: int) -> None:
    """Logs which ranks are why blocks that some have are not restored, where there are such."""
    has = np.zeros(max(int(one.slots.max(initial=0)) for one in ranks) + 1, bool)
    for one in ranks:
        has[one.slots] = True
    blocks = int(has.sum())
    if blocks == alike:
        return
    said = [
        f"rank {number} lacks {blocks - len(one)}"
        + (f" and has {other} of another plan than rank 0" if other else "")
        for number, (one, other) in enumerate(zip(ranks, others, strict=True))
        if other or len(one) < blocks
    ]
    _log.warning(
        "of %d blocks that ranks have from before, %d are not restored, as not all have them: %s",
        *(blocks, blocks - alike, "; ".join(said)),
    )


def _compared(found: Restored, other: Restored) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows of `found` another rank has in their slots; and which of them of the same plan."""
    if not len(other):
        none = np.zeros(len(found), bool)
        return none, none
    order = np.argsort(other.slots)
    place = np.searchsorted(other.slots, found.slots, sorter=order)
    row = order[np.minimum(place, len(order) - 1)]
    there = other.slots[row] == found.slots
    mine, theirs = found.numbers(), other.numbers()[row]
    written = np.where(mine | theirs > 0, mine == theirs, found.stamps == other.stamps[row])
    return there, there & written & (found.keys == other.keys[row]).all(axis=1)
