"""An engine that gives out its block ids itself; `docs/own-blocks.md` explains it."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile

import numpy as np

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.reference.model import Model, ModelInput
from blockyard.reference.weights import ModelConfig

SIZE, LENGTH = 16, 120  # tokens of a block, and with how many a request ends


@dataclass(eq=False)
class Request:
    """A request: its tokens, its block table, and how much of its KV is in there."""

    name: str
    tokens: list[int]
    ids: list[int] = field(default_factory=list)
    computed: int = 0
    most: int = 0  # how much there ever was

    def keys(self, tokens: int) -> list[bytes]:
        """Hashes of its first full blocks, each of all tokens up to its end."""
        ends = range(SIZE, tokens + 1, SIZE)
        return [sha256(np.array(self.tokens[:end]).tobytes()).digest() for end in ends]


class _Blocks:
    """The engine's allocator, and its prefix cache: blocks are found again until they are taken."""

    def __init__(self, count: int) -> None:
        self.holders, self.published = [0] * count, dict[bytes, int]()
        self.idle = dict.fromkeys(range(count), b"")  # their keys; the next to be taken is first

    def hold(self, keys: list[bytes]) -> list[int]:  # as far as they are there
        ids = [self.published[key] for key in takewhile(self.published.__contains__, keys)]
        for one in ids:
            self.holders[one] += 1
            self.idle.pop(one, None)
        return ids

    def take(self, count: int) -> list[int]:  # for new contents
        ids = list(self.idle)[:count]
        for one in ids:
            self.holders[one] += 1
            self.published.pop(self.idle.pop(one), None)
        return ids

    def give_back(self, ids: list[int], keys: list[bytes]) -> None:  # the deepest first
        for one, key in reversed([*zip(ids, keys + [b""] * len(ids), strict=False)]):
            self.holders[one] -= 1
            if not self.holders[one]:
                self.idle[one] = key if self.published.get(key) == one else b""


class Engine:
    """Computes requests in so many blocks. Without a host it computes again what it preempts."""

    def __init__(self, blocks: int, host: int, copier: Copier | None = None) -> None:
        self.model, self.blocks, figures = Model(ModelConfig()), _Blocks(blocks), ModelConfig()
        shape = blocks, 2 * figures.layers, SIZE, figures.kv_heads, figures.head_dim
        self.kv = np.zeros(shape, np.float32)
        self.waiting, self.again, self.preempted = list[Request](), 0, 0
        self.loading, self.running = dict[Hashable, Request](), dict[Hashable, Request]()
        config = by.Config(layout=figures.layout(block_size=SIZE), engine=blocks, host=host)
        self.worker = Worker.adopt(config, self.kv, axis=0, copier=copier)
        self.below = Connector(by.KVCache(config))

    def step(self) -> None:
        """Runs one step: admits, preempts, computes a token for each that runs, and ends some."""
        self.below.commit(self.worker.outcomes())
        for name, tokens in self.below.arrived().items():
            self.running[name] = row = self.loading.pop(name)
            row.computed = min(tokens, len(row.tokens) - 1)  # one is computed, for its logits
        while self.waiting and self._admit(self.waiting[0]):
            self.waiting.pop(0)
        for row in list(self.running.values()):
            while row.name in self.running and len(row.tokens) > len(row.ids) * SIZE:
                row.ids += self.blocks.take(1) or self._preempt()
        rows = self.running.values()
        written = [one for row in rows for one in row.ids[row.computed // SIZE :]]
        self.worker.begin(self.below.step(written))
        for row in [row for row in rows if self._compute(row) == LENGTH]:
            del self.running[row.name]
            self.below.finished(row.name, self._keys(row), row.ids)
            self.blocks.give_back(row.ids, row.keys(row.computed))

    def _keys(self, row: Request) -> by.Keys:
        return self.below.cache.ready_keys(row.keys(len(row.tokens)), len(row.tokens))

    def _admit(self, row: Request) -> bool:
        local = self.blocks.hold(row.keys(len(row.tokens) - 1))
        row.computed, new = len(local) * SIZE, -(-len(row.tokens) // SIZE) - len(local)
        below = self.below.matched(row.name, self._keys(row), len(local))
        if below is None or new > len(self.blocks.idle):
            self.blocks.give_back(local, row.keys(row.computed))
            return False
        row.ids = local + self.blocks.take(new)
        self.below.allocated(row.name, row.ids[len(local) : -(-(row.computed + below) // SIZE)])
        (self.loading if below else self.running)[row.name] = row
        return True

    def _preempt(self) -> list[int]:
        row, self.preempted = self.running.popitem()[1], self.preempted + 1
        self.below.preempted(row.name, self._keys(row), row.ids, row.computed)
        self.blocks.give_back(row.ids, row.keys(row.computed))
        self.waiting.insert(0, row)
        return []

    def _compute(self, row: Request) -> int:
        at = np.arange(row.computed, len(row.tokens))
        table, tokens = np.array([row.ids], np.int32), np.array(row.tokens)[at]
        slots = table[0, at // SIZE].astype(np.int64) * SIZE + at % SIZE
        batch = ModelInput(tokens, at, slots, table, np.array([len(at)]))
        self.again += max(row.most - row.computed, 0)
        row.computed = row.most = len(row.tokens)
        for key, one in zip(row.keys(row.computed), row.ids, strict=False):
            self.blocks.published.setdefault(key, one)
        row.tokens.append(int(self.model.forward(batch, self.kv, at[-1:] - at[0]).argmax()))
        return len(row.tokens)


def requests(seed: int) -> list[Request]:
    """Returns six requests, some of which begin with the same tokens."""
    draw = np.random.default_rng(seed)
    own = [draw.integers(500, size=draw.integers(5, 60)).tolist() for _ in range(6)]
    return [Request(f"request {at}", own[0] * draw.integers(2) + one) for at, one in enumerate(own)]


if __name__ == "__main__":
    answers = []
    for what, blocks, host in (("ample", 99, 0), ("recompute", 20, 0), ("Blockyard", 20, 99)):
        # Copies without threads make every run the same. Leave the copier out in your own engine.
        engine, asked = Engine(blocks, host, ThreadCopier(workers=0)), requests(seed=0)
        engine.waiting += asked
        while engine.waiting or engine.running or engine.loading:
            engine.step()
        engine.worker.close()
        answers.append([row.tokens for row in asked])
        print(f"{what}: {engine.preempted} preempted, {engine.again} tokens computed again")
    print(f"the same tokens: {answers[0] == answers[1] == answers[2]}")
