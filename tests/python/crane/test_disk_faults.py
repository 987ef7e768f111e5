"""A disk that is full, read-only, frozen, broken or not as it should be: it fails alone. INV-32"""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from disks import BLOCKS, LAYOUT, OURS, TALKS, keys, opened, settle, slots, talks
from mounts import ext4, frozen, remount, tmpfs
from yard import publish

STRIDE = 4096


def impatient(path: Path, patience: float = 0.5, **more: Any) -> Any:
    """A cache whose disk has to answer soon."""
    device = MemoryTier(LAYOUT, 12, name="device")
    config = by.Config.of({"layout": LAYOUT, "device": 12, "namespace": OURS})
    disk = DiskTier(LAYOUT, path, blocks=64, identity=config.identity, **more)
    copier = DiskCopier(disk, patience=patience)
    pairs: Any = {("device", "disk"): copier, ("disk", "device"): copier}
    return by.local(LAYOUT, memory=(device, None, disk), copier=pairs, keyed=("disk",))


def run(cache: Any, talk: int) -> int:
    """Runs a talk to its end, whatever its copies do; returns what was found of it."""
    prompt, until, lease = range(100 * talk, 100 * talk + 4 * BLOCKS), time.monotonic() + 20, None
    while lease is None or lease.state == "loading":
        assert time.monotonic() < until
        if lease is None:
            # What is being copied is given back when the copy has ended, or was given up.
            with contextlib.suppress(by.NoRoom):
                lease = cache.begin(prompt)
        cache.step()
        time.sleep(1e-3)
    found = int(lease.cached)
    if lease.state == "incomplete":
        cache.grow(lease, 4 * BLOCKS)
    cache.seal(lease, 4 * BLOCKS)
    cache.finish(lease)
    cache.demote(64)
    cache.step()
    return found


def test_no_room_is_said_in_bytes_and_nothing_is_left(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "192k") as small:
        with pytest.raises(by.Unavailable, match=r"270336 bytes are wanted, and \d+ are free"):
            opened(small)
        assert [one.stat().st_size for one in small.glob("*/rank-0/slots")] == [0]
        opened(small, disk=16).close()


def test_a_read_only_file_system_is_said(tmp_path: Path) -> None:
    with ext4(tmp_path / "image", tmp_path / "disk") as disk:
        opened(disk).close()
        remount(disk, "ro")
        with pytest.raises(by.Unavailable, match="Read-only file system"):
            opened(disk)


@pytest.mark.law("INV-32")
def test_a_disk_that_fills_up_later_costs_its_copies_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tmpfs(tmp_path / "full", "256k") as full:
        with opened(full, disk=32):
            pass
        # Its room was taken; somebody makes the file sparse, and takes the room.
        (file,) = full.glob("*/rank-0/slots")
        os.truncate(file, 0)
        os.truncate(file, 32 * STRIDE)
        (full / "another").write_bytes(bytes(os.statvfs(full).f_bavail * 4096 - 6 * STRIDE))
        with caplog.at_level(logging.WARNING, "blockyard"), opened(full, disk=32) as cache:
            for talk in range(12):
                run(cache, talk)
                settle(cache)
            stats = cache.stats()
            assert 0 < stats["disk_written_blocks"] <= 8
            assert stats["disk_failed"] >= 3
            assert stats["disk_rests"] >= 1
            assert cache.audit() is None
            if stats["disk_down_rests"]:
                assert "takes no writes" in str(cache.explain(range(8)))
            assert "writes fail; the disk rests and is retried later" in caplog.text
            (full / "another").unlink()
            until = time.monotonic() + 30
            before = cache.stats()["disk_written_blocks"]
            while cache.stats()["disk_written_blocks"] == before:
                assert time.monotonic() < until, "it is tried again"
                for talk in range(12, 24):
                    run(cache, talk)
                time.sleep(0.05)
            settle(cache)
            assert cache.audit() is None


