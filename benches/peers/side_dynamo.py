"""Dynamo's side: the router's tree of blocks, and its hashes.

    python side_dynamo.py WORK

The tree lives on a thread of its own, so that its rows are judged by elapsed time.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import work as sizes
from peers.driver import Makers, Operation, Row, override, serve
from peers.work import BLOCK, Work

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

core: Any = import_module("dynamo._core")


class Pool(Row):
    """A tree of one worker that holds so many blocks."""

    def __init__(self, work: Work, blocks: int) -> None:
        self.work, self.events = work, 0
        self.tree: Any = core.RadixTree()
        for _ in range(blocks // sizes.CHAIN):
            self.visit(work.fresh(sizes.CHAIN))
        self.tree.find_matches([1])

    def visit(self, tokens: array[int]) -> list[int]:
        """A worker's event that it has stored a chain."""
        hashes: list[int] = core.compute_block_hash_for_seq(tokens.tolist(), BLOCK)
        # What names a block to its worker is chained; the router's own events do it alike.
        names, name = [], 0
        for one in hashes:
            name = hash((name, one)) & (1 << 64) - 1
            names.append(name)
        stored = {
            "parent_hash": None,
            "blocks": [
                {"block_hash": name, "tokens_hash": one}
                for name, one in zip(names, hashes, strict=True)
            ],
        }
        event = {"event_id": self.events, "data": {"stored": stored}, "dp_rank": 0}
        self.tree.apply_event(1, json.dumps(event).encode())
        self.events += 1
        return hashes


class Keys(Row):
    unit = sizes.OFFLOAD

    def __init__(self, work: Work) -> None:
        self.work = work

    @override
    def prepare(self) -> Sequence[Operation]:
        runs = [self.work.fresh(sizes.OFFLOAD).tolist() for _ in range(20)]
        return [partial(core.compute_block_hash_for_seq, run, BLOCK) for run in runs]


class Match(Pool):
    again = True

    def __init__(self, work: Work, blocks: int) -> None:
        super().__init__(work, blocks)
        self.ready = [self.visit(work.fresh(sizes.MATCH)) for _ in range(50)]
        if self.tree.find_matches(self.ready[0]).scores != {(1, 0): sizes.MATCH}:
            raise RuntimeError("not found")

    @override
    def prepare(self) -> Sequence[Operation]:
        return [partial(self.tree.find_matches, one) for one in self.ready] * 4


ROWS: Makers = {
    "keys": lambda work, _: Keys(work),
    "match": lambda work, asked: Match(work, asked["blocks"]),
    "memory": lambda work, asked: Pool(work, asked["blocks"]),
}


if __name__ == "__main__":
    serve(ROWS, {"dynamo": version("ai-dynamo-runtime")})
