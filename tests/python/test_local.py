"""Yard and crane in one process: `step` is all there is to add to an engine's loop."""

import logging
import time
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import planes_of
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.local_cache import LocalCache
from blockyard.shared.log import Limited
from blockyard.testing import ScriptedCopier, hang
from blockyard.yard import flights
from yard import at_rest, begin, text

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4)


def test_victims_are_copied_down_ahead_of_need_and_come_back() -> None:
    with by.local(LAYOUT, device=33, host=64, ahead=16) as cache:
        plane = planes_of(cache.crane._tiers["device"])[0]
        for name in range(8):
            lease = begin(cache, text(name, 33))
            while lease.state == "loading":
                cache.step()
            plane[cache.block_tables(lease)[0][:8]] = name + 1
            cache.seal(lease, 33)
            cache.finish(lease)
            cache.step()
            while cache.crane.in_flight:  # the watchdog ends it, if ever
                time.sleep(1e-4)
                cache.step()
        found = [cache.probe(cache.keys(text(name, 32))) for name in range(8)]
        assert sum(probe.device + probe.host for probe in found) == 64
        for name in range(8):
            lease = begin(cache, text(name, 33))
            while lease.state == "loading":
                cache.step()
            assert lease.cached == 32
            assert np.all(plane[cache.block_tables(lease)[0][:8]] == name + 1)
            cache.finish(lease)
        stats = cache.stats()
        assert stats["crane_blocks"] == stats["device_in"] + stats["host_in"]


def test_through_copies_down_what_was_just_published() -> None:
    with by.local(LAYOUT, device=33, host=64, ahead=16, write="through") as cache:
        lease = begin(cache, text(1, 32))
        cache.seal(lease, 32)
        cache.step()
        assert cache.stats()["host_in"] == 8
        cache.finish(lease)


def test_nothing_is_copied_ahead_where_ahead_is_0_or_there_is_room() -> None:
    for ahead in (0, 4):
        with by.local(LAYOUT, device=33, host=64, ahead=ahead) as cache:
            cache.finish(begin(cache, text(1, 32)))
            cache.step()
            assert cache.stats()["plans"] == 0


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"device": 0}, "device"),
        ({"device": 8, "ranks": 2}, "ranks = 2, but the layout has 1"),
        ({"device": 8, "wirte": "through"}, "did you mean 'write'"),
        ({"device": 8, "host": "0.0000001 GiB"}, "smaller than one block"),
        ({"device": 8, "write": "never"}, "on-evict"),
    ],
)
def test_bad_values_are_named_and_nothing_is_left_open(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        by.local(LAYOUT, **keywords)


def test_several_ranks_are_not_for_one_process() -> None:
    layout = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, ranks=2)
    with pytest.raises(by.Misuse, match="run a Crane in each rank's process"):
        by.local(layout, device=8)


def test_memory_that_is_not_to_be_had_is_said_so() -> None:
    with pytest.raises(by.Unavailable, match="bytes"):
        by.local(by.KVLayout.preset("llama-3.1-405b"), device=4_000_000_000)


def test_it_can_be_made_of_a_config_or_of_memory_that_is_there() -> None:
    config = by.Config(device=9, host=5, layout=LAYOUT)
    with by.local(config) as cache:
        assert cache.config == config
    memory = MemoryTier(LAYOUT, 7, name="device"), MemoryTier(LAYOUT, 3, name="host")
    with pytest.raises(by.Misuse, match="device = 9: the memory given has its size"):
        by.local(LAYOUT, memory=memory, device=9)
    with by.local(LAYOUT, memory=memory) as cache:
        assert (cache.config.device, cache.config.host) == (7, 3)
    with pytest.raises(TypeError, match="put write into it"):
        by.local(config, write="through")
    with pytest.raises(by.Misuse, match="layout is missing"):
        by.local(by.Config(device=8))


