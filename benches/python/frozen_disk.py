"""`make bench-disk`: what a step of the scheduler and of the cache costs while the disk is frozen.

    python benches/python/frozen_disk.py [--rounds 5] [--seeds 6]

Two caches play the same conversations in turns, step by step, over an ext4 each; one of the two is
frozen (`fsfreeze`) soon after the beginning, so that every write to it hangs. The host has room for
all that is parked, and writes through to the disk. Each figure is the p99 of thread CPU time over
all steps with a frozen disk, divided by that without; the median of the rounds counts. It needs the
right to mount, and says so where there is none. It fails where the goal of 1.1 is missed.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from blockyard.local_cache import LocalCache
from blockyard.reference.model import Model
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.scheduler import Scheduler
from blockyard.tools.proof.conversations import Conversation
from blockyard.tools.proof.play import MemoryBudget, Play
from report import Figure, asked, report

GOAL = 1.1
SIZE = 8
WARM = 20
"""Steps before the disk is frozen."""
TIMED = {"Scheduler.schedule": (Scheduler, "schedule"), "LocalCache.step": (LocalCache, "step")}

Times = dict[str, list[float]]


def run(*words: str | Path) -> None:
    """Runs a command, or ends with what it says."""
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{words[0]}: {ran.stderr.strip()}: the right to mount is needed")


def mounted(ends: ExitStack, name: str, root: Path) -> Path:
    """An ext4 in a file, for its owner alone."""
    image, where = root / f"{name}.img", root / name
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    run("mkfs.ext4", "-q", image)
    run("mount", "-o", "loop", image, where)
    ends.callback(lambda: subprocess.run(["umount", "-l", str(where)], check=False))
    where.chmod(0o700)
    return where


def timed(times: dict[int, Times]) -> None:
    """Has the calls note their CPU time, by their cache."""
    for name, (owner, method) in TIMED.items():
        inner: Any = getattr(owner, method)

        def call(self: Any, *args: Any, _inner: Any = inner, _name: str = name, **more: Any) -> Any:
            begun = time.thread_time_ns()
            answer = _inner(self, *args, **more)
            spent = time.thread_time_ns() - begun
            cache = self if isinstance(self, LocalCache) else self._cache
            if id(cache) in times:
                times[id(cache)][_name].append(spent / 1e3)
            return answer

        setattr(owner, method, call)


def one_seed(root: Path, seed: int, all_: dict[str, Times], times: dict[int, Times]) -> None:
    """Plays a seed over both disks, and notes microseconds of each call by kind of disk."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=root)))
        disks = {kind: mounted(ends, kind, folder) for kind in all_}
        seeded = Conversation.seeded(seed, 12)
        blocks = sum(-(-conversation.tokens // SIZE) for conversation in seeded)
        memory = MemoryBudget(blocks // 4 + 1, blocks, "park", disk=2 * blocks)
        model = Model(ModelConfig(), seed)
        more: dict[str, Any] = {"write": {"device": "on-evict", "host": "through"}}
        plays = {
            kind: Play(seeded, memory, model, block_size=SIZE, disk_path=path, **more)
            for kind, path in disks.items()
        }
        for _ in range(WARM):
            for play in plays.values():
                play.step()
        times.update({id(play.cache): all_[kind] for kind, play in plays.items()})
        run("fsfreeze", "-f", disks["frozen"])
        try:
            order = list(plays.values())
            while not all(play.over for play in order):
                for play in order:
                    if not play.over:
                        play.step()
                order.reverse()
            tokens = [play.tokens for play in order]
            hung = plays["frozen"].cache.stats()["disk_held"]
        finally:
            run("fsfreeze", "-u", disks["frozen"])
        times.clear()
        for play in order:
            play.close()
        if tokens[0] != tokens[1] or not hung:
            raise SystemExit("the answers differ, or nothing hung: this has shown nothing")


def one_round(root: Path, seeds: range, times: dict[int, Times]) -> dict[str, Times]:
    """Plays some seeds; returns microseconds of each call with a frozen disk, and without."""
    all_: dict[str, Times] = {kind: {name: [] for name in TIMED} for kind in ("frozen", "well")}
    for seed in seeds:
        one_seed(root, seed, all_, times)
    return all_


def figures(rounds: int, count: int) -> Iterator[Figure]:
    """Plays all rounds."""
    times: dict[int, Times] = {}
    timed(times)
    ratios: dict[str, list[float]] = {name: [] for name in TIMED}
    last: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="blockyard-frozen-") as root:
        for number in range(rounds):
            all_ = one_round(Path(root), range(100 * number, 100 * number + count), times)
            for name in TIMED:
                p99 = [float(np.percentile(all_[kind][name], 99)) for kind in ("frozen", "well")]
                ratios[name].append(p99[0] / p99[1])
                steps = len(all_["frozen"][name])
                last[name] = f"in the last {p99[0]:.0f} and {p99[1]:.0f} µs of {steps} steps"
    for name, found in ratios.items():
        about = f"rounds {', '.join(f'{one:.2f}' for one in sorted(found))}; {last[name]}"
        what = f"{name}: p99 with a frozen disk, over that without"
        yield Figure(what, median(found), GOAL, about=about)


if __name__ == "__main__":
    given = asked(__doc__, rounds=5, seeds=6)
    sys.exit(report(figures(given.rounds, given.seeds), given.json))
