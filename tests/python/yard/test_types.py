"""What a type checker knows of the public names. Nothing here is run: mypy reads it.

A wrong program must be refused: an unused `type: ignore` is an error.
"""

from typing import Any, Literal, assert_type

import numpy as np
from numpy.typing import NDArray

import blockyard as by


def making_and_asking(cache: by.KVCache) -> None:
    assert_type(by.KVCache(device=8, host=8, eviction="heap"), by.KVCache)
    by.KVCache(device=8, eviction="learned", host_copies="first")
    by.KVCache(device=8, eviction="lru")  # type: ignore[arg-type]
    by.KVCache(8)  # type: ignore[arg-type]
    assert_type(cache.block_size, int)
    assert_type(cache.keys([1, 2], lora="a", salt=b"s", media=[(0, 2, "id")]), by.Keys)
    assert_type(cache.keys(np.arange(4)), by.Keys)
    assert_type(cache.ready_keys(b"", 3), by.Keys)
    assert_type(cache.ready_keys(["00" * 32], 16), by.Keys)
    cache.keys(["a"])  # type: ignore[list-item]
    assert_type(cache.keys([1]).hex(), list[str])
    assert_type(len(cache.keys([1])), int)
    probe = cache.probe(cache.keys([1]))
    assert_type(probe, by.Probe)
    assert_type(probe.device, int)
    assert_type(probe.flight, int | None)
    assert_type(cache.stats(), dict[str, int])
    assert_type(cache.audit(), by.Violation | None)
    assert_type(cache.draining(), bool)


def beginning(cache: by.KVCache, keys: by.Keys, parked: by.Parked, *, soon: bool) -> None:
    assert_type(cache.begin([1]), by.Lease)
    assert_type(cache.begin(keys, reserve=3, load=4), by.Lease)
    assert_type(cache.begin(np.arange(4), filling="stop", salt="s"), by.Lease)
    assert_type(cache.begin(keys, filling="soon"), by.Lease | by.Soon)
    assert_type(cache.begin(keys, filling="soon" if soon else "stop"), by.Lease | by.Soon)
    assert_type(cache.begin(parked, reserve=3), by.Lease | by.Soon)
    cache.begin(parked, load=3)  # type: ignore[call-overload]
    cache.begin(3)  # type: ignore[call-overload]
    cache.begin(keys, reserve=None)  # type: ignore[call-overload]


def reading_a_lease(lease: by.Lease) -> None:
    assert_type(lease.id, int)
    assert_type(lease.plans, tuple[by.Plan, ...])
    assert_type(lease.hits, tuple[int, int, int, int])
    assert_type(lease.cached, int)
    assert_type(lease.state, Literal["ready", "loading", "incomplete", "detached", "spent"])
    with lease as same:
        assert_type(same, by.Lease)
    lease.cached = 3  # type: ignore[misc]


class Tensor:
    """As PyTorch's are: with DLPack, and without a buffer."""

    def __dlpack__(self, stream: Any = None) -> Any:
        pass

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def stepping(
    cache: by.KVCache, batch: list[by.Lease], out: NDArray[np.int32], tensor: Tensor
) -> None:
    cache.append(batch, [1, 2])
    assert_type(cache.grow(batch), NDArray[np.int32])
    assert_type(cache.grow(batch[0], np.array([1])), NDArray[np.int32])
    assert_type(cache.block_tables(batch), NDArray[np.int32])
    assert_type(cache.block_tables(batch, out), int)
    assert_type(cache.block_tables(batch, out, cells="changed"), int)
    cache.block_tables(batch, cells="changed")  # type: ignore[call-overload]
    assert_type(cache.block_tables(batch, tensor), int)
    cache.block_tables(batch, [[0]])  # type: ignore[call-overload]
    assert_type(cache.slot_mapping(batch, 0), NDArray[np.int64])
    assert_type(cache.slot_mapping(batch, 0, None, tensor), int)
    assert_type(cache.slot_mapping(batch, [0], None, np.zeros(4, np.int64)), int)
    assert_type(cache.seal(batch, 3), int)
    cache.trim(batch, 3)
    assert_type(cache.dedup(batch), int)
    cache.grow([batch])  # type: ignore[list-item]


def ending(cache: by.KVCache, lease: by.Lease, keys: by.Keys) -> None:
    parked = cache.park(lease, 3, after=2)
    assert_type(parked, by.Parked)
    assert_type(parked.state, Literal["kept", "broken", "spent"])
    assert_type(cache.fork(lease, 3), by.Lease)
    cache.finish([lease], retention="session-ended", after=3)
    cache.finish(lease, next_use=2, priority=100, ttl=7)
    cache.finish(lease, next_use="soon")  # type: ignore[arg-type]
    cache.finish(lease, retention="soon")  # type: ignore[arg-type]
    cache.finish(parked)  # type: ignore[arg-type]
    cache.abandon(parked)
    cache.abandon(lease)  # type: ignore[arg-type]
    assert_type(cache.demote(3), by.Plan | None)
    assert_type(cache.demote(3, of=parked), by.Plan | None)
    assert_type(cache.promote(keys), list[by.Plan])
    cache.resize("host", 3)
    cache.resize("tape", 3)  # type: ignore[arg-type]


def flying(cache: by.KVCache, plan: by.Plan) -> None:
    assert_type(plan.sources, NDArray[np.uint32])
    assert_type(plan.runs(), NDArray[np.uint32])
    assert_type(plan.source_tier, Literal["device", "host", "disk", "remote"])
    assert_type(by.Plan.from_bytes(plan.to_bytes()), by.Plan)
    assert_type(cache.commit(plan), int)
    assert_type(cache.commit([plan, 3], [1, 2], corrupt=[True, False], done=3), int)
    assert_type(cache.commit([by.Outcome(1, 0, 3)], now=7), int)
    assert_type(cache.dispatch(), list[by.Plan])
    assert_type(cache.commit(np.array([1]), corrupt=np.array([True])), int)
    assert_type(cache.abort(plan.flight), int)
    assert_type(cache.mark_unknown([plan]), int)
    cache.commit("x")  # type: ignore[arg-type]


def failing(error: by.NoRoom, large: by.TooLarge, used: by.InUse) -> None:
    assert_type(error.need, int)
    assert_type(error.tier, str)
    assert_type(large.capacity, int)
    assert_type((used.want, used.used), tuple[int, int])


def deriving() -> None:
    class Counting(by.KVCache):
        verbs = 0

    class Mine(by.Lease):  # type: ignore[misc]
        pass

    assert_type(Counting(device=8), Counting)


def violating(violation: by.Violation) -> None:
    assert_type(violation.law, str)
    assert_type(violation.slot, int | None)
    anything: Any = violation
    assert_type(anything.law, Any)
