"""Slot files under the public surface: restarts, kills, flipped bits and wrong folders."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._core import KEY_ENCODINGS
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.disk_folders import identities
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared import restored
from blockyard.shared.layout import Plane
from blockyard.shared.restored import Restored
from cranes import landed
from disks import BLOCKS, LAYOUT, OURS, TALKS, keys, opened, play_on, settle, slots, talks
from yard import publish


@pytest.mark.parametrize("more", [{}, {"host": 8, "device": 12}])
def test_a_restart_finds_what_was_there(tmp_path: Path, more: dict[str, Any]) -> None:
    with opened(tmp_path) as cache:
        assert cache.restored == 0
        assert set(talks(cache).values()) == {0}
    for _ in range(2):
        with opened(tmp_path, **more) as cache:
            assert cache.restored == TALKS * BLOCKS
            # The last token of a prompt is always computed.
            assert set(talks(cache).values()) == {4 * BLOCKS - 1}


@pytest.mark.law("INV-28")
def test_every_difference_is_another_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
    for change in (
        {"namespace": OURS | {"model": "another"}},
        {"namespace": OURS | {"weights": "v2"}},
        {"namespace": OURS | {"dtype": "fp8"}},
        {"key_hash": "xxh3"},
    ):
        with opened(tmp_path, **change) as cache:
            assert cache.restored == 0
    other = by.KVLayout.llama(layers=1, kv_heads=4, head_dim=8, block_size=4, dtype="float32")
    with by.local(other, device=9, disk=64, disk_path=tmp_path, namespace=OURS) as cache:
        assert cache.restored == 0
    with opened(tmp_path) as cache:
        assert cache.restored == TALKS * BLOCKS


def fields(path: Path) -> list[str]:
    """What the identities on a disk say of their keys."""
    return sorted(one.fields["keys"] for one in identities(path))


@pytest.mark.law("INV-28")
def test_a_disk_of_another_encoding_of_keys_is_missed_once_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        # The identity that every version had before there was an encoding 2.
        older.setitem(KEY_ENCODINGS, "sha256", 1)
        with opened(tmp_path) as cache:
            talks(cache)
        assert fields(tmp_path) == ["sha256, blocks of 4 tokens"]
    for known in (0, TALKS * BLOCKS):
        with opened(tmp_path) as cache:
            assert cache.restored == known
            assert set(talks(cache).values()) == {4 * BLOCKS - 1 if known else 0}
    with opened(tmp_path, key_hash="xxh3") as cache:
        assert cache.restored == 0
    assert fields(tmp_path) == [
        "sha256, blocks of 4 tokens",
        "sha256, encoding 2, blocks of 4 tokens",
        "xxh3, blocks of 4 tokens",
    ]
    # Who goes back to the older version finds what it has left.
    with monkeypatch.context() as older:
        older.setitem(KEY_ENCODINGS, "sha256", 1)
        with opened(tmp_path) as cache:
            assert cache.restored == TALKS * BLOCKS


@pytest.mark.law("INV-31")
def test_inv_31_a_clear_is_not_undone(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
        cache.clear()
        assert set(talks(cache, range(3)).values()) == {0}
    with opened(tmp_path) as cache:
        assert cache.restored == 3 * BLOCKS


@pytest.mark.law("INV-31")
def test_inv_31_what_was_planned_before_a_clear_is_not_restored(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        publish(cache, range(16))
        cache.demote(64)
        cache.clear()
        settle(cache)
    with opened(tmp_path) as cache:
        assert cache.restored == 0


@pytest.mark.law("INV-26")
def test_inv_26_a_flipped_bit_costs_a_block_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
    (slots,) = tmp_path.glob("*/rank-0/slots")
    chance = random.Random(3)
    with opened(tmp_path) as cache:
        for _ in range(4):
            with slots.open("r+b") as file:
                at = 4096 * chance.randrange(40) + chance.randrange(LAYOUT.block_bytes)
                file.seek(at)
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ 1 << chance.randrange(8)]))
                os.fsync(file.fileno())
        # `talks` checks every byte that was found.
        found = talks(cache)
        assert 0 < cache.stats()["corrupt"] <= 4
        assert sum(found.values()) < TALKS * (4 * BLOCKS - 1)
        assert set(talks(cache).values()) == {4 * BLOCKS - 1}, "it is computed, and found again"


@pytest.mark.law("INV-27")
def test_inv_27_twenty_kills_serve_no_wrong_block_and_lose_no_folder(tmp_path: Path) -> None:
    # Each child is forked from one process that has imported all of it: that takes seconds of CPU.
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["pytest", "blockyard", "blockyard.crane.tiers.disk"])
    chance = random.Random(5)
    # The disk has room for half of the talks, so that each child writes, and over older ones.
    restored, many = 0, 32
    for kill in range(20):
        plays, told = forks.Pipe(duplex=False)
        child = forks.Process(target=play_on, args=(str(tmp_path), told, many, kill), daemon=True)
        child.start()
        told.close()
        for _ in range(1 + chance.randrange(8)):
            assert plays.poll(60)
            plays.recv_bytes()
        # Somewhere within a talk.
        time.sleep(chance.random() * 0.003)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(30)
        plays.close()
        with opened(tmp_path, device=1 + many * BLOCKS) as cache:
            restored += cache.restored
            talks(cache, range(many), at_once=many)
    assert restored > 20 * BLOCKS


def test_inv_29_a_folder_has_one_owner(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(by.Unavailable, match=f"process {os.getpid()} owns it"):
        opened(tmp_path)
    opened(tmp_path).close()


@pytest.mark.law("INV-29")
def test_inv_29_what_fails_as_it_opens_owns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: DiskTier) -> None:
        raise by.Unavailable("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(DiskTier, "restored", unreadable)
        with pytest.raises(by.Unavailable, match="on purpose") as kept:
            opened(tmp_path)
    # The error is still held, and with it all that it was raised among.
    opened(tmp_path).close()
    assert isinstance(kept.value, by.Unavailable)


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"namespace": None}, by.Misuse, "names no model"),
        ({"namespace": {"model": "m"}}, by.Misuse, 'give namespace={"weights"'),
        ({"disk": 0}, by.Misuse, "disk_path was given, and no size"),
        ({"disk": 1 << 31}, by.Unavailable, "take its room"),
        ({"disk_path": "/proc/nowhere"}, by.Unavailable, "/proc/nowhere"),
        ({"disk_path": "/no/such/folder"}, by.Unavailable, "make that one first"),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path, more: dict[str, Any], error: type[Exception], says: str
) -> None:
    more = dict(more)
    path = more.pop("disk_path", tmp_path)
    with pytest.raises(error, match=says):
        opened(path, **more)


@pytest.mark.law("INV-37")
def test_inv_37_all_of_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with opened(root) as cache:
        talks(cache)
        for path in [root, *root.rglob("*")]:
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


# -- the copier --------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    made = DiskTier(LAYOUT, tmp_path, blocks=8, identity=OURS)
    yield made
    made.close()


def test_blocks_pass_between_memory_of_any_form_and_the_disk(disk: DiskTier) -> None:
    copier = DiskCopier(disk)
    arrays = [np.zeros((2, 6, 4, 2, 8), np.float32) for _ in range(2)]
    for number, array in enumerate(arrays):
        array[:] = 10 * number + np.arange(6)[:, None, None, None]
    apart = by.KVLayout.llama(
        layers=2, kv_heads=2, head_dim=8, block_size=4, dtype="float32", order="layer-first"
    )
    tier = MemoryTier.adopt(apart, arrays, axis=1)
    none = keys(0, 0)
    down = copier.start_keyed(tier, disk, slots(1, 4), slots(7, 0), keys=keys(5, 6), parents=none)
    assert landed(down) == (2, None)
    up = copier.start_keyed(disk, tier, slots(0, 7), slots(2, 3), keys=keys(6, 5), parents=None)
    assert landed(up) == (2, None)
    for array in arrays:
        assert (array[:, 2] == array[:, 4]).all()
        assert (array[:, 3] == array[:, 1]).all()
    wrong = copier.start_keyed(disk, tier, slots(0, 7), slots(2, 3), keys=keys(6, 9), parents=None)
    assert landed(wrong) == (1, by.Cause.CORRUPT)
    copier.close()


def test_pieces_may_lie_in_any_order(tmp_path: Path) -> None:
    layers = by.KVLayout((Plane("kv", 2, 256),), block_size=4, dtype="uint8")
    disk = DiskTier(layers, tmp_path, blocks=4, identity=OURS)
    whole = np.zeros((2, 6, 256), np.uint8)
    # As where an engine's later layer got the memory below that of the first.
    tier = MemoryTier.adopt(layers, [whole[1], whole[0]], axis=0)
    whole[1, 1], whole[0, 1] = 5, 6
    copier = DiskCopier(disk)
    down = copier.start_keyed(tier, disk, slots(1), slots(0), keys=keys(5), parents=keys(0))
    assert landed(down) == (1, None)
    up = copier.start_keyed(disk, tier, slots(0), slots(3), keys=keys(5), parents=None)
    assert landed(up) == (1, None)
    assert (whole[1, 3] == 5).all()
    assert (whole[0, 3] == 6).all()
    copier.close()
    disk.close()


def test_what_a_disk_cannot_copy_is_refused(disk: DiskTier) -> None:
    copier, host = DiskCopier(disk), MemoryTier(LAYOUT, 4)
    with pytest.raises(by.Misuse, match="without keys"):
        copier.start(host, disk, slots(0), slots(0))
    with pytest.raises(by.Misuse, match="without parents"):
        copier.start_keyed(host, disk, slots(0), slots(0), keys=keys(1), parents=None)
    with pytest.raises(by.Misuse, match="slots = 8: the disk has 8"):
        copier.start_keyed(host, disk, slots(0), slots(8), keys=keys(1), parents=keys(0))
    with pytest.raises(by.Misuse, match="patience = 0"):
        DiskCopier(disk, patience=0)
    other = MemoryTier(by.KVLayout.llama(1, 1, 8, block_size=4, dtype="float32"), 4)
    with pytest.raises(by.Misuse, match="a block of these planes has"):
        copier.start_keyed(other, disk, slots(0), slots(0), keys=keys(1), parents=keys(0))
    copier.close()
    with pytest.raises(by.Misuse, match="closed"):
        copier.start_keyed(host, disk, slots(0), slots(0), keys=keys(1), parents=keys(0))


# -- ranks, and several disks --------------------------------------------------------------------

RANKS = by.KVLayout(
    (Plane("own", 1, 512), Plane("same", 2, 256, replicated=True)),
    block_size=4,
    ranks=2,
    dtype="uint8",
)
LATENT = by.KVLayout(
    (Plane("latent", 3, 256, replicated=True),), block_size=4, ranks=2, dtype="uint8"
)


class Rank:
    """A rank's disk, and memory that its blocks come from and go to."""

    def __init__(self, layout: by.KVLayout, path: Any, rank: int, **more: Any) -> None:
        given: dict[str, Any] = {"blocks": 16, "identity": OURS} | more
        self.disk = DiskTier(layout, path, rank=rank, **given)
        self.memory = MemoryTier(layout, 16, name="device")
        self.copier = DiskCopier(self.disk)
        self.rank = rank

    def fill(self, numbers: Any, seed: int) -> None:
        for plane, shape in zip(self.memory.planes, self.memory.layout.planes, strict=True):
            own = 0 if shape.replicated else 100 * (1 + self.rank)
            for number in numbers:
                plane[number] = (own + 7 * number + seed) % 251

    def holds(self, slot: int, number: int, seed: int) -> bool:
        return all(
            bool(
                (
                    plane[slot]
                    == ((0 if shape.replicated else 100 * (1 + self.rank)) + 7 * number + seed)
                    % 251
                ).all()
            )
            for plane, shape in zip(self.memory.planes, self.memory.layout.planes, strict=True)
        )

    def down(self, *numbers: int) -> Any:
        """Writes blocks to the slots of their numbers."""
        some = slots(*numbers)
        none = np.zeros((len(numbers), 32), np.uint8)
        named = keys(*(1 + number for number in numbers))
        return self.copier.start_keyed(self.memory, self.disk, some, some, keys=named, parents=none)

    def up(self, *numbers: int) -> Any:
        """Reads blocks into slot 0 and on."""
        return self.copier.start_keyed(
            self.disk,
            self.memory,
            slots(*numbers),
            slots(*range(len(numbers))),
            keys=keys(*(1 + number for number in numbers)),
            parents=None,
        )

    def close(self) -> None:
        self.copier.close()
        self.disk.close()


