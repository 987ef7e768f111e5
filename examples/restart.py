"""Talks on a disk: a second run finds the first one's KV, and a killed one leaves nothing wrong.

`docs/disk.md` tells what is kept, and what it takes.
"""

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import blockyard as by
from blockyard.crane.tiers import planes_of
from blockyard.local_cache import LocalCache

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=64)
# What the bytes depend on: another name of any of them is another folder.
NAMES = {"model": "a-model-8b", "weights": "2026-11-01"}
TALKS, BLOCKS = 40, 8
TOKENS = BLOCKS * LAYOUT.block_size


def settle(cache: LocalCache) -> None:
    """Steps until every copy has landed, as an engine does with each of its steps."""
    while cache.step() or cache.stats()["flights"]:
        time.sleep(1e-4)


def nothing(_talk: int) -> None:
    """Does nothing."""


def play(path: Path, done: Callable[[int], object] = nothing) -> tuple[int, int, int]:
    """Plays all talks; returns blocks from before, tokens found, and wrong blocks."""
    found = wrong = 0
    # Blocks are written as they are computed, so that a kill loses few of them.
    with by.local(
        LAYOUT,
        device=2 * BLOCKS + 1,
        disk=TALKS * BLOCKS,
        disk_path=path,
        namespace=NAMES,
        write="through",
    ) as cache:
        (kv,) = planes_of(cache.crane.device)
        for talk in range(TALKS):
            lease = cache.begin(range(1000 * talk, 1000 * talk + TOKENS))
            settle(cache)
            table = cache.block_tables(lease)[0][:BLOCKS]
            # Here an engine computes; these bytes tell whose they are.
            bytes_ = (1 + (7 * talk + np.arange(BLOCKS)) % 255)[:, None, None].astype(np.uint8)
            hits = lease.cached // LAYOUT.block_size
            wrong += int((kv[table[:hits]] != bytes_[:hits]).any(axis=(1, 2)).sum())
            kv[table] = bytes_
            cache.seal(lease, computed=TOKENS)
            found += lease.cached
            cache.finish(lease)
            settle(cache)
            done(talk)
        return cache.restored, found, wrong


def main() -> None:
    """Plays, kills and plays again."""
    seconds = random.Random(1).uniform(0.02, 0.1)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="blockyard-restart-") as folder:
        path = Path(folder) / "kv"
        spawn = multiprocessing.get_context("spawn")
        begun = spawn.Queue()
        killed = spawn.Process(target=play, args=(path, begun.put))
        killed.start()
        begun.get()
        time.sleep(seconds)
        killed.kill()
        killed.join()
        for name in ("after a kill", "after a clean end"):
            restored, found, wrong = play(path)
            print(
                f"{name:>18}: {restored:3} blocks from before; {found:5,} of {TALKS * TOKENS:,} "
                f"tokens found; {wrong} wrong"
            )
            if wrong:
                raise SystemExit("a block was served that is not what was asked for")


if __name__ == "__main__":
    main()
