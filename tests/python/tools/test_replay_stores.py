"""A replay with a modelled store below the other tiers."""

from typing import Any

import pytest

from blockyard.tools.replay.clock import Link, StoreTimes
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.run import run
from blockyard.tools.traces import workload
from blockyard.tools.traces.trace import Trace
from replays import modelled, quiet, spec_of
from yard import plan_of, there


@pytest.fixture(scope="module")
def trace() -> Trace:
    return workload.generate(3, requests=150)


def test_copies_to_and_from_a_store_queue_by_its_own_times() -> None:
    times = StoreTimes(seconds=2.0, latency=7.0)
    link = Link(block_bytes=100.0, bytes_per_second=1000.0, latency=0.5, disk=3.0, store=times)
    put, get = (
        plan_of(2, flight=1 << 32, way="disk remote"),
        plan_of(1, flight=2 << 32, way="remote host"),
    )
    disk = plan_of(2, flight=3 << 32, way="device disk")
    link.send([put, get, put, disk], 0.0)
    assert link.landed(6.5) == [disk]
    assert link.landed(9.0) == [get]
    assert link.landed(10.99) == []
    assert link.landed(11.0) == [put]
    assert link.next() == 15.0


def stored(trace: Trace, **changes: Any) -> Run:
    """A run over a store with names for all that a small host cannot keep."""
    small = {"device_blocks": 1_500, "host_blocks": 300, "remote_blocks": 20_000, "gate": False}
    return run(spec_of(trace, **small | changes), trace, quiet)


def test_a_store_gives_back_what_the_host_has_evicted(trace: Trace) -> None:
    without, result = stored(trace, remote_blocks=0), stored(trace)
    store = there(result.remote)
    assert without.remote is None
    assert store.hit_ratio > 0
    assert result.hit_ratio == pytest.approx(
        sum(result.hit_ratio_by_tier.values()) + store.hit_ratio
    )
    assert result.hit_ratio > without.hit_ratio
    assert 0 < store.peak <= store.blocks_down
    assert store.bytes_up == store.blocks_up * result.block_bytes > 0
    assert (store.losses, result.moved.failed_blocks, result.audit) == (0, 0, "ok")
    assert (result.requests, result.remote_blocks) == (150, 20_000)


def test_what_a_store_has_lost_is_computed_and_the_same_seed_loses_the_same(trace: Trace) -> None:
    whole, lossy = stored(trace), stored(trace, store_loss=0.05)
    store = there(lossy.remote)
    assert store.losses > 0
    assert lossy.moved.failed_blocks >= store.losses
    assert store.hit_ratio < there(whole.remote).hit_ratio
    assert (lossy.requests, lossy.audit) == (150, "ok")
    assert modelled(stored(trace, store_loss=0.05)) == modelled(lossy)
    nothing = there(stored(trace, store_loss=1.0).remote)
    assert (nothing.hit_ratio, nothing.blocks_up) == (0, 0)


def test_a_store_is_as_slow_as_it_is_said_to_be(trace: Trace) -> None:
    waits = [
        there(stored(trace, **slow).ttft_ms).p99
        for slow in ({}, {"store_latency": 1.0}, {"store_bytes_per_second": 1e8})
    ]
    assert max(waits) > waits[0]
    assert min(waits) == waits[0]
    gated = stored(trace, gate=True, store_bytes_per_second=1e8)
    assert there(gated.remote).hit_ratio < there(stored(trace).remote).hit_ratio
    assert spec_of(trace).block_costs.remote is None
