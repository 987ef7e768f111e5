"""Copies that are checked: a block that is no longer what came to a tier does not leave it. E5"""

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._core import checksums
from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.crane.copiers import Landed, Receipt
from blockyard.crane.copiers.checked import CheckedCopier, Checksums, checked
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import Plane
from blockyard.testing import Script, ScriptedCopier, delay, fail, hang
from cranes import landed
from yard import there

LAYOUT = by.KVLayout.llama(2, 2, 8, block_size=4, dtype="float32")
HASHED = np.random.default_rng(1).integers(0, 256, (5, 2, 300), np.uint8)


def slots(*numbers: int) -> Any:
    return np.array(numbers, np.uint32)


def test_a_checksum_is_of_all_the_bytes_of_a_slot_and_of_nothing_else() -> None:
    have = checksums(HASHED, slots(3, 0, 3))
    assert have.dtype == np.uint64
    assert have[0] == have[2] != have[1]
    wide = np.zeros((5, 700), np.uint8)
    apart = np.ndarray((5, 2, 300), np.uint8, wide, 50, (700, 300, 1))
    apart[:] = HASHED
    wide[:, :50] = wide[:, 650:] = 9
    assert (checksums(apart, slots(3, 0, 3)) == have).all()
    for at in ((3, 0, 0), (3, 1, 299)):
        flipped = HASHED.copy()
        flipped[at] ^= 1
        changed = checksums(flipped, slots(3, 0))
        assert (changed[0] != have[0], changed[1] == have[1]) == (True, True)
    assert checksums(HASHED, slots()).shape == (0,)
    assert checksums(HASHED[:, :, :0], slots(1)).shape == (1,)


def test_it_is_xxh3_of_64_bits() -> None:
    # The digest of nothing, and of one zero byte, as the reference implementation has them.
    assert int(checksums(np.zeros((1, 1, 0), np.uint8), slots(0))[0]) == 0x2D06800538D394C2
    assert int(checksums(np.zeros((1, 1, 1), np.uint8), slots(0))[0]) == 0xC44BDFF4074EECDB


@pytest.mark.parametrize(
    ("plane", "numbers", "says"),
    [
        (HASHED, [5], "slots = 5: the plane has 5"),
        (HASHED[0], [0], r"shape \[2, 300\]"),
        (HASHED[:, :, ::2], [0], "strides"),
        (HASHED[:, ::-1], [0], "strides"),
        (HASHED.astype(np.int32), [0], "no array of bytes"),
        (3, [0], "no array of bytes"),
    ],
)
def test_what_has_no_checksum_is_named(plane: Any, numbers: list[int], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        checksums(plane, np.array(numbers, np.uint32))


class Memory:
    """A device and a host of 8 slots, and a copier both ways."""

    def __init__(self, inner: Any = None, workers: int = 0) -> None:
        self.device = MemoryTier(LAYOUT, 8, name="device")
        self.host = MemoryTier(LAYOUT, 8)
        for tier in (self.device, self.host):
            for plane in tier.planes:
                plane[:] = np.arange(8, dtype=np.uint8)[:, None, None]
        self.sums = Checksums(workers=workers)
        self.copier = CheckedCopier(inner or ThreadCopier(workers=0), self.sums)

    def down(self, *numbers: int) -> Receipt | None:
        return self.copier.start(self.device, self.host, slots(*numbers), slots(*numbers))

    def up(self, *numbers: int) -> Receipt | None:
        return self.copier.start(self.host, self.device, slots(*numbers), slots(*numbers))

    def flip(self, slot: int) -> None:
        self.host.planes[-1][slot, -1, -1] ^= 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("bad", "good"), [(5, 0), (3, 1), (7, 2), (1, 3)])
def test_a_copy_ends_before_the_block_that_is_no_longer_what_came(
    workers: int, bad: int, good: int
) -> None:
    made = Memory(workers=workers)
    assert landed(made.down(5, 3, 7)) == Landed(3)
    made.flip(bad)
    for plane in made.device.planes:
        plane[:] = 99
    cause = by.Cause.CORRUPT if good < 3 else None
    assert landed(made.up(5, 3, 7)) == Landed(good, cause)
    for plane in made.device.planes:
        have = [int(plane[slot, 0, 0]) for slot in (5, 3, 7)]
        assert have == [5, 3, 7][:good] + [99] * (3 - good)
    made.copier.close()


