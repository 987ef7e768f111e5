"""A worker over the cranes of several groups of layers: real bytes, fences, clears, bad input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import Orders
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import Plane

SIZE, BLOCKS = 4, 64


def layout(nbytes: int) -> by.KVLayout:
    return by.KVLayout((Plane("kv", 1, nbytes),), block_size=SIZE, ranks=1, dtype="uint8")


def groups() -> list[Any]:
    """A window, the spine, and states: their blocks have unequal bytes."""
    return [
        by.SlidingWindow(layout(64), tokens=8),
        by.Full(layout(128)),
        by.RecurrentState(layout(4096)),
    ]


class Desk:
    """A connector, its worker, and the tensors of each group by the engine's number."""

    def __init__(self, **more: Any) -> None:
        path = more.pop("disk_path", None)
        self.configs = by.GroupConfigs(groups(), engine=BLOCKS, host=[16] * 3, **more)
        self.kv = [np.zeros((BLOCKS, group.layout.block_bytes), np.uint8) for group in groups()]
        order = self.configs.groups.numbers
        self.worker = Worker.adopt_groups(
            self.configs, [self.kv[number] for number in order], axis=0, disk_path=path
        )
        self.caches = [
            by.KVCache(by.agree(config, [crane.hello()]))
            for config, crane in zip(self.configs, self.worker.cranes.values(), strict=True)
        ]
        self.ask = HybridConnector(self.caches, self.configs.groups)

    def step(self, written: list[int] | None = None) -> Orders:
        orders = self.ask.step(written or [])
        self.worker.begin(orders)
        return orders

    def settle(self) -> None:
        while self.ask.is_busy:
            self.step()
            self.ask.commit(self.worker.outcomes())

    def fill(self, ids: list[int], seed: int) -> None:
        draw = np.random.default_rng(seed)
        for group in self.kv:
            group[ids] = draw.integers(1, 255, size=group[ids].shape)


@pytest.mark.law("G3", "G10", "E1")
def test_blocks_of_every_group_come_back_byte_for_byte() -> None:
    desk = Desk()
    keys = desk.caches[0].keys(range(17))
    ids = [5, 9, 2, 11]
    desk.fill(ids, 1)
    before = [group[ids].copy() for group in desk.kv]
    tables = [[5, 9, 2, 11], [5, 9, 2, 11], [0, 0, 0, 11]]
    desk.ask.offload("one", keys, tables, at=[16], states=[(2, 11, 16)])
    orders = desk.step(ids)
    assert orders.fence is not None
    desk.fill(ids, 2)
    desk.settle()
    assert desk.ask.matched("two", keys) == 16
    new = [[0, 0, 20, 21], [30, 31, 32, 33], [0, 0, 0, 40]]
    desk.ask.allocated("two", new)
    desk.step([20, 21, 30, 31, 32, 33, 40])
    desk.settle()
    assert desk.ask.arrived() == {"two": 16}
    assert (desk.kv[0][[20, 21]] == before[0][2:]).all()
    assert (desk.kv[1][[30, 31, 32, 33]] == before[1]).all()
    assert (desk.kv[2][40] == before[2][3]).all()
    desk.worker.close()


@pytest.mark.law("G12")
def test_a_plan_of_a_group_without_a_crane_is_refused_and_nothing_of_it_is_taken() -> None:
    desk = Desk()
    keys = desk.caches[0].keys(range(17))
    desk.ask.offload("one", keys, [[1, 2, 3, 4]] * 3, at=[16])
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
    fields: dict[str, Any] = {"disk": [16] * 3, "keyed": ("disk",), "disk_path": tmp_path}
    fields |= {"namespace": {"model": "m", "weights": "w"}, "write": "through"}
    desk = Desk(**fields)
    keys = desk.caches[0].keys(range(17))
    ids = [5, 9, 2, 11]
    desk.fill(ids, 1)
    desk.ask.offload("one", keys, [ids] * 3, at=[16], states=[(2, 11, 16)])
    desk.settle()
    assert desk.worker.dead() == frozenset()
    folders = [crane.persistent.folders for crane in desk.worker.cranes.values()]
    assert len({folder for each in folders for folder in each}) == 3
    written = [cache.stats()["disk_idle"] for cache in desk.caches]
    desk.ask.clear()
    assert desk.worker.clear()
    desk.worker.close()
    again = Desk(**fields)
    found = [crane.persistent.restored() for crane in again.worker.cranes.values()]
    assert [0 if one is None else len(one.slots) for one in found] == [0, 0, 0]
    assert all(written), "there was something to clear"
    again.worker.close()
