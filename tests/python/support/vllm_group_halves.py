"""A connector over several groups of layers, and the worker's half that carries its orders out."""

import time
from typing import Any, Final

import numpy as np

import blockyard as by
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.vllm.compatibility import facts
from blockyard.connectors.vllm.messages import StepOrders
from blockyard.connectors.vllm.restart import Restart
from blockyard.connectors.vllm.settings import Settings
from blockyard.connectors.vllm.worker_half import WorkerHalf
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.stores.lookup import StoreLookup
from blockyard.yard.cache import KVCache
from vllm_front import BLOCKS, Tensor, vllm_config
from vllm_groups import PAGE, full, kv_of, names, state, window

LAYERS: Final = 2
GROUPS: Final = (window, state, full)
"""vLLM's order; with 12 tokens the window needs two blocks, and the state one."""
WIDTHS: Final = (PAGE, PAGE - 24, PAGE)
"""Bytes that a group has of a page."""


class Halves:
    """All groups lie in one pool of pages, as vLLM's do: a tensor for each layer of a group."""

    def __init__(self, path: object = None, **extra: Any) -> None:
        given: dict[str, Any] = {"host": [16, 16, 16]} | extra
        if path is not None:
            disk = {"disk": [16, 16, 16], "disk_path": str(path), "namespace": {"weights": "v1"}}
            given = disk | given
        known = facts(vllm_config(), kv_of(*(one() for one in GROUPS)), version="0.33.0")
        assert known.groups is not None
        self.settings, self.configs = Settings.read(given, known._replace(longest=16))
        self.caches = [KVCache(config.named()) for config in self.configs]
        self.ask = HybridConnector(self.caches, known.groups)
        self.back = WorkerHalf(known, self.settings, self.configs)
        if path is None and "remote" not in extra:
            self.back.copier = ThreadCopier(workers=0)
        self.pages = [np.zeros((BLOCKS, PAGE), np.uint8) for _ in range(LAYERS)]
        self.kv = {
            name: pages[:, :width].view(Tensor)
            for number, width in enumerate(WIDTHS)
            for name, pages in zip(names(number), self.pages, strict=True)
        }
        self.back.register(self.kv)
        self.lookup: StoreLookup | None = None
        if "remote" in extra:
            self.lookup = StoreLookup(self.settings.stores(), self.back.ready().places, patience=20)
            self.ask.asking.start(self.lookup)
        self.restart = Restart(known, self.caches, 20.0, lambda: time.monotonic)
        if path is not None:
            self.restart.ready([self.back.ready()])
        self.steps = 0

    def keys(self, tokens: int = 13) -> by.Keys:
        return self.caches[0].keys(range(tokens))

    def step(self, written: Any = ()) -> bool:
        """A step of the scheduler and of the worker; returns whether a copy has ended."""
        self.steps += 1
        orders, restart = self.ask.step(list(written)), self.restart
        yard = self.caches[0].config.yard
        step = StepOrders(self.steps, orders, run=restart.run, cleared=restart.cleared, yard=yard)
        reports = self.back.carry(step)
        self.ask.commit([] if reports is None else reports.outcomes)
        assert [cache.audit() for cache in self.caches] == [None] * len(self.caches)
        return reports is not None

    def settle(self) -> None:
        """Steps until nothing is in the air."""
        until, quiet = time.monotonic() + 20, 0
        while quiet < 3:
            assert time.monotonic() < until
            self.step()
            air = sum(cache.stats()["flights"] for cache in self.caches)
            quiet = 0 if air else quiet + 1
            time.sleep(1e-3)

    def fill(self, ids: list[int]) -> dict[int, list[Any]]:
        """Writes what no other block has; returns it, by block."""
        for pages in self.pages:
            pages[ids] = np.random.default_rng(len(ids)).integers(0, 256, (len(ids), PAGE))
        return {one: [pages[one].copy() for pages in self.pages] for one in ids}

    def offload(self, tables: list[list[int]], states: list[tuple[int, int, int]]) -> Any:
        """A request with 12 tokens in blocks, which ends; returns what was written."""
        ids = sorted({one for table in tables for one in table if one})
        self.ask.matched("Anna", self.keys())
        self.ask.allocated("Anna")
        self.step(ids)
        written = self.fill(ids)
        self.ask.offload("Anna", self.keys(), tables, at=[12], states=states)
        self.step()
        self.ask.finished("Anna")
        self.settle()
        return written

    def found(self) -> int | None:
        """Tokens that all groups have."""
        return self.ask.matched("Ben", self.keys())

    def load(self, tables: list[list[int]]) -> int:
        """Loads what was found; returns how many tokens have come."""
        self.ask.allocated("Ben", tables)
        until = time.monotonic() + 20
        self.step([one for table in tables for one in table if one])
        while not (arrived := self.ask.arrived()):
            assert time.monotonic() < until
            self.step()
            time.sleep(1e-3)
        return arrived["Ben"]

    def close(self, *, flush: bool = True) -> None:
        if flush and self.restart.run:
            self.restart.flush(20.0).run(self.step)
        self.back.close()
        self.restart.close()
        if self.lookup is not None:
            self.lookup.close()
