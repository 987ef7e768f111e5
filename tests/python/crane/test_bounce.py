"""Copies between a GPU, which is simulated here, and a disk, by way of pinned memory."""

import time
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.copiers import bounce
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.copiers.select import select_copiers
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.testing.simulated_gpu import SimulatedGpu
from disks import LAYOUT, OURS, keys, settle, slots

BLOCKS = 24


class Gpu:
    """A simulated GPU's memory, a disk, and what copies between them."""

    def __init__(self, path: Path, layout: by.KVLayout = LAYOUT, *, seed: int = 0) -> None:
        self.gpu = SimulatedGpu(seed)
        self.device = DeviceTier(layout, BLOCKS, gpu=self.gpu)
        self.disk = DiskTier(layout, path, blocks=BLOCKS, identity=OURS)
        self.copier = BounceCopier(self.device, self.disk, DiskCopier(self.disk))

    def down(self, *numbers: int, to: Any = None) -> Any:
        named = keys(*(1 + number for number in numbers))
        some = slots(*numbers)
        ends = (self.device, self.disk, some, some if to is None else slots(*to))
        return self.copier.start_keyed(*ends, keys=named, parents=named * 0)

    def up(self, *numbers: int, to: Any) -> Any:
        named = keys(*(1 + number for number in numbers))
        ends = (self.disk, self.device, slots(*numbers), slots(*to))
        return self.copier.start_keyed(*ends, keys=named, parents=None)

    def close(self) -> None:
        self.copier.close()
        self.device.close()
        self.disk.close()


def ended(receipt: Any) -> Any:
    until = time.monotonic() + 20
    while (landed := receipt.poll()) is None:
        assert time.monotonic() < until
        time.sleep(1e-4)
    return landed


def free(one: Gpu) -> list[int]:
    """Pinned memory that no copy has."""
    return [int(slot) for down in (False, True) for slot in one.copier._free(down=down)]


def test_a_block_that_is_not_there_ends_a_copy_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounce, "_BYTES", 2 * LAYOUT.block_bytes)
    one = Gpu(tmp_path)
    assert ended(one.down(*range(6))) == (6, None)
    (torn,) = tmp_path.glob("*/rank-0/slots")
    with torn.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"torn")
    assert ended(one.up(0, 1, 2, 3, 4, 5, to=range(10, 16))) == (3, by.Cause.CORRUPT)
    assert sorted(free(one)) == [0, 1]
    one.close()


def test_stamps_are_those_of_the_order_of_the_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounce, "_BYTES", 6 * LAYOUT.block_bytes)
    one = Gpu(tmp_path)
    receipts = [one.down(*range(5)), one.down(*range(5, 8))]
    for receipt in receipts:
        ended(receipt)
    one.close()
    again = DiskTier(LAYOUT, tmp_path, blocks=BLOCKS, identity=OURS)
    assert again.restored().slots.tolist() == list(range(8))
    again.close()


def test_a_reset_ends_all_of_it_and_gives_its_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounce, "_BYTES", 2 * LAYOUT.block_bytes)
    one = Gpu(tmp_path)
    receipts = [one.down(*range(5)), one.down(*range(5, 8))]
    one.copier.reset()
    assert [receipt.poll() for receipt in receipts] == [(0, by.Cause.FAILED)] * 2
    assert ended(one.down(9)) == (1, None)
    one.copier.close()
    with pytest.raises(by.Misuse, match="closed"):
        one.down(1)
    one.close()


def test_a_half_that_is_refused_fails_its_copy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounce, "_BYTES", 4 * LAYOUT.block_bytes)
    one = Gpu(tmp_path)
    start, calls = one.copier._near.start, iter(range(100))

    def refuses(*args: Any) -> Any:
        if next(calls) == 1:
            raise by.Unavailable("on purpose")
        return start(*args)

    monkeypatch.setattr(one.copier._near, "start", refuses)
    first, second, third = one.down(0, 1, 2, 3, 4, 5), one.down(6), one.down(7, 8)
    found = [ended(receipt) for receipt in (first, second, third)]
    assert sorted(landed.cause is None for landed in found) == [False, True, True]
    assert sorted(free(one)) == [0, 1, 2, 3]
    one.close()


def test_writes_that_hang_leave_room_for_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounce, "_BYTES", 4 * LAYOUT.block_bytes)
    one = Gpu(tmp_path)
    assert ended(one.down(0, 1)) == (2, None)

    class Hangs:
        def poll(self) -> None:
            return None

    monkeypatch.setattr(one.copier._near, "start", lambda *_: Hangs())
    one.down(*range(2, 12))
    monkeypatch.undo()
    monkeypatch.setattr(bounce, "_BYTES", 4 * LAYOUT.block_bytes)
    assert ended(one.up(0, 1, to=(20, 21))) == (2, None)
    one.close()


def test_a_gpu_and_a_disk_are_chosen_one_and_without_a_host_too(tmp_path: Path) -> None:
    gpu = SimulatedGpu()
    device = DeviceTier(LAYOUT, 8, gpu=gpu)
    for number, host in enumerate((None, PinnedTier(LAYOUT, 8, gpu=gpu))):
        disk = DiskTier(LAYOUT, tmp_path / str(number), blocks=8, identity=OURS)
        tiers = {"device": device, "disk": disk} | ({} if host is None else {"host": host})
        copiers = select_copiers(tiers, None, None)  # type: ignore[arg-type]
        assert isinstance(copiers["device", "disk"], BounceCopier)
        assert copiers["disk", "device"] is copiers["device", "disk"]
        assert host is None or isinstance(copiers["host", "disk"], DiskCopier)
        for copier in {id(one): one for one in copiers.values()}.values():
            copier.close()
        disk.close()
        if host is not None:
            host.close()
    device.close()


def test_a_yard_keeps_what_a_gpu_evicts_on_a_disk_without_a_host(tmp_path: Path) -> None:
    gpu = SimulatedGpu(3)
    for found in (0, 15):
        device = DeviceTier(LAYOUT, 9, gpu=gpu)
        config = by.Config.of({"layout": LAYOUT, "device": 9, "namespace": OURS})
        disk = DiskTier(LAYOUT, tmp_path, blocks=16, identity=config.identity)
        with by.local(
            LAYOUT, memory=(device, None, disk), keyed=("disk",), namespace=OURS
        ) as cache:
            for talk in range(3):
                lease = cache.begin(range(100 * talk, 100 * talk + 16))
                settle(cache)
                assert lease.cached == found
                cache.seal(lease, 16)
                cache.finish(lease)
                cache.demote(8)
                settle(cache)
            assert cache.stats()["disk_idle"] == 12
            assert cache.stats()["disk_failed"] == 0
            assert cache.audit() is None
