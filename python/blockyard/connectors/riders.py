"""The groups of layers behind the first one of full attention: what a length needs of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from blockyard._core import Keys, Parked
from blockyard.connectors.loads import Loads
from blockyard.connectors.orders import Ids
from blockyard.shared.groups import Group, RecurrentState
from blockyard.shared.hints import Hints
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

__all__ = ["Held", "Path", "Rider", "States", "Tables", "Told"]

_KEY: Final = 32
"""Bytes of a key."""

States: TypeAlias = Iterable[tuple[int, int, int]]
"""States that an engine has of a request: of each the engine's number of its group, the id of its
block, and the length in tokens that it is the state of."""
Tables: TypeAlias = Sequence[Ids]
"""A table of block ids for each group, in the engine's order, shape (groups, blocks)."""
Told: TypeAlias = Mapping[int, Mapping[int, int]]
"""The engine's id of each state of a request, by group and length."""
Held: TypeAlias = list[tuple[int, int]]
"""Blocks of a request that its engine has of one group: the block's number, and the engine's id."""


class Path:
    """The keys of a request, from which each group takes the blocks that a length needs.

    Args:
        keys: The keys of its full blocks.
        size: Tokens per block.
    """

    __slots__ = ("_raw", "keys", "size")

    def __init__(self, keys: Keys, size: int) -> None:
        self.keys = keys
        self.size = size
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The keys, 32 bytes each."""
        if self._raw is None:
            self._raw = bytes(self.keys)
        return self._raw

    def run(self, first: int, end: int) -> bytes:
        """Returns the keys of the blocks from `first` to before `end`."""
        return self.raw[_KEY * first : _KEY * end]

    def row(self, cache: KVCache, blocks: Iterable[int]) -> Keys:
        """Returns the keys of some blocks, for the verbs of a cache."""
        if isinstance(blocks, range):
            raw, count = self.run(blocks.start, blocks.stop), len(blocks)
        else:
            parts = [self.run(block, block + 1) for block in blocks]
            raw, count = b"".join(parts), len(parts)
        return cache.ready_keys(raw, count * self.size)


@dataclass(slots=True, eq=False)
class Rider:
    """A group beside the spine: its yard, and what is under way there."""

    number: int
    """Its number here; 0 is the spine."""
    name: str
    """What messages call it."""
    kind: Group
    cache: KVCache
    loads: Loads
    parking: Parking
    offloads: list[tuple[Keys, list[int], int]] = field(default_factory=list)
    """Rows to be offloaded with the next call."""
    ended: dict[Hints, list[Keys]] = field(default_factory=dict)
    """Rows of ended requests, by what is known of their future."""
    now: int = 0
    """The tick that its yard knows."""
    landed: dict[int, int] = field(default_factory=dict)
    """Flights that have ended and are not all taken yet, each with its good blocks."""

    @property
    def is_state(self) -> bool:
        """Whether its block at a length is a state, which the engine names."""
        return isinstance(self.kind, RecurrentState)

    def needs(self, length: int) -> range:
        """Returns the blocks that going on at a length reads.

        A running state, which is at no boundary, is in the last block that has tokens.
        """
        size = self.cache.block_size
        if self.is_state and not self.kind.resumes_at(length, size):
            last = (length - 1) // size
            return range(last, last + 1)
        return self.kind.needs(length, size)

    def first(self, lengths: Iterable[int], most: int) -> int:
        """Returns the first block that any of some lengths needs, at most the given one."""
        return min([most, *(needs.start for one in lengths if (needs := self.needs(one)))])

    def offload(self) -> None:
        """Offloads what there is to offload."""
        if self.offloads:
            rows, self.offloads = self.offloads, []
            keys, ids, firsts = zip(*rows, strict=True)
            self.cache.offload(list(keys), list(ids), list(firsts))

    def add(self, path: Path, held: Held) -> None:
        """Offloads blocks of a request with the next call. They are spare: room may end them."""
        if held:
            ids = [id_ for _, id_ in held]
            self.offloads.append((path.row(self.cache, (block for block, _ in held)), ids, 0))

    def held(self, table: Ids, told: Told, length: int, null: int) -> Held:
        """Returns what the engine has of the blocks that a length needs.

        Args:
            table: The engine's ids of the request's blocks; a state's is not read.
            told: The engine's id of each state of the request, by group and length.
            length: Tokens.
            null: The id of the null block, which holds nothing.
        """
        if self.is_state:
            state = told[self.number].get(length)
            return [] if state is None else [(block, state) for block in self.needs(length)]
        most = len(table)
        blocks = (block for block in self.needs(length) if block < most)
        return [(block, int(table[block])) for block in blocks if table[block] != null]

    def save(self, path: Path, held: Held, length: int) -> Parked | None:
        """Keeps what a length needs, from the engine's blocks or below.

        Args:
            path: The keys of the request.
            held: The engine's id of each of these blocks, as `whole` returns them.
            length: Tokens.

        Returns:
            What is kept; None if nothing is needed.

        Raises:
            NoRoom: There is no room below.
        """
        if not held:
            return None
        first = held[0][0]
        full = range(first, min(length // path.size, held[-1][0] + 1))
        ids = [id_ for _, id_ in held]
        row = path.row(self.cache, full)
        return self.cache.save_request(row, ids, length - first * path.size)

    def whole(self, path: Path, held: Held, length: int, spare: Ids) -> Held | None:
        """Completes what the engine has of the blocks that a length needs.

        Args:
            path: The keys of the request.
            held: What the engine has, as `held` returns it.
            length: Tokens.
            spare: For each block an id that stands for one that is below, and is not copied.

        Returns:
            All that the length needs; None if a block is nowhere.
        """
        needs = self.needs(length)
        if len(held) == len(needs):
            return held
        have = dict(held)
        full = length // path.size
        lacks = [block for block in needs if block not in have]
        if lacks[-1] >= full or lacks[-1] >= len(spare):
            return None
        below = self.cache.which(b"".join(path.run(block, block + 1) for block in lacks))
        if not below.all():
            return None
        have |= {block: int(spare[block]) for block in lacks}
        return [(block, have[block]) for block in needs]

    def rows(self, path: Path, lengths: Iterable[int]) -> list[Keys]:
        """Returns the keys of the full blocks that some lengths need, as one row or none."""
        full = len(path.keys)
        blocks = {block for length in lengths for block in self.needs(length) if block < full}
        return [path.row(self.cache, sorted(blocks))] if blocks else []

    @property
    def learns(self) -> bool:
        """Whether its eviction order learns from the end of requests."""
        return self.cache.config.eviction != "recency"

    def end(self, path: Path, lengths: Iterable[int], hints: Hints) -> None:
        """Notes that a request has ended, for `tell`."""
        rows = self.rows(path, lengths)
        if rows:
            self.ended.setdefault(hints, []).extend(rows)

    def tell(self) -> None:
        """Says which requests have ended, all that have said the same in one call."""
        ended, self.ended = self.ended, {}
        for hints, rows in ended.items():
            self.cache.used(rows, ended=True, **hints.keywords)

    def catch_up(self, now: int) -> None:
        """Tells its yard the tick, for the deadlines of what it begins."""
        if self.now != now:
            self.cache.commit([], now=now)
            self.now = now

    def drop(self) -> None:
        """Drops what was to be offloaded, and said of requests that have ended."""
        self.offloads.clear()
        self.ended.clear()
