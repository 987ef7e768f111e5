"""A measured loop under traffic of every kind."""

from typing import Any, Final

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from loop import Loop
from yard import text

LAYOUT: Final = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=2, block_size=4)


class Busy(Loop):
    """A loop around a local cache of three tiers, under traffic that finds and preempts."""

    def __init__(self, **keywords: Any) -> None:
        copier = ThreadCopier(workers=0)
        sizes = {"device": 33, "host": 24, "disk": 64}
        device, host, disk = (MemoryTier(LAYOUT, n, name=name) for name, n in sizes.items())
        self.local = by.local(LAYOUT, memory=(device, host, disk), ahead=4, copier=copier)
        super().__init__(cache=self.local, max_num_seqs=6, metrics=True, **keywords)
        self.turns = 0

    def once(self) -> None:
        self.turns += 1
        self.now += 0.002
        if self.turns % 2 == 0 and self.scheduler.stats()["waiting"] < 6:
            self.add(self.turns, [*text(self.turns // 2 % 9, 24), self.turns], 12)
        step = self.scheduler.schedule()
        self.air.append(step)
        self.stops += step.stops
        self.local.step()
        self.output()
        self.ack()
