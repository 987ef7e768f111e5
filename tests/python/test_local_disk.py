"""Yard and crane in one process, with a third tier: real bytes go down to it and come back."""

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockyard as by
from blockyard.crane.tiers import planes_of
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.local_cache import LocalCache
from yard import at_rest, begin, free_for_all, text

LAYOUTS = {
    "llama": by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4),
    "one layer": by.KVLayout.llama(layers=1, kv_heads=1, head_dim=16, block_size=4),
}
Bytes = list[NDArray[np.uint8]]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> by.KVLayout:
    return LAYOUTS[request.param]


def three(layout: by.KVLayout, device: int, host: int, disk: int, **more: Any) -> LocalCache:
    """A cache with a third tier of memory."""
    sizes = {"device": device, "host": host, "disk": disk}
    made = [
        MemoryTier(layout, blocks, name=name) if blocks else None for name, blocks in sizes.items()
    ]
    return by.local(layout, memory=tuple(made), **more)  # type: ignore[arg-type]


def settle(cache: LocalCache) -> None:
    """Steps until nothing is in flight; the watchdog ends it, if ever."""
    cache.step()
    while cache.crane.in_flight:
        time.sleep(1e-4)
        cache.step()
    cache.step()


def ready(cache: LocalCache, lease: by.Lease) -> None:
    while lease.state == "loading":
        cache.step()


def slots(cache: LocalCache, lease: by.Lease, blocks: int) -> NDArray[Any]:
    return np.array(cache.block_tables(lease)[0][:blocks])


def read(cache: LocalCache, lease: by.Lease, blocks: int) -> Bytes:
    own = slots(cache, lease, blocks)
    return [plane[own].copy() for plane in planes_of(cache.crane._tiers["device"])]


def write(cache: LocalCache, lease: by.Lease, blocks: int, seed: int) -> Bytes:
    """Fills blocks with noise, as an engine that computes them would."""
    own, rng = slots(cache, lease, blocks), np.random.default_rng(seed)
    for plane in planes_of(cache.crane._tiers["device"]):
        plane[own] = rng.integers(0, 256, plane[own].shape, np.uint8)
    return read(cache, lease, blocks)


def publish(cache: LocalCache, name: int, blocks: int) -> Bytes:
    lease = begin(cache, text(name, 4 * blocks))
    ready(cache, lease)
    wrote = write(cache, lease, blocks, name)
    cache.seal(lease, 4 * blocks)
    cache.finish(lease)
    return wrote


def same(one: Bytes, other: Bytes) -> bool:
    return all(map(np.array_equal, one, other))


def squeeze(cache: LocalCache) -> None:
    """Evicts from the device all that may be."""
    cache.finish(begin(cache, text(99, 4 * free_for_all(cache))))


def test_one_begin_loads_from_host_and_disk_and_the_bytes_are_the_same(
    layout: by.KVLayout,
) -> None:
    with three(layout, 13, 6, 16, ahead=0) as cache:
        wrote = publish(cache, 1, 6)
        cache.demote(6)
        settle(cache)
        squeeze(cache)
        cache.demote(6, tier="host")
        settle(cache)
        # Another prompt takes the host's slots, and the first three blocks come up to it again.
        publish(cache, 2, 6)
        cache.demote(6)
        settle(cache)
        squeeze(cache)
        (plan,) = cache.promote(cache.keys(text(1, 24)), 3, to="host")
        assert (plan.source_tier, plan.destination_tier) == ("disk", "host")
        settle(cache)
        probe = cache.probe(text(1, 24))
        assert (probe.device, probe.host, probe.disk) == (0, 3, 3)
        for plane in planes_of(cache.crane._tiers["device"]):
            plane[...] = 0
        lease = begin(cache, text(1, 25))
        assert (lease.hits, lease.cached) == ((0, 3, 3, 0), 24)
        assert [(one.source_tier, len(one)) for one in lease.plans] == [("host", 3), ("disk", 3)]
        ready(cache, lease)
        assert same(read(cache, lease, 6), wrote)
        cache.finish(lease)
        settle(cache)
        stats = cache.stats()
        assert stats["crane_blocks"] == sum(stats[f"{t}_in"] for t in ("device", "host", "disk"))
        at_rest(cache)


@pytest.mark.parametrize("host", [16, 0])
def test_what_is_copied_down_ahead_of_need_sinks_to_the_disk_and_comes_back(
    layout: by.KVLayout, host: int
) -> None:
    with three(layout, 17, host, 64, ahead=8) as cache:
        wrote = []
        for name in range(8):
            wrote.append(publish(cache, name, 5))
            settle(cache)
        found = [cache.probe(text(name, 20)) for name in range(8)]
        assert sum(probe.device + probe.host + probe.disk for probe in found) == 40
        assert sum(probe.disk for probe in found) > 0
        for name in range(8):
            lease = begin(cache, text(name, 21))
            ready(cache, lease)
            assert lease.cached == 20
            assert same(read(cache, lease, 5), wrote[name])
            cache.finish(lease)
            settle(cache)
        assert cache.stats()["disk_hits"] > 0
        at_rest(cache)


@pytest.mark.parametrize("way", ["host", "disk", "both"])
def test_a_parked_sequence_comes_back_with_its_bytes_from_wherever_it_is_kept(
    layout: by.KVLayout, way: str
) -> None:
    with three(layout, 13, 6, 16, ahead=0) as cache:
        lease = begin(cache, text(1, 18))
        wrote = write(cache, lease, 5, 1)
        handle = cache.park(lease, 18)
        cache.demote(9, of=handle)
        settle(cache)
        squeeze(cache)
        if way != "host":
            cache.demote(9 if way == "disk" else 2, of=handle, to="disk")
            settle(cache)
        # The host's slots that it has left are taken by another prompt.
        publish(cache, 2, 6)
        cache.demote(6)
        settle(cache)
        squeeze(cache)
        kept = {"host": (5, 0, 0), "disk": (0, 5, 0), "both": (3, 2, 0)}[way]
        assert (handle.on_device, handle.below) == (0, kept)
        for plane in planes_of(cache.crane._tiers["device"]):
            plane[...] = 0
        back = begin(cache, handle)
        sources = [one.source_tier for one in back.plans]
        assert sources == {"both": ["host", "disk"]}.get(way, [way])
        ready(cache, back)
        assert (back.state, back.cached) == ("ready", 18)
        assert same(read(cache, back, 5), wrote)
        cache.finish(back)
        settle(cache)
        at_rest(cache)


def test_a_cache_that_is_told_what_its_disk_has_reads_it_from_there(layout: by.KVLayout) -> None:
    with three(layout, 13, 0, 16, ahead=0) as cache:
        keys = np.frombuffer(bytes(cache.keys(text(1, 20))), np.uint8).reshape(-1, 32)
        parents = np.zeros_like(keys)
        parents[1:] = keys[:-1]
        rows = np.array([7, 3, 15, 0, 8])
        rng, wrote = np.random.default_rng(3), []
        for plane in planes_of(cache.crane._tiers["disk"]):
            plane[...] = rng.integers(0, 256, plane.shape, np.uint8)
            wrote.append(plane[rows].copy())
        cache.restore("disk", rows, keys, parents)
        lease = begin(cache, text(1, 21))
        assert lease.hits == (0, 0, 5, 0)
        ready(cache, lease)
        assert same(read(cache, lease, 5), wrote)
        cache.finish(lease)
        settle(cache)
        at_rest(cache)
