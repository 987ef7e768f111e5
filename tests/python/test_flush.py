"""A clean stop keeps what was published: it is written to the disk, within a bound."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import TIERS
from blockyard.shared.restored import Restored
from blockyard.yard.flush import Flush
from disks import BLOCKS, LAYOUT, OURS, dies, opened, talks, value
from mounts import ext4, frozen

SIZE = 4


def publish(cache: Any, talk: int, blocks: int = BLOCKS) -> list[int]:
    """Computes a prompt, or what is not found of it; nothing is copied but by the steps.

    Returns:
        The slots in which it was.
    """
    tokens = SIZE * blocks
    lease = cache.begin(range(1000 * talk, 1000 * talk + tokens))
    while lease.state == "loading":
        cache.step()
    plane = cache.crane.device.planes[0]
    table = [int(slot) for slot in cache.block_tables(lease)[0][:blocks]]
    for block, slot in enumerate(table):
        plane[slot] = value(talk, block)
    cache.seal(lease, tokens)
    cache.finish(lease)
    cache.step()
    return table


def found(cache: Any, talk: int, blocks: int = BLOCKS) -> int:
    """Leading blocks of a prompt that lie anywhere."""
    probe = cache.probe(range(1000 * talk, 1000 * talk + SIZE * blocks))
    return int(probe.device + probe.host + probe.disk)


@pytest.mark.law("INV-40")
@pytest.mark.parametrize("talks_of", [(10, 4), (1, 40), (40, 1)], ids=["short", "one", "blocks"])
@pytest.mark.parametrize(
    "options",
    [
        {"device": 64},
        {"device": 64, "host": 64},
        {"device": 64, "host": 64, "write": "through"},
        {"device": 64, "host": 64, "write": {"host": "through"}},
        {"device": 64, "host": 64, "write": "second-touch"},
        {"device": 64, "host": 64, "ahead": 0},
        {"device": 42, "host": 8},
        {"device": 42, "host": 8, "eviction": "learned"},
        {"device": 42, "host": 8, "host_copies": "first"},
    ],
    ids=str,
)
def test_what_was_published_is_there_after_a_clean_stop(
    tmp_path: Path, options: dict[str, Any], talks_of: tuple[int, int]
) -> None:
    many, blocks = talks_of
    with opened(tmp_path, **options) as cache:
        for talk in range(many):
            publish(cache, talk, blocks)
    with opened(tmp_path, **options) as cache:
        assert cache.restored == many * blocks
        assert [found(cache, talk, blocks) for talk in range(many)] == [blocks] * many


def test_what_the_host_alone_has_is_there_too(tmp_path: Path) -> None:
    given: dict[str, Any] = {"device": 9, "host": 64, "ahead": 0}
    with opened(tmp_path, **given) as cache:
        for talk in range(10):
            publish(cache, talk)
            cache.demote(8)
            while cache.step() or cache.stats()["flights"]:
                pass
        assert cache.stats()["disk_idle"] == 0
        assert [found(cache, talk) for talk in range(10)] == [BLOCKS] * 10
    with opened(tmp_path, **given) as cache:
        assert cache.restored == 10 * BLOCKS


def test_it_goes_on_after_a_flush_and_the_next_one_has_nothing_to_do(tmp_path: Path) -> None:
    with opened(tmp_path, host=16) as cache:
        publish(cache, 1)
        assert cache.flush(until=30) == 0
        assert cache.stats()["disk_idle"] == BLOCKS
        assert cache.stats()["flights"] == 0
        written = cache.stats()["disk_written_blocks"]
        assert cache.flush(until=30) == 0
        assert cache.stats()["disk_written_blocks"] == written
        publish(cache, 2)
        assert (found(cache, 1), found(cache, 2)) == (BLOCKS, BLOCKS)
        assert cache.close(flush=30) == 0
        assert cache.audit() is None
    with opened(tmp_path, host=16) as cache:
        assert cache.restored == 2 * BLOCKS


def test_it_is_bytes_that_are_written(tmp_path: Path) -> None:
    with opened(tmp_path, device=42) as cache:
        lease = cache.begin(range(300, 316))
        for block, slot in enumerate(cache.block_tables(lease)[0]):
            cache.crane.device.planes[0][slot] = value(3, block)
        cache.seal(lease, 16)
        cache.finish(lease)
    with opened(tmp_path, device=42) as cache:
        # It checks each byte that is found.
        assert talks(cache, [3]) == {3: 4 * BLOCKS - 1}


def test_what_a_request_still_holds_is_written_too(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        lease = cache.begin(range(16))
        cache.seal(lease, 16)
        assert cache.close() == 0
        cache.finish(lease)
    with opened(tmp_path) as cache:
        assert cache.restored == BLOCKS


def test_a_disk_that_is_too_small_gets_what_would_be_evicted_last_from_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, device=66, disk=10, ahead=0) as cache:
        for talk in range(5):
            publish(cache, talk)
        publish(cache, 1)  # it is used again
        with caplog.at_level(logging.WARNING, "blockyard"):
            assert cache.close() == 5 * BLOCKS - 10
    assert "10 blocks are not on the disk" in caplog.text
    with opened(tmp_path, device=66, disk=10, ahead=0) as cache:
        assert [found(cache, talk) for talk in range(5)] == [0, 4, 0, 2, 4]


def test_what_only_the_disk_has_goes_for_what_was_used_since(tmp_path: Path) -> None:
    given: dict[str, Any] = {"device": 66, "disk": 10}
    with opened(tmp_path, **given) as cache:
        for talk in (1, 2):
            publish(cache, talk)
    with opened(tmp_path, **given) as cache:
        assert cache.restored == 2 * BLOCKS
        publish(cache, 2)
        publish(cache, 3)
        assert cache.close() == 0
        assert cache.audit() is None
    with opened(tmp_path, **given) as cache:
        assert [found(cache, talk) for talk in (1, 2, 3)] == [2, 4, 4]


def test_after_a_restart_that_goes_first_which_was_used_last_longest_ago(tmp_path: Path) -> None:
    given: dict[str, Any] = {"device": 66, "host": 64, "disk": 6 * BLOCKS}
    with opened(tmp_path, **given) as cache:
        for talk in range(6):
            publish(cache, talk)
        publish(cache, 0)
    with opened(tmp_path, **given) as cache:
        assert cache.restored == 6 * BLOCKS
        for talk in (6, 7):
            publish(cache, talk)
        assert cache.flush(until=30) == 0
        assert [found(cache, talk) for talk in range(8)] == [4, 0, 0, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    "bound", [-1, -0.1, math.inf, -math.inf, math.nan, "soon", None, True, 10**400]
)
def test_a_bound_that_is_none_is_named_and_nothing_is_done(tmp_path: Path, bound: Any) -> None:
    with opened(tmp_path) as cache:
        publish(cache, 1)
        with pytest.raises(by.Misuse, match=r"until = .*must be seconds, from 0 to"):
            cache.flush(until=bound)
        if bound is not None:
            with pytest.raises(by.Misuse, match=r"flush = .*must be seconds, from 0 to"):
                cache.close(flush=bound)
            with pytest.raises(by.Misuse, match=r"flush = .*must be seconds, from 0 to"):
                opened(tmp_path / "another", flush=bound)
        assert not cache.crane.closed
        assert found(cache, 1) == BLOCKS
    with opened(tmp_path) as cache:
        assert cache.restored == BLOCKS


def test_a_closed_cache_is_told_so(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    publish(cache, 1)
    cache.close()
    with pytest.raises(by.Misuse, match="closed: make another one"):
        cache.flush(until=1)
    with pytest.raises(by.Misuse, match="closed: make another one"):
        cache.flushing(until=1)
    assert cache.close() == cache.close(flush=3) == 0


@pytest.mark.parametrize("how", ["close", "local"])
def test_0_writes_nothing(tmp_path: Path, how: str) -> None:
    more = {"flush": 0} if how == "local" else {}
    cache = opened(tmp_path, **more)
    publish(cache, 1)
    assert cache.flush(until=0) == BLOCKS
    assert cache.close(**({"flush": 0} if how == "close" else {})) == 0
    with opened(tmp_path) as cache:
        assert cache.restored == 0


def test_nothing_is_written_where_an_exception_leaves_the_block(tmp_path: Path) -> None:
    cache = opened(tmp_path)

    def dies() -> None:
        with cache:
            publish(cache, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dies()
    assert cache.crane.closed
    with opened(tmp_path) as cache:
        assert cache.restored == 0


def test_without_a_disk_there_is_nothing_to_do() -> None:
    with by.local(LAYOUT, device=9, host=9) as cache:
        lease = cache.begin(range(16))
        cache.seal(lease, 16)
        cache.finish(lease)
        assert cache.flush(until=20) == 0
        plans = cache.stats()["plans"]
        assert cache.close() == 0
        assert cache.stats()["plans"] == plans


def test_a_keyed_tier_of_memory_is_no_disk_to_write_to() -> None:
    device, host, disk = (MemoryTier(LAYOUT, 9, name=name) for name in TIERS[:3])
    identity = {"model": "m", "weights": "1"}
    keyed = by.Config(layout=LAYOUT, device=9, host=9, disk=9, keyed=("disk",), namespace=identity)
    with by.local(keyed, memory=(device, host, disk)) as cache:
        publish(cache, 1, 4)
        flush = cache.flushing(until=20)
        assert not flush.plan()
        assert flush.left() == cache.flush(until=20) == 0


@pytest.mark.law("INV-32")
def test_a_disk_that_dies_costs_three_copies_and_nothing_that_was_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"device": 66, "disk": 64, "ahead": 0}
    with opened(tmp_path, **given) as cache:
        publish(cache, 1)
        assert cache.flush(until=30) == 0
        for talk in range(2, 12):
            publish(cache, talk)
        submitted = cache.stats()["crane_flights"]
        revive = dies(tmp_path)
        begun = time.monotonic()
        with caplog.at_level(logging.WARNING, "blockyard"):
            assert cache.flush(until=1000) == 10 * BLOCKS
        assert time.monotonic() - begun < 60
        assert cache.stats()["crane_flights"] <= submitted + 3
        assert f"{10 * BLOCKS} blocks are not on the disk" in caplog.text
        assert [found(cache, talk) for talk in range(1, 12)] == [BLOCKS] * 11
        assert cache.audit() is None
        revive()
        cache.close(flush=0)
    with opened(tmp_path, **given) as cache:
        assert cache.restored == BLOCKS


@pytest.mark.law("INV-32")
def test_a_frozen_disk_is_waited_for_until_the_bound(tmp_path: Path) -> None:
    with ext4(tmp_path / "image", tmp_path / "disk") as disk:
        cache = opened(disk, device=66, ahead=0)
        publish(cache, 1)
        assert cache.flush(until=30) == 0
        for talk in range(2, 6):
            publish(cache, talk)
        with frozen(disk):
            ticks = iter(range(1000))
            assert cache.flush(until=20, clock=lambda: next(ticks)) == 4 * BLOCKS
            assert next(ticks) < 40, "it asks the time, and has no other end"
            assert [found(cache, talk) for talk in range(1, 6)] == [BLOCKS] * 5
            # Some blocks alone are in the air: a request has room.
            lease = cache.begin(range(9000, 9000 + 40 * SIZE))
            cache.finish(lease)
            lane = cache.crane._tiers["disk"].parts[0].lane
            lane.close(patience=0.05)
            assert cache.close(flush=0.1) == 4 * BLOCKS
        del cache, lane
        again, until = None, time.monotonic() + 20
        while again is None:
            assert time.monotonic() < until, "the last thread gives it to the next owner"
            time.sleep(0.01)
            with contextlib.suppress(by.Unavailable):
                again = opened(disk, device=66, ahead=0)
        assert found(again, 1) == BLOCKS
        again.close()


@pytest.mark.parametrize("at", range(1, 6))
def test_an_interrupt_ends_the_writing_and_the_cache_is_closed_soundly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    cache = opened(tmp_path, device=66)
    for talk in range(10):
        publish(cache, talk)
    plan, calls = Flush.plan, iter(range(1, 100))

    def interrupted(self: Flush) -> bool:
        went_on = plan(self)
        if next(calls) == at:
            raise KeyboardInterrupt
        return went_on

    monkeypatch.setattr(Flush, "plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.close()
    monkeypatch.undo()
    assert cache.closed
    assert cache.crane.closed
    assert cache.audit() is None
    assert cache.stats()["flights"] == 0
    with opened(tmp_path, device=66) as again:
        kept = [found(again, talk) for talk in range(10)]
        assert sum(kept) == again.restored, "no end without its beginning"


def test_an_interrupt_of_a_flush_leaves_a_cache_that_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path, device=66) as cache:
        for talk in range(10):
            publish(cache, talk)

        def ticks() -> Iterator[float]:
            yield from (0.0, 0.0, 0.0)
            raise KeyboardInterrupt

        clock = ticks()
        with pytest.raises(KeyboardInterrupt):
            cache.flush(until=10, clock=lambda: next(clock))
        assert cache.flush(until=30) == 0
        assert cache.audit() is None
    with opened(tmp_path, device=66) as cache:
        assert cache.restored == 10 * BLOCKS


def planned(blocks: int, good: Callable[[int, int], int], **more: Any) -> tuple[list[int], int]:
    """Writes blocks, each of a prompt; returns how long the plans are, and how much is left.

    Args:
        blocks: Published.
        good: Of a plan, by its place and its length, how many of its blocks are good.
        more: Of the configuration.
    """
    cache = by.KVCache(device=blocks + 1, host=blocks, block_size=SIZE, keyed=["host"], **more)
    for first in range(0, SIZE * blocks, SIZE):
        lease = cache.begin(range(first, first + SIZE))
        cache.seal(lease, SIZE)
        cache.finish(lease)
    flush = cache.flushing(until=20, clock=lambda: 0.0)
    lengths: list[int] = []
    while flush.plan():
        plans = cache.dispatch()
        assert sum(map(len, plans)) <= flush._limit
        for plan in plans:
            cache.commit(plan, good(len(lengths), len(plan)))
            lengths.append(len(plan))
    assert not cache.dispatched()
    assert cache.audit() is None
    return lengths, flush.left()


def test_a_few_are_in_the_air_at_first_and_then_more() -> None:
    assert planned(64, lambda _, blocks: blocks) == ([4, 8, 16, 32, 4], 0)
    # Of so large blocks a few are many bytes.
    large = by.KVLayout.llama(layers=32, kv_heads=32, head_dim=2048, block_size=SIZE)
    assert planned(64, lambda _, blocks: blocks, layout=large)[0] == [4, *[8] * 7, 4]


def test_what_fails_is_tried_again_as_long_as_something_lands() -> None:
    def some(at: int, blocks: int) -> int:
        return 0 if at == 1 else blocks

    lengths, left = planned(32, some)
    assert (sum(lengths) - lengths[1], left) == (32, 0)


def test_after_three_copies_in_a_row_of_which_nothing_lands_it_ends() -> None:
    def few(at: int, blocks: int) -> int:
        return blocks if at == 0 else 0

    lengths, left = planned(32, few)
    assert (len(lengths), left) == (4, 28)


def test_what_is_on_its_way_to_the_tier_above_is_written_when_it_is_there() -> None:
    cache = by.KVCache(engine=8, host=8, disk=8, block_size=SIZE, keyed=["disk"])
    cache.offload(cache.keys(range(4 * SIZE)), [0, 1, 2, 3])
    (offloaded,) = cache.dispatch()
    flush = cache.flushing(until=20, clock=lambda: 0.0)
    for _ in range(3):
        assert flush.plan(), "it waits for it"
        assert cache.dispatch() == []
    cache.commit(offloaded)
    while flush.plan():
        cache.commit(cache.dispatch())
    assert flush.left() == 0


class Ranks:
    """A yard, and two ranks that have a folder each."""

    def __init__(self, path: Path) -> None:
        layout = by.KVLayout.llama(2, 4, 8, block_size=SIZE, ranks=2)
        config = by.Config(
            layout=layout, device=33, host=16, disk=64, namespace=OURS, keyed=("disk",)
        ).named()
        self.cranes = []
        for rank in range(2):
            tiers: dict[str, Any] = {
                "device": MemoryTier(layout, 33, name="device"),
                "host": MemoryTier(layout, 16, name="host"),
                "disk": DiskTier(layout, path, blocks=64, identity=config.identity, rank=rank),
            }
            named = config.fingerprint
            self.cranes.append(Crane(layout, rank=rank, fingerprint=named, **tiers))
        self.cache = by.KVCache(by.agree(config, [one.hello(config.yard) for one in self.cranes]))
        offers = [one for crane in self.cranes if (one := crane.persistent.restored()) is not None]
        found = Restored.agreed(offers)
        self.cache.restore("disk", found.slots, found.keys, found.parents)
        for crane in self.cranes:
            crane.persistent.count_as(found.run)
        self.restored = len(found)

    def step(self) -> None:
        self.cache.commit([outcome for crane in self.cranes for outcome in crane.poll()])
        plans = self.cache.dispatch()
        for crane in self.cranes:
            crane.submit(plans)


def test_several_ranks_write_in_the_loop_of_their_scheduler(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    for talk in range(5):
        lease = ranks.cache.begin(range(1000 * talk, 1000 * talk + 16))
        ranks.cache.seal(lease, 16)
        ranks.cache.finish(lease)
    flush = ranks.cache.flushing(until=60)
    assert flush.left() == 5 * BLOCKS
    while flush.plan():
        ranks.step()
        time.sleep(1e-4)
    assert flush.left() == 0
    assert ranks.cache.audit() is None
    for crane in ranks.cranes:
        crane.close()
    again = Ranks(tmp_path)
    assert again.restored == 5 * BLOCKS
    for crane in again.cranes:
        crane.close()


def test_a_loop_that_hands_nothing_out_ends_with_the_time() -> None:
    cache, ticks = by.KVCache(device=9, host=8, block_size=SIZE, keyed=["host"]), iter(range(99))
    lease = cache.begin(range(SIZE))
    cache.seal(lease, SIZE)
    flush = cache.flushing(until=20, clock=lambda: next(ticks))
    while flush.plan():
        pass
    assert next(ticks) < 30
    assert flush.left() == 1
    cache.finish(lease)
