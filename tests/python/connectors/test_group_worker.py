"""A worker over the cranes of several groups of layers: real bytes, fences, clears, bad input."""

from pathlib import Path

import numpy as np
import pytest

import blockyard as by
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import Plane
from hybrid_desk import FILLED, ON_DISK, PROMPT, SIZE, TABLES, Desk, drawn, groups


@pytest.mark.law("G3", "G10", "E1")
def test_blocks_of_every_group_come_back_byte_for_byte() -> None:
    desk = Desk()
    keys = desk.caches[0].keys(range(PROMPT))
    desk.offload(keys, seed=1)
    orders = desk.step(FILLED)
    assert orders.fence is not None
    desk.fill(FILLED, 2)
    desk.settle()
    assert desk.load(keys) == 16
    wanted = drawn(1, ranks=1)
    assert all((one == other).all() for one, other in zip(desk.read(), wanted, strict=True))
    desk.close()


@pytest.mark.law("G12")
def test_a_plan_of_a_group_without_a_crane_is_refused_and_nothing_of_it_is_taken() -> None:
    desk = Desk()
    keys = desk.caches[0].keys(range(17))
    desk.ask.offload("one", keys, TABLES, at=[16])
    orders = desk.ask.step()
    lone = Worker(desk.worker.cranes[0])
    with pytest.raises(by.Misuse, match="group = 1, and this crane has group 0"):
        lone.begin(orders)
    two = Worker([desk.worker.cranes[0], desk.worker.cranes[2]])
    with pytest.raises(by.Misuse, match="group 1 has no crane here"):
        two.begin(orders)
    assert [crane.in_flight for crane in desk.worker.cranes.values()] == [0, 0, 0]
    desk.worker.begin(orders)
    desk.settle()
    desk.worker.close()


@pytest.mark.law("G12")
def test_cranes_of_one_group_or_of_two_ranks_are_refused() -> None:
    def crane(rank: int, group: int) -> by.Crane:
        own = by.KVLayout((Plane("kv", 1, 64),), block_size=SIZE, ranks=2, dtype="uint8")
        tier = MemoryTier(own, 8, name="device")
        return by.Crane(own, rank=rank, device=tier, copier=ThreadCopier(workers=0), group=group)

    one, same, other = crane(0, 0), crane(0, 0), crane(1, 1)
    with pytest.raises(by.Misuse, match="two cranes of group 0"):
        Worker([one, same])
    with pytest.raises(by.Misuse, match=r"cranes of ranks \[0, 1\]"):
        Worker([one, other])
    with pytest.raises(by.Misuse, match="at least one"):
        Worker([])
    for made in (one, same, other):
        made.close()
    configs = by.GroupConfigs(groups(), engine=8, host=[16] * 3)
    with pytest.raises(by.Misuse, match="tensors of 1 groups, of 3"):
        Worker.adopt_groups(configs, [None])
    with pytest.raises(by.Misuse, match="group 1: "):
        Worker.adopt_groups(configs, [np.zeros((8, 128), np.uint8)] * 3, axis=0)


@pytest.mark.law("G13", "INV-31")
def test_a_clear_reaches_the_disk_of_every_group(tmp_path: Path) -> None:
    desk = Desk(disk_path=tmp_path, **ON_DISK)
    desk.offload(desk.caches[0].keys(range(PROMPT)), seed=1)
    desk.settle()
    assert desk.worker.dead() == frozenset()
    folders = [crane.persistent.folders for crane in desk.worker.cranes.values()]
    assert len({folder for each in folders for folder in each}) == 3
    written = [cache.stats()["disk_idle"] for cache in desk.caches]
    desk.ask.clear()
    assert desk.worker.clear()
    desk.worker.close()
    again = Desk(disk_path=tmp_path, **ON_DISK)
    assert again.restore().blocks == {0: 0, 1: 0, 2: 0}
    assert all(written), "there was something to clear"
    again.worker.close()
