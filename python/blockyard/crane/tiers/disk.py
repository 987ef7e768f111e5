"""Slot files on disks: blocks that outlive the process, a kill and a power cut."""

import os
import struct
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import numpy as np

from blockyard._core import DiskLane, DiskThreads, Misuse, Unavailable, Unsupported
from blockyard._typing import NDArray
from blockyard.crane.tiers.disk_paths import DiskPath, paths_of
from blockyard.crane.tiers.disk_stats import DISK_STATS
from blockyard.shared.layout import TIERS, KVLayout
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, owned
from blockyard.shared.plan import Plan
from blockyard.shared.restored import Restored
from blockyard.shared.single import Single
from blockyard.shared.validate import integer, known, one_of, shown

if TYPE_CHECKING:
    from pathlib import Path

    from blockyard.crane.tiers.reclaim import Wanted

__all__ = ["DiskPart", "DiskTier", "fields_of"]

_Place = tuple[int, int, int, tuple[int, ...], int | None, bool]


class Voider(Protocol):
    """What copies from and to a disk."""

    def void(self, keys: NDArray[np.uint8], spared: NDArray[np.uint8], before: int) -> object:
        """Has the disk void records; returns a receipt."""


Slots = NDArray[np.uint32]
_NAMED = ("model", "weights")
_SEQUENCE: Final = (1 << 32) - 1
_ILL: Final = ("hung", "down_rests", "up_rests", "dead", "clearing")
"""Counters of a lane whose disk may hang."""
_log = Limited("blockyard")


def _places_of(layout: KVLayout, disks: int) -> Iterable[_Place]:
    """Yields first, step, which disk, planes, the rank that writes or None, and if shared."""
    planes = range(len(layout.planes))
    shared = tuple(one for one in planes if layout.ranks > 1 and layout.planes[one].replicated)
    own = tuple(one for one in planes if one not in shared)
    if shared and layout.ranks > 1 << 16:
        raise Unsupported(f"{layout.ranks} ranks share planes: 65,536 at most")
    for disk in range(disks):
        if own:
            yield disk, disks, disk, own, None, False
        for rank in range(layout.ranks if shared else 0):
            yield rank + layout.ranks * disk, layout.ranks * disks, disk, shared, rank, True


def fields_of(layout: KVLayout, identity: Mapping[str, str]) -> dict[str, str]:
    """Returns what a rank's own planes on one disk depend on: the folder is named by it."""
    return {**identity, "blocks of": layout.fingerprint, "ranks": str(layout.ranks)}


@dataclass(frozen=True, slots=True)
class DiskPart:
    """Some planes of some slots, which lie in one folder."""

    lane: DiskLane
    planes: tuple[int, ...]
    """Which planes of the layout."""
    first: int
    step: int
    """It has the slots whose number is `first` modulo `step`."""
    owned: bool
    """Whether this rank writes it."""
    disk: int
    """Which of the paths it is on."""

    def rows(self, slots: Slots) -> NDArray[np.intp] | None:
        """Returns which of these slots it has; None for all."""
        return None if self.step == 1 else np.flatnonzero(slots % self.step == self.first)

    def local(self, slots: Slots) -> Slots:
        """Returns the numbers that slots of the tier have in its folder."""
        return slots if self.step == 1 else slots // np.uint32(self.step)


class _Files(NamedTuple):
    """Slot files of one path, before they are opened."""

    root: "Path"
    fields: list[tuple[str, str]]
    place: _Place
    slots: int
    block_bytes: int

    def open(self, rank: int, threads: Sequence[DiskThreads], more: Mapping[str, Any]) -> DiskPart:
        """Opens them as this rank."""
        first, step, number, planes, writer, _ = self.place
        owned = writer is None or writer == rank
        lane = DiskLane(
            self.root,
            self.fields,
            rank=rank if writer is None else writer,
            slots=self.slots,
            block_bytes=self.block_bytes,
            owned=owned,
            threads=threads[number],
            **more,
        )
        return DiskPart(lane, planes, first, step, owned, number)

    def wanted(self, ranks: int) -> Iterable["Wanted"]:
        """Yields what they still want, of each rank that writes them."""
        from blockyard.crane.tiers.reclaim import Wanted  # noqa: PLC0415 - only a full disk needs it

        writer = self.place[4]
        for rank in range(ranks) if writer is None else (writer,):
            folder, nbytes = DiskLane.lacking(
                self.root,
                self.fields,
                rank=rank,
                slots=self.slots,
                block_bytes=self.block_bytes,
            )
            yield Wanted(self.root, folder.parent, dict(self.fields), nbytes)


