"""An engine of a hybrid model that gives out its block ids itself; `docs/hybrid.md` explains it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np

import blockyard as by
from blockyard.connectors.hybrid_connector import HybridConnector
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers import Copier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.reference.hybrid import LAYER_TYPES, HybridModel, HybridRow

SIZE, STEP = 16, 32  # tokens of a block, and the most that a request computes in a step
TURN, LENGTH = 40, 100  # tokens of a prompt's own part, and with how many a request ends


@dataclass(eq=False)
class Request:
    """A request: its tokens, a block table for each group, and how much is computed in there."""

    name: str
    tokens: list[int]
    tables: list[list[int]] = field(default_factory=list)  # 0 for blocks that it does not hold
    computed: int = 0
    until: int = 0  # how much will be after this step
    state: int = 0  # the block that gets the state then
    stops: Sequence[int] = ()  # lengths that no step passes
    most: int = 0  # how much there ever was

    def keys(self, tokens: int) -> list[bytes]:
        """Hashes of its first full blocks, each of all tokens up to its end."""
        ends = range(SIZE, tokens + 1, SIZE)
        return [sha256(np.array(self.tokens[:end]).tobytes()).digest() for end in ends]


class _Blocks:
    """The engine's allocator, and its prefix cache: blocks are found again until they are taken."""

    def __init__(self, count: int) -> None:
        self.holders, self.idle = [0] * count, dict.fromkeys(range(1, count))  # 0 is the null block
        self.published = dict[tuple[int, bytes], int]()  # by group and key
        self.names = dict[int, tuple[int, bytes]]()
        self.void = dict.fromkeys(range(count))  # what these hold is of no use

    def hold(self, one: int) -> int:
        self.holders[one] += 1
        self.idle.pop(one, None)
        return one

    def take(self) -> int:  # for new contents
        one = self.hold(next(iter(self.idle)))
        if one in self.names:
            del self.published[self.names.pop(one)]
        self.void[one] = None
        return one

    def publish(self, name: tuple[int, bytes], one: int) -> None:
        if one not in self.names and self.published.setdefault(name, one) == one:
            self.names[one] = name

    def give_back(self, ids: Sequence[int]) -> None:
        for one in filter(None, ids):
            self.holders[one] -= 1
            if not self.holders[one]:
                self.idle[one] = None
                if one not in self.names:
                    self.void[one] = None


