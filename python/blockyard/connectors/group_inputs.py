"""What an engine gives for several groups of layers, checked: caches, tables, states, lengths."""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from blockyard._core import Keys, Misuse
from blockyard.connectors.freed_blocks import check_ids
from blockyard.connectors.orders import Ids
from blockyard.connectors.riders import Held, Tables, Told
from blockyard.shared.groups import Groups, RecurrentState
from blockyard.shared.validate import bounded, integer, shown
from blockyard.yard.cache import KVCache

__all__ = ["GroupInputs", "check_caches"]


class GroupInputs:
    """Checks what is given for the blocks of one engine, and names the group where it is wrong.

    Args:
        groups: The groups.
        blocks: The engine's blocks.
        null: The id of its null block.

    Raises:
        Misuse: The engine has no such block.
    """

    def __init__(self, groups: Groups, blocks: int, null: int) -> None:
        self._groups, self._blocks = groups, blocks
        self.null = integer("null_block", null, least=0, most=blocks - 1)
        """The id of the null block."""

    def tables(self, tables: Tables, *, states: bool = False, most: int | None = None) -> list[Ids]:
        """Returns tables in the order of the groups, spine first; none if none were given.

        Args:
            tables: A table per group, in the engine's order.
            states: Whether tables of states are read, too.
            most: Blocks of each table that are read; None for all.

        Raises:
            Misuse: There is not one for each group, or their lengths differ; an id is out of range,
                or comes twice in a group; or the spine's has the null block.
        """
        listed = self.listed(tables)
        self.check(listed, states=states, most=most)
        return listed

    def check(
        self,
        listed: list[Ids],
        firsts: Sequence[int] = (),
        *,
        states: bool = False,
        most: int | None = None,
    ) -> None:
        """Checks tables as far as they are read, and cuts them off behind that.

        Args:
            listed: The tables, from `listed`.
            firsts: For each group the first block that is read; none where that is block 0.
            states: As in `tables`; so is `most`.
            most: Likewise.

        Raises:
            Misuse: As in `tables`, of what is read.
        """
        groups, null = self._groups, self.null
        length = len(listed[0]) if listed else 0
        for number, whole in enumerate(listed):
            if isinstance(groups[number], RecurrentState) and not states:
                continue
            if len(whole) != length:
                raise Misuse(
                    f"table of {groups.name(number)} = {len(whole)} blocks, and {length} of "
                    f"{groups.name(0)}: give tables of equal length, with the null block {null} "
                    "for what a group does not hold"
                )
            table = whole[firsts[number] :] if firsts else whole
            try:
                check_ids(table, self._blocks)
            except Misuse as error:
                raise Misuse(f"table of {groups.name(number)}: {error}") from None
            if most is not None:
                table = listed[number] = whole[:most]
            held = [one for one in table if one != null]
            if number == 0 and len(held) < len(table):
                raise Misuse(
                    f"table of {groups.name(0)}: it has the null block {null}, and the group holds "
                    "every block; give the id of each"
                )
            if len(set(held)) < len(held):
                twice = next(one for one in held if held.count(one) > 1)
                raise Misuse(
                    f"table of {groups.name(number)}: block id {twice} is listed twice; give each "
                    "id once"
                )

    def listed(self, tables: Tables) -> list[Ids]:
        """Returns tables in the order of the groups, spine first, unread.

        Raises:
            Misuse: There is not one for each group, or one is no list.
        """
        groups = self._groups
        if not _has_length(tables):
            raise Misuse(f"tables = {shown(tables)}: give a list with a table for each group")
        if len(tables) not in {0, len(groups)}:
            raise Misuse(
                f"{len(tables)} tables for {len(groups)} groups: give a table for each group"
            )
        listed = [tables[number] for number in groups.numbers] if len(tables) else []
        for number, table in enumerate(listed):
            if not _has_length(table):
                raise Misuse(
                    f"table of {groups.name(number)} = {shown(table)}: give the ids of its blocks, "
                    "shape (blocks,)"
                )
        return listed

    def read_once(self, spine: Ids, riders: Iterable[Sequence[Held]]) -> None:
        """Refuses a block that would be read for two groups: it has the KV of one.

        Args:
            spine: The engine's ids of the spine's blocks.
            riders: What would be read of each rider, at each of some lengths.

        Raises:
            Misuse: There is one; the message names both groups.
        """
        groups: dict[int, int] = {}
        for held in riders:
            for group, own in enumerate(held, 1):
                for _, id_ in own:
                    other = groups.setdefault(id_, group)
                    if other != group:
                        self._refuse_two(id_, other, group)
        if groups and not groups.keys().isdisjoint(spine):
            twice = next(one for one in spine if one in groups)
            self._refuse_two(twice, 0, groups[twice])

    def _refuse_two(self, id_: int, one: int, other: int) -> NoReturn:
        raise Misuse(
            f"tables: block id {id_} is read for {self._groups.name(one)} and for "
            f"{self._groups.name(other)}: a block has the KV of one group; give each group ids of "
            "its own"
        )

    def tokens(self, tokens: int, keys: Keys, tables: Sequence[Ids]) -> None:
        """Refuses more computed tokens of a request than it has, or than its tables have.

        Args:
            tokens: Tokens that are computed.
            keys: The keys of the request.
            tables: A table per group.

        Raises:
            Misuse: There are more.
        """
        blocks = len(tables[0]) if tables else 0
        if tokens > blocks * self._groups.block_size:
            raise Misuse(f"tokens = {tokens:,} in tables of {blocks} blocks: give all its blocks")
        if tokens > keys.tokens:
            raise Misuse(
                f"tokens = {tokens:,}, and the keys are of {keys.tokens:,}: give the keys of all "
                "tokens of the request"
            )

    def checkpoints(self, at: Iterable[int], tokens: int) -> list[int]:
        """Returns the lengths at which riders are to be offloaded.

        Args:
            at: The lengths, in tokens.
            tokens: Tokens that are computed, in full blocks.

        Raises:
            Misuse: One is no boundary, or beyond what is computed.
        """
        given: list[Any] = bounded("at", at, "a list of lengths in tokens, like at=[64]")
        lengths = [self._groups.checkpoint(length) for length in given]
        for length in lengths:
            if length > tokens:
                raise Misuse(
                    f"checkpoint = {length:,}: the tables have {tokens:,} computed tokens in full "
                    "blocks; give it when they are computed"
                )
        return lengths

    def states(self, states: Iterable[tuple[int, int, int]], running: int = 0) -> Told:
        """Returns the id of each state that the engine names, by group and length in tokens.

        Args:
            states: For each state the engine's number of its group, the id of its block, and its
                length.
            running: Tokens that a request has computed, whose state need not be at a boundary.

        Raises:
            Misuse: A group has no states, or none at such a length; or an id is out of range, or
                that of the null block.
        """
        groups = self._groups
        told: dict[int, dict[int, int]] = {
            group: {} for group, kind in enumerate(groups) if isinstance(kind, RecurrentState)
        }
        lengths: dict[tuple[int, int], int] = {}
        given: list[Any] = bounded("states", states, "a list of (group, block id, length)")
        for state in given:
            try:
                number, id_, length = state
            except (TypeError, ValueError):
                raise Misuse(f"states: {shown(state)}: give (group, block id, length)") from None
            number = integer("states: group", number, least=0)
            length = integer("states: length", length, least=0)
            group = groups.numbers.index(number) if number in groups.numbers else -1
            if group not in told:
                have = ", ".join(map(groups.name, told)) or "none"
                raise Misuse(f"states: group {number} has no states; these have: {have}")
            if length != running and not groups[group].resumes_at(length, groups.block_size):
                raise Misuse(
                    f"states: length = {length} of {groups.name(group)}: it has states at "
                    "boundaries alone, beside that of a preempted request's last token; name one "
                    "of these"
                )
            if running and length > running:
                raise Misuse(
                    f"states: length = {length:,} of {groups.name(group)}, and {running:,} tokens "
                    "are computed; name only states of these"
                )
            check_ids([id_], self._blocks)
            if id_ == self.null:
                raise Misuse(
                    f"states: block id {id_} of {groups.name(group)} at length {length:,} is the "
                    "null block, which holds no state; name only states that the engine has"
                )
            is_other = told[group].setdefault(length, int(id_)) != id_
            if is_other or lengths.setdefault((group, int(id_)), length) != length:
                raise Misuse(
                    f"states: block id {id_} of {groups.name(group)} at length {length}, beside "
                    f"{told[group]}: name one block for each length"
                )
        return told


def _has_length(given: object) -> bool:
    """Whether it is a list or an array; an array of no dimension is none."""
    return given.ndim > 0 if isinstance(given, np.ndarray) else isinstance(given, Sequence)


def check_caches(caches: Sequence[KVCache], groups: Groups) -> None:
    """Checks that each cache is one for its group.

    Raises:
        Misuse: One is not; the message names its group.
    """
    if not isinstance(groups, Groups):
        raise Misuse(f"groups = {shown(groups)}: give Groups([Full(…), SlidingWindow(…)])")
    given: object = caches
    if not isinstance(given, Sequence) or not all(isinstance(one, KVCache) for one in given):
        raise Misuse(
            f"caches = {shown(caches)}: give a KVCache for each group, like "
            "[KVCache(config) for config in GroupConfigs(…)]"
        )
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
