"""Wires a yard and one crane in one process."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from blockyard._core import Cache, Forgotten, Keys, Lease, Misuse, NoRoom, Parked
from blockyard._typing import override
from blockyard.crane.copiers import Copier, Pair
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.disk_paths import DiskPath
from blockyard.crane.tiers.remote_stats import REMOTE_STATS
from blockyard.local_tiers import made, made_remote, named, on_disk, stores_of, with_names
from blockyard.shared.layout import TIERS, KVLayout, TierName
from blockyard.shared.log import Limited
from blockyard.shared.owner import owned
from blockyard.shared.plan import Cause
from blockyard.shared.restored import Restored
from blockyard.shared.stats import Stat
from blockyard.shared.timings import Clock
from blockyard.shared.validate import seconds
from blockyard.yard.by_tier import check_memory
from blockyard.yard.cache import KVCache
from blockyard.yard.config import Config, ConfigKeywords
from blockyard.yard.dead_disks import Stripes, withdraw_dead
from blockyard.yard.flights import PendingCopies
from blockyard.yard.handshake import agree

if TYPE_CHECKING:
    from blockyard.crane.tiers.remote import RemoteTier
    from blockyard.handover.decode_side import DecodeSide
    from blockyard.stores import Store
    from blockyard.stores.lookup import StoreLookup
    from blockyard.yard.explain import Explanation

__all__ = ["LocalCache", "local"]

_log = Limited("blockyard", 0)


class LocalCache(KVCache):
    """A `KVCache` with its crane: call `step` once per step of the engine.

    Make it with `local`. `step`, `reset` and `close` are for the thread that drives the steps, and
    so are `clear` and `update_weights` where a disk outlives the process: an overlapping call of
    these, of the cache or of its crane, raises `Misuse` and does nothing.
    """

    __slots__ = ("_bound", "_crane", "_dead", "_decode_side", "_lookup", "_restored")

    _bound: float
    _crane: Crane
    _dead: Stripes
    _decode_side: "DecodeSide | None"
    _lookup: "StoreLookup | None"
    _restored: int

    @property
    def crane(self) -> Crane:
        """The crane, which owns the memory."""
        return self._crane

    @property
    def lookup(self) -> "DecodeSide | StoreLookup | None":
        """What is asked about requests, for `Scheduler(lookup=…)`; None without stores and peers.

        With peers it is `decode_side`, which asks the stores, too.
        """
        return self._decode_side or self._lookup

    @property
    def decode_side(self) -> "DecodeSide | None":
        """What takes offers of its peers over; None without peers."""
        return self._decode_side

    @property
    def restored(self) -> int:
        """Blocks that were restored from the disk when this cache was made."""
        return getattr(self, "_restored", 0)

    @override
    def clear(self, *, memory: Literal["lost", "disk kept"] = "lost") -> None:
        """Ends an epoch, as `KVCache.clear`, on the disk too.

        With a disk that has a path it waits for up to a second until this is durable, and logs a
        warning if it is not by then. No other verb waits for a disk.

        Args:
            memory: As in `KVCache.clear`.

        Raises:
            Misuse: As there; or there is such a disk, and a thread is in a verb that drives the
                steps.
        """
        if self._crane.persistent.folders or self._crane.remote is not None:
            self._clear(memory)
        else:
            super().clear(memory=memory)

    @owned
    def _clear(self, memory: Literal["lost", "disk kept"]) -> None:
        if memory == "lost":
            self._end_epoch()
        else:
            if memory == "disk kept":
                self._end_copies()
            super().clear(memory=memory)

    @override
    def _end_epoch(self, *, forget: bool = False) -> None:
        persistent, shared = self._crane.persistent, self._crane.remote is not None
        if persistent.folders or (forget and shared):
            # Copies planned before the clear belong to the old epoch on the disk, too.
            self._submit()
            persistent.clear_now(forget=forget)
        if shared and not forget:
            self._end_copies()
        super()._end_epoch()

    def _end_copies(self) -> None:
        """Ends all copies, good or not, also those that are only planned.

        Their memory may be lost, and what outlives the cache must not get that.
        """
        self._plans()
        self._give_back_lost()
        self._crane.traffic.reset()
        self._collect()

    @overload
    def forget(
        self,
        keys: Any = None,  # noqa: ANN401 - of several kinds, as the parent has it
        *,
        salt: str | bytes | None = None,
        adapter: str | bytes | None = None,
        force: bool = False,
        tier: None = None,
    ) -> Forgotten: ...
    @overload
    def forget(self, keys: Any, *, tier: Literal["remote"]) -> int: ...  # noqa: ANN401 - likewise
    @override
    def forget(
        self,
        keys: Any = None,
        *,
        salt: str | bytes | None = None,
        adapter: str | bytes | None = None,
        force: bool = False,
        tier: Literal["remote"] | None = None,
    ) -> Forgotten | int:
        """Forgets blocks on all tiers, as `KVCache.forget`, on the disk and in the stores too.

        Records of a disk with a path are void, and values in stores deleted, when the flight in the
        answer has ended: some `step` later, and at the latest with `close`, if disk and stores
        work. With `tier="remote"` names are dropped, and nothing else is.

        Args:
            keys: As in `KVCache.forget`.
            salt: As there.
            adapter: As there.
            force: As there.
            tier: As there.

        Raises:
            Misuse: As there; or there is such a disk, or are stores, and a thread is in a verb that
                drives the steps. Nothing is changed.
            Unavailable: As there.
        """
        more: dict[str, Any] = {"salt": salt, "adapter": adapter, "force": force}
        if tier is not None:
            dropped: int = super().forget(keys, **more, tier=tier)
            return dropped
        if self._crane.persistent.folders or self._crane.remote is not None:
            return self._forget_below(keys, more)
        return self._forget_blocks(keys, more)

    @owned
    def _forget_below(self, keys: Any, more: dict[str, Any]) -> Forgotten:  # noqa: ANN401 - as `forget`
        forgotten = self._forget_blocks(keys, more)
        if forgotten.flights:
            # A close may come next, and is to find it under way.
            self._submit()
        return forgotten

    def _forget_blocks(self, keys: Any, more: dict[str, Any]) -> Forgotten:  # noqa: ANN401 - likewise
        forgotten: Forgotten = super().forget(keys, **more)
        return forgotten

    @override
    def update_weights(self) -> None:
        """Ends an epoch as `clear`, and keeps KV of the new weights from any restart.

        The namespace still names the old weights, so a process that opens the disk under it runs
        those, and shared stores are left alone from then on: nobody asks them through `lookup`, and
        each copy from or to them fails. To keep the KV of the new weights, open a cache with their
        namespace.

        Raises:
            Misuse: As `clear`.
        """
        if not self._crane.persistent.folders and self._crane.remote is None:
            super().update_weights()
        else:
            self._update_weights()

    @owned
    def _update_weights(self) -> None:
        self._has_own_weights = True
        if self.lookup is not None:
            self.lookup.close()
        self._end_epoch(forget=True)

    @owned
    def step(self, *, done: int | None = None) -> int:
        """Commits finished copies, then submits new ones. It never waits.

        Args:
            done: As in `commit`.

        Returns:
            Flights that ended.

        Raises:
            Misuse: The cache is closed, or another call of a verb that drives the steps, of the
                cache or of its crane, is under way.
        """
        if self._crane.traffic.closed:
            raise Misuse("this cache is closed: make another one")
        ended = self._advance(done)
        self._submit()
        if self._decode_side is not None:
            self._decode_side.sweep()
        return ended

    def _advance(self, done: int | None) -> int:
        """Commits finished copies."""
        traffic = self._crane.traffic
        # An interrupt in between loses no outcome: the next step polls it again.
        outcomes = traffic.poll()
        ended = self._take(outcomes, done, self._now + 1)
        traffic.told(outcomes)
        if outcomes and any(outcome.cause is Cause.FAILED for outcome in outcomes):
            self._dead = withdraw_dead(self, self._crane.persistent.dead(), self._dead)
        return ended

    def _submit(self) -> None:
        """Submits all plans to the crane; those that it does not take have failed."""
        plans = self._plans()
        try:
            self._crane.traffic.submit(plans)
        except BaseException:
            self._give_back_lost()
            raise
        self._unsure = False

    @override
    def _give_back_lost(self) -> int:
        """Ends flights that the crane does not have: an interrupt came before it took them."""
        known, late = self._crane.traffic.known(), self._flights.is_late
        lost = [one for one in self.dispatched() if one not in known and not late(one)]
        count = self._abort(lost)
        self._unsure = False
        return count

    @override
    @owned
    def reset(self, rank: int = 0, *, memory: Literal["lost", "kept", "disk kept"] = "kept") -> int:
        """Ends all copies, good or not, and takes their slots back.

        It waits for the chunks that are being copied. The memory is still there, so that the
        default is "kept".

        Args:
            rank: 0, the only rank.
            memory: As in `KVCache.reset`.

        Returns:
            Flights that ended.

        Raises:
            Misuse: It is another rank, another word for `memory`, or another call is under way, as
                in `step`.
        """
        if rank != 0:
            raise Misuse(f"rank = {rank!r}: must be 0, the only rank of this cache")
        check_memory(memory, self._config.known_tiers)
        self._crane.traffic.reset()
        return self._collect() + self._reset(rank, memory)

    def _collect(self) -> int:
        """Commits all that the crane reports."""
        outcomes = self._crane.traffic.poll()
        ended = self._take(outcomes, None, None)
        self._crane.traffic.told(outcomes)
        return ended

    @override
    def explain(self, request: Keys | Iterable[int] | Lease | Parked | NoRoom) -> "Explanation":
        """Explains as `KVCache.explain`, and adds the troubles of the disk and of the stores.

        Args:
            request: As in `KVCache.explain`.

        Raises:
            Misuse: As in `KVCache.explain`.
        """
        found = super().explain(request)
        crane = self._crane
        stores = () if crane.remote is None else crane.remote.troubles()
        return replace(found, lines=(*found.lines, *crane.persistent.troubles(), *stores))

    @override
    def pending_copies(self) -> PendingCopies:
        """Returns copies that wait for a call, as `KVCache.pending_copies`, of the crane too.

        Copies of a disk or a store that hangs are left out: they are given up in time, which is
        logged.
        """
        pending, crane = super().pending_copies(), self._crane
        busy = crane.persistent.busy or (crane.remote is not None and crane.remote.busy)
        if pending.unreported is not None and busy:
            pending = pending._replace(unreported=None)
        return pending._replace(unpolled=(crane.in_flight, crane.traffic.polls))

    @override
    def measure(self, clock: Clock = time.monotonic) -> None:
        """Counts as `KVCache.measure`, and how long the crane's flights take.

        Args:
            clock: As in `KVCache.measure`.
        """
        super().measure(clock)
        self._crane.measure(clock)

    @override
    def stats(self) -> dict[str, int]:
        """Returns counters and sizes, the crane's, its disk's and its stores' too."""
        every = DiskTier.SCHEMA + REMOTE_STATS
        none = dict.fromkeys((stat.name for stat in every), 0)
        return super().stats() | none | self._crane.stats()

    @override
    @staticmethod
    def schema() -> tuple[Stat, ...]:
        """Returns name, unit, kind, metric and meaning of each number in `stats`."""
        return KVCache.schema() + DiskTier.SCHEMA + REMOTE_STATS + Crane.SCHEMA

    @owned
    def flush(self, until: float, *, clock: Clock = time.monotonic) -> int:
        """Writes published blocks to the disk that it lacks, and waits; the cache stays open.

        Blocks are written in reverse order of eviction, but each after its prefix, so that a
        restart finds every block on the disk. They also stay on the tiers above. A full disk gives
        up older blocks for them. Promises hold: idle blocks that back one, and blocks behind those,
        are not written. After three failed copies in a row the disk is left alone; a disk that
        hangs uses up the time.

        Args:
            until: Seconds that it may take, from now on; 0 writes nothing.
            clock: Seconds. It decides only when to stop.

        Returns:
            How many blocks are not on the disk, durable: the next process does not find them. 0
            where there is no disk that outlives the process.

        Raises:
            Misuse: `until` is no number of seconds, below 0 or infinite; the cache is closed; or
                another call is under way, as in `step`.
        """
        bound = seconds("until", until)
        if self._crane.traffic.closed:
            raise Misuse("this cache is closed: make another one")
        return self._flush(bound, clock)

    @override
    def _persistent_tier(self) -> TierName | None:
        return self._crane.persistent.name

    def _flush(self, bound: float, clock: Clock, *, final: bool = False) -> int:
        def carry() -> int:
            self._submit()
            return self._advance(None)

        left = self._flushing(bound, clock, final=final).run(carry)
        if left:
            _log.warning(
                "%d blocks are not on the disk: the next process does not find them%s",
                left,
                "".join(f"; {line}" for line in self._crane.persistent.troubles()),
            )
        return left

    @owned
    def close(self, *, flush: float | None = None) -> int:
        """Writes blocks to the disk as `flush`, ends the copies and frees the memory.

        Promises end before, so that they keep no block from the disk. Incomplete copies have
        failed. From then on every verb that would begin or continue something raises `Misuse`.
        Questions are answered, and handles can be ended: `finish`, `abandon`, `release`. An
        interrupt ends the writing, and the cache is closed.

        Args:
            flush: Seconds that the writing may take; 0 for none, None for the value of `local`.

        Returns:
            How many blocks the next process does not find, as `flush`; 0 if it was closed before,
            or there was nothing to write.

        Raises:
            Misuse: `flush` is no such number; or another call is under way, as in `step`: have the
                thread that drives it end.
        """
        bound = self._bound if flush is None else seconds("flush", flush)
        left = 0
        with ExitStack() as ends:
            ends.callback(self._close)
            ends.callback(self._drop_planned)
            ends.callback(self._collect)
            ends.callback(self._crane.traffic.close)
            ends.callback(self._keep_order)
            if self.lookup is not None:
                ends.callback(self.lookup.close)
            if bound and not self._crane.closed:
                left = self._flush(bound, time.monotonic, final=True)
        return left

    def _drop_planned(self) -> None:
        """Ends plans that no crane will carry out."""
        if not self.closed:
            Cache.dispatch(self)
        # At a close that goes on after an interrupt, too.
        self._give_back_lost()

    def _keep_order(self) -> None:
        persistent = self._crane.persistent
        if not self._crane.closed and persistent.name is not None:
            persistent.keep_order_now(self.eviction_order(persistent.name, alone=True))

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Closes the cache; after an exception it writes nothing more."""
        self.close(flush=None if kind is None else 0)


def local(  # noqa: PLR0913 - keywords
    config: Config | KVLayout,
    /,
    *,
    memory: tuple[Tier, Tier | None] | tuple[Tier, Tier | None, Tier | None] | None = None,
    disk_path: DiskPath | None = None,
    stores: "Sequence[Store | str] | None" = None,
    peers: Sequence[str] | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    copier: Copier | Mapping[Pair, Copier] | None = None,
    metrics: bool = False,
    flush: float = 20.0,
    **keywords: Unpack[ConfigKeywords],
) -> LocalCache:
    """Wires a yard and one crane in this process.

    Args:
        config: A `Config` with a layout; or a layout, with the rest as keywords.
        memory: The tiers of device and host, or of device, host and disk, which give the sizes;
            None for NumPy memory of the sizes asked for. A `DiskTier` among them has the
            configuration's identity, where that has a namespace.
        disk_path: Where the blocks of `disk` outlive this process, in slot files: the `namespace`
            must name model and weights, best by a path, whose content counts. Several paths are
            several disks, over which slots are spread. `disk` needs it; a third tier of memory is a
            `MemoryTier` in `memory`.
        stores: Stores that other engines share, in order, or their URLs, as `open_store` takes
            them: a put goes to the first that takes it. The `namespace` must name model and
            weights. None: those of the Config, if it has some. `remote` says how many of their
            blocks are remembered by name; 1,000,000 where it is not given.
        peers: Where prefill engines listen whose offers are taken over, as `host:port`, the only
            addresses that are connected to. They need a namespace, and `remote`, as stores do.
            None: those of the Config, if it has some.
        secret_file: A file with the secret that peers know, too. Without one they must be of this
            machine's loopback.
        copier: One for all copies, or some by pairs of tiers, as in `Crane`; None for those that
            fit the memory.
        flush: Seconds for which `LocalCache.close` may write blocks to a disk that outlives the
            process; 0 for none.
        metrics: Whether to measure how long copies and the cache's part of a step take.
        keywords: The fields of `Config`.

    Raises:
        Misuse: A value is out of range, or the layout has several ranks.
        Unavailable: The memory cannot be allocated.

    Example:
        >>> import blockyard as by
        >>> layout = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8)
        >>> with by.local(layout, device=64, host="0.001 GiB") as cache:
        ...     lease = cache.begin(range(100))
        ...     cache.seal(lease, 100)
        ...     cache.finish(lease)
        ...     cache.step()
        6
        0
    """
    bound = seconds("flush", flush)
    given = {} if memory is None else named(memory)
    if isinstance(config, KVLayout):
        for name in TIERS if given else ():
            # Slot files may lie below the memory given.
            if name in keywords and (name != "disk" or name in given):
                raise Misuse(f"{name} = {keywords[name]!r}: the memory given has its size")
        sizes = {name: tier.blocks for name, tier in given.items()}
        config = Config.of({"layout": config, **keywords, **sizes})
    elif keywords:
        raise TypeError(f"a Config is whole: put {', '.join(keywords)} into it")
    layout = config.layout
    if layout is None:
        raise Misuse("layout is missing: without one there are no bytes")
    if layout.ranks != 1:
        ranks = layout.ranks
        raise Misuse(f"a layout of {ranks} ranks: run a Crane in each rank's process")
    config, stores = stores_of(config, stores, peers, secret_file)
    config = with_names(on_disk(config, given, disk_path), stores)
    with ExitStack() as opened:
        # A failure from here on leaves no folder owned.
        tiers = made(layout, config, given, disk_path, opened)
        remote = made_remote(layout, config, stores or (), opened) if config.remote else None
        crane = Crane(
            layout,
            device=tiers["device"],
            host=tiers.get("host"),
            disk=tiers.get("disk"),
            remote=remote,
            copier=copier,
            copy_tuning=config.copying,
            fingerprint=config.fingerprint,
            group=config.group,
        )
        opened.callback(crane.close)
        cache = LocalCache(agree(config, [crane.hello(config.yard)]))
        crane.called = "a LocalCache"
        cache._crane = crane  # noqa: SLF001 - this file is the wiring
        cache._lookup = cache._decode_side = None  # noqa: SLF001 - likewise
        if crane.remote is not None:
            _look_up(cache, crane.remote)
        cache._owner = crane._owner  # noqa: SLF001 - likewise
        cache._dead = frozenset()  # noqa: SLF001 - likewise
        cache._bound = bound  # noqa: SLF001 - likewise
        found, below = crane.persistent.restored(), crane.persistent.name
        if found is not None and below is not None:
            found = Restored.agreed([found])
            cache.restore(below, found.slots, found.keys, found.parents)
            cache._restored = len(found)  # noqa: SLF001 - likewise
        if metrics:
            cache.measure()
        opened.pop_all()
    return cache


def _look_up(cache: LocalCache, remote: "RemoteTier") -> None:
    """Makes what is asked about requests."""
    # Only now: most caches have neither stores nor peers.
    if remote.stores:
        from blockyard.stores.lookup import StoreLookup  # noqa: PLC0415

        places = [remote.place.identity]
        cache._lookup = StoreLookup(remote.stores, places, cache.config.ranks)  # noqa: SLF001 - this file is the wiring
    if len(remote.peers):
        from blockyard.handover.decode_side import DecodeSide  # noqa: PLC0415

        cache._decode_side = DecodeSide(cache, remote.peers, lookup=cache._lookup)  # noqa: SLF001 - likewise