class Engine:
    """Computes requests in so many blocks. Without a host it computes again what it preempts."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        blocks: int,
        host: int | str = 0,
        *,
        disk: int | str = 0,
        path: Path | None = None,
        copier: Copier | None = None,
        layer_types: Sequence[str] = LAYER_TYPES,
    ) -> None:
        self.model = HybridModel(blocks, block_size=SIZE, layer_types=layer_types)
        self.kinds, self.blocks = self.model.groups, _Blocks(blocks)
        self.states = [
            at for at, one in enumerate(self.kinds) if isinstance(one, by.RecurrentState)
        ]
        self.waiting, self.again, self.preempted = list[Request](), 0, 0
        self.loading, self.running = dict[Hashable, Request](), dict[Hashable, Request]()
        configs = by.GroupConfigs(
            self.kinds,
            engine=blocks,
            host=host,
            disk=disk,
            typical=LENGTH,
            keyed=("disk",) if path else (),
            write={"host": "through"} if path else "on-evict",
            namespace={"model": "hybrid", "weights": "drawn by seed 0"},
        )
        tensors = [self.model.tensors[group] for group in configs.groups.numbers]
        self.worker = Worker.adopt_groups(configs, tensors, axis=0, copier=copier, disk_path=path)
        self.below = HybridConnector(list(map(by.KVCache, configs)), configs.groups)
        self.below.restore([self.worker.restored()])  # what an engine before had on the disk

    def step(self) -> None:
        """Runs one step: admits, preempts, computes tokens of each that runs, and ends some."""
        self.below.commit(self.worker.outcomes())
        for name, tokens in self.below.arrived().items():
            row = self.loading.pop(name)
            if tokens == row.computed:
                self.running[name] = row
            else:  # a copy failed, so none of them is of use
                self._release(row)
                self.waiting.insert(0, row)
        while self.waiting and self._admit(self.waiting[0]):
            self.waiting.pop(0)
        for row in list(self.running.values()):
            while row.name in self.running and not self._grow(row):
                self._preempt()
        written = list(self.blocks.void)
        self.worker.begin(self.below.step(written))
        self.model.pages[written] = 0xFF  # NaN, and all ones: of this nothing may be read
        self.blocks.void.clear()
        for row in [row for row in self.running.values() if self._compute(row) == LENGTH]:
            del self.running[row.name]
            keys, tables, states = self._full(row)
            self.below.finished(row.name, keys, tables, states=states)
            self._release(row)

    def _needs(self, group: int, length: int) -> range:
        """Returns the blocks that going on at a length reads. A running state ends anywhere."""
        last = -(-length // SIZE)
        if group in self.states:
            return range(max(last - 1, 0), last)
        return self.kinds[group].needs(length, SIZE)

    def _local(self, keys: list[bytes]) -> int:
        """Returns the most blocks behind which the engine has itself all that going on reads."""
        for blocks in range(len(keys), 0, -1):
            needs = [(at, self._needs(at, blocks * SIZE)) for at in range(len(self.kinds))]
            names = [(group, keys[at]) for group, need in needs for at in need]
            if all(name in self.blocks.published for name in names):
                return blocks
        return 0

    def _keys(self, row: Request) -> by.Keys:
        tokens = len(row.tokens)
        return self.below.caches[0].ready_keys(row.keys(tokens), tokens)

    def _full(self, row: Request) -> tuple[by.Keys, list[list[int]], list[tuple[int, int, int]]]:
        """Returns its keys, the tables of its full blocks, and the states at their ends."""
        full = row.computed // SIZE
        tables = [table[:full] for table in row.tables]
        return self._keys(row), tables, self._states(row, full * SIZE)

    def _states(self, row: Request, most: int) -> list[tuple[int, int, int]]:
        """Returns its states of at most so many tokens: group, block and length of each."""
        ends = [min(first + SIZE, most) for first in range(0, most, SIZE)]
        tables = [(group, row.tables[group][: len(ends)]) for group in self.states]
        pairs = [(at, *one) for at, table in tables for one in zip(table, ends, strict=True)]
        return [state for state in pairs if state[1]]

    def _admit(self, row: Request) -> bool:
        keys = row.keys(len(row.tokens) - 1)
        local = self._local(keys)
        below = self.below.matched(row.name, self._keys(row), local)
        if below is None:
            return False
        length, new = local * SIZE + below, list[tuple[list[int], int]]()
        row.tables = [[0] * -(-length // SIZE) for _ in self.kinds]
        for group, table in enumerate(row.tables):
            for at in self._needs(group, length):
                if at < local:
                    table[at] = self.blocks.hold(self.blocks.published[group, keys[at]])
                else:
                    new.append((table, at))
        if len(new) + 4 * (2 + len(self.running)) > len(self.blocks.idle):
            self._release(row)
            return False
        for table, at in new:
            table[at] = self.blocks.take()
            del self.blocks.void[table[at]]  # a copy writes it
        row.computed, row.stops = length, self.below.checkpoints(row.name)
        self.below.allocated(row.name, [table[local:] for table in row.tables] if below else ())
        (self.loading if below else self.running)[row.name] = row
        return True

    def _preempt(self) -> None:
        row, self.preempted = self.running.popitem()[1], self.preempted + 1
        states = self._states(row, row.computed)
        self.below.preempted(row.name, self._keys(row), row.tables, row.computed, states)
        self._release(row)
        self.waiting.insert(0, row)

    def _release(self, row: Request) -> None:
        for table in row.tables:
            self.blocks.give_back(table[::-1])
        row.tables, row.computed = [], 0

    def _grow(self, row: Request) -> bool:
        """Takes blocks for the next tokens: up to the end of a block, or of the request."""
        stops = [stop for stop in row.stops if stop > row.computed]
        until = min(row.computed + STEP, len(row.tokens), *stops)
        row.until = until if until // SIZE == row.computed // SIZE else until // SIZE * SIZE
        first, end = row.computed // SIZE, -(-row.until // SIZE)
        tables = [table for at, table in enumerate(row.tables) if at not in self.states]
        new = [(one, at) for one in tables for at in range(first, end) if not any(one[at : at + 1])]
        if len(new) + len(self.states) > len(self.blocks.idle):
            return False
        for table in row.tables:
            table.extend([0] * (end - len(table)))
        for table, at in new:
            table[at] = self.blocks.take()
        for _ in self.states:
            row.state = self.blocks.take()  # one is read, and another written
        return True

    def _compute(self, row: Request) -> int:
        start, last, old = row.computed, -(-row.until // SIZE) - 1, 0
        for group in self.states if start else ():
            old = row.tables[group][-(-start // SIZE) - 1]
        tokens = row.tokens[: row.until]
        token = self.model.forward(HybridRow(tokens, start, row.tables, (old, row.state)))
        self.again += max(min(row.most, row.until) - start, 0)
        row.computed, row.most = row.until, max(row.most, row.until)
        for group in self.states:
            self.blocks.give_back([row.tables[group][last]])
            row.tables[group][last] = row.state
        keys = row.keys(row.computed)
        for group, table in enumerate(row.tables):
            for at in range(start // SIZE, len(keys)):
                if group not in self.states or (at + 1) * SIZE == row.computed:
                    self.blocks.publish((group, keys[at]), table[at])
        if row.computed in row.stops:  # others that begin alike go on from here
            keys_, tables, states = self._full(row)
            self.below.offload(row.name, keys_, tables, at=[row.computed], states=states)
        self._slide(row)
        if row.computed == len(row.tokens):
            row.tokens.append(token)
        return len(row.tokens)

    def _slide(self, row: Request) -> None:
        """Gives back what is not read from the end of its last full block on."""
        end = row.computed // SIZE
        for group, table in enumerate(row.tables):
            slid = next(iter(self._needs(group, end * SIZE)), end)
            self.blocks.give_back(table[:slid])
            table[:slid] = [0] * slid

    @property
    def busy(self) -> bool:
        """Whether a request has not ended."""
        return bool(self.waiting or self.running or self.loading)

    def answers(self, asked: list[Request]) -> list[list[int]]:
        """Runs steps until all of these requests have ended; returns the tokens of each."""
        self.waiting += asked
        while self.busy:
            self.step()
        return [row.tokens for row in asked]


def requests(seed: int, turn: int = 0) -> list[Request]:
    """Returns six requests; those of all turns begin like one of two prompts."""
    begin, draw = np.random.default_rng(seed), np.random.default_rng([seed, turn])
    shared = [begin.integers(1024, size=begin.integers(SIZE, TURN)).tolist() for _ in range(2)]
    own = [draw.integers(1024, size=draw.integers(5, TURN)).tolist() for _ in range(6)]
    return [Request(f"{turn}: {at}", shared[at % 2] + one) for at, one in enumerate(own)]


if __name__ == "__main__":
    answers = []
    for what, blocks, host in (("ample", 140, 0), ("recompute", 35, 0), ("Blockyard", 35, "1 MB")):
        # Copies without threads make every run the same. Leave the copier out in your own engine.
        engine = Engine(blocks, host, copier=ThreadCopier(workers=0))
        answers.append([engine.answers(requests(seed=0, turn=turn)) for turn in range(2)])
        engine.worker.close()
        print(f"{what}: {engine.preempted} preempted, {engine.again} tokens computed again")
    print(f"the same tokens: {answers[0] == answers[1] == answers[2]}")
