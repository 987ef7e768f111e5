"""Loads of all groups of layers: whole, or of no use (G10)."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from blockyard._core import Keys, Misuse, Parked
from blockyard.connectors.connector import Connector
from blockyard.connectors.orders import Ids
from blockyard.connectors.riders import Path, Rider
from blockyard.yard.cache import KVCache

__all__ = ["GroupLoad", "GroupLoads"]


@dataclass(slots=True, eq=False)
class GroupLoad:
    """A load of a request in all groups."""

    first: int
    """Blocks that the engine had itself."""
    length: int
    """Tokens that the request has if all comes."""
    resumes: bool
    """Whether it brings what was kept of the request."""
    parts: dict[int, tuple[Keys | Parked, list[int], int]] = field(default_factory=dict)
    """What each group loads, to which ids, and its first block; until it has begun."""
    left: set[int] = field(default_factory=set)
    """Groups whose copies have not ended."""
    is_whole: bool = True
    """Whether all that has ended has come."""
    has_spine: bool = False
    """Whether all of the spine has."""

    def ids(self) -> list[int]:
        """Returns the engine's ids that all groups load to, before it has begun."""
        return [one for _, ids, _ in self.parts.values() for one in ids]

    def tokens(self, block_size: int) -> int:
        """Returns the tokens that the request has when it has ended."""
        return self.length if self.is_whole else self.first * block_size


class GroupLoads:
    """Loads of many requests, each of which ends with the last copy of the last group.

    Args:
        spine: The connector of the first group, which loads the spine's part.
        riders: The other groups.
        caches: The bookkeeping of all groups.
    """

    def __init__(
        self, spine: Connector, riders: Sequence[Rider], caches: Sequence[KVCache]
    ) -> None:
        self._spine, self._riders, self._caches = spine, riders, caches
        self.loading: dict[Hashable, GroupLoad] = {}
        """Loads that have not ended."""
        self._postponed: dict[Hashable, None] = {}
        """Those that wait until no group copies from or to their ids."""
        self._ended: dict[Hashable, GroupLoad] = {}
        self._arrived: dict[Hashable, int] = {}
        """Loads of the spine that have ended and are not taken yet, and the tokens of each."""

    @property
    def is_waiting(self) -> bool:
        """Whether `begin_postponed` has something to begin."""
        return bool(self._postponed)

    def make(  # noqa: PLR0913, PLR0917 - a request, and what it asks for
        self,
        path: Path,
        first: int,
        length: int,
        kept: Mapping[int, Parked] | None,
        tables: Sequence[Ids],
        null: int,
    ) -> GroupLoad:
        """Returns a load of what a length needs, behind the engine's own blocks.

        Args:
            path: The keys of the request.
            first: Blocks that the engine has itself.
            length: Tokens.
            kept: What each rider keeps of the request at this length; None to load what others
                have offloaded.
            tables: A table per group, spine first, from block `first` on.
            null: The engine's id of the null block.

        Raises:
            Misuse: A table lacks a block that is needed, or an id comes twice.
        """
        load = GroupLoad(first, length, kept is not None)
        load.parts[0] = path.keys, [int(one) for one in tables[0]], first
        for rider, table in zip(self._riders, tables[1:], strict=True):
            needs = rider.needs(length)
            behind = range(max(needs.start, first), needs.stop)
            if not behind:
                continue
            ids = [int(table[block - first]) for block in behind]
            if null in ids:
                block = behind[ids.index(null)]
                raise Misuse(
                    f"table of {rider.name}: block {block} is the null block, and going on at "
                    f"{length:,} tokens reads it; give the id that it is loaded to"
                )
            if kept is None:
                load.parts[rider.number] = path.row(rider.cache, behind), ids, 0
            else:
                load.parts[rider.number] = kept[rider.number], ids, behind.start - needs.start
        load.left = set(load.parts)
        every = load.ids()
        if len(set(every)) < len(every):
            twice = next(one for one in every if every.count(one) > 1)
            raise Misuse(f"tables: block id {twice} is listed twice; give each id once")
        return load

    def begin(self, request: Hashable, load: GroupLoad) -> None:
        """Begins a load now, or when no group copies from or to any of its ids any more."""
        # One that is interrupted goes on with the next step.
        self._postponed[request] = None
        self.loading[request] = load
        if self._ask(request, load):
            del self._postponed[request]

    def begin_postponed(self) -> bool:
        """Begins those whose ids are free of copies now; returns whether it has begun any."""
        begun = False
        for request in list(self._postponed):
            load = self.loading.get(request)  # None where `begin` was interrupted
            if load is None or self._ask(request, load):
                self._postponed.pop(request, None)
                begun = True
        return begun

    def _ask(self, request: Hashable, load: GroupLoad) -> bool:
        ids = load.ids()
        if any(cache.must_finish(ids) is not None for cache in self._caches):
            return False
        for rider in self._riders:
            if rider.number in load.parts:
                rider.loads.begin(request, *load.parts[rider.number])
                del load.parts[rider.number]
        if load.parts:
            self._spine.allocated(request, load.parts[0][1])
            load.parts.clear()
        return True

    def ended(self) -> list[tuple[Hashable, GroupLoad]]:
        """Returns the loads that have ended, until `take` is called."""
        self._arrived |= self._spine.arrived()
        if not self.loading:
            self._arrived.clear()
            return list(self._ended.items())
        for request, tokens in self._arrived.items():
            load = self.loading.get(request)
            if load is not None:
                load.has_spine = tokens == load.length
                self._end_part(request, load, 0, whole=load.has_spine)
        self._arrived.clear()
        for rider in self._riders:
            for request, part in rider.loads.done():
                load = self.loading.get(request)
                if load is not None:
                    whole = part.good == len(part.ids)
                    self._end_part(request, load, rider.number, whole=whole)
            rider.loads.take()
        return list(self._ended.items())

    def take(self) -> None:
        """Forgets the loads that `ended` has returned, when its caller has noted them."""
        self._ended.clear()

    def _end_part(self, request: Hashable, load: GroupLoad, group: int, *, whole: bool) -> None:
        load.is_whole &= whole
        load.left.discard(group)
        if not load.left:
            self._ended[request] = load
            del self.loading[request]

    def end(self, request: Hashable, *, writes: bool) -> bool:
        """Asks for no more of a load; returns whether some of it still writes to its ids.

        Args:
            request: Whose load it is.
            writes: Whether that of the spine does.
        """
        load = self.loading.get(request)
        if load is None:
            return False
        self._postponed.pop(request, None)
        if not writes:
            load.left.discard(0)
        load.left -= {rider.number for rider in self._riders if not rider.loads.end(request)}
        if not load.left:
            del self.loading[request]
        return bool(load.left)

    def reset(self) -> None:
        """Forgets all loads: their flights have ended."""
        self.loading.clear()
        self._postponed.clear()
        self._ended.clear()
        self._arrived.clear()
        for rider in self._riders:
            rider.loads.reset()
