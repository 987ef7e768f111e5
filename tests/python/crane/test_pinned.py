"""Pinned memory: how it is taken, told, shared between ranks, and given back."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import copying
from blockyard import KVLayout, Misuse, Unavailable
from blockyard.crane.tiers import pinned
from blockyard.crane.tiers.pinned import Pinned, PinnedTier, _available, _touched
from blockyard.testing.simulated_gpu import SimulatedGpu
from copying import opened
from cranes import filled, slots


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    copying.closed()


def test_what_was_never_closed_is_unpinned_at_the_end_behind_its_last_copy() -> None:
    gpu, device, host, copier = opened(eager=0)
    bytes_ = filled(device, 1)
    copier.start(device, host, slots(1), slots(2))
    before, held = gpu.calls["free"], gpu.held
    gpu.fail("settle", "CUDA_ERROR_DEINITIALIZED")
    pinned._left()
    assert (gpu.held, gpu.calls["free"]) == (held, before)
    pinned._left()
    assert gpu.calls["free"] > before
    assert np.array_equal(host.planes[0][2], bytes_[0][1])


def test_memory_that_is_dropped_is_unpinned_behind_its_last_copy_or_not_at_all() -> None:
    gpu, device, host, copier = opened(eager=0)
    copier.start(device, host, slots(1), slots(2))
    memory, held = Pinned(gpu, 4096), gpu.held
    with gpu.capture(5):
        # Nothing may wait for the device now.
        del memory
        assert gpu.held == held
    memory = Pinned(gpu, 4096)
    del memory
    assert gpu.held == held


@pytest.mark.law("INV-6")
def test_memory_is_unpinned_while_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, there = SimulatedGpu(), []
    unregister = gpu.unregister

    def mapped(address: int) -> None:
        lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        there.append(any(first <= address < end for first, end in ranges))
        unregister(address)

    monkeypatch.setattr(gpu, "unregister", mapped)
    Pinned(gpu, 64 << 20).free()
    memory = Pinned(gpu, 64 << 20)
    del memory
    assert there == [True, True]
    assert not gpu.held


@pytest.mark.law("INV-6")
def test_bytes_of_a_file_that_others_have_are_never_written_when_it_is_pinned() -> None:
    bytes_ = np.ones(5 * mmap.PAGESIZE, np.uint8)
    bytes_.flags.writeable = False
    assert list(_touched(bytes_, kept=True)) == [len(bytes_)]


def test_memory_that_is_there_already_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pinned(SimulatedGpu(), 10_000, shared=tmp_path / "kv").free()
    monkeypatch.setattr("blockyard.crane.tiers.pinned._PATIENCE", 0.0)
    monkeypatch.setattr("blockyard.crane.tiers.pinned._available", lambda: 0)
    Pinned(SimulatedGpu(), 10_000, shared=tmp_path / "kv").free()
    with pytest.raises(Unavailable, match="0 were taken, and the machine has 0 more"):
        Pinned(SimulatedGpu(), 10_000)


def test_files_that_were_read_are_room_in_a_group(tmp_path: Path) -> None:
    whole = _available(tmp_path)
    assert whole > 2**20
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\nactive_file 20000\ninactive_file 30000\n")
    assert _available(tmp_path) == 150_000
    (tmp_path / "memory.max").write_text("max\n")
    assert _available(tmp_path) > 2**20


def test_a_machine_is_asked_for_memory_before_each_part_of_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blockyard.crane.tiers.pinned._CHUNK", 1 << 20)
    monkeypatch.setattr("blockyard.crane.tiers.pinned._LEAST", 1 << 20)
    monkeypatch.setattr("blockyard.crane.tiers.pinned._SPARE", 0)
    monkeypatch.setattr("blockyard.crane.tiers.pinned._PATIENCE", 0.5)
    slept: list[float] = []
    monkeypatch.setattr("blockyard.crane.tiers.pinned.time.sleep", slept.append)
    mib = 1 << 20
    # Four at once; half of four; and not the last three of less than two, however often asked.
    room = iter([20 * mib, 4 * mib, *[2 * mib - 1] * 3])
    monkeypatch.setattr("blockyard.crane.tiers.pinned._available", lambda: next(room))
    gpu, told = SimulatedGpu(), []
    with pytest.raises(Unavailable, match="6291456 were taken, and the machine has 2097151 more"):
        Pinned(gpu, 9 * mib, progress=lambda taken, _size: told.append(taken // mib))
    assert (told, slept) == ([4, 6], [0.25, 0.25])
    assert not gpu.held
    # One that grows as it is used gives all of it, and the last part may be the last that it has.
    room = iter([2 * mib, mib, 4 * mib, mib, 20 * mib, mib])
    Pinned(gpu, 8 * mib, progress=lambda taken, _size: told.append(taken // mib)).free()
    assert told == [4, 6, 1, 3, 7, 8]
    # Something is left to others, for the last part, too.
    monkeypatch.setattr("blockyard.crane.tiers.pinned._SPARE", 3 * mib)
    room = iter([7 * mib - 1, 5 * mib - 1, 5 * mib])
    slept.clear()
    Pinned(gpu, 4 * mib, progress=lambda taken, _size: told.append(taken // mib)).free()
    assert (told[6:], slept) == ([2, 4], [0.25])


def test_pinned_memory_is_as_large_as_asked_and_tells_its_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blockyard.crane.tiers.pinned._CHUNK", 1 << 20)
    gpu, told = SimulatedGpu(), []
    memory = Pinned(gpu, 9 * 2**20, progress=lambda taken, size: told.append((taken, size)))
    assert told == [(4 * 2**20, 9437184), (8 * 2**20, 9437184), (9437184, 9437184)]
    assert len(memory.array) == gpu.held == 9437184
    assert not memory.array.any()
    memory.free()
    memory.free()
    assert not gpu.held


def test_replicated_planes_lie_once_in_a_file_that_every_rank_pins(tmp_path: Path) -> None:
    layout = KVLayout.mla(3, 12, 4, block_size=4, ranks=2)
    gpus = [SimulatedGpu(), SimulatedGpu()]
    tiers = [PinnedTier(layout, 4, gpu=gpu, shared=tmp_path / "kv") for gpu in gpus]
    tiers[0].planes[0][2] = 9
    assert (tiers[1].planes[0][2] == 9).all()
    again = PinnedTier(layout, 4, gpu=SimulatedGpu(), shared=tmp_path / "kv")
    assert (again.planes[0][2] == 9).all()
    with pytest.raises(Misuse, match="give shared="):
        PinnedTier(layout, 4, gpu=gpus[0])
    assert gpus[0].held == layout.block_bytes * 4


@pytest.mark.parametrize("node", [0, 63, 4000])
def test_a_wish_for_a_node_is_only_a_wish(node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu()
    monkeypatch.setattr(gpu, "node", lambda: node)
    memory = Pinned(gpu, 10_000)
    memory.array[:] = 7
    memory.free()
    assert not gpu.held
