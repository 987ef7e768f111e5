"""The example of an engine that owns its blocks: its tokens are those of ample memory, whatever
happens to the copies, and without faults none is computed again. E1 E4 E5 E6 E7
"""

import importlib.util
import random
import re
import subprocess
import sys
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.reference.weights import ModelConfig
from blockyard.testing import Script, ScriptedCopier

ROOT = Path(__file__).parents[3]
PATH = ROOT / "examples/own_blocks.py"
_SPEC = importlib.util.spec_from_file_location("own_blocks", PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
EXAMPLE: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["own_blocks"] = EXAMPLE
_SPEC.loader.exec_module(EXAMPLE)
# Less to compute, so that there are more runs.
EXAMPLE.ModelConfig = partial(ModelConfig, layers=1)
Engine = EXAMPLE.Engine
MOST = 3000
"""Steps after which a run counts as endless."""


def plain() -> Copier:
    return ThreadCopier(workers=0)


def scripted(seed: int, **chances: Any) -> ScriptedCopier:
    return ScriptedCopier(plain(), Script.seeded(seed, **chances))


def answered(engine: Any, seed: int) -> list[list[int]]:
    """The tokens of the seed's requests."""
    asked = EXAMPLE.requests(seed)
    engine.waiting += asked
    for _ in range(MOST):
        if not (engine.waiting or engine.running or engine.loading):
            break
        engine.step()
        assert engine.below.cache.audit() is None
    return [row.tokens for row in asked]


def ample(seed: int) -> list[list[int]]:
    return answered(Engine(99, 0, plain()), seed)


AMPLE = {seed: ample(seed) for seed in range(6)}


class Freeing(Connector):
    """A connector whose engine may abort what is loading: it frees the ids once they have come."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.below.cache)
        self.engine = engine
        self.gone: dict[Hashable, Any] = {}

    @override
    def arrived(self) -> dict[Hashable, int]:
        named = super().arrived()
        for name in [name for name in named if name in self.gone]:
            self.engine.blocks.give_back(self.gone.pop(name).ids, [])
            del named[name]
        return named


class Shaken:
    """An engine whose requests are aborted and which is reset, by seed."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.engine, self.chance = engine, random.Random(seed)
        self.freeing = engine.below = Freeing(engine)
        self.aborted: list[Any] = []
        self.resets = 0

    def step(self) -> None:
        point = self.chance.random()
        if point < 0.004:
            self.reset()
        elif point < 0.02:
            engine = self.engine
            rows = [*engine.waiting, *engine.running.values(), *engine.loading.values()]
            if rows:
                self.abort(self.chance.choice(rows))
        self.engine.step()

    def abort(self, row: Any) -> None:
        engine = self.engine
        self.aborted.append(row)
        writes = engine.below.finished(row.name)
        if row in engine.waiting:
            engine.waiting.remove(row)
        elif engine.running.pop(row.name, None) is not None:
            engine.blocks.give_back(row.ids, row.keys(row.computed))
        else:
            del engine.loading[row.name]
            if writes:
                self.freeing.gone[row.name] = row
            else:
                engine.blocks.give_back(row.ids, [])

    def reset(self) -> None:
        engine = self.engine
        self.resets += 1
        engine.worker.reset()
        engine.below.reset(memory=self.chance.choice(["kept", "lost"]))
        rows = [*engine.loading.values(), *engine.running.values()]
        engine.waiting[:0] = rows
        engine.loading.clear()
        engine.running.clear()
        self.freeing.gone.clear()
        engine.blocks = EXAMPLE._Blocks(len(engine.kv))
        engine.kv[:] = float("nan")


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


@pytest.mark.parametrize("seed", AMPLE)
def test_nothing_is_computed_again_while_the_host_has_room(seed: int) -> None:
    for copier in (plain(), scripted(seed, late=0.6, failing=0, corrupting=0)):
        engine = Engine(20, 120, copier)
        assert answered(engine, seed) == AMPLE[seed]
        assert engine.preempted > 0
        assert engine.again == 0


@pytest.mark.parametrize("host", [0, 3, 6])
def test_a_small_host_costs_computing_and_no_token(host: int) -> None:
    engine = Engine(18, host, plain())
    assert answered(engine, 1) == AMPLE[1]
    assert engine.preempted > 0
    assert engine.again > 0


@pytest.mark.parametrize("seed", range(10))
def test_faults_of_copies_cost_no_token_and_come_to_an_end(seed: int) -> None:
    chance = random.Random(seed)
    copier = scripted(seed, late=0.3, failing=0.15, corrupting=0.15)
    engine = Engine(chance.randint(16, 26), chance.choice([10, 40, 120]), copier)
    assert answered(engine, seed % len(AMPLE)) == AMPLE[seed % len(AMPLE)]
    assert not engine.waiting


@pytest.mark.parametrize("seed", range(12))
def test_aborts_and_resets_change_no_token_of_the_others(seed: int) -> None:
    chance = random.Random(seed)
    faults = {"late": 0.4, "failing": 0.1, "corrupting": 0.1} if seed % 2 else {}
    copier = scripted(seed, **faults) if faults else plain()
    engine = Engine(chance.randint(16, 26), chance.choice([10, 120]), copier)
    shaken = Shaken(engine, seed)
    which = seed % len(AMPLE)
    asked = EXAMPLE.requests(which)
    engine.waiting += asked
    for _ in range(MOST):
        if not (engine.waiting or engine.running or engine.loading):
            break
        shaken.step()
        assert engine.below.cache.audit() is None
    assert shaken.aborted or shaken.resets
    for row, tokens in zip(asked, AMPLE[which], strict=True):
        assert row.tokens == (tokens[: len(row.tokens)] if row in shaken.aborted else tokens)
    for _ in range(20):
        engine.step()
    cache = engine.below.cache
    assert cache.stats()["host_pinned"] == cache.stats()["flights"] == 0
    assert not any(engine.blocks.holders)


def test_it_is_the_same_every_time() -> None:
    def digests() -> list[int]:
        engine = Engine(20, 60, scripted(3, late=0.5))
        engine.waiting += EXAMPLE.requests(3)
        seen = []
        for _ in range(150):
            engine.step()
            seen.append(engine.below.cache.digest())
        return seen

    assert digests() == digests()