def test_what_this_rank_has_not_written_is_not_compared() -> None:
    made = Memory()
    assert landed(made.up(1, 2)) == Landed(2)
    assert landed(made.down(1)) == Landed(1)
    made.flip(2)
    assert landed(made.up(1, 2)) == Landed(2)
    made.flip(1)
    assert landed(made.up(2, 1)) == Landed(1, by.Cause.CORRUPT)
    # It was written again since.
    assert landed(made.down(1)) == Landed(1)
    assert landed(made.up(2, 1)) == Landed(2)


def test_what_did_not_come_is_not_noted() -> None:
    made = Memory(ScriptedCopier(ThreadCopier(workers=0), Script([fail(1)])))
    assert landed(made.down(4, 5)) == Landed(1, by.Cause.FAILED)
    made.flip(5)
    assert landed(made.up(5)) == Landed(1)
    made.flip(4)
    assert landed(made.up(4)) == Landed(0, by.Cause.CORRUPT)


def test_a_copy_that_fails_before_a_bad_block_has_failed() -> None:
    script = Script([delay(0), fail(1)])
    made = Memory(ScriptedCopier(ThreadCopier(workers=0), script))
    assert landed(made.down(1, 2, 3)) == Landed(3)
    made.flip(3)
    assert landed(made.up(1, 2, 3)) == Landed(1, by.Cause.FAILED)


def test_a_full_copier_is_asked_again() -> None:
    class Full(ThreadCopier):
        full = True

        @override
        def start(self, *what: Any) -> Receipt | None:
            return None if self.full else super().start(*what)

    inner = Full(workers=0)
    made = Memory(inner)
    assert made.down(1) is None
    inner.full = False
    assert landed(made.down(1)) == Landed(1)
    inner.full = True
    up = there(made.up(1))
    assert up.poll() is None
    assert not made.copier.join(), "one has not begun"
    inner.full = False
    assert landed(up) == Landed(1)


class Refusing(ThreadCopier):
    """A copier whose driver refuses some copies."""

    refuses = 0

    @override
    def start(self, *what: Any) -> Receipt | None:
        if self.refuses:
            self.refuses -= 1
            raise by.Unavailable("on purpose")
        return super().start(*what)


@pytest.mark.parametrize("by_whom", ["poll", "start", "join"])
def test_a_copy_that_is_refused_after_it_was_compared_fails_alone(by_whom: str) -> None:
    inner = Refusing(workers=0)
    made = Memory(inner)
    assert landed(made.down(1, 2, 3)) == Landed(3)
    held: list[Future[int]] = []

    def later(_tier: Any, _numbers: Any) -> Future[int]:
        held.append(Future())
        return held[-1]

    vars(made.sums)["compare"] = later
    first = made.up(1)
    second = made.up(2)
    held[0].set_result(1)
    inner.refuses = 1
    if by_whom == "poll":
        assert first is not None
        assert first.poll() == Landed(0, by.Cause.FAILED)
    elif by_whom == "join":
        made.copier.join()
    third = made.up(3)
    for future in held[1:]:
        future.set_result(1)
    assert landed(first) == Landed(0, by.Cause.FAILED)
    assert [landed(second), landed(third)] == [Landed(1), Landed(1)]
    broken = made.up(1)
    held[-1].set_exception(RuntimeError("on purpose"))
    assert landed(broken) == Landed(0, by.Cause.FAILED)
    assert made.copier._compared == []


