"""The simulated engine with groups of layers, with what the naive model lacks: resizes, forgets,
priorities, copies ahead, drafts, and resets that lose memory.
"""

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.testing.own_groups import MIXES, OwnGroups
from blockyard.yard.presence import Presence

# More, as in test_simulator.py.
SEEDS = int(os.environ.get("BLOCKYARD_SEEDS", "100")) // 3


class Changed(OwnGroups):
    """An engine whose tiers change, and which says all that it knows."""

    def __init__(self, seed: int, mix: Any) -> None:
        self._more = Random(seed)
        self._again = self._more.choice((0, 0, 1, 2))
        self._eviction: Any = self._more.choice(("recency", "learned", "heap"))
        super().__init__(seed, mix, faults=seed % 5 > 0)

    @override
    def _start(self) -> None:
        super()._start()
        configs = [replace(cache.config, eviction=self._eviction) for cache in self._caches]
        self._caches = list(map(by.KVCache, configs))
        ask: Any = HybridConnector(
            self._caches, self._groups, retries=self._retries, again=self._again
        )
        self._connector = ask
        ask.step, ask.finished = partial(self._steps, ask.step), partial(self._ends, ask.finished)

    def _steps(self, step: Any, written: list[int]) -> Any:
        free = self._blocks.free[: self._more.randint(0, 6)]
        return step(written, [one for one in free if one not in written])

    def _ends(self, finished: Any, *given: Any, **named: Any) -> Any:
        priority, ttl = self._more.choice((None, 0, 99)), self._more.choice((None, 3, 100))
        return finished(*given, **named, priority=priority, ttl=ttl)

    @override
    def _event(self) -> None:
        change = self._more.random()
        if change < 0.03:
            self._resize()
        elif change < 0.06:
            self._forget()
        super()._event()

    def _resize(self) -> None:
        group = self._more.randrange(len(self._caches))
        tier: Any = self._more.choice(list(self._copies.slots[group]))
        slots = self._more.randint(1, self._copies.slots[group][tier])
        try:
            self._caches[group].resize(tier, slots)
            self.seen["resized"] += 1
        except by.InUse:
            self.seen["resize refused"] += 1

    def _forget(self) -> None:
        prompt = self._more.choice([*self._prompts, *(row.tokens for row in self._requests)])
        keys = self._caches[0].keys(prompt[: self._more.randint(1, len(prompt))])
        self._connector.forget(keys, force=self._more.random() < 0.5)
        self.seen["forgets"] += 1
        for rider in self._caches[1:]:
            known = rider.known_keys()
            alone = known[self._caches[0].which(known) == Presence.MISSING]
            kept = rider.which(alone) != Presence.MISSING
            assert not kept.any(), "G13: a rider's block is found, and its spine's is forgotten"

    @override
    def _best(self, row: Any, local: int) -> int | None:
        if not self._again:
            return super()._best(row, local)
        keys = self._keys(row)
        raw = np.frombuffer(bytes(keys), np.uint8).reshape(-1, 32)
        there = self._caches[0].which(raw).tolist()
        far = next((n for n in range(local, len(there)) if not there[n]), len(there))
        tokens = max(far - self._again, local) * self._size
        # As many are there as of a request that ends where the blocks to be computed again begin.
        cut = type(row)(row.name, row.tokens[: min(tokens + 1, len(row.tokens))])
        return super()._best(cut, local)

    @override
    def _reset(self) -> None:
        words: list[Literal["kept", "lost", "disk kept"]] = ["kept", "lost"]
        words += ["disk kept"] if "disk" in self._copies.slots[0] else []
        self._copies.reset()
        self._connector.reset(memory=self._more.choice(words))
        self._lose_blocks()


@pytest.mark.law("G3", "G8", "G10", "G13")
def test_every_promise_is_kept_while_tiers_change_and_prompts_are_forgotten() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        engine = Changed(seed, MIXES[list(MIXES)[seed % len(MIXES)]])
        try:
            engine.run(160)
        except (by.BlockyardError, AssertionError) as broken:
            pytest.fail(f"seed {seed}: {broken}")
        seen.update(engine.seen)
    wanted = ("resized", "forgets", "loaded", "undone", "kept", "restarts", "restored rider")
    assert not [what for what in wanted if not seen[what]]