def ranks_of(layout: by.KVLayout, path: Any, **more: Any) -> list[Rank]:
    return [Rank(layout, path, rank, **more) for rank in range(layout.ranks)]


def close(ranks: list[Rank]) -> None:
    for one in ranks:
        one.close()


def write(ranks: list[Rank], *numbers: int) -> None:
    """All ranks write blocks, at once."""
    for receipt in [one.down(*numbers) for one in ranks]:
        assert landed(receipt) == (len(numbers), None)


def agreed(ranks: list[Rank]) -> Restored:
    found = Restored.agreed([one.disk.restored() for one in ranks])
    for one in ranks:
        one.disk.count_as(found.run)
    return found


@pytest.mark.law("INV-28")
@pytest.mark.parametrize("layout", [RANKS, LATENT])
def test_inv_28_ranks_find_again_what_all_of_them_have(tmp_path: Path, layout: Any) -> None:
    ranks = ranks_of(layout, tmp_path)
    assert len(agreed(ranks)) == 0
    for one in ranks:
        one.fill(range(6), 1)
    write(ranks, 0, 1, 2, 3)
    # A plan that reached one rank alone.
    assert landed(ranks[0].down(4, 5))
    close(ranks)
    again = ranks_of(layout, tmp_path)
    found = agreed(again)
    # Of a plane that all ranks share each has its own slots: there 4 is whole, and 5 is not there.
    assert found.slots.tolist() == ([0, 1, 2, 3] if layout is RANKS else [0, 1, 2, 3, 4])
    assert found.keys[:, 0].tolist() == [1 + slot for slot in found.slots]
    for one in again:
        assert landed(one.up(3, 2, 1, 0)) == (4, None)
        assert all(one.holds(place, 3 - place, 1) for place in range(4))
        one.close()


