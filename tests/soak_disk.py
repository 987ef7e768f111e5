"""`make soak-disk`: kills a process that writes to a disk again and again, and looks what is left.

    python soak_disk.py [--kills 1000] [--seed 0]

The child plays talks through the public surface, says which of them are durable, and clears now
and then; each clear gives all talks other bytes. After each kill every byte that is found must be
of the last epoch, and every talk that was said to be durable must be found. It ends with status 1
at the first broken promise.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import blockyard as by

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4, dtype="float32")
OURS = {"model": "a model", "weights": "v1"}
TALKS, BLOCKS = 16, 4
#: So that nothing is evicted: what was durable once is there.
SLOTS = 2 * TALKS * BLOCKS
#: How often a child clears, and the most seconds that it lives.
CLEARS, LONGEST = 0.05, 0.04


def opened(path: Path) -> Any:
    """A cache with a disk, and a device that holds two talks."""
    return by.local(LAYOUT, device=9, disk=SLOTS, disk_path=path, namespace=OURS)


def settle(cache: Any) -> None:
    """Steps until nothing is in the air."""
    until = time.monotonic() + 60
    while cache.step() or cache.stats()["flights"]:
        assert time.monotonic() < until, "a copy does not end"
        time.sleep(1e-4)


def play(cache: Any, talk: int, epoch: int) -> int:
    """Plays a talk, checks what was found of it, and returns how many tokens that are."""
    plane = cache.crane.device.planes[0]
    lease = cache.begin(range(100 * talk, 100 * talk + 4 * BLOCKS))
    settle(cache)
    table = cache.block_tables(lease)[0]
    for block in range(BLOCKS):
        wants = (17 * talk + 5 * block + 31 * epoch) % 251 + 1
        if block < lease.cached // 4:
            assert (plane[table[block]] == wants).all(), f"wrong bytes: talk {talk}, block {block}"
        plane[table[block]] = wants
    cache.seal(lease, 4 * BLOCKS)
    found = int(lease.cached)
    cache.finish(lease)
    cache.demote(SLOTS)
    settle(cache)
    assert cache.audit() is None
    return found


def say(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def child(path: str, epoch: int, seed: int, said: Any) -> None:
    """Plays until it is killed; says which talk is durable, when it clears, and that it has."""
    chance = random.Random(seed)
    with opened(Path(path)) as cache:
        said.send(("open", 0))
        while True:
            if chance.random() < CLEARS:
                said.send(("clears", epoch))
                cache.clear()
                epoch += 1
                said.send(("cleared", epoch))
            talk = chance.randrange(TALKS)
            play(cache, talk, epoch)
            said.send(("durable", talk))


def heard(said: Any) -> Iterator[tuple[str, int]]:
    """Yields what a child has said before it was killed."""
    while True:
        try:
            yield said.recv()
        except (EOFError, OSError):
            return


def soak(path: Path, kills: int, seed: int) -> tuple[int, int, int]:
    """Kills children; returns clears, durable talks that were found, and blocks found again."""
    chance = random.Random(seed)
    context = get_context("forkserver")
    context.set_forkserver_preload(["blockyard"])
    epoch, durable = 0, set[int]()
    clears = kept = blocks = 0
    for kill in range(1, kills + 1):
        hears, says = context.Pipe(duplex=False)
        one = context.Process(target=child, args=(str(path), epoch, seed + kill, says), daemon=True)
        one.start()
        says.close()
        if next(heard(hears), None) != ("open", 0):
            raise AssertionError(f"kill {kill}: the child did not open the disk")
        time.sleep(chance.random() * LONGEST)
        one.kill()
        one.join(60)
        clearing = False
        for word, number in heard(hears):
            if word == "durable":
                durable.add(number)
            else:
                clearing = word == "clears"
                epoch, durable = number, durable if clearing else set()
                clears += not clearing
        hears.close()
        with opened(path) as cache:
            blocks += cache.restored
            if clearing:
                # It was killed during a clear, which may or may not have come so far.
                cache.clear()
                epoch, durable = epoch + 1, set()
            for talk in range(TALKS):
                found = play(cache, talk, epoch)
                if talk in durable:
                    kept += 1
                    if found != 4 * BLOCKS - 1:
                        raise AssertionError(f"kill {kill}: talk {talk} was durable and is lost")
            durable = set(range(TALKS))
        if kill % 100 == 0:
            say(f"{kill:6,} kills: {kept:,} durable talks found, {blocks:,} blocks")
    return clears, kept, blocks


def main() -> int:
    """Runs all."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--kills", type=int, default=1000)
    asked.add_argument("--seed", type=int, default=0)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="blockyard-soak-") as path:
        clears, kept, blocks = soak(Path(path), options.kills, options.seed)
    say(
        f"{options.kills:,} kills, {clears:,} clears: {blocks:,} blocks found again, 0 wrong; "
        f"{kept:,} durable talks, 0 lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
