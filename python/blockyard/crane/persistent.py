"""What of a crane's tiers outlives its process: it is found again, cleared, and closed."""

from collections.abc import Iterable

import numpy as np

from blockyard._core import Unavailable
from blockyard._typing import NDArray
from blockyard.crane.tiers import Forgetting, Persistent, Tier
from blockyard.shared.layout import TIERS, TierName
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, owned
from blockyard.shared.restored import Restored

__all__ = ["PersistentTiers"]

_log = Limited("blockyard")


class PersistentTiers:
    """Those tiers of one rank that outlive the process: a disk, or none.

    `restored`, `count_as`, `clear` and `keep_order` are for one thread at a time, as the crane's
    own verbs, and not during one of these.

    Args:
        tiers: All tiers of the rank.
        owner: The crane's; None for one of its own.
    """

    def __init__(self, tiers: Iterable[Tier], owner: Owner | None = None) -> None:
        every = list(tiers)
        self._tiers = [tier for tier in every if isinstance(tier, Persistent)]
        self._forgetting = [tier for tier in every if isinstance(tier, Forgetting)]
        self._owner = Owner() if owner is None else owner

    @property
    def name(self) -> TierName | None:
        """The name of the tier that outlives the process; None where none does."""
        names = {tier.name for tier in self._tiers}
        return next((name for name in TIERS if name in names), None)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder of the identity on each of its disks; empty where it has no disk."""
        return tuple(str(folder) for tier in self._tiers for folder in tier.folders)

    @owned
    def restored(self) -> Restored | None:
        """Returns what its disk has from before, for `Restored.agreed`; None where it has no disk.

        Each yard asks once, after `hello` and before its first plan.

        Raises:
            Unavailable: The disk cannot be read.
        """
        found = [tier.restored() for tier in self._tiers]
        return found[0] if found else None

    @owned
    def count_as(self, run: int) -> None:
        """Lets its disk count stamps from the `run` of `Restored.agreed` on, before the next plan.

        Args:
            run: The highest number of all ranks.

        Raises:
            Unavailable: The disk refuses.
        """
        for tier in self._tiers:
            tier.count_as(run)

    @owned
    def clear(self, *, forget: bool = False) -> bool:
        """Clears what its disk has of the plans that were submitted so far. Give it those before.

        Nothing counts as written from now on before that is durable, for which this waits for a
        second at most.

        Args:
            forget: Whether no restart is to find what is written from here on either, as where
                weights have changed under one name. Shared stores are left alone from then on.

        Returns:
            Whether no restart brings it back; it is tried on where not.
        """
        return self.clear_now(forget=forget)

    def clear_now(self, *, forget: bool = False) -> bool:
        """The same, for a verb that has the owner."""
        done = [tier.clear() for tier in self._tiers]
        if forget:
            for tier in self._forgetting:
                tier.forget()
        return all(done)

    def troubles(self) -> tuple[str, ...]:
        """Returns the disk's current failure, or "". Any thread may call it."""
        lines = [
            f"The disk at {path} takes no {what}: they failed, and it is tried again soon."
            for tier in self._tiers
            for path, what in tier.resting()
        ]
        stats = [tier.stats() for tier in self._tiers]
        hung = sum(one["disk_hung"] for one in stats)
        if hung:
            lines.append(f"{hung} writes hang in the system, and hold their slots of the disk.")
        dead = sum(one["disk_dead"] for one in stats)
        if dead:
            which = "1 disk has" if dead == 1 else f"{dead} disks have"
            lines.append(
                f"{which} failed at each try for a minute. Where others work, its slots are given "
                "out no more until the next start."
            )
        if any(one["disk_clearing"] for one in stats):
            lines.append("A clear is not durable on the disk yet: nothing counts as written there.")
        return tuple(lines)

    def dead(self) -> frozenset[tuple[int, int]]:
        """Returns which slots are on disks that have died, where others work.

        They are for `KVCache.withdraw`: of a first slot and a step `range(first, blocks, step)` is
        gone. It is worth asking when a copy has failed.
        """
        return frozenset().union(*(tier.dead() for tier in self._tiers))

    @owned
    def keep_order(self, slots: NDArray[np.uint32]) -> None:
        """Notes the eviction order of its disk for the next process, right before `close`.

        A disk that hangs, rests or has died is skipped: its stamps give the order.

        Args:
            slots: As `KVCache.eviction_order("disk")`.
        """
        self.keep_order_now(slots)

    def keep_order_now(self, slots: NDArray[np.uint32]) -> None:
        """The same, for a verb that has the owner."""
        for tier in self._tiers:
            try:
                tier.keep_order(slots)
            except Unavailable as error:
                _log.warning("the eviction order was not stored: %s", error)

    @property
    def busy(self) -> bool:
        """Whether copies from or to them have not ended."""
        return any(tier.stats()["disk_in_flight"] for tier in self._tiers)

    def stats(self) -> dict[str, int]:
        """Returns what they have done, by the names of `DiskTier.SCHEMA`. Any thread may ask."""
        found: dict[str, int] = {}
        for tier in self._tiers:
            found |= tier.stats()
        return found
