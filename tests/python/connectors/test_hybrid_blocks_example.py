"""The example of an engine of a hybrid model: its tokens are those of ample memory, whatever
happens to the copies in any group, and it reads nothing that it should not. G3 G4 G8 G10 E1
"""

import importlib.util
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.reference.hybrid import LAYER_TYPES, HybridModel, HybridRow
from blockyard.testing import Script, ScriptedCopier

ROOT = Path(__file__).parents[3]
PATH = ROOT / "examples/hybrid_blocks.py"
_SPEC = importlib.util.spec_from_file_location("hybrid_blocks", PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
EXAMPLE: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["hybrid_blocks"] = EXAMPLE
_SPEC.loader.exec_module(EXAMPLE)
TURNS, MOST = 2, 20_000
"""Turns of a run, and steps after which one of them counts as endless."""
QUARTER = 35
"""Blocks: a quarter of those with which an engine preempts nothing."""
MIXES = {
    "all": LAYER_TYPES,
    "no state": ("full_attention", "sliding_attention", "chunked_attention"),
    "state": ("linear_attention", "full_attention"),
}


class Heard(HybridConnector):
    """A connector that remembers which loads have ended, and with how many tokens."""

    ended: dict[Hashable, int]

    @override
    def arrived(self) -> dict[Hashable, int]:
        self.ended = super().arrived()
        return self.ended


EXAMPLE.HybridConnector = Heard


class Watched(EXAMPLE.Engine):  # type: ignore[misc]
    """An engine that counts what happens in it, and looks for what should not."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.seen = Counter[str]()
        self.steps, self.restarts = 0, list[str]()

    @override
    def step(self) -> None:
        self.steps += 1
        loading = {name: row.computed for name, row in self.loading.items()}
        super().step()
        for name, tokens in self.below.ended.items():
            whole = tokens == loading[name]
            self.seen["loaded" if whole else "came short"] += 1
            self.seen["resumed off the grid"] += whole and tokens % EXAMPLE.SIZE > 0
        for yard in self.below.caches:
            assert yard.audit() is None
        blocks = self.blocks
        free = [one for one in blocks.idle if one not in blocks.names and one not in blocks.void]
        assert (self.model.pages[free] == 0xFF).all(), "something was written to a free block"

    @override
    def _slide(self, row: Any) -> None:
        before = [sum(map(bool, table)) for table in row.tables]
        super()._slide(row)
        for group, (table, held) in enumerate(zip(row.tables, before, strict=True)):
            self.seen[f"slid in group {group}"] += held - sum(map(bool, table))
        self.seen["frozen"] += row.computed % EXAMPLE.SIZE == 0 and bool(self.states)

    def restart(self, memory: str) -> None:
        """The engine begins anew: what it has in its blocks is lost."""
        self.seen["restarted"] += 1
        self.worker.reset()
        self.below.reset(memory=memory)
        rows = [*self.loading.values(), *self.running.values()]
        for row in rows:
            row.tables, row.computed = [], 0
        self.waiting[:0] = rows
        self.loading.clear()
        self.running.clear()
        self.blocks = EXAMPLE._Blocks(len(self.model.pages))
        self.model.pages[:] = 0xFF

    def answered(self, seed: int, turns: int = TURNS) -> list[list[list[int]]]:
        """The tokens of all turns."""
        found = []
        for turn in range(turns):
            asked = EXAMPLE.requests(seed, turn)
            self.waiting += asked
            for _ in range(MOST):
                if not self.busy:
                    break
                self.step()
                if self.loading and not self.running:
                    time.sleep(1e-4)  # for copies in threads of their own
                if self.restarts and self.steps % 40 == 0:
                    self.restart(self.restarts[self.steps // 40 % 2])
            assert not self.busy, "it does not end"
            found.append([row.tokens for row in asked])
        assert not any(self.blocks.holders)
        return found


def plain() -> Copier:
    return ThreadCopier(workers=0)


@cache
def ample(seed: int, mix: str = "all") -> list[list[list[int]]]:
    """What the model answers with blocks of its own for every token of every group."""
    size, length = EXAMPLE.SIZE, EXAMPLE.LENGTH
    model = HybridModel(4 * -(-length // size) + 1, block_size=size, layer_types=MIXES[mix])
    tables = [list(range(at, len(model.pages), 4)) for at in range(4)]

    def answer(tokens: list[int]) -> list[int]:
        start, last = 0, len(model.pages) - 1
        while len(tokens) < length:
            found = model.forward(HybridRow(tokens, start, tables, (last, last)))
            start = len(tokens)
            tokens = [*tokens, found]
        return tokens

    return [[answer(row.tokens) for row in EXAMPLE.requests(seed, turn)] for turn in range(TURNS)]


def test_it_runs_as_it_stands_and_says_what_was_computed_again() -> None:
    command = [sys.executable, "-W", "error", str(PATH)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    said = [re.fullmatch(r"(\w+): (\d+) preempted, (\d+) tokens computed again", x) for x in lines]
    counts = {one[1]: (int(one[2]), int(one[3])) for one in said if one is not None}
    assert list(counts) == ["ample", "recompute", "Blockyard"]
    assert counts["ample"] == (0, 0)
    assert min(counts["recompute"]) > 0
    assert counts["Blockyard"][0] > 0
    assert counts["Blockyard"][1] == 0
    assert last == "the same tokens: True"


@pytest.mark.parametrize("mix", MIXES)
def test_a_quarter_of_the_memory_costs_no_token_and_nothing_is_computed_again(mix: str) -> None:
    engine = Watched(QUARTER, "1 MB", copier=plain(), layer_types=MIXES[mix])
    assert engine.answered(1) == ample(1, mix)
    assert engine.preempted > 0
    assert engine.again == 0
    assert engine.seen["resumed off the grid"] > 0
    for group, kind in enumerate(engine.kinds):
        assert (engine.seen[f"slid in group {group}"] > 0) != isinstance(kind, by.Full)
    if engine.states:
        assert engine.seen["frozen"] > 0
        assert sum(engine.below.hits_cut().values()) > 0
    engine.worker.close()


@pytest.mark.parametrize("restarts", [[], ["kept", "lost"]])
def test_faults_of_copies_in_any_group_cost_no_token(restarts: list[str]) -> None:
    script = Script.seeded(len(restarts), late=0.3, failing=0.15, corrupting=0.15)
    host = "0.3 MB" if restarts else "1 MB"
    engine = Watched(QUARTER, host, copier=ScriptedCopier(plain(), script))
    engine.restarts = restarts
    assert engine.answered(1) == ample(1)
    assert engine.seen["came short"] > 0
    evicted = [yard.stats()["host_evicted"] for yard in engine.below.caches]
    assert engine.seen["restarted"] >= len(restarts)
    assert (sum(evicted[1:]) > 0) == bool(restarts)
    engine.worker.close()


def test_an_engine_leaves_its_kv_and_states_on_the_disk_to_the_next(tmp_path: Path) -> None:
    for run in range(2):
        engine = Watched(QUARTER, "0.3 MB", disk="4 MB", path=tmp_path)
        restored = [yard.stats()["disk_idle"] for yard in engine.below.caches]
        assert (min(restored) > 0) == (max(restored) > 0) == run
        assert engine.answered(1) == ample(1)
        hits = [yard.stats()["disk_hits"] for yard in engine.below.caches]
        assert min(hits) > 0 or not run
        while engine.below.is_busy:  # until all is written
            engine.step()
            time.sleep(1e-4)
        engine.worker.close()