@pytest.mark.law("INV-27")
@pytest.mark.parametrize("disks", [1, 2])
def test_inv_27_what_all_ranks_have_is_found_though_one_has_it_twice(
    tmp_path: Path, disks: int
) -> None:
    """It left the yard, and came to another slot when the process ended: on one rank it did."""
    paths = [tmp_path / str(number) for number in range(disks)]
    ranks = ranks_of(RANKS, paths)
    for one in ranks:
        one.fill(range(6), 1)
    write(ranks, 0, 1)
    first = ranks[0]
    named, none = keys(1), np.zeros((1, 32), np.uint8)
    landed(
        first.copier.start_keyed(
            first.memory, first.disk, slots(0), slots(5), keys=named, parents=none
        )
    )
    close(ranks)
    again = ranks_of(RANKS, paths)
    assert agreed(again).slots.tolist() == [0, 1]
    for one in again:
        assert landed(one.up(0, 1)) == (2, None)
        one.close()


@pytest.mark.law("INV-28")
def test_inv_28_a_rank_that_was_cleared_alone_restores_nothing_of_before(tmp_path: Path) -> None:
    ranks = ranks_of(RANKS, tmp_path)
    write(ranks, 0, 1, 2)
    # A crash comes after the clear of rank 1, and before that of rank 0.
    assert ranks[1].disk.clear()
    close(ranks)
    again = ranks_of(RANKS, tmp_path)
    assert len(agreed(again)) == 0
    write(again, 1)
    close(again)
    last = ranks_of(RANKS, tmp_path)
    assert agreed(last).slots.tolist() == [1]
    close(last)