@pytest.mark.parametrize("end", ["reset", "close"])
def test_it_ends_with_nothing_that_reads_or_writes(end: str) -> None:
    made = Memory(ScriptedCopier(ThreadCopier(workers=0), Script([delay(0), hang()])), workers=1)
    assert landed(made.down(1, 2)) == Landed(2)
    hung = there(made.up(1))
    while made.copier._compared:
        hung.poll()
    # The thread that computes has something else to do.
    held = threading.Event()
    blocked = there(made.sums._threads._pool).submit(held.wait, 20)
    waiting = made.up(2)
    threading.Timer(0.05, held.set).start()
    getattr(made.copier, end)()
    assert blocked.done()
    assert made.copier._compared == []
    for receipt in (hung, waiting):
        assert receipt is not None
        assert receipt.poll() is not None or end == "reset"
    if end == "reset":
        made.copier.close()


def test_of_a_plane_that_ranks_share_one_of_them_checks_each_block(tmp_path: Any) -> None:
    layout = by.KVLayout(
        (Plane("kv", 2, 64, replicated=True),), block_size=4, ranks=2, dtype="uint8"
    )
    cranes, hosts = [], []
    for rank in range(2):
        device = MemoryTier(layout, 8, name="device")
        device.planes[0][:] = np.arange(8, dtype=np.uint8)[:, None, None]
        host = MemoryTier(layout, 8, shared=str(tmp_path / "host"))
        copiers = checked(
            {
                pair: ThreadCopier(workers=0)
                for pair in (("device", "host"), ("host", "device"), ("device", "device"))
            },
            workers=0,
        )
        hosts.append(host)
        cranes.append(by.Crane(layout, rank=rank, device=device, host=host, copier=copiers))
    ask = Connector(by.KVCache(layout, engine=8, host=8))
    keys = ask.cache.keys(range(16))
    ask.offload(keys, [0, 1, 2, 3])

    def carry() -> list[int]:
        orders, said = ask.step(), []
        for crane in cranes:
            crane.submit([*orders.down, *orders.up])
            said += crane.poll()
        ask.commit(said)
        return [one.good for one in said]

    assert carry() == [4, 4]
    hosts[0].planes[0][2, 0, 0] ^= 1
    assert ask.matched("one", keys) == 16
    ask.allocated("one", [4, 5, 6, 7])
    # The rank that has written the slot has seen it; the other has not.
    assert sorted(carry()) == [2, 4]
    assert ask.cache.find(keys).host == 2, "the block is never offered again"
    for crane in cranes:
        crane.close()


def test_what_comes_from_a_disk_is_noted_and_what_goes_there_is_compared(tmp_path: Path) -> None:
    device, host = MemoryTier(LAYOUT, 8, name="device"), MemoryTier(LAYOUT, 8)
    disk = DiskTier(LAYOUT, tmp_path, blocks=8, identity={"model": "m", "weights": "w"})
    plain, keyed = ThreadCopier(workers=0), DiskCopier(disk)
    pairs: Any = {("host", "disk"): keyed, ("disk", "host"): keyed}
    made: Any = checked(pairs | {("device", "host"): plain, ("host", "device"): plain}, workers=0)
    assert made["device", "host"] is made["host", "device"]
    names: Any = {"keys": np.full((1, 32), 7, np.uint8), "parents": np.zeros((1, 32), np.uint8)}
    (plane,) = host.planes

    def copy(source: str, destination: str, **more: Any) -> Landed:
        tiers = {"device": device, "host": host, "disk": disk}
        copier, ends = made[source, destination], (tiers[source], tiers[destination])
        start = copier.start_keyed if more else copier.start
        receipt = start(*ends, slots(1), slots(1), **more)
        until = time.monotonic() + 20
        while (landed := receipt.poll()) is None:
            assert time.monotonic() < until
        return Landed(*landed)

    device.planes[0][1] = 5
    assert copy("device", "host") == (1, None)
    assert copy("host", "disk", **names) == (1, None)
    device.planes[0][1] = 6
    assert copy("device", "host") == (1, None)
    # The host's slot has the disk's bytes then, and no longer those that were noted last.
    assert copy("disk", "host", keys=names["keys"], parents=None) == (1, None)
    assert (plane[1] == 5).all()
    assert copy("host", "device") == (1, None)
    plane[1, 0, 0] ^= 1
    assert copy("host", "disk", **names) == (0, by.Cause.CORRUPT)
    for one in set(made.values()):
        one.close()
    disk.close()
