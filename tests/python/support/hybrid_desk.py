"""A connector over groups of layers, and the workers of its ranks, over real bytes and disks."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import blockyard as by
from blockyard.connectors.group_restart import FoundGroups
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import Orders
from blockyard.connectors.worker import Worker
from blockyard.shared.layout import Plane

SIZE, BLOCKS = 4, 64
PROMPT = 17
FILLED = [5, 9, 2, 11, 7, 8, 3]
TABLES = [[0, 0, 7, 8], [5, 9, 2, 11], [0, 0, 0, 3]]
ON_DISK: dict[str, Any] = {
    "disk": [16] * 3,
    "keyed": ("disk",),
    "namespace": {"model": "m", "weights": "w"},
    "write": "through",
}


def layout(nbytes: int, ranks: int = 1) -> by.KVLayout:
    return by.KVLayout((Plane("kv", 1, nbytes),), block_size=SIZE, ranks=ranks, dtype="uint8")


def groups(ranks: int = 1) -> list[Any]:
    """A window, the spine, and states: their blocks have unequal bytes."""
    return [
        by.SlidingWindow(layout(64, ranks), tokens=8),
        by.Full(layout(128, ranks)),
        by.RecurrentState(layout(4096, ranks)),
    ]


class Desk:
    """A connector, its workers, and the tensors of each rank and group by the engine's number."""

    def __init__(self, *, ranks: int = 1, disk_path: Path | None = None, **more: Any) -> None:
        kinds = groups(ranks)
        self.configs = by.GroupConfigs(kinds, engine=BLOCKS, host=[16] * 3, **more)
        self.ranks = [
            [np.zeros((BLOCKS, group.layout.block_bytes), np.uint8) for group in kinds]
            for _ in range(ranks)
        ]
        self.kv = self.ranks[0]
        order = self.configs.groups.numbers
        self.workers = [
            Worker.adopt_groups(
                self.configs, [kv[at] for at in order], rank=rank, axis=0, disk_path=disk_path
            )
            for rank, kv in enumerate(self.ranks)
        ]
        self.worker = self.workers[0]
        self.caches = [
            by.KVCache(by.agree(config, [worker.cranes[at].hello() for worker in self.workers]))
            for at, config in enumerate(self.configs)
        ]
        self.ask = HybridConnector(self.caches, self.configs.groups)

    def restore(self) -> FoundGroups:
        found = self.ask.restore([worker.restored() for worker in self.workers])
        for worker in self.workers:
            worker.count_as(found.run)
        return found

    def step(self, written: list[int] | None = None) -> Orders:
        orders = self.ask.step(written or [])
        for worker in self.workers:
            worker.begin(orders)
        return orders

    def settle(self) -> None:
        while self.ask.is_busy:
            self.step()
            for worker in self.workers:
                self.ask.commit(worker.outcomes())

    def fill(self, ids: list[int], seed: int) -> None:
        draw = np.random.default_rng(seed)
        for kv in self.ranks:
            for group in kv:
                group[ids] = draw.integers(1, 255, size=group[ids].shape)

    def offload(self, keys: by.Keys, seed: int) -> None:
        """Computes a prompt of four full blocks, and offloads all that 16 tokens need."""
        self.fill(FILLED, seed)
        self.ask.offload("before", keys, TABLES, at=[16], states=[(2, 3, 16)])

    def load(self, keys: by.Keys) -> int:
        """Loads a prompt of as many blocks; returns its tokens."""
        found = self.ask.matched("one", keys)
        assert found is not None
        if found:
            tables = [[0, 0, 20, 21], [30, 31, 32, 33], [0, 0, 0, 40]]
            self.ask.allocated("one", tables)
            self.settle()
            assert self.ask.arrived() == {"one": found}
        self.ask.finished("one")
        return found

    def read(self) -> list[Any]:
        """What `load` has brought, of each rank and group."""
        places = ([20, 21], [30, 31, 32, 33], [40])
        return [kv[at][ids].copy() for kv in self.ranks for at, ids in enumerate(places)]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def drawn(seed: int, ranks: int) -> list[Any]:
    """What `read` returns of what `offload` has computed."""
    desk = Desk(ranks=ranks)
    desk.fill(FILLED, seed)
    places = ([7, 8], [5, 9, 2, 11], [3])
    read = [kv[at][ids].copy() for kv in desk.ranks for at, ids in enumerate(places)]
    desk.close()
    return read


if __name__ == "__main__":
    # It is killed when all that was offloaded is on the disks of all ranks.
    killed = Desk(ranks=2, disk_path=Path(sys.argv[1]), **ON_DISK)
    killed.restore()
    killed.offload(killed.caches[0].keys(range(PROMPT)), seed=1)
    killed.settle()
    sys.stdout.write("settled\n")
    sys.stdout.flush()
    sys.stdin.read()
