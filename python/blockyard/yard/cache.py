"""`KVCache`: the life of a sequence, one verb per step."""

import os
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import numpy as np

from blockyard._core import Cache, Keys, Lease, Misuse, NoRoom, Parked, Plan, Recorder, _forked
from blockyard._typing import NDArray, override
from blockyard.shared.layout import TIERS, KVLayout, TierName
from blockyard.shared.machine import memory_for
from blockyard.shared.owner import Owner, owned
from blockyard.shared.plan import Outcome, Unreported, draw_yard
from blockyard.shared.stats import Stat, core_schema
from blockyard.shared.timings import Clock, Reading, StepTimes, timed
from blockyard.shared.validate import integer, seconds
from blockyard.yard.by_tier import check_memory
from blockyard.yard.config import Config, ConfigKeywords
from blockyard.yard.copy_ahead import CopyAhead
from blockyard.yard.flights import Ended, Flights, PendingCopies, numbers, read_twice
from blockyard.yard.flush import Flush
from blockyard.yard.recording import Recording

if TYPE_CHECKING:
    from blockyard.yard.explain import Explanation

__all__ = ["KVCache"]

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class KVCache(Cache):
    """The bookkeeping of one KV cache: tiers are numbers of blocks, and no bytes are moved.

    Make it after fork or spawn, in the process that uses it. Every verb crosses into Rust once,
    whatever the size of its batch, and changes nothing when it raises; only `finish` still ends its
    good rows.

    Any thread may call any verb but these: once per step, `dispatch` gives the plans for the cranes
    and `commit` takes their outcomes. They, `abort`, `mark_unknown`, `ended` and `reset` are for
    one thread, the one that drives the steps: a call that comes during another one raises `Misuse`
    and does nothing. A `commit` of no `Outcome` and without `now` is for any thread.

    Args:
        config: A `Config`; or a layout, with the rest as keywords; or keywords alone, which are
            the fields of `Config`.

    Raises:
        Misuse: A value is out of range; it is named.
        Unavailable: There is no memory for the bookkeeping, which takes 110 to 200 bytes for each
            slot, and 4 for each of `ghosts`: more than the system grants, or than this machine or
            the process's control group has now.

    Example:
        >>> import blockyard as by
        >>> cache = by.KVCache(device=64, host=256)
        >>> lease = cache.begin(range(100), reserve=32)
        >>> cache.seal(lease, 100)
        6
        >>> cache.finish(lease)
        >>> cache.begin(range(100)).cached
        96
    """

    __slots__ = (
        *("_config", "_ended", "_fingerprint", "_flights", "_now", "_copy_ahead"),
        *("_has_own_weights", "_owner", "_recording", "_times", "_unsure"),
    )

    _config: Config
    _fingerprint: str  # of `_config`, from the first `digest` on
    _flights: Flights
    _ended: dict[int, int] | None
    _now: int
    _copy_ahead: CopyAhead
    _has_own_weights: bool
    _owner: Owner
    _recording: Recording
    _times: StepTimes | None
    _unsure: bool  # whether plans were taken, and not handed on

    def __new__(
        cls, config: Config | KVLayout | None = None, /, **keywords: Unpack[ConfigKeywords]
    ) -> Self:
        """Makes an empty cache."""
        if not isinstance(config, Config | KVLayout | None):
            raise TypeError(f"a KVCache is made of a Config, layout or keywords, not {config!r}")
        if not isinstance(config, Config):
            config = Config.of({"layout": config, **keywords})
        elif keywords:
            raise TypeError(f"a Config is whole: put {', '.join(keywords)} into it")
        recording = Recording(config.record, config.block_size)
        recorder = recording.recorder
        sizes = map(config.blocks_of, TIERS)
        memory = memory_for(*sizes, config.ghosts)
        yard = config.yard or draw_yard()
        cache = super().__new__(cls, **config.core(), yard=yard, memory=memory, recorder=recorder)
        cache._config, cache._recording = config, recording
        if recorder is not None:
            # Writes the rest of the recording, even if the program just ends.
            weakref.finalize(cache, recording.close)
        own = {"yard": yard, "group": config.group}
        cache._flights = Flights(config.ranks, config.deadline_of, **own)
        cache._copy_ahead, cache._owner = CopyAhead(config), Owner()
        cache._ended = {} if config.engine else None
        cache._now, cache._times, cache._unsure, cache._fingerprint = 0, None, False, ""
        cache._has_own_weights = False
        return cache

    @property
    def config(self) -> Config:
        """The configuration that it was made with."""
        return self._config

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of requests; None without `record`.

        `begin` and `finish` record requests by themselves. Schedulers that know when a request has
        arrived, and which `begin` is a retry, call `arrived` and `ended` instead.
        """
        return self._recording.recorder

    @override
    def resize(self, tier: TierName, slots: int, *, memory: int | None = None) -> None:
        """Gives a tier `slots` slots; slots beyond retire as they come free.

        Args:
            tier: Which.
            slots: How many, null slots included.
            memory: Bytes that the bookkeeping of new slots may take; None for all
                that the machine has.

        Raises:
            InUse: Pinned, claimed, promised or quarantined slots do not fit.
            Unavailable: There is no memory for the bookkeeping; nothing is changed.
        """
        super().resize(tier, slots, memory=memory_for(slots) if memory is None else memory)

    @override
    @owned
    def dispatch(self) -> list[Plan]:
        """Returns new plans for the cranes, each once: loads, and copies down ahead of need.

        Returns:
            Plans in the order in which they were made. Every rank's crane carries each out.

        Raises:
            Misuse: Another call of these verbs is under way, or the cache is closed.
        """
        plans, self._unsure = self._plans(), False
        return plans

    @timed("dispatch")
    def _plans(self) -> list[Plan]:
        if self._unsure:
            self._give_back_lost()
        self._copy_ahead.decide(self)
        if self._recording.recorder is not None:
            self._recording.look()
        self._unsure = True
        plans = super().dispatch()
        try:
            for plan in plans:
                self._flights.launch(plan, self._now)
        except BaseException:
            self._abort(plans)  # no crane gets them
            raise
        return plans

    @override
    def commit(
        self,
        flights: Plan | int | Outcome | Sequence[Plan | int | Outcome] | NDArray[np.integer[Any]],
        good: Any = None,  # noqa: ANN401 - as the parent has it
        *,
        corrupt: NDArray[np.bool_] | Iterable[bool] | bool | None = None,
        done: int | None = None,
        now: int | None = None,
    ) -> int:
        """Takes the outcomes of flights, whose copies have ended.

        Args:
            flights: Outcomes that cranes reported for plans of `dispatch`: a flight ends when every
                rank has reported it, with the smallest count of good blocks. Or plans, or numbers
                of flights, if the caller has collected all ranks.
            good: Leading intact blocks of each, the minimum over ranks; all, for plans.
            corrupt: True where the first bad block failed its checksum: its source is dropped.
            done: A step that the engine has done: blocks held back for it are released.
            now: The tick, the same on every replica, as all arguments. Flights past their deadline
                count as unknown from now on.

        Returns:
            Flights that ended. Duplicate and late outcomes are counted and change nothing.

        Raises:
            Misuse: An outcome contradicts its plan, `now` is before an earlier one, or another call
                of these verbs is under way. Nothing is committed: keep the outcomes, and commit
                them again.
            ForeignLease: A flight or plan is not of this cache; nothing is committed.
        """
        nothing = good is None and corrupt is None and now is None
        if nothing and isinstance(flights, list | tuple) and not flights:
            # The most frequent call: a step is done, and nothing has landed. It is not timed.
            return super().commit([], done=done)
        flights = [flights] if isinstance(flights, Outcome) else read_twice(flights)
        if isinstance(flights, Sequence) and all(isinstance(one, Outcome) for one in flights):
            if good is not None or corrupt is not None:
                raise Misuse("good and corrupt go with flights or plans: an outcome has its own")
            return self._commit(cast("Sequence[Outcome]", flights), done, now)
        plans = cast("Plan | int | Sequence[Plan | int]", flights), good, corrupt, done
        return self._by_plan(*plans) if now is None else self._commit([], None, now, *plans)

    @timed("commit")
    def _by_plan(self, ids: Any, good: Any, corrupt: Any, done: Any) -> int:  # noqa: ANN401 - likewise
        count = super().commit(ids, good, corrupt=corrupt, done=done)
        self._forget(ids)
        return count

    @owned
    def _commit(self, outcomes: Any, done: Any, now: Any, *plans: Any) -> int:  # noqa: ANN401 - likewise
        now = None if now is None else integer("now", now, least=self._now)
        count = self._by_plan(*plans) if plans else 0
        return count + self._take(outcomes, done, now)

    @timed("commit")
    def _take(self, outcomes: Sequence[Outcome], done: int | None, now: int | None) -> int:
        outcomes = self._flights.check(outcomes) if outcomes else []
        # The core may refuse `done`; after that nothing is refused, so that nothing is lost.
        if done is not None:
            super().commit([], done=done)
        count = self._end(self._flights.take(outcomes)) if outcomes else 0
        if now is not None:
            self._now = now
        late = self._flights.overdue(self._now)
        if late:
            self._note(late, [0] * len(late))
            super().mark_unknown(late)
            self._flights.unknown(late, self._now)
        return count

    @override
    @owned
    def mark_unknown(
        self, flights: Plan | int | Sequence[Plan | int] | NDArray[np.integer[Any]]
    ) -> int:
        """Reports that these flights have missed their deadline, and their outcome is unknown.

        Their destinations are quarantined until their end is reported, and never published. Their
        sources are released, except for copies to a tier of `Config.keyed`.

        Args:
            flights: Plans, or numbers of flights.

        Returns:
            Flights that are unknown now and were not before.

        Raises:
            Misuse: Another call of these verbs is under way.
            ForeignLease: A flight or plan is not of this cache; nothing is changed.
        """
        ids = cast("Plan | int | Sequence[Plan | int]", read_twice(flights))
        count = super().mark_unknown(ids)
        self._flights.unknown(numbers(ids), self._now)
        return count

    @property
    def is_flying(self) -> bool:
        """Whether a flight that was dispatched has not ended; one past its deadline has not."""
        return bool(len(self._flights))

    @owned
    def ended(self) -> dict[int, int]:
        """Returns the flights that ended since the last call, each with its good leading blocks.

        It is for engines that allocate their blocks themselves, and for the thread that drives the
        steps. A flight that missed its deadline has no good block. Flights that cranes reported or
        `reset` ended are in it; those that the caller committed by number are not.

        Raises:
            Misuse: The cache owns its device.
        """
        if self._ended is None:
            raise Misuse("ended on a cache that owns its device: ask its leases")
        ended, self._ended = self._ended, {}
        return ended

    def _note(self, flights: Iterable[int], good: Iterable[int]) -> None:
        if self._ended is not None:
            for flight, count in zip(flights, good, strict=True):
                self._ended.setdefault(flight, count)

    @owned
    def reset(self, rank: int, *, memory: Literal["lost", "kept", "disk kept"] = "lost") -> int:
        """Ends a rank's copies, after its process was restarted or its device reset.

        Call it, in the thread that drives the steps, only when that rank writes no more, as after
        `Crane.reset`. Its quarantined slots come back; flights of others end when they report.

        Args:
            rank: Which rank.
            memory: Whether the contents of its tiers are "kept", "lost", or lost except for the
                disk, "disk kept". Lost blocks are found no more, as after `clear`; running
                sequences must then be recomputed, and plans not yet dispatched end.

        Returns:
            Flights that ended.

        Raises:
            Misuse: There is no such rank or word, no keyed tier, or another call is under way.
        """
        return self._reset(rank, memory)

    def _reset(self, rank: int, memory: Literal["lost", "kept", "disk kept"]) -> int:
        check_memory(memory, self._config.known_tiers)
        self._flights.check_rank(integer("rank", rank, least=0))
        if memory != "kept" and not self.closed:
            # These plans would copy lost blocks, and write them to a lower tier under old keys.
            super().dispatch()
        count = self._give_back_lost()
        if memory == "lost":
            self._end_epoch()
        elif memory == "disk kept":
            super().clear(memory=memory)
        return count + self._end(self._flights.reset(rank))

    def _give_back_lost(self) -> int:
        """Ends flights that an interrupt lost: `dispatch` had taken them and not returned."""
        lost = [one for one in self.dispatched() if one not in self._flights]
        self._note(lost, [0] * len(lost))
        return self._abort(lost)

    def _end_epoch(self) -> None:
        super().clear()  # for a verb that has the owner

    def _end(self, ended: Ended) -> int:
        if not ended.flights:
            return 0
        self._note(ended.flights, ended.good)
        count = super().commit(ended.flights, ended.good, corrupt=ended.corrupt)
        # Only now: whatever interrupts before, the same outcomes end them again.
        self._flights.forget(ended.flights)
        return count

    @override
    @owned
    def abort(self, flights: Plan | int | Sequence[Plan | int] | NDArray[np.integer[Any]]) -> int:
        """Ends flights as failed, without a good copy.

        It is for the thread that drives the steps.

        Args:
            flights: Plans, or numbers of flights.

        Returns:
            Flights that ended.

        Raises:
            Misuse: Another call of these verbs is under way.
            ForeignLease: A flight or plan is not of this cache; nothing is changed.
        """
        return self._abort(flights)

    def _abort(self, flights: Plan | int | Sequence[Plan | int] | NDArray[np.integer[Any]]) -> int:
        ids = cast("Plan | int | Sequence[Plan | int]", read_twice(flights))
        count = super().abort(ids)
        self._forget(ids)
        return count

    def _forget(self, flights: Plan | int | Sequence[Plan | int]) -> None:
        if len(self._flights):
            self._flights.forget(numbers(flights))

    def explain(self, request: Keys | Iterable[int] | Lease | Parked | NoRoom) -> "Explanation":
        """Explains why a prefix ends where it does, why a request waits, and who holds blocks.

        Args:
            request: A prompt, a handle of `begin` or `park`, or a `NoRoom` that was raised.

        Raises:
            Misuse: It is something else, or a token is out of range.
        """
        from blockyard.yard.explain import explain  # noqa: PLC0415 - few ask

        return explain(self, self._flights, request)

    def update_weights(self) -> None:
        """Ends an epoch as `clear`, because the weights have changed under one namespace."""
        self._has_own_weights = True
        self.clear()

    @property
    def has_own_weights(self) -> bool:
        """Whether it has other weights than its namespace says: nobody may share its blocks."""
        return self._has_own_weights

    def flushing(
        self, *, until: float, final: bool = False, clock: Clock = time.monotonic
    ) -> Flush:
        """Begins to write published blocks to the disk that it lacks, in the caller's loop.

        It is for a clean stop with cranes in other processes; a `LocalCache` has `flush`. Blocks
        are written in reverse order of eviction, but each after its prefix. They also stay on the
        tiers above. A full disk gives up older blocks for them.

        Args:
            until: Seconds, from now on; 0 for none.
            final: Whether nothing begins after it. Then promises and keeps end, because blocks that
                back them are not written otherwise: tickets have no blocks, sequences no growth,
                and parked sequences would be recomputed. With `until=0` they stay.
            clock: Seconds. It decides only when to stop.

        Raises:
            Misuse: `until` is no such number, or the cache is closed.
        """
        bound = seconds("until", until)
        if self.closed:
            raise Misuse("this cache is closed: make another one")
        return self._flushing(bound, clock, final=final)

    def _flushing(self, bound: float, clock: Clock, *, final: bool = False) -> Flush:
        layout = self._config.layout
        size = None if layout is None else layout.block_bytes
        tier = self._persistent_tier()
        if final and tier is not None and bound > 0:
            self._end_promises()
        return Flush(self, self._copy_ahead, tier, bound, block_bytes=size, clock=clock)

    def _persistent_tier(self) -> TierName | None:
        """The tier that outlives the process."""
        keyed = [tier for tier in TIERS if tier in self._config.keyed and self.limit(tier)]
        return keyed[-1] if keyed else None

    def stop_recording(self) -> None:
        """Records no more requests, and waits a second at most until those before are written.

        Closing or dropping the cache does the same, and so does the end of the program.
        """
        self._recording.close()

    @override
    def _close(self) -> None:
        super()._close()
        self._recording.close()

    def pending_copies(self) -> PendingCopies:
        """Returns copies that wait for a call: to be dispatched, polled or reported.

        A copy that waits for long is a stall: `Scheduler.stalled` names the missing call. Any
        thread may call it.
        """
        ahead = self._copy_ahead.decided if self._copy_ahead.due(self) else None
        return PendingCopies(self.undispatched(), ahead, self._flights.waiting(self._now))

    def unreported(self, rank: int) -> Unreported:
        """Returns the flights that a rank has not reported, for its `Crane.reconcile`.

        Raises:
            Misuse: There is no such rank.
        """
        return self._flights.unreported(integer("rank", rank, least=0))

    @override
    def digest(self) -> int:
        """Returns a fingerprint, of 64 bits, of all state that later answers depend on.

        Replicas with the same calls have the same digest; if an answer of theirs could differ,
        their digests differ. It leaves out the order of outcomes within one `commit`, counts of
        refused calls and of outcomes, appended tokens that are not sealed, and the state of
        schedulers and cranes. Compare processes of one version only, between two steps. It takes
        time in proportion to the cache.
        """
        from hashlib import blake2b  # noqa: PLC0415 - only who compares replicas needs it

        self._fingerprint = self._fingerprint or self._config.fingerprint
        own = self._fingerprint, self._config.yard, self._now, self._flights.state()
        whole = repr((super().digest(), own, sorted((self._ended or {}).items()))).encode()
        return int.from_bytes(blake2b(whole, digest_size=8).digest())

    def measure(self, clock: Clock = time.monotonic) -> None:
        """Counts from now on how long `dispatch` and `commit` take, for `step_times`.

        A commit of nothing is left out. It is off otherwise, and costs some 1 us a step.

        Args:
            clock: Seconds. It only measures.

        Raises:
            Misuse: The clock does not return seconds.
        """
        if self._times is None:
            self._times = StepTimes(clock, "dispatch", "commit")

    def step_times(self) -> dict[str, Reading]:
        """Returns how long `dispatch` and `commit` took; empty without `measure`. Any thread may.

        The keys are parts of a step.
        """
        return {} if self._times is None else self._times.read()

    @override
    def stats(self) -> dict[str, int]:
        """Returns counters and sizes; `schema` has units and meanings."""
        return super().stats() | self._flights.stats() | self._recording.stats()

    @staticmethod
    def schema() -> tuple[Stat, ...]:
        """Returns name, unit, kind, metric and meaning of each number in `stats`."""
        return core_schema() + Flights.SCHEMA + Recording.SCHEMA