@pytest.mark.law("INV-32")
def test_inv_32_a_frozen_disk_holds_up_no_step_and_no_request(tmp_path: Path) -> None:
    with ext4(tmp_path / "image", tmp_path / "disk") as disk:
        cache: Any = impatient(disk, patience=60)
        talks(cache, range(4))
        assert cache.stats()["disk_written_blocks"] == 4 * BLOCKS
        # From now on the disk has to answer soon, which a busy machine's does not always.
        cache.crane.copiers["device", "disk"]._flights.patience = 0.5
        with frozen(disk):
            # Nothing of these calls waits for the disk: they would never come back.
            for talk in range(4, 10):
                run(cache, talk)
            until = time.monotonic() + 20
            while cache.stats()["flights"]:
                assert time.monotonic() < until, "what hangs is given up in time"
                cache.step()
                time.sleep(1e-3)
            stats = cache.stats()
            assert stats["disk_given_up"] > 0
            assert stats["disk_held"] > 0
            assert stats["device_quarantined"] == stats["disk_quarantined"] == 0
            assert "hang in the system" in str(cache.explain(range(8)))
            # What was there before can still be read.
            assert run(cache, 0) == 4 * BLOCKS - 1
            cache.clear()
            assert cache.stats()["disk_clearing"] == 1
            assert "not durable" in str(cache.explain(range(8)))
            assert cache.audit() is None
        until = time.monotonic() + 30
        while cache.stats()["disk_held"] or cache.stats()["disk_clearing"]:
            assert time.monotonic() < until, "it goes on when it is thawed"
            cache.step()
            time.sleep(1e-3)
        settle(cache)
        written, talk = cache.stats()["disk_written_blocks"], 10
        while cache.stats()["disk_written_blocks"] == written:
            assert time.monotonic() < until, "it is tried again"
            run(cache, talk)
            settle(cache)
            talk += 1
        cache.close()
        with opened(disk) as again:
            # What was cleared is gone, and of what came after it nothing is wrong.
            assert again.restored > 0
            assert set(talks(again, range(4)).values()) == {0}
            talks(again, range(4, talk))


@pytest.mark.law("INV-29")
def test_a_cache_over_a_frozen_disk_is_closed_in_time_and_keeps_its_folder(tmp_path: Path) -> None:
    with ext4(tmp_path / "image", tmp_path / "disk") as disk:
        cache: Any = impatient(disk)
        with frozen(disk):
            run(cache, 1)
            while not cache.stats()["disk_held"]:
                time.sleep(1e-3)
            lane = cache.crane._tiers["disk"].parts[0].lane
            begun = time.monotonic()
            lane.close(patience=0.05)
            cache.close()
            assert time.monotonic() - begun < 20
        del cache, lane
        until = time.monotonic() + 20
        while True:
            try:
                opened(disk).close()
                break
            except by.Unavailable:
                assert time.monotonic() < until, "the last thread gives it to the next owner"
                time.sleep(0.01)


def test_a_newer_format_a_link_and_wrong_modes_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "kv"):
        pass
    (folder,) = (tmp_path / "kv").glob("*")
    identity = folder / "rank-0" / "identity"
    whole = identity.read_bytes()
    # In both copies of its text: in one alone it is a bit that has flipped.
    identity.write_bytes(whole.replace(b"format 1", b"format 9"))
    with pytest.raises(by.Misuse, match=r"its format is 9 .*, and Blockyard .* knows 1"):
        opened(tmp_path / "kv")
    identity.write_bytes(whole)
    (tmp_path / "link").symlink_to(tmp_path / "kv")
    with pytest.raises(by.Unavailable, match="it is a symbolic link"):
        opened(tmp_path / "link")
    folder.chmod(0o777)
    with pytest.raises(by.Unavailable, match="others may write to it: chmod go-w"):
        opened(tmp_path / "kv")