@pytest.mark.law("INV-28")
def test_a_rank_that_was_opened_alone_goes_on_with_the_others(tmp_path: Path) -> None:
    Rank(RANKS, tmp_path, 0).close()
    for _ in range(2):
        ranks = ranks_of(RANKS, tmp_path)
        agreed(ranks)
        assert len({one.disk.run for one in ranks}) == 1
        write(ranks, 3, 4)
        close(ranks)
    last = ranks_of(RANKS, tmp_path)
    assert agreed(last).slots.tolist() == [3, 4]
    close(last)


def test_planes_that_ranks_share_are_written_once_and_read_by_all(tmp_path: Path) -> None:
    ranks = ranks_of(LATENT, tmp_path)
    for one in ranks:
        one.fill(range(8), 3)
    write(ranks, *range(8))
    written = [one.disk.stats()["disk_written_blocks"] for one in ranks]
    assert written == [4, 4]
    for one in ranks:
        assert landed(one.up(*range(8))) == (8, None)
        assert all(one.holds(number, number, 3) for number in range(8))
    # What one rank has lost is a miss on both.
    (torn,) = tmp_path.glob("*/rank-1/table")
    torn.write_bytes(bytes(torn.stat().st_size))
    for one in ranks:
        assert landed(one.up(0, 2, 1, 4)) == (2, by.Cause.CORRUPT)
    room = sum(one.stat().st_size for one in tmp_path.glob("*/rank-*/slots"))
    assert room == 16 * 4096, "each block has room once"
    close(ranks)


