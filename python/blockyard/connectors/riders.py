"""The groups of layers behind the first one of full attention: what a length needs of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from blockyard._core import Keys, Misuse, Parked
from blockyard.connectors.freed_blocks import check_ids
from blockyard.connectors.loads import Loads
from blockyard.connectors.orders import Ids
from blockyard.shared.groups import Group, Groups, RecurrentState
from blockyard.shared.hints import Hints
from blockyard.shared.validate import shown
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

__all__ = [
    "Held",
    "Path",
    "Rider",
    "Tables",
    "Told",
    "check_caches",
    "check_tokens",
    "checked_tables",
    "told_states",
]

_KEY: Final = 32
"""Bytes of a key."""

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


def check_caches(caches: Sequence[KVCache], groups: Groups) -> None:
    """Checks that each cache is one for its group.

    Raises:
        Misuse: One is not; the message names its group.
    """
    if not isinstance(groups, Groups):
        raise Misuse(f"groups = {shown(groups)}: give Groups([Full(…), SlidingWindow(…)])")
    if len(caches) != len(groups):
        raise Misuse(f"{len(caches)} caches for {len(groups)} groups: give a cache for each group")
    first = caches[0].config
    yards: dict[int, str] = {}
    for number, cache in enumerate(caches):
        config, name = cache.config, groups.name(number)
        wanted = {
            "engine": first.device_blocks,
            "ranks": first.ranks,
            "block_size": groups.block_size,
            "linked": not number,
            "group": number,
        }
        given = {
            "engine": config.device_blocks if config.engine else 0,
            "ranks": config.ranks,
            "block_size": config.block_size,
            "linked": config.linked,
            "group": config.group,
        }
        for field_, value in wanted.items():
            if given[field_] != value:
                raise Misuse(
                    f"{field_} = {given[field_]} in the cache of {name}: must be {value}; make it "
                    f"with {field_}={value}"
                )
        yard = cache.unreported(0).yard
        other = yards.setdefault(yard, name)
        if other != name:
            raise Misuse(
                f"yard = {yard} in the caches of {other} and {name}: give each another "
                "number, or None"
            )


def checked_tables(  # noqa: PLR0913 - keywords
    tables: Tables,
    groups: Groups,
    blocks: int,
    null: int,
    *,
    states: bool = False,
    most: int | None = None,
) -> list[Ids]:
    """Returns tables in the order of `groups`, spine first; none if none were given.

    Args:
        tables: A table per group, in the engine's order.
        groups: The groups.
        blocks: The engine's blocks.
        null: The id of its null block.
        states: Whether tables of states are read, too.
        most: Blocks of each table that are read; None for all.

    Raises:
        Misuse: There is not one for each group, or their lengths differ; an id is out of range, or
            comes twice in a group; or the spine's has the null block.
    """
    if not len(tables):
        return []
    if len(tables) != len(groups):
        raise Misuse(f"{len(tables)} tables for {len(groups)} groups: give a table for each group")
    listed = [tables[number] for number in groups.numbers]
    length = len(listed[0])
    for number, table in enumerate(listed):
        if isinstance(groups[number], RecurrentState) and not states:
            continue
        if len(table) != length:
            raise Misuse(
                f"table of {groups.name(number)} = {len(table)} blocks, and {length} of "
                f"{groups.name(0)}: give tables of equal length, with the null block {null} for "
                "what a group does not hold"
            )
        try:
            check_ids(table, blocks)
        except Misuse as error:
            raise Misuse(f"table of {groups.name(number)}: {error}") from None
        table = listed[number] = table[:most]  # noqa: PLW2901 - what is read of it
        held = [one for one in table if one != null]
        if number == 0 and len(held) < len(table):
            raise Misuse(
                f"table of {groups.name(0)}: it has the null block {null}, and the group holds "
                "every block; give the id of each"
            )
        if len(set(held)) < len(held):
            twice = next(one for one in held if held.count(one) > 1)
            raise Misuse(
                f"table of {groups.name(number)}: block id {twice} is listed twice; give each id "
                "once"
            )
    return listed


def check_tokens(tokens: int, keys: Keys, tables: Sequence[Ids], size: int) -> None:
    """Refuses more computed tokens of a request than it has, or than its tables have.

    Args:
        tokens: Tokens that are computed.
        keys: The keys of the request.
        tables: A table per group.
        size: Tokens per block.

    Raises:
        Misuse: There are more.
    """
    blocks = len(tables[0]) if tables else 0
    if tokens > blocks * size:
        raise Misuse(f"tokens = {tokens:,} in tables of {blocks} blocks: give all its blocks")
    if tokens > keys.tokens:
        raise Misuse(
            f"tokens = {tokens:,}, and the keys are of {keys.tokens:,}: give the keys of all "
            "tokens of the request"
        )


def told_states(
    states: Iterable[tuple[int, int, int]], groups: Groups, blocks: int, null: int, running: int = 0
) -> dict[int, dict[int, int]]:
    """Returns the id of each state that the engine names, by group and length in tokens.

    Args:
        states: For each state the engine's number of its group, the id of its block, and its
            length.
        groups: The groups.
        blocks: The engine's blocks.
        null: The id of its null block.
        running: Tokens that a request has computed, whose state need not be at a boundary.

    Raises:
        Misuse: A group has no states, or none at such a length; or an id is out of range, or that
            of the null block.
    """
    told: dict[int, dict[int, int]] = {
        group: {} for group, kind in enumerate(groups) if isinstance(kind, RecurrentState)
    }
    for state in states:
        try:
            number, id_, length = state
        except (TypeError, ValueError):
            raise Misuse(f"states: {shown(state)}: give (group, block id, length)") from None
        group = groups.numbers.index(number) if number in groups.numbers else -1
        if group not in told:
            have = ", ".join(map(groups.name, told)) or "none"
            raise Misuse(f"states: group {number} has no states; these have: {have}")
        if length != running and not groups[group].resumes_at(length, groups.block_size):
            raise Misuse(
                f"states: length = {length} of {groups.name(group)}: it has states at boundaries "
                "alone, beside that of a preempted request's last token; name one of these"
            )
        if running and length > running:
            raise Misuse(
                f"states: length = {length:,} of {groups.name(group)}, and {running:,} tokens are "
                "computed; name only states of these"
            )
        check_ids([id_], blocks)
        if id_ == null:
            raise Misuse(
                f"states: block id {id_} of {groups.name(group)} at length {length:,} is the null "
                "block, which holds no state; name only states that the engine has"
            )
        if told[group].setdefault(int(length), int(id_)) != id_ or id_ in (
            other for at, other in told[group].items() if at != length
        ):
            raise Misuse(
                f"states: block id {id_} of {groups.name(group)} at length {length}, beside "
                f"{told[group]}: name one block for each length"
            )
    return told
