"""A worker whose verbs are interrupted at every line in turn, and what an engine does then."""

from collections.abc import Hashable

import numpy as np

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.connectors.worker import Worker
from interrupted_verbs import SIZE, Cut, SlowCopier, nothing

LAYOUT = by.KVLayout.llama(1, 1, 8, block_size=SIZE, dtype="uint8")
BLOCKS = 12
TURNS = 12


class Desk:
    """An engine that owns its blocks, in the middle of copies both ways.

    "old" comes up to ids 4 and 5. "air" goes down from 2 and 3: 3 has been written too early, and 2
    will be written in the step whose orders are next. So nothing of "air" is right but a block.
    """

    def __init__(self) -> None:
        config = by.Config(layout=LAYOUT, engine=BLOCKS, host=14)
        self.kv = np.zeros((BLOCKS, LAYOUT.block_bytes), np.uint8)
        self.copier = SlowCopier()
        self.copier.most = 9
        self.worker = Worker.adopt(config, self.kv, axis=0, copier=self.copier)
        self.worker.patience = 1e-3
        self.cache = by.KVCache(by.agree(config, [self.worker.crane.hello()]))
        self.ask = Connector(self.cache)
        tokens = {"old": 0, "air": 100, "new": 200}
        self.keys = {name: self.cache.keys(range(at, at + 8)) for name, at in tokens.items()}
        self.copier.ticks = 1
        self.preempt("old", 0, 1)
        self.turn()
        self.turn()
        self.copier.ticks = 6
        assert self.ask.matched("old", self.keys["old"]) == 8
        self.ask.allocated("old", [4, 5])
        self.preempt("air", 2, 3)
        self.worker.begin(self.ask.step())
        self.kv[3] = 99
        self.preempt("new", 6, 7)
        self.orders = self.ask.step(written=[2, 3], overwritten=[3])
        assert self.orders.fence is not None
        assert len(self.orders.down) == 1

    def preempt(self, name: str, *ids: int) -> None:
        for at, one in enumerate(ids):
            self.kv[one] = self.mark(name, at)
        assert self.ask.preempted(name, self.keys[name], ids, 8)

    @staticmethod
    def mark(name: str, block: int) -> int:
        return {"old": 10, "air": 20, "new": 30}[name] + block

    def hasten(self) -> None:
        self.copier.ticks = 1

    def turn(self) -> None:
        self.copier.tick()
        self.ask.commit(self.worker.outcomes())
        self.ask.commit(self.worker.reconcile(self.cache.unreported(0)))
        self.worker.begin(self.ask.step())

    def reset(self) -> None:
        """What is to be done where nobody knows what is in the air."""
        self.worker.reset()
        self.ask.commit(self.worker.outcomes())
        self.ask.commit(self.worker.reconcile(self.cache.unreported(0)))
        self.cache.reset(0, memory="kept")

    def write(self) -> None:
        """The engine gives its blocks to others, once it may."""
        try:
            self.worker.begin(self.ask.step(written=range(2, 6)))
        except by.Unavailable:
            self.reset()
        self.kv[2:6] = 77

    def settle(self) -> dict[Hashable, int]:
        """Goes on until all has ended that will; returns whose loads have."""
        for _ in range(TURNS):
            self.turn()
            if not self.cache.dispatched():
                break
        return self.ask.arrived()

    def goes_on(self) -> None:
        arrived = self.settle()
        assert list(arrived) == ["old"], "a load never ends"
        self.read("old", 4, arrived["old"])
        self.write()
        self.settle()
        assert (self.kv[2:6] == 77).all(), "a late copy came up"
        for name in ("air", "new"):
            tokens = self.ask.matched(name, self.keys[name])
            assert tokens is not None, "a copy never ends"
            self.ask.allocated(name, range(8, 8 + tokens // SIZE))
            self.read(name, 8, self.settle()[name] if tokens else 0)
        assert self.cache.dispatched() == []
        assert self.worker.crane.in_flight == 0
        assert (self.worker._ids, self.worker._cut) == ({}, {})
        assert self.cache.audit() is None
        self.worker.close()

    def read(self, name: str, first: int, tokens: int) -> None:
        for at in range(tokens // SIZE):
            assert (self.kv[first + at] == self.mark(name, at)).all(), "a wrong byte was served"
        self.ask.finished(name)


def _begin(desk: Desk) -> None:
    desk.worker.patience = 60  # the copies go on where somebody asks
    desk.copier.asked = True
    desk.worker.begin(desk.orders)


def _reset_after(desk: Desk, _way: int) -> None:
    desk.worker.patience, desk.copier.asked = 1e-3, False
    desk.reset()


def _spoiled(desk: Desk) -> None:
    """The orders were taken, and a copy of what was overwritten has landed and is not told."""
    desk.worker.begin(desk.orders._replace(fence=None))
    air = next(copy for copy in desk.copier.held if copy.what[0].name == "device")
    air.ticks = 1
    desk.copier.tick()
    assert len(desk.copier.held) == 2
    assert desk.worker.crane.in_flight == 3


def _suspend(desk: Desk) -> None:
    desk.worker.patience = 60
    desk.copier.asked = True
    desk.worker.suspend()


def _suspend_again(desk: Desk, _way: int) -> None:
    _suspend(desk)
    assert desk.worker.crane.in_flight == 0
    assert not desk.copier.held
    desk.worker.resume()
    desk.worker.patience, desk.copier.asked = 1e-3, False


WORKER_CUTS = {
    "begin": Cut(nothing, _begin, _reset_after),
    "outcomes": Cut(_spoiled, lambda desk: desk.worker.outcomes(), nothing),
    "reconcile": Cut(
        _spoiled, lambda desk: desk.worker.reconcile(desk.cache.unreported(0)), nothing
    ),
    "reset": Cut(_spoiled, lambda desk: desk.worker.reset(), lambda desk, _: desk.reset()),
    "suspend": Cut(_spoiled, _suspend, _suspend_again),
}