def test_slots_are_spread_over_several_disks(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for found in (0, TALKS * BLOCKS):
        with opened(tmp_path, disk_path=paths) as cache:
            assert cache.restored == found
            talks(cache)
    tables = [next(path.glob("*/rank-0/table")).read_bytes() for path in paths]
    used = [sum(any(table[at : at + 128]) for at in range(0, len(table), 128)) for table in tables]
    assert sum(used) == TALKS * BLOCKS
    assert min(used) > 8
    with opened(tmp_path, disk_path=paths[:2]) as cache:
        assert cache.restored == 0, "other disks are another folder"
    for wrong, says in (([], "one path or several"), ([paths[0]] * 2, "twice")):
        with pytest.raises(by.Misuse, match=says):
            opened(tmp_path, disk_path=wrong)
    with pytest.raises(by.Misuse, match="fewer than the 3 paths"):
        DiskTier(LAYOUT, paths, blocks=2, identity=OURS)


@pytest.mark.law("INV-26")
def test_a_copy_over_several_disks_ends_before_its_first_bad_block(tmp_path: Path) -> None:
    one = Rank(LATENT_ALONE, [tmp_path / name for name in "abc"], 0)
    one.fill(range(9), 2)
    assert landed(one.down(*range(9))) == (9, None)
    (torn,) = (tmp_path / "b").glob("*/rank-0/slots")
    with torn.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"torn")
    assert landed(one.up(0, 3, 6, 2, 7, 4)) == (4, by.Cause.CORRUPT)
    assert landed(one.up(0, 3, 6, 2, 4, 7)) == (5, by.Cause.CORRUPT)
    assert landed(one.up(0, 3, 6, 2, 4, 5)) == (6, None)
    one.close()


LATENT_ALONE = by.KVLayout((Plane("latent", 3, 256, replicated=True),), block_size=4, dtype="uint8")


