"""`KVCache`: the life of a sequence, one verb per step."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Cache, Keys, Lease, Misuse, NoRoom, Parked, Plan, _forked
from blockyard._typing import override
from blockyard.shared.layout import KVLayout
from blockyard.shared.machine import free_memory
from blockyard.shared.plan import Outcome
from blockyard.shared.stats import Stat, core_schema
from blockyard.shared.validate import integer, one_of
from blockyard.yard.config import Config, ConfigKeywords
from blockyard.yard.explain import Explanation, explain
from blockyard.yard.flights import Ended, Flights
from blockyard.yard.offload import Offload

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# Slots and ghosts: for fewer, which take 100 MB at most, the machine is not asked.
_MANY = 1 << 19


class KVCache(Cache):
    """The bookkeeping of one KV cache: tiers are numbers of blocks, and no bytes are moved.

    Thread-safe; make it after fork or spawn, in the process that uses it. Every verb crosses into
    Rust once, whatever the size of its batch, and changes nothing when it raises; only `finish`
    still ends its good rows.

    Once per step, `dispatch` gives the plans for the cranes and `commit` takes their outcomes.
    Those two belong to one thread, the one that drives the steps.

    Args:
        config: A `Config`; or a layout, with the rest as keywords; or keywords alone, which are
            the fields of `Config`.

    Raises:
        Misuse: A value is out of range; it is named.
        Unavailable: There is no memory for the bookkeeping, which takes 110 to 200 bytes for each
            slot, and 8 for each of `ghosts`: more than the system grants, or than this machine or
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

    __slots__ = ("_config", "_done", "_flights", "_limits", "_now", "_offload")

    _config: Config
    _done: int
    _flights: Flights
    _limits: dict[str, int]
    _now: int
    _offload: Offload

    def __new__(
        cls, config: Config | KVLayout | None = None, /, **keywords: Unpack[ConfigKeywords]
    ) -> Self:
        """Makes an empty cache."""
        if not isinstance(config, Config | KVLayout | None):
            raise TypeError(
                f"a KVCache is made of a Config, a KVLayout or keywords, not {config!r}"
            )
        if not isinstance(config, Config):
            config = Config.of({"layout": config, **keywords})
        elif keywords:
            raise TypeError(f"a Config is whole: put {', '.join(keywords)} into it")
        cache = super().__new__(cls, **config.core(), memory=_memory(config))
        cache._config = config
        cache._flights = Flights(config.ranks, config.deadline)
        cache._offload = Offload(config)
        cache._now = 0
        cache._done = 0
        cache._limits = {"device": config.device_blocks, "host": config.host_blocks}
        return cache

    @property
    def config(self) -> Config:
        """What it was made with."""
        return self._config

    @property
    def done(self) -> int:
        """The last step that `commit` was told is done; 0 before."""
        return self._done

    def limit(self, tier: Literal["device", "host"] = "device") -> int:
        """Blocks that a tier may hold: its size, as the last `resize` left it, less null slots."""
        return self._limits[tier] - (self._config.null_slots if tier == "device" else 0)

    @override
    def resize(
        self, tier: Literal["device", "host", "disk"], slots: int, *, memory: int | None = None
    ) -> None:
        """Gives a tier `slots` slots; slots beyond retire as they come free.

        Args:
            tier: Which.
            slots: How many, null slots included.
            memory: Bytes that the bookkeeping of new slots may take; None for what the machine has.

        Raises:
            InUse: What is pinned, claimed, promised or quarantined does not fit.
            Unavailable: There is no memory for the bookkeeping; nothing is changed.
        """
        if memory is None and _many(slots):
            memory = free_memory()
        super().resize(tier, slots, memory=memory)
        self._limits[tier] = slots

    @override
    def dispatch(self) -> list[Plan]:
        """Plans for the cranes, each given once: what began, and what should go down ahead.

        Returns:
            Plans in the order in which they were made. Every rank's crane carries each out.
        """
        self._offload.decide(self)
        plans = super().dispatch()
        for plan in plans:
            self._flights.launch(plan, self._now)
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
        """Outcomes of flights: their copies have ended.

        Args:
            flights: What cranes reported of plans that `dispatch` gave: a flight ends when every
                rank has spoken, with the least that is good. Or plans, or numbers of flights, when
                the caller has brought the ranks together himself.
            good: Leading intact blocks of each, the minimum over ranks; all, for plans.
            corrupt: True where the first bad block failed its checksum: its source is dropped.
            done: A step that the engine has done: what was held back for it goes.
            now: The tick, agreed over ranks like all that enters here. What is in flight past its
                deadline counts as unknown from now on.

        Returns:
            Flights that ended. Duplicate and late outcomes are counted and change nothing.

        Raises:
            Misuse: An outcome contradicts its plan, or `now` is before an earlier one.
        """
        if now is not None:
            now = integer("now", now, least=self._now)
        elif good is None and corrupt is None and isinstance(flights, list) and not flights:
            # Every step says that it is done, most often with nothing landed.
            count = super().commit(flights, done=done)
            self._done = self._done if done is None else max(self._done, done)
            return count
        if isinstance(flights, Outcome):
            flights = [flights]
        if isinstance(flights, Sequence) and all(isinstance(one, Outcome) for one in flights):
            if good is not None or corrupt is not None:
                raise Misuse("good and corrupt go with flights or plans: an outcome has its own")
            outcomes = self._flights.check(cast("Sequence[Outcome]", flights))
            # The core may refuse `done`; behind it nothing is refused, and so nothing is lost.
            if done is not None:
                super().commit([], done=done)
            count = self._end(self._flights.report(outcomes))
        else:
            ids = cast("Plan | int | Sequence[Plan | int]", flights)
            count = super().commit(ids, good, corrupt=corrupt, done=done)
            self._forget(ids)
        self._done = self._done if done is None else max(self._done, done)
        if now is not None:
            self._now = now
        late = self._flights.overdue(self._now)
        if late:
            self.mark_unknown(late)
        return count

    def reset(self, rank: int, *, memory: Literal["lost", "kept"] = "lost") -> int:
        """A rank's process was started anew, or its device reset: its copies have ended.

        Call it only when that rank writes no more: `Crane.reset` comes before.

        Quarantined slots that waited for that come back. What the other ranks still copy is
        waited for.

        Args:
            rank: Which.
            memory: Whether what its tiers held is "kept", or "lost". Then nothing published so far
                is used again, as after `clear`; running sequences must be computed anew.

        Returns:
            Flights that ended.

        Raises:
            Misuse: There is no such rank, or another word for `memory`.
        """
        one_of("memory", memory, ("lost", "kept"))
        ended = self._flights.reset(rank)
        if memory == "lost":
            self.clear()
        return self._end(ended)

    def _end(self, ended: Ended) -> int:
        if not ended.flights:
            return 0
        return super().commit(ended.flights, ended.good, corrupt=ended.corrupt)

    @override
    def abort(self, flights: Plan | int | Sequence[Plan | int] | NDArray[np.integer[Any]]) -> int:
        """The copies of these flights have ended, and none is good."""
        count = super().abort(flights)
        self._forget(cast("Plan | int | Sequence[Plan | int]", flights))
        return count

    def _forget(self, flights: Plan | int | Sequence[Plan | int]) -> None:
        if not len(self._flights):
            return
        one = isinstance(flights, (Plan, int))
        each = [flights] if one else cast("Sequence[Plan | int]", flights)
        self._flights.forget(
            plan.flight if isinstance(plan, Plan) else int(plan)
            for plan in cast("Sequence[Plan | int]", each)
        )

    def explain(self, request: Keys | Iterable[int] | Lease | Parked | NoRoom) -> Explanation:
        """Why a prefix ends where it does, why a request waits, and who holds what.

        Args:
            request: A prompt, what `begin` or `park` gave, or a `NoRoom` it raised.
        """
        return explain(self, request)

    @override
    def stats(self) -> dict[str, int]:
        """Counters and sizes; `schema` has units and meanings."""
        return super().stats() | self._flights.stats()

    @staticmethod
    def schema() -> tuple[Stat, ...]:
        """Name, unit and meaning of each number in `stats`."""
        return core_schema() + Flights.SCHEMA


def _memory(config: Config) -> int | None:
    """Bytes that are there for a cache that takes many."""
    many = _many(config.device) or _many(config.host) or _many(config.ghosts)
    return free_memory() if many else None


def _many(count: object) -> bool:
    """Whether it is a number at all is for the core to say."""
    return isinstance(count, int | np.integer) and bool(count > _MANY)