def memory_of(**sizes: int) -> Any:
    """Tiers of NumPy memory, for `memory=`."""
    made = [
        MemoryTier(LAYOUT, blocks, name=name) if blocks else None for name, blocks in sizes.items()
    ]
    return tuple(made)


@pytest.mark.parametrize("host", [0, 5])
def test_a_third_tier_is_memory_too_and_needs_no_host(host: int) -> None:
    with by.local(LAYOUT, memory=memory_of(device=9, host=host, disk=7)) as cache:
        tiers = cache.crane._tiers
        sizes = {"device": 9, "host": host, "disk": 7}
        assert {name: tier.blocks for name, tier in tiers.items()} == {
            name: blocks for name, blocks in sizes.items() if blocks
        }
        assert all(tier.name == name for name, tier in tiers.items())
        assert cache.config.disk == cache.crane.hello().disk == 7
        assert not cache.config.keyed


def test_a_disk_without_a_path_is_refused() -> None:
    says = "and no disk_path: give the folder .* MemoryTier"
    for host in (0, 5):
        with pytest.raises(by.Misuse, match=says):
            by.local(LAYOUT, device=9, host=host, disk="0.001 GiB")
        with pytest.raises(by.Misuse, match=says):
            by.local(by.Config(layout=LAYOUT, device=9, host=host, disk=3))
    with pytest.raises(by.Misuse, match=says):
        by.local(by.Config(layout=LAYOUT, device=9, disk=3), memory=memory_of(device=9, host=0))


def test_memory_of_three_tiers_gives_all_sizes() -> None:
    device, host, disk = (MemoryTier(LAYOUT, 7, name=name) for name in ("device", "host", "disk"))
    for memory, sizes in (((device, host, disk), (7, 7, 7)), ((device, None, disk), (7, 0, 7))):
        config = by.local(LAYOUT, memory=memory).config
        assert (config.device, config.host, config.disk) == sizes
    with pytest.raises(by.Misuse, match="disk = 3 blocks, and no disk_path"):
        by.local(LAYOUT, memory=(device, host), disk=3)
    for bad in ((device,), (device, host, disk, disk), (None, host)):
        with pytest.raises(
            by.Misuse, match=r"give tiers, \(device, host\) or \(device, host, disk"
        ):
            by.local(LAYOUT, memory=bad)  # type: ignore[arg-type]


def test_a_reset_ends_the_copies_before_it_gives_their_slots_back() -> None:
    copier = ScriptedCopier(ThreadCopier(workers=0), [hang()])
    with by.local(LAYOUT, device=33, host=32, ahead=0, copier=copier) as cache:
        lease = begin(cache, text(1, 40))
        cache.seal(lease, 40)
        cache.demote(10, of=lease)
        cache.step()
        cache.finish(lease)
        assert cache.reset() == 1
        assert cache.crane.in_flight == 0
        lease = begin(cache, text(2, 40))
        tiers = cache.crane._tiers
        plane, below = (planes_of(tiers[name])[0] for name in ("device", "host"))
        plane[cache.block_tables(lease)[0]] = 2
        cache.seal(lease, 40)
        cache.demote(10, of=lease)
        cache.step()
        copier.release()  # whatever was left hanging must not write any more
        cache.step()
        assert np.all(below[:10] == 2)
        cache.finish(lease)
        cache.step()
        at_rest(cache)


@pytest.mark.parametrize("word", ["Lost", "", None])
def test_a_reset_with_another_word_is_refused(word: Any) -> None:
    with (
        by.local(LAYOUT, device=33) as cache,
        pytest.raises(by.Misuse, match="must be one of 'lost', 'kept'"),
    ):
        cache.reset(memory=word)
    with pytest.raises(by.Misuse, match="must be one of 'lost', 'kept'"):
        by.KVCache(device=8).reset(0, memory=word)


def test_a_step_that_is_refused_loses_no_outcome() -> None:
    with by.local(LAYOUT, device=33, host=32, copier=ThreadCopier(workers=0)) as cache:
        lease = begin(cache, text(1, 40))
        cache.seal(lease, 40)
        cache.demote(10, of=lease)
        cache.step()
        with pytest.raises(by.Misuse, match="done"):
            cache.step(done=-1)
        assert cache.step() == 1
        cache.finish(lease)
        at_rest(cache)