class DiskTier(Single):
    """The slots of one rank in folders, which this process owns until it ends.

    A block is served only where its record says that it is what was asked for, and its checksum
    agrees; it counts as written when it is durable. The folder's name follows from `identity` and
    the layout, and stands in it in clear text: what differs in any of it never meets.

    With several paths, slots are spread over them evenly, and each has threads of its own. Planes
    that ranks share are written once, by the rank whose number is the slot modulo the ranks, and
    read by all; `path` is the same folder for all of them then.

    Args:
        layout: What a block is.
        path: The folder of all identities, best on a disk of its own; or several, on a disk each.
            It and all in it are for their owner alone. Bytes are not encrypted there.
        blocks: Slots, 1 or more. Their room is taken at once.
        identity: What the bytes depend on beside the layout, as `Config.namespace`: it names
            `model` and `weights` at least, and a path stands for the content of weights there.
        rank: The rank.
        name: Its level, "host" or "disk".
        direct: Whether the system's page cache is passed by, where it can be.
        threads: Threads that read, and as many that write, for each path; or the threads of each
            path, as another tier has them (`threads`): groups of layers share them.
        group: The number of the group of layers, which each record names; `identity` names it too.
        reclaim: Whether other identities under the same paths are removed where there is no room:
            those that no process owns, the one that was used last longest ago first, and only as
            many as all ranks need. If all of them are not enough, none is.

    Raises:
        Misuse: A value is out of range, or `identity` does not name model and weights; or another
            version has written the folder.
        Unavailable: There is no room, and the error says whose may be had; another process owns the
            folder, or the system refuses; or there are no weights at a path.
    """

    SCHEMA = DISK_STATS
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        layout: KVLayout,
        path: DiskPath,
        *,
        blocks: int,
        identity: Mapping[str, str | os.PathLike[str]],
        rank: int = 0,
        name: str = "disk",
        direct: bool = True,
        threads: int | Sequence[DiskThreads] = 4,
        group: int = 0,
        reclaim: bool = False,
    ) -> None:
        self.name = known("name", name, TIERS[1:])
        self.layout = layout
        self.blocks = integer("blocks", blocks, most=(1 << 32) - 1)
        self.rank = integer("rank", rank, least=0, most=layout.ranks - 1)
        self.nbytes = 0
        """Bytes of memory: staging alone, which is not counted."""
        missing = [field for field in _NAMED if not identity.get(field)]
        if missing:
            raise Misuse(
                f"namespace names no {missing[0]}: a disk outlives the process, and the next one "
                f"could read KV of other {missing[0].removesuffix('s')}s; "
                f'give namespace={{"{missing[0]}": …}}'
            )
        paths = paths_of(path)
        if self.blocks < len(paths):
            raise Misuse(f"blocks = {blocks}: fewer than the {len(paths)} paths; give one each")
        self._owner = Owner()
        self._count = 0
        self._named: dict[int, tuple[int, int]] = {}
        """First stamp and number of each plan that no copier has asked for, by its first slot."""
        self._floor = 0
        self.copier: Voider | None = None
        """What copies from and to it: its reports are for one."""
        self.parts: tuple[DiskPart, ...] = ()
        """Where its slots are: for each path this rank's own planes, and those that ranks share."""
        from blockyard.shared.weights import stated  # noqa: PLC0415 - most programs have no disk

        said = {name: str(stated(name, part)) for name, part in identity.items()}
        self.identity: Mapping[str, str] = MappingProxyType(said)
        """What the bytes depend on beside the layout: of a path its content."""
        one_of("reclaim", reclaim, (True, False))
        files = [*self._files(paths)]
        self.threads: Sequence[DiskThreads] = _threads(threads, len(paths))
        """The threads of each path."""
        more = {"direct": direct, "group": integer("group", group, least=0, most=(1 << 16) - 1)}
        by_itself: AbstractContextManager[None] = nullcontext()
        if reclaim:
            from blockyard.crane.tiers.reclaim import alone  # noqa: PLC0415 - few reclaim

            by_itself = alone(paths)
        with by_itself:
            self.parts = self._open(files, more, reclaim=reclaim)
        self._run = max((part.lane.run for part in self._owned()), default=1)
        try:
            self._count_as(self._run)
            # What one disk was cleared of, and another did not hear in time, is cleared on all.
            self._floor = max((part.lane.floor for part in self._owned()), default=0)
            for part in self._owned():
                if part.lane.floor < self._floor:
                    part.lane.clear(self._floor)
        except BaseException:
            self._close()
            raise

    def _files(self, paths: Sequence["Path"]) -> Iterable["_Files"]:
        """Yields the slot files of each path: of this rank's planes, and of those all share."""
        layout, disks = self.layout, len(paths)
        fields = fields_of(layout, self.identity)
        for place in _places_of(layout, disks):
            first, step, number, planes, _, shared = place
            more = {"disk": f"{number} of {disks}"} if disks > 1 else {}
            if shared:
                more["planes"] = "which ranks share"
            slots = -(-(self.blocks - first) // step) if first < self.blocks else 1
            nbytes = sum(layout.planes[plane].block_bytes for plane in planes)
            yield _Files(paths[number], sorted((fields | more).items()), place, slots, nbytes)

    def _open(
        self, files: Sequence["_Files"], more: Mapping[str, Any], *, reclaim: bool
    ) -> tuple[DiskPart, ...]:
        """Opens all slot files, or none."""
        made: list[DiskPart] = []
        full = None
        try:
            for file in files:
                try:
                    made.append(file.open(self.rank, self.threads, more))
                except Unavailable as error:
                    if not hasattr(error, "folder"):
                        raise
                    # What else is wrong comes before the room, of which nothing is taken then.
                    full = full or error
            if full is None:
                return tuple(made)
        except BaseException:
            _abandon(made)
            raise
        _abandon(made)
        from blockyard.crane.tiers import reclaim as room  # noqa: PLC0415 - only a full disk needs it

        wants = [one for file in files for one in file.wanted(self.layout.ranks)]
        if not reclaim:
            raise room.no_room(full, wants) from None
        room.reclaim(full, wants)
        return self._open(files, more, reclaim=False)

    @property
    def path(self) -> "Path":
        """The first folder of this rank."""
        return self.parts[0].lane.path

    @property
    def folders(self) -> tuple["Path", ...]:
        """The folder of its identity on each of its disks, in the order of their paths."""
        return tuple(dict.fromkeys(part.lane.path.parent for part in self.parts))

    @property
    def run(self) -> int:
        """The number of this owner, higher than any earlier one."""
        return self._run

    @owned
    def count_as(self, run: int) -> None:
        """Counts as this owner, where that is a later one.

        It comes after `Restored.agreed`, with its `run`, and before the next plan: so stamps are
        alike on all ranks as long as each gets every plan.

        Args:
            run: The highest number of all ranks.

        Raises:
            Unavailable: A disk refuses.
        """
        self._count_as(run)

    def _count_as(self, run: int) -> None:
        run = max(self._run, integer("run", run, least=0, most=_SEQUENCE))
        for part in self._owned():
            part.lane.count_as(run)
        if run > self._run:
            self._run, self._count = run, 0

    @owned
    def stamps(self, blocks: int) -> NDArray[np.uint64]:
        """Returns stamps for blocks that are to be written now, in the order of their plan.

        Raises:
            Unavailable: A disk refuses to count on, which it is asked once in 2**32 blocks.
        """
        first = self._draw(blocks)
        return np.arange(first, first + blocks, dtype=np.uint64)

    @owned
    def submitted(self, plan: Plan) -> None:
        """Gives the blocks of a plan to it their stamps, and the number by which ranks know it.

        So they are those of the order of the plans, whenever its copier begins, and however many of
        the blocks it writes.
        """
        slot = int(plan.destinations[0])
        try:
            self._named[slot] = self._draw(len(plan)), _number(plan)
        except Unavailable:
            # Its copier asks once more, and that copy fails.
            self._named.pop(slot, None)

    @owned
    def stamps_of(self, slots: Slots) -> tuple[NDArray[np.uint64], int]:
        """Returns the stamps of the leading blocks of a plan, and its number.

        Plans that were not submitted get stamps now, and the number 0.

        Args:
            slots: Where they go, shape (blocks,).

        Raises:
            Unavailable: As in `stamps`.
        """
        named = self._named.pop(int(slots[0]), None) if len(slots) else None
        first, number = named or (self._draw(len(slots)), 0)
        return np.arange(first, first + len(slots), dtype=np.uint64), number

    def next_stamp(self) -> int:
        """Returns a stamp that is greater than those of all blocks that it was given so far."""
        return (self._run << 32) + self._count

    def void_last(self, keys: NDArray[np.uint8], spared: NDArray[np.uint8], before: int) -> None:
        """Voids records by its close, as `crane.voids.Voiding`, which waits for that.

        Args:
            keys: As there.
            spared: As there.
            before: As there.
        """
        for part in self._owned():
            part.lane.void_records(keys, spared, before)

    def void(self, keys: NDArray[np.uint8], spared: NDArray[np.uint8], before: int) -> object:
        """Voids records, as `crane.voids.Voiding`: its copier's receipt ends when this is durable.

        Args:
            keys: As there.
            spared: As there.
            before: As there.

        Raises:
            Misuse: No `DiskCopier` copies from and to it.
        """
        if self.copier is None:
            raise Misuse(f"{self.path} has no DiskCopier: it cannot forget blocks")
        return self.copier.void(keys, spared, before)

    def _draw(self, blocks: int) -> int:
        if self._count + blocks > _SEQUENCE:
            self._count_as(self._run + 1)
        first = (self._run << 32) + self._count
        self._count += blocks
        return first

    @owned
    def restored(self) -> Restored:
        """Returns what it has from before, for `Restored.agreed`: before the first plan of a yard.

        A key may come twice, in two slots. Where it has written since it was opened, for a yard
        before, the `run` of this is the next one: then all ranks count from there.

        Raises:
            Unavailable: A disk cannot be read.
        """
        layout = self.layout
        own = [one for one in self._owned() if not self._is_shared(one)]
        shared = [one for one in self._owned() if self._is_shared(one)]
        found = self._merged(own or shared)
        if own and shared:
            theirs = self._merged(shared)
            mine = found.slots % layout.ranks == self.rank
            stamps = dict(zip(theirs.slots.tolist(), theirs.stamps.tolist(), strict=True))
            same = [
                not is_mine or stamps.get(slot) == stamp
                for slot, stamp, is_mine in zip(
                    found.slots.tolist(), found.stamps.tolist(), mine.tolist(), strict=True
                )
            ]
            found = found.take(np.array(same, bool))
        if len(own or shared) > 1:
            found = found.take(found.stamps >= np.uint64(self._floor))
        run = self._run + (self._count > 0)
        return replace(found, run=run, share=(0, 1) if own else (self.rank, layout.ranks))

    @owned
    def clear(self, *, patience: float = 1.0) -> bool:
        """Clears all that was submitted so far.

        From now on nothing is reported as written before that is durable.

        Args:
            patience: Seconds that it waits for that.

        Returns:
            Whether it is durable, and no restart brings it back. Where not, as on a disk that
            hangs, it is tried on, and `stats` has `disk_clearing`.
        """
        floor = (self._run << 32) + self._count
        owned = list(self._owned())
        for part in owned:
            part.lane.clear(floor, patience=0.0)
        until = time.monotonic() + patience
        done = [
            part.lane.clear(floor, patience=max(0.0, until - time.monotonic())) for part in owned
        ]
        if not all(done):
            _log.warning(
                "%s: a clear is not durable after %s s; until then no block counts as written, and "
                "if this process is killed, the next one finds the blocks again. %s",
                *(self.path, patience, self.why()),
            )
        return all(done)

    @owned
    def forget(self) -> None:
        """Hides blocks written from now on from later restarts.

        It is for bytes that depend on what `identity` does not say, as on weights that were changed
        in place.
        """
        for part in self._owned():
            part.lane.forget()

    @owned
    def keep_order(self, slots: Slots) -> None:
        """Notes the eviction order for the next owner; `close` comes next.

        A disk that hangs, rests or has died is skipped: its stamps give the order.

        Args:
            slots: As `KVCache.eviction_order`, shape (blocks,).

        Raises:
            Unavailable: A disk refuses; the others have it.
        """
        refused = None
        for part in self._owned():
            stats = part.lane.stats()
            if any(stats[one] for one in _ILL):
                continue
            rows = part.rows(slots)
            try:
                part.lane.keep_order(part.local(slots if rows is None else slots[rows]))
            except Unavailable as error:
                refused = error
        if refused is not None:
            raise refused

    def stats(self) -> dict[str, int]:
        """Returns what its disks have done; `SCHEMA` has units and meanings. Any thread may ask."""
        every = [part.lane.stats() for part in self.parts]
        found = {
            stat.name: sum(one[stat.name.removeprefix("disk_")] for one in every)
            for stat in self.SCHEMA
        }
        # Several parts may lie on one disk.
        dead = {part.disk for part, one in zip(self.parts, every, strict=True) if one["dead"]}
        return found | {"disk_dead": len(dead)}

    def why(self) -> str:
        """Returns why disks have refused last; empty where none has. Any thread may ask."""
        return "; ".join(dict.fromkeys(why for part in self.parts if (why := part.lane.why())))

    def resting(self) -> list[tuple["Path", Literal["writes", "reads"]]]:
        """Returns which disks are left alone now, after failures, and with what."""
        found: list[tuple[Path, Literal["writes", "reads"]]] = []
        for part in self.parts:
            stats = part.lane.stats()
            if stats["down_rests"]:
                found.append((part.lane.path, "writes"))
            if stats["up_rests"]:
                found.append((part.lane.path, "reads"))
        return found

    def dead(self) -> frozenset[tuple[int, int]]:
        """Returns which slots are on disks that have died, of several: the first, and the step.

        A disk counts as dead when all writes have failed for a minute, or all reads where nothing
        was written. The last that works is none, and is tried for ever. Any thread may ask.
        """
        disks = {part.disk for part in self.parts}
        gone = {part.disk for part in self.parts if part.lane.stats()["dead"]}
        if gone == disks:
            return frozenset()
        return frozenset((part.first, part.step) for part in self.parts if part.disk in gone)

    @owned
    def close(self) -> None:
        """Ends the threads and closes the files; the next owner finds what counts as written.

        Where a thread hangs in the system, its files are closed when that ends.
        """
        self._close()

    def abandon(self) -> None:
        """Closes it, and gives back the room that it has taken.

        It is for a start that fails elsewhere, before anything is written.
        """
        _abandon(self.parts)

    def _close(self) -> None:
        for part in self.parts:
            part.lane.close()

    def _owned(self) -> Iterable[DiskPart]:
        return (part for part in self.parts if part.owned)

    def _is_shared(self, part: DiskPart) -> bool:
        return self.layout.ranks > 1 and self.layout.planes[part.planes[0]].replicated

    def _merged(self, parts: Sequence[DiskPart]) -> Restored:
        """Returns what some parts have, the next to be evicted first of each in turn."""
        found = []
        for part in parts:
            (slots, keys, parents, stamps), plans = part.lane.restored()
            slots = slots * np.uint32(part.step) + np.uint32(part.first)
            found.append(Restored(slots, keys, parents, stamps, plans=plans))
        if len(found) == 1:
            return found[0]
        # Orders of several disks are merged as if each had as much of the time.
        places = [np.arange(len(one)) / max(1, len(one)) for one in found]
        order = np.argsort(np.concatenate(places), kind="stable")
        return Restored.joined(found).take(order)


def _abandon(parts: Iterable[DiskPart]) -> None:
    for part in parts:
        part.lane.abandon()


def _threads(given: object, paths: int) -> list[DiskThreads]:
    """Returns the threads of each path."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        count = integer("threads", given)
        return [DiskThreads(count) for _ in range(paths)]
    if len(given) != paths or not all(isinstance(one, DiskThreads) for one in given):
        raise Misuse(f"threads = {shown(given)}: give those of a tier with as many paths: {paths}")
    return list(given)


def _number(plan: Plan) -> int:
    """Returns the number of a plan in records: what is in it alone, so that ranks have it alike."""
    return zlib.crc32(struct.pack("<QQ", plan.yard, plan.flight)) or 1
