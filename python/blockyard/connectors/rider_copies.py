"""The copies of all groups beside the spine: planned in a step, and landed with their outcomes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Literal

import numpy as np

from blockyard._core import Keys, Misuse, Parked, Plan
from blockyard.connectors.group_keeps import GroupKeeps, HybridRow
from blockyard.connectors.loads import drop_unsent
from blockyard.connectors.orders import NO_IDS, Ids, Orders
from blockyard.connectors.riders import Held, Path, Rider
from blockyard.shared.groups import Groups
from blockyard.shared.layout import BELOW
from blockyard.shared.plan import Outcome
from blockyard.shared.validate import bounded, shown
from blockyard.yard.cache import KVCache
from blockyard.yard.dead_disks import Stripes, withdraw_dead
from blockyard.yard.presence import Presence

__all__ = ["RiderCopies", "outcomes_by_group"]


class RiderCopies:
    """Plans what riders copy, and adds it to the orders of the spine.

    Args:
        riders: The groups.
        keeps: What is kept of preempted requests.
    """

    def __init__(self, riders: Sequence[Rider], keeps: GroupKeeps) -> None:
        self._riders, self._keeps = riders, keeps
        self.is_due = False
        """Whether something has changed since the last step, so that the next may order copies."""
        self.has_offloads = False
        """Whether there is something to be offloaded that is not planned."""
        configs = [rider.cache.config for rider in riders]
        self._has_disk = any(one.disk_blocks or one.remote_blocks for one in configs)
        """Whether `dispatch` begins copies by itself."""
        self._looks_again = False
        """Whether it may begin some in the second step after the last ones have ended, too."""
        several = [sum(map(bool, map(one.cache.config.blocks_of, BELOW))) > 1 for one in riders]
        self._lowers = list(compress(riders, several))
        """Riders with a tier below the one to which blocks go first."""
        self._waits = False
        """Whether a load asks again in each step, as where a copy to its ids is late."""
        self._is_flying = False
        """Whether a flight that was ordered has not ended; one past its deadline has not."""
        self._is_landing = False
        """Whether a commit is under way, or was interrupted."""
        self._air: set[tuple[int, int]] = set()
        """Groups and flights that were ordered, and have not ended and are not late."""
        self._dead: dict[int, Stripes] = {}
        self._now = 0

    @property
    def is_busy(self) -> bool:
        """Whether copies are in the air, not past their deadline, or a step may order more."""
        return self.is_due or bool(self._air)

    def offload(self, path: Path, held: Sequence[Held]) -> None:
        """Offloads blocks of a request with the next call, of each rider. They are spare."""
        self.is_due = self.has_offloads = True
        for rider, own in zip(self._riders, held, strict=True):
            rider.add(path, own)

    def offload_at(self, row: HybridRow, found: Mapping[int, list[Held]], boundary: int) -> None:
        """Offloads with the next call what the engine has of riders at boundaries."""
        for length, held in found.items():
            if length % boundary == 0:
                row.add(length)
                self.offload(row.path, held)

    def plan_offloads(self) -> None:
        """Plans the copies of what is to be offloaded."""
        if self.has_offloads:
            for rider in self._riders:
                rider.offload()
            self.has_offloads = False

    @property
    def may_order(self) -> bool:
        """Whether a step may order copies of riders, or wait for some."""
        return self.is_due or self._is_flying or self._waits or self._has_disk

    def step(
        self, spine: Orders, kept: Iterable[Mapping[int, Parked]], ids: tuple[Ids, Ids, Ids]
    ) -> Orders:
        """Returns the orders of a step with the copies of all riders.

        Args:
            spine: The orders of the first group.
            kept: What each request that waits has kept, by group, the oldest first.
            ids: What `Connector.step` calls `written`, `overwritten` and `lent`.
        """
        plans: list[Plan] = []
        if self.is_due or self._waits or self._has_disk:
            plans = self._plan(kept)
        if plans:
            self._is_flying = True
        if not self._is_flying:
            return spine
        self._air.update((plan.group, plan.flight) for plan in plans)
        written, overwritten, lent = ids
        fence = spine.fence
        if fence is None and len(written):
            fences = (rider.cache.must_finish(written) for rider in self._riders)
            fence = next((one for one in fences if one is not None), None)
        up = [plan for plan in plans if plan.destination_tier == "device"]
        down = [plan for plan in plans if plan.destination_tier != "device"]
        return Orders(
            (*spine.down, *down),
            (*spine.up, *up),
            fence,
            NO_IDS if fence is None else np.array(written, np.int64),
            np.array(overwritten, np.int64) if len(overwritten) else NO_IDS,
            NO_IDS if fence is None or not len(lent) else np.array(lent, np.int64),
        )

    def _plan(self, kept: Iterable[Mapping[int, Parked]]) -> list[Plan]:
        plans: list[Plan] = []
        self.plan_offloads()
        for rider in self._riders:
            rider.tell()
            if rider.loads.is_waiting:
                rider.loads.ask_again()
        for rider in self._lowers:
            rider.parking.lower(parked[rider.number] for parked in kept if rider.number in parked)
        for rider in self._riders:
            rider.catch_up(self._now)
            plans += rider.cache.dispatch()
        # Only now: after an interrupt the next step plans what is left.
        self._waits = any(rider.loads.is_waiting for rider in self._riders)
        self.is_due, self._looks_again = self._looks_again, False
        return plans

    def touch(self, requests: Sequence[HybridRow]) -> None:
        """Marks as in use what riders have of requests that run."""
        for rider in self._riders:
            rows = [row for request in requests for row in request.touched(rider)]
            if rows:
                rider.cache.used(rows)

    def commit(self, outcomes: Mapping[int, list[Outcome]], now: int) -> None:
        """Takes outcomes, by group, at a tick."""
        self._now = now
        if not (outcomes or self._is_flying):
            return
        # After an interrupt all that may have ended is looked for.
        every, self._is_landing, self._is_flying = self._is_landing, True, True
        for rider in self._riders:
            own = outcomes.get(rider.number, [])
            if own or every or rider.cache.is_flying:
                try:
                    rider.cache.commit(own, now=now)
                except Misuse as error:
                    raise Misuse(f"{rider.name}: {error}") from None
                rider.now = now
                self._land(rider)
        self._is_flying = any(rider.cache.is_flying for rider in self._riders)
        self._is_landing = False

    def _land(self, rider: Rider) -> None:
        rider.landed |= rider.cache.ended()
        if rider.landed:
            self.is_due, self._looks_again = True, self._has_disk
            names = [(rider.number, flight) for flight in rider.landed]
            self._air.difference_update(names)
            self._keeps.land(names)
            rider.loads.land(rider.landed)
            # Only now: after an interrupt the next call lands the same once more.
            rider.landed = {}

    def clear(self) -> None:
        """Ends the epoch of all riders. Nothing is planned until `drop_unsent` is called."""
        for rider in self._riders:
            rider.drop()
            rider.cache.clear()

    def drop_unsent(self) -> None:
        """Ends what was planned before a clear and not ordered yet."""
        for rider in self._riders:
            if drop_unsent(rider.cache, self._now):
                self._land(rider)

    def forget(self, spine: KVCache, keys: Keys) -> None:
        """Forgets what riders have of some keys, and all whose spine's block is nowhere.

        Args:
            spine: The bookkeeping of the first group, which has forgotten them.
            keys: The keys.
        """
        named = np.frombuffer(bytes(keys), np.uint8).reshape(-1, 32)
        gone = named[spine.which(named) == Presence.MISSING]
        self.is_due = True
        for rider in self._riders:
            known = rider.cache.known_keys()
            alone = known[spine.which(known) == Presence.MISSING]
            every = np.concatenate([gone, alone])
            if len(every):
                # A keep without its spine's block is broken already.
                rider.cache.forget(keys=every, force=True)

    def withdraw(self, stripes: Stripes) -> None:
        """Takes the slots of dead disks out of use."""
        self.is_due = True
        for rider in self._riders:
            if rider.cache.config.disk_blocks:
                before = self._dead.get(rider.number, frozenset())
                self._dead[rider.number] = withdraw_dead(rider.cache, stripes, before)

    def reset(self, memory: Iterable[Literal["lost", "kept", "disk kept"]]) -> None:
        """Forgets what is planned and under way, as `Connector.reset`, each rider with a word."""
        for rider, word in zip(self._riders, memory, strict=True):
            rider.drop()
            rider.cache.dispatch()
            for rank in range(rider.cache.config.ranks):
                rider.cache.reset(rank, memory=word)
            self._land(rider)
        self._air.clear()
        self._is_flying = self._waits = False


def outcomes_by_group(
    outcomes: Iterable[Outcome], yards: Mapping[int, int], groups: Groups
) -> dict[int, list[Outcome]]:
    """Returns the outcomes of each group's flights.

    Args:
        outcomes: From workers.
        yards: The group of each yard.
        groups: The groups.

    Raises:
        Misuse: One names the yard of another group, or a group that is not there.
    """
    parts: dict[int, list[Outcome]] = {}
    if isinstance(outcomes, list) and not outcomes:
        return parts
    for outcome in bounded("outcomes", outcomes, "what `Worker.outcomes` returned"):
        if not isinstance(outcome, Outcome):
            raise Misuse(f"outcome = {shown(outcome)}: give what `Worker.outcomes` returned")
        group = yards.get(outcome.yard, outcome.group)
        if group != outcome.group or group >= len(groups):
            name = groups.name(group) if group < len(groups) else f"group {group}"
            raise Misuse(
                f"{outcome}: its yard is that of {name}, and its group is {outcome.group}: "
                "report each flight with the yard and group of its plan"
            )
        parts.setdefault(group, []).append(outcome)
    return parts