def test_a_closed_cache_puts_nothing_in_flight() -> None:
    cache = by.local(LAYOUT, device=33, host=64, write="through")
    lease = begin(cache, text(1, 120))
    cache.seal(lease, 120)
    cache.close()
    with pytest.raises(by.Misuse, match="closed"):
        cache.step()
    assert cache.stats()["plans"] == 0


def test_a_closed_cache_begins_nothing_and_ends_what_it_has() -> None:
    cache: Any = by.local(LAYOUT, device=33, host=64)
    lease, other = begin(cache, text(1, 12)), begin(cache, text(2, 12))
    parked, ticket = cache.park(begin(cache, text(3, 12)), 12), cache.promise(2)
    cache.seal(lease, 12)
    cache.close()
    before = cache.stats()
    for verb in (
        lambda: cache.begin([1, 2, 3]),
        lambda: cache.begin(parked),
        lambda: cache.begin([1], ticket=ticket),
        lambda: cache.append(lease, [1]),
        lambda: cache.grow(lease),
        lambda: cache.trim(lease, 12),
        lambda: cache.seal(lease, 12),
        lambda: cache.park(lease, 12),
        lambda: cache.fork(lease, 12),
        lambda: cache.block_tables(lease),
        lambda: cache.slot_mapping(lease, 0),
        lambda: cache.promise(1),
        lambda: cache.demote(1),
        lambda: cache.demote(1, of=parked),
        lambda: cache.promote(cache.keys(text(1, 12))),
        lambda: cache.resize("host", 128),
        cache.dispatch,
        cache.step,
    ):
        with pytest.raises(by.Misuse, match="this cache is closed: make another one"):
            verb()
    assert cache.stats() == before
    assert (cache.probe(text(1, 12)).device, lease.state, parked.state) == (3, "ready", "kept")
    cache.finish([lease, other])
    cache.abandon(parked)
    cache.release(ticket)
    at_rest(cache)


@pytest.mark.parametrize("way", ["close", "reset"])
def test_to_close_or_reset_with_copies_in_flight_logs_no_warning(
    way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "_log", Limited(flights.__name__))
    copier = ScriptedCopier(ThreadCopier(workers=0), [hang()])
    with by.local(LAYOUT, device=33, host=32, ahead=0, copier=copier) as cache:
        lease = begin(cache, text(1, 40))
        cache.seal(lease, 40)
        cache.demote(10, of=lease)
        cache.step()
        with caplog.at_level(logging.WARNING, "blockyard"):
            if way == "close":
                cache.close()
            else:
                cache.reset()
        assert cache.stats()["flights_failed"] == 1
        assert not caplog.records
        cache.finish(lease)
        at_rest(cache)


def test_it_can_be_closed_twice_and_with_copies_in_flight() -> None:
    cache = by.local(LAYOUT, device=33, host=64, ahead=32)
    lease = begin(cache, text(1, 120))
    cache.seal(lease, 120)
    cache.finish(lease)
    cache.step()
    cache.close()
    cache.close()
    assert isinstance(cache, LocalCache)
    at_rest(cache)


@pytest.mark.law("INV-6")
def test_a_step_is_a_tick_of_the_deadline() -> None:
    copier = ScriptedCopier(ThreadCopier(workers=0), [hang()])
    with by.local(LAYOUT, device=33, host=32, ahead=0, deadline=3, copier=copier) as cache:
        lease = begin(cache, text(1, 40))
        cache.seal(lease, 40)
        cache.demote(10, of=lease)
        for unknown in (0, 0, 0, 1):
            cache.step()
            assert cache.stats()["flights_unknown"] == unknown
        copier.release()
        cache.step()
        cache.finish(lease)
        cache.step()
        at_rest(cache)
