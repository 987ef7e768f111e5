"""The scheduler's half for an engine with its own block allocator. It depends on no engine.

The engine keeps its own allocator and prefix cache. The connector tells it what lies below, and
plans the copies; a `Worker` beside the model carries them out. In a step of the engine:

1. `commit` takes what the workers have reported, and `arrived` says whose loads have ended.
2. `matched` and `allocated` are asked for each request that is admitted; `preempted` is told of
   each that must give its blocks up, and `finished` of each that has ended, in any order.
3. `step` gives the orders of this step, and the worker takes them before anything is computed.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from blockyard._core import Forgotten, Keys, Misuse, NoRoom, Parked
from blockyard.connectors.connector_stats import CONNECTOR_STATS
from blockyard.connectors.freed_blocks import FreedBlocks, check_keys
from blockyard.connectors.loads import Loads, drop_unsent
from blockyard.connectors.orders import NO_IDS, NO_ORDERS, Ids, Orders
from blockyard.connectors.recorded_requests import RecordedRequests
from blockyard.connectors.uses import Uses
from blockyard.shared.hints import Hints, Retention
from blockyard.shared.plan import Outcome, Plan
from blockyard.shared.single import Single
from blockyard.shared.validate import integer
from blockyard.yard.asking import Asking, Lookup
from blockyard.yard.by_tier import check_memory
from blockyard.yard.cache import KVCache
from blockyard.yard.parking import Parking

__all__ = ["Connector"]

_KEY: Final = 32
"""Bytes of a key."""
_EVERY: Final = 4
"""Steps after which what can wait has its turn, so that most steps enter no core."""


@dataclass(slots=True, eq=False)
class _ConnectorRow:
    """A request."""

    keys: Keys
    first: int = 0
    """Blocks that the engine had itself when it asked last."""
    host: int = 0
    """Blocks that the host had behind these."""
    disk: int = 0
    """Blocks that the disk had behind those."""
    near: int | None = None
    """Of a prompt that loads, the blocks that no store has; None where it is counted."""
    has_begun: bool = False
    """Whether it has run, or loaded: its prompt is counted."""
    kept: Parked | None = None
    keeping: int | None = None
    """The flight that copies the kept blocks, until it has ended."""
    failed: bool = False
    """Whether its last load brought nothing: no other one is offered before it has run."""

    def beyond(self, tokens: int) -> Parked | None:
        """Returns its kept blocks, if they are more than these tokens."""
        return None if self.kept is None or self.kept.computed <= tokens else self.kept


class Connector(Single):
    """Finds, fetches, offloads and keeps for the requests of one engine, which has an id for each.

    It is for one thread, the one that schedules. All that it decides follows from the calls.

    Args:
        cache: The bookkeeping, made with `engine=`: the blocks that the engine gives out.
        retries: How often a load is tried again of which a copy has failed.
        again: Blocks at the end of what others have offloaded that are computed again: 1 where a
            block's KV depends on the token behind it, as a drafter's does.
        lookup: Asks shared stores for a request that has found a block missing; None to find there
            what this cache has the names of alone.

    Raises:
        Misuse: A value is out of range.
    """

    SCHEMA: Final = CONNECTOR_STATS
    """What each number in `stats` is."""

    def __init__(
        self, cache: KVCache, *, retries: int = 2, again: int = 0, lookup: Lookup | None = None
    ) -> None:
        self._counts = dict.fromkeys((stat.name for stat in self.SCHEMA), 0)
        self.cache = cache
        """The bookkeeping."""
        self._size = cache.block_size
        self._again = integer("again", again, least=0)
        self._loads = Loads(cache, integer("retries", retries, least=0))
        self._rows: dict[Hashable, _ConnectorRow] = {}
        self._parking = Parking(cache, cache.config)
        self._waiting: dict[_ConnectorRow, None] = {}  # kept and not loading, the oldest first
        self._keeping: dict[int, _ConnectorRow] = {}  # by the flight that copies what is kept
        self._offloads: list[tuple[Keys, Ids, int]] = []
        self._air: set[int] = set()
        """Flights that were ordered, and have not ended and are not late."""
        self._landed: dict[int, int] = {}
        """Flights that have ended and are not all taken yet, each with its good blocks."""
        self._is_due = False
        """Whether something has changed since the last step, so that the next may order copies."""
        self._has_disk = cache.config.disk_blocks > 0 or cache.config.remote_blocks > 0
        """Whether `dispatch` begins copies by itself."""
        self._looks_again = False
        """Whether it may begin some in the second step after the last ones have ended, too."""
        self._uses = Uses(cache)
        self.asking = Asking([cache], lookup)
        """What asks shared stores."""
        self._until_turn = 0
        """Steps until some of them are, and plans are asked for that nothing here has made."""
        self._now = 0
        self._freed = FreedBlocks(cache.config.device_blocks, self._size)
        self._arrivals = RecordedRequests(cache.recorder)

    def stats(self) -> dict[str, int]:
        """Returns counters; `SCHEMA` has units and meanings."""
        return dict(self._counts)

    def added(self, request: Hashable, keys: Keys | None = None) -> None:
        """Hears that a request has come, for the times of a recording; else `matched` does.

        Args:
            request: Its id.
            keys: Its keys, to ask shared stores for them now, and not only in `matched`.
        """
        self._arrivals.add(request)
        if keys is not None:
            self.asking.take(request, keys)

    def matched(
        self, request: Hashable, keys: Keys, local: int = 0, *, prefix: bool = True
    ) -> int | None:
        """Tells how many tokens lie below, behind the blocks that the engine has; ask at will.

        Args:
            request: Its id.
            keys: The keys of its full blocks, from `KVCache.keys` or `ready_keys`.
            local: Leading blocks that the engine has itself.
            prefix: Whether it may have what others have offloaded; if not, only what is kept of it.

        Returns:
            Tokens from block `local` on, which need not end with a block and may be all that the
            request has; 0 for none; None where they are in the air, or a store is being asked: ask
            again in a later step.

        Raises:
            Misuse: The request is loading, or there are not so many blocks.
        """
        self._check(request)
        check_keys(keys)
        self.plan_offloads()
        found = self.cache.find(keys, local)
        row = self._row(request, keys)
        self._arrivals.add(request, keys)
        row.first = int(local)
        if row.failed:
            return 0
        if row.kept is not None and row.kept.state == "broken":
            self._counts["kv_lost"] += 1
            self._release(row)
        kept = row.beyond(row.first * self._size)
        if kept is not None:
            in_the_air = row.keeping is not None and kept.state == "kept"
            return None if in_the_air else kept.computed - row.first * self._size
        if not prefix:
            return 0
        named = found.remote and self.asking.expects(request)
        if self.asking.is_on and (found.stop == "missing" or named):
            adopted = self.asking.take(request, keys)
            if adopted is None:
                return None
            if adopted:
                found = self.cache.find(keys, local)
        if found.stop == "filling":
            return None
        row.host, row.disk = found.host, found.disk
        return max(found.host + found.disk + found.remote - self._again, 0) * self._size

    def allocated(self, request: Hashable, ids: Ids = ()) -> None:
        """Begins a request that was `matched`: it runs, or its blocks come up first.

        Args:
            request: Its id.
            ids: The engine's ids of the blocks that `matched` has counted, or of the first of them,
                from block `local` on. They are the request's until `arrived` names it, even if it
                ends before. None where nothing comes up: the request runs.

        Raises:
            Misuse: It was never matched, or is loading; or an id is out of range, or comes twice.
        """
        self._check(request)
        row = self._rows.get(request)
        if row is None:
            raise Misuse(f"request {request!r} was not matched: call `matched` first")
        self._freed.check(ids)
        self.plan_offloads()
        if not row.has_begun:
            self._count(row, len(ids))
        if len(ids):
            kept = row.beyond(row.first * self._size)
            self._loads.begin(request, row.keys if kept is None else kept, ids, row.first)
            self._freed.forget(ids)
            self._waiting.pop(row, None)
            self._is_due = True
        else:
            self._run(request, row)
        self._arrivals.run(request)

    def arrived(self) -> dict[Hashable, int]:
        """Returns whose loads have ended since the last call, and the tokens that each has now.

        They count from its start: what the engine had, and what has come. Where copies failed they
        are fewer than was matched. One that has ended meanwhile is named too: its ids are free.
        """
        arrived: dict[Hashable, int] = {}
        for request, load in self._loads.done():
            row = self._rows.get(request)
            if row is not None:
                self._run(request, row)
                row.failed = not load.good
                if row.near is not None:
                    # Nothing that a store says is counted before it has come.
                    self._counts["cached_remote"] += max(load.good - row.near, 0) * self._size
                    row.near = None
                self._counts["kv_lost"] += load.is_incomplete(self._size)
            arrived[request] = load.tokens(self._size)
        self._loads.take()
        return arrived

    def preempted(self, request: Hashable, keys: Keys, ids: Ids, tokens: int) -> bool:
        """Keeps what a request has computed. Its ids may be given to others at once.

        Args:
            request: Its id.
            keys: The keys of its full blocks.
            ids: The engine's ids of its blocks, from the first on, or more.
            tokens: Tokens whose KV is in them.

        Returns:
            Whether all of it is kept. If not, for want of room below, its full blocks are
            offloaded as far as they find room, and may be evicted again.

        Raises:
            Misuse: It is loading; or ids, keys and tokens do not fit each other.
        """
        self._check(request)
        check_keys(keys)
        self._freed.check(ids)
        tokens = integer("tokens", tokens, least=0)
        self.plan_offloads()
        self._is_due = True
        kept: Parked | None = None
        try:
            if tokens:
                kept = self.cache.save_request(keys, ids[: -(-tokens // self._size)], tokens)
        except NoRoom:
            self._counts["no_host"] += 1
            self.cache.offload(keys, ids[: tokens // self._size])
        row = self._row(request, keys)
        self._release(row)
        self._uses.running.pop(request, None)
        row.failed, row.kept, row.has_begun = False, kept, True
        self._counts["preempted"] += 1
        if kept is not None:
            self._counts["kept"] += 1
            self._waiting[row] = None
        for plan in [] if kept is None else kept.plans:
            row.keeping = plan.flight
            self._keeping[plan.flight] = row
        return kept is not None

    def finished(  # noqa: PLR0913 - keywords
        self,
        request: Hashable,
        keys: Keys | None = None,
        ids: Ids = (),
        *,
        retention: Retention = "ordinary",
        next_use: float | None = None,
        priority: int | None = None,
        ttl: int | None = None,
        prompt: int | None = None,
        answer: int | None = None,
    ) -> bool:
        """Ends a request, and offloads its full blocks for others.

        What is known of its future holds for all of its blocks that lie below or come there now.

        Args:
            request: Its id. One that was never matched has nothing to give up.
            keys: The keys of its full blocks; None to offload nothing, as where it is aborted.
            ids: The engine's ids of those blocks whose KV is computed, from the first on.
            retention: As in `KVCache.finish`; so are the others.
            next_use: Seconds until they will be used again.
            priority: From 0 to 100, the last to be evicted.
            ttl: After so many ticks they go first.
            prompt: Tokens of its prompt, for a recording; None for those of the keys at the first
                `matched`.
            answer: Tokens of its answer, likewise; None for what the keys have more now.

        Returns:
            Whether its load still writes to its ids: keep them until `arrived` names it. If not,
            they may be given to others at once.

        Raises:
            Misuse: A hint, a number or an id is out of range, or as in `offload`; it has not ended.
        """
        hints = Hints.checked(retention, next_use, priority, ttl)
        offload = None if keys is None else self._offload_of(keys, ids, 0)
        self._arrivals.end(request, keys, prompt, answer)
        if keys is not None and offload is not None and request not in self._loads:
            self._freed.add(keys, ids)
            self._offloads.append(offload)
            self._uses.end(keys, hints)
        row = self._rows.pop(request, None)
        if row is not None:
            self._release(row)
        self._uses.running.pop(request, None)
        self.asking.end(request)
        self.asking.over(request)
        return self._loads.end(request)

    def offload(self, keys: Keys, ids: Ids, first: int = 0) -> None:
        """Offloads full blocks of a request that runs on, with the next step.

        Args:
            keys: The keys of its full blocks.
            ids: The engine's ids of those whose KV is computed, from block `first` on, or more.
            first: The block that the first id is for.

        Raises:
            Misuse: As in `KVCache.offload`. What others offload is as it was.
        """
        if (row := self._offload_of(keys, ids, first)) is not None:
            self._offloads.append(row)

    def _offload_of(self, keys: Keys, ids: Ids, first: int) -> tuple[Keys, Ids, int] | None:
        check_keys(keys)
        self.cache.find(keys, len(keys))  # It takes the keys of this cache's blocks alone.
        return self._freed.row(keys, ids, first)

    def step(
        self, written: Ids = (), victims: Ids = (), overwritten: Ids = (), lent: Ids = ()
    ) -> Orders:
        """Returns the orders of this step, for the workers of all ranks.

        Args:
            written: Ids in which tokens are computed from this step on, and were not before: those
                given out since the last step, of incomplete loads too. More do no harm.
            victims: Free blocks that the engine will give to others next, the next one first. What
                ended requests have left there, and is no longer below, is copied ahead of that.
            overwritten: Those of `written` that a worker writes before it has these orders. What is
                being copied from them ends before the first such block.
            lent: Those of `written` that somebody else's transfer fills from this step on, which
                waits for no stream of the engine: the workers' threads wait for what reads them.

        Raises:
            Misuse: An id is out of range; no order is given.
        """
        # As most steps have one of these at most, each is looked for here, without a call.
        if len(victims) or len(overwritten) or len(lent):
            self._freed.check(victims, overwritten, lent)
        if len(written):
            self._freed.forget(written)
        if self._offloads:
            self.plan_offloads()
        if self._loads.is_waiting:
            self._is_due = True
            self._loads.ask_again()
        if len(victims):
            self._copy_ahead(victims)
        if self._uses.ended:
            self._uses.tell()
        if self._until_turn:
            self._until_turn -= 1
        else:
            self._until_turn = _EVERY - 1
            self._is_due = True
            self._uses.touch()
        if self._waiting:
            self._lower()
        plans = self.cache.dispatch() if self._is_due or self._has_disk else []
        self._is_due, self._looks_again = self._looks_again, False
        if plans or len(overwritten) or self.cache.is_flying:
            return self._orders(plans, written, overwritten, lent)
        return NO_ORDERS

    def _orders(self, plans: list[Plan], written: Ids, overwritten: Ids, lent: Ids) -> Orders:
        """Returns the orders of a step that has plans, or in which copies are in flight."""
        fence = self.cache.must_finish(written) if len(written) else None
        up: list[Plan] = []
        down: list[Plan] = []
        for plan in plans:
            (up if plan.destination_tier == "device" else down).append(plan)
            self._air.add(plan.flight)
        ids = NO_IDS if fence is None else np.array(written, np.int64)
        early = np.array(overwritten, np.int64) if len(overwritten) else NO_IDS
        others = NO_IDS if fence is None or not len(lent) else np.array(lent, np.int64)
        return Orders(tuple(down), tuple(up), fence, ids, early, others)

    @property
    def is_busy(self) -> bool:
        """Whether copies are in the air, or a step may order more: an idle engine should go on.

        What has come to one tier may go on a step later. A flight counts until its deadline.
        """
        return self._is_due or bool(self._offloads) or bool(self._air)

    def commit(self, outcomes: Iterable[Outcome], *, now: int | None = None) -> None:
        """Takes what workers have reported: of all ranks the smallest count of good blocks holds.

        Args:
            outcomes: From `Worker.outcomes`.
            now: The tick, for deadlines; None for one more than at the last call.

        Raises:
            Misuse: As in `KVCache.commit`.
        """
        now = self._now + 1 if now is None else now
        self.cache.commit(list(outcomes), now=now)
        self._now = now
        self._land()

    def clear(self) -> None:
        """Ends an epoch, as after new weights: nothing computed before comes back, or is offloaded.

        With a disk, call `Worker.clear` next in each rank: a restart brings all back otherwise. The
        engine's own blocks are void too: those of requests that run on are offloaded under the same
        keys when they end. Preempt them first, and keep nothing of them.
        """
        self._offloads.clear()
        self._freed.clear()
        self.cache.clear()
        self._uses.ended.clear()
        if drop_unsent(self.cache, self._now):
            self._land()

    def forget(self, keys: Keys, *, force: bool = False) -> Forgotten:
        """Forgets the blocks of a prompt below, as `KVCache.forget`, with all that stands on them.

        What was to be offloaded of them never is. The engine's own blocks are the engine's to drop.
        What runs on offloads its blocks again when it ends: end it first, or call this once more.

        Args:
            keys: All keys of the prompt.
            force: Whether kept blocks of waiting requests go too: these are recomputed.

        Raises:
            Misuse: As in `KVCache.forget`; nothing is changed.
        """
        forgotten = self.cache.forget(keys=keys, force=force)
        named = bytes(keys)
        rows = {named[at : at + _KEY] for at in range(0, len(named), _KEY)}
        self._offloads = [offload for offload in self._offloads if not _has_any(offload[0], rows)]
        self._freed.forget_keys(keys)
        return forgotten

    def reset(self, *, memory: Literal["lost", "kept", "disk kept"] = "lost") -> None:
        """Forgets what runs and loads, after the engine was restarted and its blocks were lost.

        Call it when the workers of all ranks were reset or are gone. What is kept of requests that
        wait stays kept, as far as its copies have ended; all others must be matched again.

        Args:
            memory: Whether the lower tiers are "kept", "lost", or lost except the keyed disk.
        """
        check_memory(memory, self.cache.config.known_tiers)
        self.cache.dispatch()
        for rank in range(self.cache.config.ranks):
            self.cache.reset(rank, memory=memory)
        self._loads.reset()
        self._land()
        self._air.clear()
        self._offloads.clear()
        self._uses.ended.clear()
        self._freed.clear()
        self._uses.running.clear()
        self.asking.reset()
        self._rows = {name: row for name, row in self._rows.items() if row.kept is not None}
        self._waiting = dict.fromkeys(self._rows.values())

    def kept(self, request: Hashable) -> int:
        """Returns how many tokens are kept of a request that was preempted; 0 for none.

        Args:
            request: Its id.
        """
        row = self._rows.get(request)
        kept = None if row is None else row.kept
        return 0 if kept is None or kept.state == "broken" else kept.computed

    def abandon(self, request: Hashable) -> None:
        """Gives up what is kept of a request: it is found as what others have offloaded.

        Args:
            request: Its id.
        """
        if (row := self._rows.get(request)) is not None:
            self._release(row)

    def failed(self, request: Hashable) -> None:
        """Offers a request nothing before it has run, because its last load was of no use.

        Args:
            request: Its id.
        """
        if (row := self._rows.get(request)) is not None:
            row.failed = True

    def overwrites(self, ids: Ids) -> None:
        """Hears that blocks will hold something else than what ended requests have left there.

        Args:
            ids: The engine's ids.
        """
        self._freed.forget(ids)

    def _check(self, request: Hashable) -> None:
        if request in self._loads:
            raise Misuse(f"request {request!r} is loading: wait until `arrived` names it")

    def _row(self, request: Hashable, keys: Keys) -> _ConnectorRow:
        if (row := self._rows.get(request)) is None:
            row = self._rows[request] = _ConnectorRow(keys)
        row.keys = keys
        return row

    def plan_offloads(self) -> None:
        """Plans the copies of what is to be offloaded, of all requests at once."""
        if self._offloads:
            rows, self._offloads = self._offloads, []
            self._offload(rows)

    def _copy_ahead(self, victims: Ids) -> None:
        """Offloads what is evicted next, as far as it is not below."""
        if rows := self._freed.take(victims):
            self._offload(rows)

    def _offload(self, rows: Sequence[tuple[Keys, Ids, int]]) -> None:
        self._is_due = True
        keys, ids, firsts = zip(*rows, strict=True)
        self.cache.offload(list(keys), list(ids), list(firsts))

    def _land(self) -> None:
        landed = self._landed = self._landed | self.cache.ended()
        if not landed:
            return
        self._is_due, self._looks_again = True, self._has_disk
        self._air.difference_update(landed)
        for flight in landed:
            row = self._keeping.pop(flight, None)
            if row is not None and row.keeping == flight:
                row.keeping = None
        self._loads.land(landed)
        # Only now: after an interrupt the next call lands the same once more.
        self._landed = {}

    def _run(self, request: Hashable, row: _ConnectorRow) -> None:
        """Lets a request run: what was kept of it is in the engine's blocks, or of no use."""
        self._release(row)
        self.asking.over(request)
        row.failed = False
        self._counts["admitted"] += request not in self._uses.running
        self._uses.running[request] = row.keys
        self._until_turn = 0

    def _count(self, row: _ConnectorRow, loads: int) -> None:
        """Counts a prompt of which so many blocks are loaded, where the engine's own end."""
        row.has_begun = True
        host = min(loads, row.host)
        disk = min(loads - host, row.disk)
        counts = self._counts
        counts["prompt_tokens"] += len(row.keys) * self._size
        counts["cached_device"] += row.first * self._size
        counts["cached_host"] += host * self._size
        counts["cached_disk"] += disk * self._size
        row.near = host + disk if loads else None

    def _release(self, row: _ConnectorRow) -> None:
        kept, row.kept, row.keeping = row.kept, None, None
        if kept is not None:
            self._waiting.pop(row, None)
            self.cache.abandon(kept)

    def _lower(self) -> None:
        """Moves kept blocks from the host to the disk if the host is full."""
        kept = (row.kept for row in self._waiting)
        self._parking.lower(parked for parked in kept if parked is not None)


def _has_any(keys: Keys, rows: set[bytes]) -> bool:
    """Whether a prompt has one of these keys, 32 bytes each."""
    own = bytes(keys)
    return any(own[at : at + _KEY] in rows for at in range(0, len(own), _KEY))
