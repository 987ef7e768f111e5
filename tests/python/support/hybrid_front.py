"""A connector over groups of layers, whose copies land by hand."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import blockyard as by
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.orders import Orders
from blockyard.shared.groups import Groups
from blockyard.shared.layout import Plane

SIZE = 4
FULL, WINDOW, STATE = 1, 0, 2
"""The engine's numbers of the groups of most tests."""


def layout(nbytes: int = 16) -> by.KVLayout:
    return by.KVLayout((Plane("kv", 1, nbytes),), block_size=SIZE, ranks=1, dtype="uint8")


def kinds(words: str) -> list[Any]:
    made: dict[str, Callable[[int], Any]] = {
        "F": lambda _: by.Full(layout()),
        "W": lambda tokens: by.SlidingWindow(layout(), tokens=tokens),
        "C": lambda tokens: by.ChunkedAttention(layout(), tokens=tokens),
        "S": lambda tokens: by.RecurrentState(layout(), every=tokens or None),
    }
    return [made[word[0]](int(word[1:] or 0)) for word in words.split()]


class Front:
    """A connector over groups, whose orders land when they are carried out by hand."""

    def __init__(
        self, words: str = "W10 F S8", *, retries: int = 2, again: int = 0, **more: Any
    ) -> None:
        self.groups = Groups(kinds(words))
        sizes = {"host": [64] * len(self.groups)} | {
            name: [size] * len(self.groups) if isinstance(size, int) else size
            for name, size in more.items()
            if name in ("host", "disk")
        }
        fields = {name: value for name, value in more.items() if name not in sizes}
        configs = by.GroupConfigs(kinds(words), engine=256, **sizes, **fields)
        self.caches = [by.KVCache(config) for config in configs]
        self.ask = HybridConnector(self.caches, self.groups, retries=retries, again=again)
        self.ids = iter(range(1, 256))

    def keys(self, tokens: int, first: int = 0) -> by.Keys:
        return self.caches[0].keys(range(first, first + tokens))

    def tables(self, blocks: int) -> list[list[int]]:
        """Tables in which every group has every block."""
        return [[next(self.ids) for _ in range(blocks)] for _ in self.groups]

    def step(self, written: Iterable[int] = ()) -> Orders:
        made = self.ask.step(list(written))
        assert [cache.audit() for cache in self.caches] == [None] * len(self.caches)
        return made

    def land(self, *plans: by.Plan, good: int | None = None, corrupt: bool = False) -> None:
        cause = None if good is None else by.Cause.CORRUPT if corrupt else by.Cause.FAILED
        counts = [len(plan) if good is None else good for plan in plans]
        self.ask.commit(
            by.Outcome.of(plan, 0, count, cause) for plan, count in zip(plans, counts, strict=True)
        )
        assert [cache.audit() for cache in self.caches] == [None] * len(self.caches)

    def carry(self, written: Iterable[int] = ()) -> Orders:
        made = self.step(written)
        self.land(*made.down, *made.up)
        return made

    def states(self, tables: Sequence[Sequence[int]], *lengths: int) -> list[tuple[int, int, int]]:
        """The states of some lengths, each in the block of its table that ends there."""
        has = [
            n
            for n, kind in zip(self.groups.numbers, self.groups, strict=True)
            if isinstance(kind, by.RecurrentState)
        ]
        return [(n, tables[n][length // SIZE - 1], length) for n in has for length in lengths]

    def offloaded(self, keys: by.Keys, *at: int) -> None:
        """Offloads a request, its riders at some lengths."""
        tables = self.tables(len(keys))
        self.ask.offload("before", keys, tables, at=at, states=self.states(tables, *at))
        self.carry()

    def stored(self, group: int) -> int:
        """How many blocks the host of a group has, by the engine's number."""
        return self.caches[self.groups.numbers.index(group)].stats()["host_idle"]


def ids(plans: Iterable[by.Plan]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for plan in plans:
        device = plan.sources if plan.source_tier == "device" else plan.destinations
        found.setdefault(plan.group, []).extend(device.tolist())
    return found
