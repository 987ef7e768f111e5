"""Copies between a GPU and a disk, through pinned memory."""

from pathlib import Path

import pytest

from blockyard.crane.copiers import Landed, Receipt, bounce
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.disk import DiskCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from cranes import LAYOUTS
from disks import OURS, keys
from rigs import Rig, landed, slots

BLOCKS = 24


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("room", [2, 5, 64])
def test_blocks_pass_through_as_much_memory_as_there_is(
    gpu: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, room: int
) -> None:
    layout = LAYOUTS[name]
    monkeypatch.setattr(bounce, "_BYTES", room * layout.block_bytes)
    device = DeviceTier(layout, BLOCKS, gpu=gpu.gpu)
    disk = DiskTier(layout, tmp_path, blocks=BLOCKS, identity=OURS)
    copier = BounceCopier(device, disk, DiskCopier(disk))
    before = gpu.fill(device, 3)

    def start(source: Tier, destination: Tier, froms: range, to: range) -> Receipt | None:
        named = keys(*(1 + number for number in froms))
        parents = named * 0 if destination is disk else None
        ends = source, destination, slots(*froms), slots(*to)
        return copier.start_keyed(*ends, keys=named, parents=parents)

    first = start(device, disk, range(10), range(10))
    second = start(device, disk, range(10, 12), range(10, 12))
    assert landed(first) == Landed(10)
    assert landed(second) == Landed(2)
    assert landed(start(disk, device, range(11, -1, -1), range(12, 24))) == Landed(12)
    for plane, was in zip(gpu.held(device), before, strict=True):
        assert (plane[:12] == was[:12]).all()
        assert (plane[12:] == was[11::-1]).all()
    assert sum(len(copier._free(down=down)) for down in (False, True)) == min(room, BLOCKS)
    copier.close()
    device.close()
    disk.close()
