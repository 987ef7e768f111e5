"""Copies between a GPU and a disk or shared stores, through pinned memory."""

from pathlib import Path

import pytest

from blockyard.crane.copiers import Landed, Receipt, bounce
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.disk_copier import DiskCopier
from blockyard.crane.copiers.store_copier import StoreCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.remote import RemoteTier
from blockyard.shared.plan import Cause
from cranes import LAYOUTS
from disks import OURS, keys
from memory_stores import MemoryStore
from rigs import Rig, landed, slots

BLOCKS = 24


@pytest.mark.parametrize("kind", ["disk", "stores"])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("room", [2, 5, 64])
def test_blocks_pass_through_as_much_memory_as_there_is(
    gpu: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, room: int
) -> None:
    layout, store = LAYOUTS[name], MemoryStore()
    monkeypatch.setattr(bounce, "_BYTES", room * layout.block_bytes)
    device = DeviceTier(layout, BLOCKS, gpu=gpu.gpu)
    below: DiskTier | RemoteTier
    if kind == "disk":
        below = DiskTier(layout, tmp_path, blocks=BLOCKS, identity=OURS)
        copier = BounceCopier(device, below, DiskCopier(below))
    else:
        below = RemoteTier(layout, 1000, [store], identity=OURS)
        copier = BounceCopier(device, below, StoreCopier(below))
    before = gpu.fill(device, 3)

    def start(source: Tier, destination: Tier, froms: range, to: range) -> Receipt | None:
        named = keys(*(1 + number for number in froms))
        parents = named * 0 if destination is below else None
        ends = source, destination, slots(*froms), slots(*to)
        return copier.start_keyed(*ends, keys=named, parents=parents)

    first = start(device, below, range(10), range(10))
    second = start(device, below, range(10, 12), range(10, 12))
    assert landed(first) == Landed(10)
    assert landed(second) == Landed(2)
    assert landed(start(below, device, range(11, -1, -1), range(12, 24))) == Landed(12)
    for plane, was in zip(gpu.held(device), before, strict=True):
        assert (plane[:12] == was[:12]).all()
        assert (plane[12:] == was[11::-1]).all()
    assert sum(len(copier._free(down=down)) for down in (False, True)) == min(room, below.blocks)
    if kind == "stores":
        assert len(store.blocks()) == 12
        gone = sorted(store.blocks())[3]
        store.values[gone] = store.values[gone][:-1] + b"?"
        assert landed(start(below, device, range(6), range(12, 18))) == Landed(3, Cause.CORRUPT)
        for plane, was in zip(gpu.held(device), before, strict=True):
            assert (plane[12:15] == was[:3]).all()
            assert (plane[15] == was[8]).all()
    copier.close()
    device.close()
    below.close()
