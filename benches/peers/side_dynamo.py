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

from peers import frame
from peers import work as sizes
from peers.driver import Makers, Operation, override, serve
from peers.work import BLOCK

if TYPE_CHECKING:
    from array import array

core: Any = import_module("dynamo._core")


def _hashes(tokens: array[int]) -> list[int]:
    hashes: list[int] = core.compute_block_hash_for_seq(tokens.tolist(), BLOCK)
    return hashes


class Pool(frame.Pool):
    """A tree of one worker that holds so many blocks."""

    @override
    def open(self, blocks: int) -> None:
        del blocks  # the tree grows
        self.events = 0
        self.tree: Any = core.RadixTree()

    def settled(self) -> Pool:
        """Waits until the tree's thread has taken every event."""
        self.tree.find_matches([1])
        return self

    @override
    def visit(self, tokens: array[int]) -> None:
        """Brings a worker's event that it has stored a chain."""
        hashes = _hashes(tokens)
        # A worker's names of blocks are chained, as in the router's own events.
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

    @override
    def lookup(self, tokens: array[int]) -> Operation:
        return partial(self.tree.find_matches, _hashes(tokens))


class Match(frame.Match):
    """Lookups of resident prompts, the first of which is checked."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, 4, more=0)
        found: Any = self.lookups[0]()
        if found.scores != {(1, 0): sizes.MATCH}:
            raise RuntimeError("not found")


def _keys(run: array[int]) -> Operation:
    return partial(core.compute_block_hash_for_seq, run.tolist(), BLOCK)


ROWS: Makers = {
    "keys": lambda work, _: frame.Keys(work, _keys),
    "match": lambda work, asked: Match(Pool(work, asked["blocks"]).settled()),
    "memory": lambda work, asked: Pool(work, asked["blocks"]).settled(),
}


if __name__ == "__main__":
    serve(ROWS, {"dynamo": version("ai-dynamo-runtime")})