@pytest.mark.law("INV-28")
def test_a_block_that_two_disks_have_is_found_once(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    one = Rank(LATENT_ALONE, paths, 0)
    one.fill(range(4), 2)
    assert landed(one.down(0, 1)) == (2, None)
    # The same block again, in a slot of the other disk: as where it was torn, and computed anew.
    copier, memory = one.copier, one.memory
    again = copier.start_keyed(memory, one.disk, slots(0), slots(3), keys=keys(1), parents=keys(0))
    assert landed(again) == (1, None)
    one.close()
    last = DiskTier(LATENT_ALONE, paths, blocks=16, identity=OURS)
    found = Restored.agreed([last.restored()])
    assert sorted(zip(found.slots.tolist(), found.keys[:, 0].tolist(), strict=True)) == [
        (1, 2),
        (3, 1),
    ]
    last.close()


@pytest.mark.law("INV-31")
def test_inv_31_what_one_disk_was_cleared_of_is_cleared_on_all(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    one = Rank(LATENT_ALONE, paths, 0)
    assert landed(one.down(0, 1, 2, 3)) == (4, None)
    # The other one hung then, and the process was killed.
    assert one.disk.parts[0].lane.clear((one.disk.run << 32) + 4)
    one.close()
    for _ in range(2):
        last = DiskTier(LATENT_ALONE, paths, blocks=16, identity=OURS)
        assert len(last.restored()) == 0
        last.close()


def test_a_disk_that_refuses_half_a_copy_does_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Rank(LATENT_ALONE, [tmp_path / name for name in "ab"], 0)
    one.fill(range(4), 2)
    assert landed(one.down(0, 1)) == (2, None)

    class Refusing:
        def submit_up(self, *_: Any) -> int:
            raise by.Unavailable("on purpose")

    refusing: Any = Refusing()

    second = one.disk.parts[1]
    with monkeypatch.context() as patched:
        patched.setattr(one.disk, "parts", (one.disk.parts[0], replace(second, lane=refusing)))
        with pytest.raises(by.Unavailable, match="on purpose"):
            one.up(0, 1)
    one.copier.collect()
    assert not any(one.copier._flights.flying.values())
    assert one.disk.parts[0].lane.stats()["in_flight"] == 0
    with pytest.raises(by.Misuse, match="has a DiskCopier already"):
        DiskCopier(one.disk)
    one.close()


@pytest.mark.law("INV-31")
def test_stamps_rise_also_after_four_billion_blocks(tmp_path: Path) -> None:
    one = Rank(LATENT_ALONE, tmp_path, 0)
    run = one.disk.run
    assert landed(one.down(0, 1)) == (2, None)
    one.disk._count = (1 << 32) - 2
    last = one.disk.stamps(1)[0]
    assert landed(one.down(2, 3)) == (2, None)
    assert one.disk.run == run + 1
    assert one.disk.clear()
    assert landed(one.down(4)) == (1, None)
    one.close()
    again = DiskTier(LATENT_ALONE, tmp_path, blocks=16, identity=OURS)
    found = again.restored()
    assert found.slots.tolist() == [4]
    assert found.stamps[0] > last
    assert again.run == run + 2
    again.close()


def test_room_that_was_taken_in_vain_is_given_back_for_another_size(tmp_path: Path) -> None:
    # Another path had no room: no block was ever written here.
    DiskTier(LATENT_ALONE, tmp_path, blocks=16, identity=OURS).close()
    DiskTier(LATENT_ALONE, tmp_path, blocks=8, identity=OURS).close()
    one = Rank(LATENT_ALONE, tmp_path, 0, blocks=8)
    assert landed(one.down(1)) == (1, None)
    one.close()
    with pytest.raises(by.Unavailable, match="bytes, and 65536 are wanted"):
        DiskTier(LATENT_ALONE, tmp_path, blocks=16, identity=OURS)


@pytest.mark.law("INV-31")
@pytest.mark.parametrize("both", [False, True])
def test_inv_31_a_bad_sector_of_a_folders_numbers_undoes_no_clear(
    tmp_path: Path, *, both: bool
) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
        cache.clear()
    (identity,) = tmp_path.glob("*/rank-0/identity")
    whole = bytearray(identity.read_bytes())
    for at in (4096, 8192)[: 1 + both]:
        whole[at] ^= 1
    identity.write_bytes(whole)
    if both:
        with pytest.raises(by.Unavailable, match="wipe it"):
            opened(tmp_path)
    else:
        with opened(tmp_path) as cache:
            assert cache.restored == 0


@pytest.mark.parametrize("path", ["", 3, b"kv", [""], ["kv", None]])
def test_a_path_that_is_none_is_named(path: Any) -> None:
    with pytest.raises(by.Misuse, match="give a path, or a list of paths"):
        DiskTier(LAYOUT, path, blocks=2, identity=OURS)


# -- what outlives the process beside blocks -------------------------------------------------------


def test_the_eviction_order_outlives_a_clean_close_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
        # The oldest talk is used again, which its stamps do not say.
        talks(cache, [0])
        order = cache.eviction_order("disk").tolist()
    with opened(tmp_path) as cache:
        assert cache.eviction_order("disk").tolist() == order
    (noted,) = tmp_path.glob("*/rank-0/order")
    noted.unlink()
    with opened(tmp_path) as cache:
        by_stamps = cache.eviction_order("disk").tolist()
    assert by_stamps != order
    assert sorted(by_stamps) == sorted(order)


@pytest.mark.law("INV-31")
def test_inv_31_what_other_weights_have_computed_is_never_found(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
        cache.update_weights()
        # The same talks, by weights of which the namespace does not tell.
        assert set(talks(cache).values()) == {0}
        assert set(talks(cache).values()) == {4 * BLOCKS - 1}, "found as long as this process lives"
    with opened(tmp_path) as cache:
        assert cache.restored == 0


def test_stats_say_what_the_disk_does(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        talks(cache)
        talks(cache)
        stats = cache.stats()
        assert list(stats) == [stat.name for stat in cache.schema()]
        assert stats["disk_written_blocks"] == TALKS * BLOCKS
        assert stats["disk_written_bytes"] == TALKS * BLOCKS * LAYOUT.block_bytes
        assert 0 < stats["disk_syncs"] <= stats["disk_written_blocks"]
        assert stats["disk_read_blocks"] >= stats["disk_in"]
        assert stats["disk_failed"] == stats["disk_corrupt"] == stats["disk_in_flight"] == 0
    with by.local(LAYOUT, device=9) as without:
        assert list(without.stats()) == [stat.name for stat in without.schema()]


@pytest.mark.law("INV-29")
def test_a_process_that_was_forked_is_no_owner(disk: DiskTier) -> None:
    child = os.fork()
    if not child:
        try:
            disk.restored()
        except by.Misuse as error:
            os._exit(0 if "must open its own" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wait_for_a_copy_ends_with_it_or_in_time(tmp_path: Path) -> None:
    disk = DiskTier(LAYOUT, tmp_path, blocks=4, identity=OURS)
    memory = MemoryTier(LAYOUT, 4, name="host")
    copier = DiskCopier(disk)
    one, none = slots(0), keys(0)
    receipt = copier.start_keyed(memory, disk, one, one, keys=keys(7), parents=none)
    ((lane, flights),) = copier._flights.flying.items()
    (number,) = flights
    assert lane.wait(number, 30.0)
    assert receipt is not None
    assert receipt.poll() == (1, None)
    # One that has been taken, and one that never was.
    assert lane.wait(number, 0.0)
    assert lane.wait(99, 30)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(by.Misuse, match=f"seconds = {seconds:g}|must be seconds, 0 or more"):
            lane.wait(number, seconds)
    disk.close()
    assert lane.wait(number, 30.0)


def test_an_order_of_slots_that_are_not_there_changes_no_others() -> None:
    slots = np.array([3, 1, 7], np.uint32)
    found = Restored(slots, keys(3, 1, 7), keys(0, 0, 0), np.arange(3, dtype=np.uint64))
    order = np.array([7, 2**32 - 1, 5, 3], np.uint32)
    assert found.ordered(order).slots.tolist() == [7, 3, 1]
    assert found.ordered(order).keys[:, 0].tolist() == [7, 3, 1]
    none = found.take(np.array([], np.intp))
    assert len(none.ordered(order)) == 0


def test_of_too_many_blocks_those_are_restored_that_go_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restored, "MOST_ROWS", 2)
    slots = np.array([3, 1, 7], np.uint32)
    found = Restored(slots, keys(3, 1, 7), keys(0, 0, 0), np.arange(3, dtype=np.uint64))
    assert Restored.agreed([found]).slots.tolist() == [1, 7]