def test_o10_a_copy_that_a_disk_does_not_end_is_no_loop_that_forgets_a_call(tmp_path: Path) -> None:
    with ext4(tmp_path / "image", tmp_path / "disk") as disk:
        cache: Any = impatient(disk, patience=20.0)
        with frozen(disk):
            run(cache, 1)
            while not cache.stats()["disk_held"]:
                time.sleep(1e-3)
            assert cache.stats()["flights"] > 0
            assert cache.pending_copies().unreported is None
        settle(cache)
        # One of a loop that has forgotten the crane is said still.
        publish(cache, range(900, 916))
        cache.demote(64)
        assert cache.dispatch()
        assert cache.pending_copies().unreported is not None
        cache.reset()
        cache.close()


class Hanging:
    """A lane that never answers, and takes note of what is given up."""

    def __init__(self) -> None:
        self.late: list[tuple[int, bool]] = []
        self.ended: list[tuple[int, int, str]] = []

    def submit_up(self, *_: Any) -> int:
        return 7

    def poll(self) -> list[tuple[int, int, str]]:
        ended, self.ended = self.ended, []
        return ended

    def give_up(self, number: int, *, late: bool = False) -> None:
        self.late.append((number, late))
        self.ended.append((number, 0, "given up"))

    def stats(self) -> dict[str, int]:
        return dict.fromkeys((stat.name.removeprefix("disk_") for stat in DiskTier.SCHEMA), 0)


@pytest.mark.law("INV-32")
def test_a_copy_that_is_late_is_given_up_and_counts_as_a_failure(tmp_path: Path) -> None:
    now = [100.0]
    disk = DiskTier(LAYOUT, tmp_path, blocks=8, identity=OURS)
    real = disk.parts
    lane: Any = Hanging()
    object.__setattr__(disk.parts[0], "lane", lane)
    copier = DiskCopier(disk, patience=30)
    copier._flights.clock = lambda: now[0]
    up = copier.start_keyed(
        disk, MemoryTier(LAYOUT, 4), slots(0), slots(1), keys=keys(1), parents=None
    )
    assert up is not None
    now[0] += 29
    assert up.poll() is None
    now[0] += 2
    assert up.poll() == (0, by.Cause.FAILED)
    assert lane.late == [(7, True)]
    assert len(real) == 1


class Counted(DiskCopier):
    """Counts how often the threads are asked."""

    asked = 0

    @override
    def collect(self) -> None:
        self.asked += 1
        super().collect()


def test_a_turn_of_the_crane_asks_the_disk_once(tmp_path: Path) -> None:
    device = MemoryTier(LAYOUT, 64, name="device")
    disk = DiskTier(LAYOUT, tmp_path, blocks=64, identity=OURS)
    copier = Counted(disk)
    pairs: Any = {("device", "disk"): copier, ("disk", "device"): copier}
    with by.local(LAYOUT, memory=(device, None, disk), copier=pairs, keyed=("disk",)) as cache:
        for talk in range(TALKS):
            publish(cache, range(100 * talk, 100 * talk + 4 * BLOCKS))
            cache.demote(4)
        cache.step()
        before = copier.asked
        cache.step()
        assert copier.asked - before <= 2
        settle(cache)


@pytest.mark.law("INV-37")
def test_inv_37_no_key_salt_or_token_is_in_a_log_or_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tmpfs(tmp_path / "full", "256k") as full, caplog.at_level(logging.DEBUG):
        with opened(full, disk=32):
            pass
        (file,) = full.glob("*/rank-0/slots")
        os.truncate(file, 0)
        os.truncate(file, 32 * STRIDE)
        (full / "another").write_bytes(bytes(os.statvfs(full).f_bavail * 4096))
        with opened(full, disk=32) as cache:
            named = cache.keys(range(4242, 4258)).hex()
            lease = cache.begin(range(4242, 4258))
            settle(cache)
            cache.seal(lease, 16)
            cache.finish(lease)
            cache.demote(64)
            settle(cache)
            said = caplog.text + str(cache.explain(range(8))) + str(cache.stats())
            assert "writes" in said or cache.stats()["disk_failed"]
    for key in named:
        assert key[:16] not in said
    assert "4242" not in said
