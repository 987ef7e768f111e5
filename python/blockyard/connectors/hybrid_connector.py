"""The scheduler's half for an engine with its own blocks and several groups of layers.

The first group of full attention, the *spine*, has a `Connector`; every other group, a *rider*, has
a yard of its own, in which a block has the key of the spine's block that ends where it ends. What a
request finds, loads and keeps is agreed between all of them. The calls of a step are those of
`Connector`, with a table per group in place of ids.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal

from blockyard._core import Forgotten, Keys, Misuse
from blockyard.connectors.agreement import Agreement
from blockyard.connectors.connector import Connector
from blockyard.connectors.freed_blocks import check_keys
from blockyard.connectors.group_inputs import GroupInputs, check_caches
from blockyard.connectors.group_keeps import GroupKeeps, HybridRow, lengths_of
from blockyard.connectors.group_loads import GroupLoads
from blockyard.connectors.group_restart import FoundGroups, Settle, restore_groups
from blockyard.connectors.hybrid_rows import HybridRows
from blockyard.connectors.loads import Loads
from blockyard.connectors.orders import Ids, Orders
from blockyard.connectors.rider_copies import RiderCopies, outcomes_by_group
from blockyard.connectors.riders import Held, Rider, States, Tables, Told
from blockyard.shared.groups import Groups
from blockyard.shared.hints import NO_HINTS, Hints, Retention
from blockyard.shared.log import Limited
from blockyard.shared.plan import Outcome
from blockyard.shared.restored import Restored
from blockyard.shared.single import Single
from blockyard.shared.validate import integer
from blockyard.yard.asking import Asking, Lookup
from blockyard.yard.by_tier import check_memory
from blockyard.yard.cache import KVCache
from blockyard.yard.dead_disks import Stripes, stripes_of, withdraw_dead
from blockyard.yard.group_configs import rooms_of
from blockyard.yard.parking import Parking

__all__ = ["HybridConnector", "States", "Tables"]

_log = Limited(__name__, 0)


class HybridConnector(Single):
    """Finds, fetches, offloads and keeps for the requests of an engine with groups of layers.

    It is for one thread, the one that schedules. All that it decides follows from the calls.

    A *table* has the engine's ids of a request's blocks in one group, the null block for each that
    the group does not hold. Tables are given as a sequence in the engine's order of groups; all
    have the same length, and that of a recurrent state is read by `allocated` alone.

    Args:
        caches: The bookkeeping of each group, in the order of `groups`, spine first: made with the
            same `engine=` and `block_size`, their number as `group`, and `linked=False` behind the
            first.
        groups: The groups of layers.
        retries: As in `Connector`; so are `again`, which shortens a hit before it is agreed, and
            `lookup`, which is asked for all groups where the first one lacks a block.
        null_block: The engine's id of the block that holds nothing.

    Raises:
        Misuse: A value is out of range, or a cache does not fit its group, which is named.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        caches: Sequence[KVCache],
        groups: Groups,
        *,
        retries: int = 2,
        again: int = 0,
        null_block: int = 0,
        lookup: Lookup | None = None,
    ) -> None:
        check_caches(caches, groups)
        spine = caches[0]
        self.caches = tuple(caches)
        """The bookkeeping of each group, spine first."""
        self.groups = groups
        """The groups of layers."""
        self._spine = Connector(spine, retries=retries, again=again)
        self.asking = self._spine.asking = Asking(self.caches, lookup)
        """What asks shared stores."""
        self._size = spine.block_size
        self._inputs = GroupInputs(groups, spine.config.device_blocks, null_block)
        self._null = self._inputs.null
        kinds = {kind: kind for kind in groups}
        self._riders = [
            Rider(
                number,
                groups.name(number),
                kinds[groups[number]],  # those that are alike are one object
                cache,
                Loads(cache, retries),
                Parking(cache, cache.config),
            )
            for number, cache in enumerate(self.caches)
            if number
        ]
        self._yards = {cache.unreported(0).yard: group for group, cache in enumerate(self.caches)}
        self._agreement = Agreement(spine, self._riders, groups, again)
        self._keeps = GroupKeeps(self._spine, self._riders, self._null)
        self._copies = RiderCopies(self._riders, self._keeps)
        self._rows = HybridRows(self._keeps, self._size)
        self._loads = GroupLoads(self._spine, self._riders, self.caches)
        self._arrived: dict[Hashable, int] = {}
        self._now = 0
        self._kv_lost = 0
        self._cuts = [0] * len(self.caches)
        self._dead: Stripes = frozenset()
        _log.info("%s", "; ".join(rooms_of(groups, [cache.config for cache in caches])))

    def restore(
        self, ranks: Iterable[Mapping[int, Restored]], *, settle: Settle | None = None
    ) -> FoundGroups:
        """Finds again what the disks of all groups have from before: once, and before all else.

        Each group is found by itself: one of which nothing is found costs hits, which the log says.
        With several ranks, `Worker.count_as` comes next in each.

        Args:
            ranks: What `Worker.restored` returned in each rank, rank 0 first.
            settle: Chooses or orders what is restored of a group, which it is given by the number
                of its cache; None to restore all that the ranks agree on.

        Returns:
            How many blocks of each group, by the engine's number; and the run for `count_as`.

        Raises:
            Misuse: A rank, or a group of one, is missing; or there are blocks already.
        """
        return restore_groups(self.caches, self.groups, ranks, settle)

    def stats(self) -> dict[str, int]:
        """Returns the counters of `Connector.SCHEMA`, for all groups together."""
        counts = self._spine.stats()
        counts["no_host"] += self._keeps.no_room
        counts["kv_lost"] += self._kv_lost
        return counts

    def hits_cut(self) -> dict[int, int]:
        """Returns for each rider, by the engine's number, how many hits it has shortened."""
        return {self.groups.numbers[group]: n for group, n in enumerate(self._cuts) if group}

    def group_caches(self) -> dict[int, KVCache]:
        """Returns the bookkeeping of each group, by the engine's number."""
        return dict(zip(self.groups.numbers, self.caches, strict=True))

    def added(self, request: Hashable, keys: Keys | None = None) -> None:
        """Hears that a request has come, as in `Connector`."""
        self._spine.added(request, keys)

    def matched(
        self, request: Hashable, keys: Keys, local: int = 0, *, prefix: bool = True
    ) -> int | None:
        """Tells how many tokens lie below in every group, behind the engine's own; ask at will.

        Args:
            request: Its id.
            keys: The keys of its full blocks. `keys.tokens` counts all its tokens, of which at
                least one is computed.
            local: Leading blocks that the engine has itself, in every group.
            prefix: Whether it may have what others have offloaded; if not, only what is kept of it.

        Returns:
            Tokens from block `local` on; 0 for none; None where some of them are in flight and
            none is missing: ask again in a later step.

        Raises:
            Misuse: The request is loading, or there are not so many blocks.
        """
        self._check(request)
        check_keys(keys)
        if self._copies.has_offloads:
            self._copies.plan_offloads()
        row = self._rows.get(request)
        if row is not None and row.keep is not None:
            self.caches[0].find(keys, local)  # It refuses what does not fit, before anything ends.
            if not self._keeps.is_whole(request, row.keep, keys.tokens):
                # G8: what loses a block in any group is of no use in the others.
                self._kv_lost += 1
                self._spine.abandon(request)
                self._rows.abandon(row)
        found, local = self._spine.matched(request, keys, local, prefix=prefix), int(local)
        if row is None or row.path.keys is not keys:
            row = self._rows.of(request, keys)
        row.cut, row.junction, row.first, row.matched = None, 0, local, 0
        keep = row.keep
        if keep is not None and local * self._size < keep.tokens:
            if found and keep.air:
                return None
            row.matched = found or 0
            return found
        if found == 0 or not prefix:
            return 0
        blocks, waits, row.cut, _, far = self._agreement.of(keys, local, found)
        if row.cut is not None:
            row.junction = self.groups.last_boundary(far * self._size)
        if waits or (found is None and self.asking.is_out(request)):
            return None
        row.matched = (blocks - local) * self._size
        return row.matched

    def explain(self, keys: Keys, local: int = 0) -> str:
        """Explains how long a hit is, and which group ends it. It changes nothing.

        Args:
            keys: The keys of a request.
            local: Leading blocks that the engine has itself.

        Raises:
            Misuse: There are not so many blocks.
        """
        check_keys(keys)
        return self._agreement.explain(keys, local)

    def checkpoints(self, request: Hashable) -> list[int]:
        """Returns lengths at which riders are best offloaded when a request passes them.

        They are the last boundary below the end of its prompt, and the junction: where the spine
        went on when a rider ended the last hit. Others that begin alike then find these lengths.

        Args:
            request: Its id, after `matched`.

        Returns:
            Lengths in tokens, ascending, beyond what it has found.
        """
        row = self._rows.get(request)
        if row is None:
            return []
        lengths = {row.junction, self.groups.last_boundary(max(row.prompt - 1, 0))}
        return sorted(one for one in lengths if one > row.first * self._size + row.matched)

    def allocated(self, request: Hashable, tables: Tables = ()) -> None:
        """Begins a request that was `matched`: it runs, or its blocks come up first.

        Args:
            request: Its id.
            tables: For each group a table of the blocks that `matched` has counted, from block
                `local` on, shape (groups, blocks). Ids of blocks that the length does not need are
                not read. They are the request's until `arrived` names it, even if it ends before.
                Empty where nothing comes up: the request runs.

        Raises:
            Misuse: It was never matched, or is loading; or the tables have another length than was
                matched, lack a block that is needed, or have an id out of range or twice. The
                message names the group. Nothing is changed.
        """
        self._check(request)
        row = self._rows.get(request)
        if row is None:
            raise Misuse(f"request {request!r} was not matched: call `matched` first")
        listed = self._inputs.tables(tables, states=True)
        if not listed or not len(listed[0]):
            self._count(row)
            self._spine.allocated(request)
            self._rows.run(request, row)
            return
        blocks = -(-row.matched // self._size)
        if len(listed[0]) != blocks:
            raise Misuse(
                f"tables of {len(listed[0])} blocks for request {request!r}, and {blocks} were "
                "matched: all groups have agreed to that length; give a table of so many, or none"
            )
        length = row.first * self._size + row.matched
        keep = row.keep
        kept = keep.parts() if keep is not None and keep.tokens == length else None
        load = self._loads.make(row.path, row.first, length, kept, listed, self._null)
        self._count(row)
        self._copies.plan_offloads()
        self._spine.plan_offloads()
        self._spine.overwrites(load.ids())
        self._copies.is_due = True
        self._loads.begin(request, load)

    def arrived(self) -> dict[Hashable, int]:
        """Returns whose loads have ended since the last call, and the tokens that each has now.

        A load ends with the last copy of the last group. It has come whole, or it is of no use:
        the request then has the tokens of the engine's own blocks, and is offered no other load
        before it has run. One that has ended meanwhile is named too: its ids are free.
        """
        self._collect()
        arrived, self._arrived = self._arrived, {}
        return arrived

    def _collect(self) -> None:
        """Takes the loads that have ended."""
        for request, load in self._loads.ended():
            self._arrived[request] = load.tokens(self._size)
            row = self._rows.get(request)
            if row is None:
                continue
            if load.is_whole:
                row.add(load.length)
            else:
                self._spine.failed(request)
                self._kv_lost += load.resumes and load.has_spine
            self._rows.run(request, row)
        self._loads.take()

    def _count(self, row: HybridRow) -> None:
        """Counts a hit that a group has ended, once."""
        if row.cut is not None:
            self._cuts[row.cut] += 1
            row.cut = None

    def failed(self, request: Hashable) -> None:
        """Offers a request nothing before it has run, as `Connector.failed`."""
        self._spine.failed(request)

    def preempted(
        self, request: Hashable, keys: Keys, tables: Tables, tokens: int, states: States = ()
    ) -> bool:
        """Keeps what a request needs to go on, in every group or in none.

        It is kept at its token; where a group has states, at the longest length of which the engine
        has all states, or they are below. Its ids may be given to others at once. Of a running
        state the engine names `tokens` as the length; it need not be a boundary.

        Args:
            request: Its id.
            keys: The keys of its full blocks; `keys.tokens` counts all its tokens.
            tables: A table per group of all its blocks, or more, shape (groups, blocks). A block
                that a group has given up is taken from below.
            tokens: Tokens whose KV is in them.
            states: The states that the engine has of it.

        Returns:
            Whether it is kept. If not, its full blocks are offloaded as far as they find room,
            with what riders need at the last boundary.

        Raises:
            Misuse: It is loading; or tables, keys, states and tokens do not fit each other.
        """
        self._check(request)
        check_keys(keys)
        tokens = integer("tokens", tokens, least=0)
        self.caches[0].find(keys, len(keys))  # It takes the keys of this cache's blocks alone.
        listed = self._inputs.tables(tables, most=-(-tokens // self._size))
        told = self._inputs.states(states, tokens)
        self._inputs.tokens(tokens, keys, listed)
        last = self._keeps.last(tokens, told, self.groups.boundary)
        known = self._rows.get(request)
        below: list[int] = []
        if known is not None:
            below = self.groups.boundaries({*known.lengths, known.first * self._size})
        lengths = self._keeps.lengths(tokens, keys, told, below)
        held = self._held(listed, told, last, *lengths) if tokens else {}
        self._copies.plan_offloads()
        self._copies.is_due = True
        row = self._rows.of(request, keys)
        self._rows.abandon(row)
        self._rows.stop(request)
        row.keep = self._keeps.keep(request, row.path, listed, tokens, told, below)
        if row.keep is not None:
            row.add(row.keep.tokens)
        elif last:
            self._copies.offload_at(row, {last: held[last]}, self.groups.boundary)
        return row.keep is not None

    def finished(  # noqa: PLR0913 - keywords
        self,
        request: Hashable,
        keys: Keys | None = None,
        tables: Tables = (),
        *,
        states: States = (),
        retention: Retention = "ordinary",
        next_use: float | None = None,
        priority: int | None = None,
        ttl: int | None = None,
        prompt: int | None = None,
        answer: int | None = None,
    ) -> bool:
        """Ends a request, and offloads for others its full blocks, and what its last length needs.

        Args:
            request: Its id.
            keys: The keys of its full blocks; None to offload nothing, as where it is aborted.
            tables: A table per group of those blocks whose KV is computed, shape (groups, blocks).
            states: The states that the engine has of it: each is offloaded, with what the other
                groups need there.
            retention: As in `Connector.finished`; so are the others.
            next_use: Likewise.
            priority: Likewise.
            ttl: Likewise.
            prompt: Likewise.
            answer: Likewise.

        Returns:
            Whether its load still writes to its ids: keep them until `arrived` names it. If not,
            they may be given to others at once.

        Raises:
            Misuse: A hint, a number or an id is out of range, or the tables do not fit each other.
        """
        hints = Hints.checked(retention, next_use, priority, ttl)
        listed, told = self._inputs.tables(tables), self._inputs.states(states)
        held: dict[int, list[Held]] = {}
        if keys is not None:
            check_keys(keys)
        if keys is not None and listed:
            tokens = min(len(listed[0]), len(keys)) * self._size
            last = self._keeps.last(tokens, told, self.groups.boundary)
            held = self._held(listed, told, last, *lengths_of(told, tokens))
        self._collect()
        ids = listed[0] if listed else ()
        writes = self._spine.finished(
            request, keys, ids, prompt=prompt, answer=answer, **hints.keywords
        )
        self._arrived.pop(request, None)  # Another request may have this id before it is asked for.
        row = self._rows.pop(request)
        if keys is not None and request not in self._loads.loading:
            row = self._rows.updated(row, keys)
            self._copies.offload_at(row, held, self.groups.boundary)
            for rider in self._riders:
                if hints != NO_HINTS or rider.learns:
                    rider.end(row.path, row.lengths, hints)
        writes = self._loads.end(request, writes=writes)
        if row is not None:
            self._rows.abandon(row)
        return writes

    def offload(  # noqa: PLR0913 - keywords
        self,
        request: Hashable,
        keys: Keys,
        tables: Tables,
        *,
        at: Iterable[int] = (),
        states: States = (),
        first: int = 0,
    ) -> None:
        """Offloads full blocks of a request that runs on, with the next step.

        Copies of riders are spare: where there is no room, they are left out.

        Args:
            request: Its id.
            keys: The keys of its full blocks.
            tables: A table per group of those whose KV is computed, shape (groups, blocks).
            at: The checkpoints: lengths in tokens at which the riders are offloaded, too. The
                blocks of each must be computed, and not written again before the next step.
            states: The engine's states of these lengths, and of others: these are checkpoints then.
            first: Leading blocks of the spine that were offloaded before; they are not read.

        Raises:
            Misuse: A checkpoint is no boundary, or beyond the tables; or as in `finished`.
        """
        check_keys(keys)
        first = integer("first", first, least=0)
        listed, told = self._inputs.listed(tables), self._inputs.states(states)
        tokens = min(len(listed[0]), len(keys)) * self._size if listed else 0
        lengths = [*self._inputs.checkpoints(at, tokens), *lengths_of(told, tokens)]
        if not listed:
            return
        self._inputs.check(listed, [first, *(one.first(lengths, first) for one in self._riders)])
        listed[0] = listed[0][first:]
        held = self._held(listed, told, *lengths)
        self._spine.offload(keys, listed[0], first)
        row = self._rows.updated(self._rows.get(request), keys)
        self._copies.offload_at(row, held, self.groups.boundary)

    def _held(self, tables: list[Ids], told: Told, *lengths: int) -> dict[int, list[Held]]:
        """Returns what the engine has of each rider at some lengths, by the length.

        Raises:
            Misuse: A block would be read for two groups.
        """
        riders = list(zip(self._riders, tables[1:], strict=True))
        found = {
            length: [rider.held(table, told, length, self._null) for rider, table in riders]
            for length in filter(None, lengths)
        }
        self._inputs.read_once(tables[0], found.values())
        return found

    def step(
        self, written: Ids = (), victims: Ids = (), overwritten: Ids = (), lent: Ids = ()
    ) -> Orders:
        """Returns the orders of this step for all groups, for the workers of all ranks.

        Args:
            written: As in `Connector.step`, the ids of all groups; so are the others.
            victims: Likewise; only the spine's blocks are copied ahead.
            overwritten: Likewise.
            lent: Likewise.

        Raises:
            Misuse: An id is out of range; no order is given.
        """
        if self._loads.is_waiting and self._loads.begin_postponed():
            self._copies.is_due = True
        if self._copies.has_offloads:
            # Before: what is refused here must not take the spine's orders along.
            self._copies.plan_offloads()
        orders = self._spine.step(written, victims, overwritten, lent)
        if touched := self._rows.turn():
            self._copies.touch(touched)
        if not self._copies.may_order:
            return orders
        kept = self._rows.waiting(self._loads.loading)
        return self._copies.step(orders, kept, (written, overwritten, lent))

    @property
    def is_busy(self) -> bool:
        """Whether copies are in the air, or a step may order more: an idle engine should go on."""
        return self._spine.is_busy or self._copies.is_busy or self._loads.is_waiting

    def commit(self, outcomes: Iterable[Outcome], *, now: int | None = None) -> None:
        """Takes what workers have reported, each outcome for its own group.

        Args:
            outcomes: From `Worker.outcomes`.
            now: The tick, for deadlines; None for one more than at the last call.

        Raises:
            Misuse: One is for another group's flight, or as in `KVCache.commit`; the message names
                the group. Commit the others again: twice is as once.
        """
        now = self._now + 1 if now is None else now
        parts = outcomes_by_group(outcomes, self._yards, self.groups)
        try:
            self._spine.commit(parts.get(0, ()), now=now)
        except Misuse as error:
            raise Misuse(f"{self.groups.name(0)}: {error}") from None
        self._now = now
        self._copies.commit(parts, now)

    def clear(self) -> None:
        """Ends an epoch in all groups, as `Connector.clear`; so `Worker.clear` comes next."""
        self._copies.clear()
        self._spine.clear()
        self._copies.drop_unsent()

    def forget(self, keys: Keys, *, force: bool = False) -> Forgotten:
        """Forgets the blocks of a prompt in all groups, as `Connector.forget`.

        Riders forget what has these keys, and all that stands on it: their blocks whose spine's
        block is nowhere any more.

        Args:
            keys: All keys of the prompt.
            force: Whether kept blocks of waiting requests go too, in all groups.

        Raises:
            Misuse: As in `KVCache.forget`; nothing is changed.
        """
        check_keys(keys)
        forgotten = self._spine.forget(keys, force=force)
        # What else is to be offloaded is under way in all groups then, and stays.
        self._spine.plan_offloads()
        self._copies.plan_offloads()
        self._copies.forget(self.caches[0], keys)
        for request, row in self._rows.items() if force else ():
            # A load that has not begun still reads what is kept: it ends with nothing.
            if request not in self._loads.loading and not self._spine.kept(request):
                self._rows.abandon(row)
        return forgotten

    def withdraw(self, dead: Iterable[tuple[int, int]]) -> None:
        """Takes the slots of disks that have died out of use, in all groups.

        Args:
            dead: All slots that any rank has found dead, as `PersistentTiers.dead`: each a first
                slot and a step.
        """
        stripes = stripes_of(dead)
        self._dead = withdraw_dead(self.caches[0], stripes, self._dead)
        self._copies.withdraw(stripes)

    def reset(self, *, memory: Literal["lost", "kept", "disk kept"] = "lost") -> None:
        """Forgets what runs and loads, as `Connector.reset`.

        Args:
            memory: Whether the lower tiers of all groups are "kept", "lost", or lost except the
                keyed disk. A group without one loses all then.

        Raises:
            Misuse: It is another word, or no group has a keyed disk; nothing is changed.
        """
        known = [cache.config.known_tiers for cache in self.caches]
        check_memory(memory, max(known))
        words = [memory if one or memory == "kept" else "lost" for one in known]
        self._spine.reset(memory=words[0])
        self._loads.reset()
        self._copies.reset(words[1:])
        self._arrived.clear()
        self._rows.reset()

    def _check(self, request: Hashable) -> None:
        if request in self._loads.loading:
            raise Misuse(f"request {request!r} is loading: wait until `arrived` names it")
