"""A cache that checks its own answers."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from blockyard._core import HeldBlocks, Keys, Lease, NoRoom, Parked, TooLarge
from blockyard._typing import override
from blockyard.shared.layout import BELOW
from blockyard.testing.simulated_engine import check
from blockyard.yard.cache import KVCache

__all__ = ["CheckedCache"]


class CheckedCache(KVCache):
    """A `KVCache` that also checks and counts; a scheduler sees no difference."""

    _seen: Counter[str]
    _fenced: Callable[[], set[int]]
    _loads: list[tuple[Lease, int]]
    _parked: list[Parked]
    _holds: list[tuple[int, HeldBlocks]]
    _over: dict[int, int]

    def watch(self, seen: Counter[str], fenced: Callable[[], set[int]]) -> None:
        """Begins to check and count.

        Args:
            seen: Where it counts.
            fenced: Returns the slots that no request may be given now.
        """
        self._seen, self._fenced, self._loads, self._parked = seen, fenced, [], []
        self._holds, self._over = [], {}

    @override
    def begin(self, *what: Any, **named: Any) -> Any:  # noqa: ANN401 - as the parent has it
        """Checks the slots for writers, and that a refusal changes nothing (INV-6, T5)."""
        before = self.digest()
        try:
            lease = super().begin(*what, **named)
        except NoRoom as error:
            check(self.digest() == before, "T5: a begin that was refused has changed something")
            self._seen["T5"] += not isinstance(error, TooLarge)
            raise
        if isinstance(lease, Lease):
            # Only their numbers are looked at, also where copies into them are in flight.
            slots = self.block_tables([lease], loading="joined")[0].tolist()
            bad = self._fenced().intersection(slots)
            check(not bad, f"INV-6: a begin is given slots {sorted(bad)}, which may be written")
            if lease.state == "loading":
                self._loads.append((lease, lease.cached))
        return lease

    def hold_until(self, keys: Keys, tick: int) -> None:
        """Holds what of a prompt is on the device, until a tick (INV-36b)."""
        held = self.hold(keys)
        if held is None:
            return
        self._seen["held"] += 1
        self._holds.append((tick, held))
        for slot, number in zip(held.slots.tolist(), held.generations.tolist(), strict=True):
            check(number > self._over.get(slot, 0), f"INV-36b: {number} of slot {slot} is back")

    def end_holds(self, now: int) -> None:
        """Ends the holds whose time has come, and checks what the others say."""
        over = [held for tick, held in self._holds if tick <= now or not held.is_held]
        self._holds = [one for one in self._holds if one[1] not in over]
        held = {slot for _, one in self._holds for slot in one.slots.tolist()}
        if held:
            check(self.stats()["held_blocks"] >= len(held), "INV-36a: less is held than holds say")
        for one in over:
            self._seen["a hold ended by the yard"] += not one.is_held
            one.release()
            rows = zip(one.slots.tolist(), one.generations.tolist(), strict=True)
            self._over |= {slot: number for slot, number in rows if slot not in held}

    @property
    def holding(self) -> bool:
        """Whether a hold has not ended."""
        return bool(self._holds)

    @override
    def park(self, *what: Any, **named: Any) -> Parked:  # noqa: ANN401 - as the parent has it
        """Notes what is kept."""
        parked = super().park(*what, **named)
        self._parked.append(parked)
        return parked

    def check_kept(self) -> None:
        """Checks that each block that is kept has one home below, or is on the device (INV-34)."""
        self._parked = [parked for parked in self._parked if parked.state != "spent"]
        if not self._parked:
            return
        rows = {row[1]: row[2:] for row in self.holders() if row[0] == "parked"}
        for parked in self._parked:
            if parked.state != "kept":
                continue
            held, promised, _alone, below = rows[parked.id]
            check(below == parked.below, f"INV-34: {below} and {parked.below} blocks are kept")
            left = parked.blocks - sum(below)
            check(
                0 <= left <= parked.on_device,
                f"INV-34: of {parked.blocks} kept blocks {below} are at their homes, and only the "
                f"first {parked.on_device} are pinned on the device",
            )
            check(promised <= left, f"INV-23: {promised} slots are promised to {left} blocks")
            check(held == parked.on_device, f"{held} blocks are held, not {parked.on_device}")
            self._seen["kept on two tiers"] += sum(map(bool, below)) > 1
            for tier, blocks in zip(BELOW, below, strict=True):
                self._seen[f"kept on the {tier}"] += blocks > 0

    @override
    def grow(self, batch: Any, counts: Any = None) -> Any:  # noqa: ANN401 - as the parent has it
        """Counts the rows that find no room (T36)."""
        unserved = super().grow(batch, counts)
        if not isinstance(counts, int):
            # A grow by 0 replaces slots lost to a copy of unknown outcome.
            self._seen["T36"] += len(unserved)
        return unserved

    def landed(self) -> None:
        """Counts the loads that came back incomplete (T4)."""
        for entry in [entry for entry in self._loads if entry[0].state != "loading"]:
            self._loads.remove(entry)
            lease, cached = entry
            self._seen["T4"] += lease.state != "spent" and lease.cached < cached
