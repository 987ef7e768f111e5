"""How many copies one call of the driver takes: a ladder of sizes, each rung in its own process.

    python benches/gpu/ladder.py [--json PATH] [--simulated]

`cuMemcpyBatchAsync` has crashed and hung drivers when it was given tens of thousands of copies. So
this comes before everything else on a GPU: batches of 1 to 32,768 copies of 16 bytes, 4 KiB and
2 MiB, up and down, over and over, every byte checked. A rung that crashes or hangs costs nothing
but itself: the JSON is written after each. It ends with 1 where bytes were wrong, with 2 where a
batch of as many copies as `CopyTuning.batch_runs` did not come back, and else with 0.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockyard import Unavailable
from blockyard.crane.gpu import Gpu
from blockyard.crane.gpu.cuda import current
from blockyard.crane.tiers.pinned import Pinned
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.testing.gpu import SimulatedGpu
from children import ended, missing

SIZES = (16, 4 << 10, 2 << 20)
RUNGS = (1, 8, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
#: Of a simulated GPU, which is slower by far.
SIMULATED = (1, 64)
TIMES = 20
#: Seconds of a rung, after which it hangs; and of the whole ladder, after which no rung begins.
PATIENCE, BUDGET = 40.0, 150.0
# Bytes of pinned memory, which copies up come from again and again; and most that a rung copies and
# compares, so that it takes seconds.
_SOURCE, _MOVED, _COMPARED = 1 << 30, 4 << 30, 256 << 20

Rung = dict[str, Any]


def rung(gpu: Gpu, size: int, runs: int) -> str:
    """Copies so many runs of so many bytes in one call, both ways; "good", or what went wrong.

    Raises:
        Unavailable: There is no memory for so many.
    """
    chance = np.random.default_rng(size + runs)
    held = min(runs, _SOURCE // size)
    with gpu:
        stream, above = gpu.stream(), gpu.allocate(runs * size)
    below = Pinned(gpu, 2 * held * size)
    noise, back = below.array[: held * size], below.array[held * size :]
    # No two words are alike, and they are made faster than noise.
    words = noise.view(np.uint64)
    np.multiply(np.arange(len(words), dtype=np.uint64), np.uint64(0x9E3779B97F4A7C15), out=words)
    sizes = np.full(runs, size, np.uint64)
    device = _addresses(above.address, np.arange(runs), size)
    try:
        with gpu:
            for _ in range(max(min(TIMES, _MOVED // (runs * size)), 1)):
                order = chance.permutation(runs)
                gpu.copy(device, _addresses(below.address, order % held, size), sizes, stream)
                gpu.synchronize(stream)
                # Down at once, to places that several write: too many to be compared, and as long.
                again = _addresses(below.address + held * size, order % held, size)
                gpu.copy(again, device, sizes, stream)
                gpu.synchronize(stream)
                # Down again, in another order, as many as there is room for.
                for some in _parts(runs, held, most=max(_COMPARED // size, 1)):
                    places = chance.permutation(some.stop - some.start)
                    to = _addresses(below.address + held * size, places, size)
                    back[...] = 0
                    gpu.copy(to, device[some], sizes[some], stream)
                    gpu.synchronize(stream)
                    wanted = noise.reshape(held, size)[order[some] % held]
                    if not np.array_equal(back.reshape(held, size)[places], wanted):
                        return "wrong"
    finally:
        with gpu:
            gpu.synchronize(stream)
            gpu.discard(stream, [])
            above.free()
        below.free()
    return "good"


def _addresses(first: int, places: NDArray[Any], size: int) -> NDArray[np.uint64]:
    return np.uint64(first) + places.astype(np.uint64) * np.uint64(size)


def _parts(runs: int, held: int, most: int) -> Iterator[slice]:
    """Runs that fit below, from the first on, until so many are compared."""
    for first in range(0, min(runs, max(most, 1)), held):
        yield slice(first, min(first + held, runs))


def climbed(
    command: Callable[[int, int], list[str]],
    rungs: tuple[int, ...] = RUNGS,
    keep: Callable[[list[Rung]], object] = lambda _: None,
    patience: float = PATIENCE,
    budget: float = BUDGET,
) -> list[Rung]:
    """Every rung, by a process of its own; what it said, or how it ended."""
    said: list[Rung] = []
    end = time.monotonic() + budget
    hung: set[int] = set()
    for runs in rungs:
        for size in SIZES:
            begun = time.monotonic()
            if size in hung or begun > end:
                why = "one of fewer hung" if size in hung else "no time was left"
                verdict = f"not tried: {why}"
            else:
                how, words = ended(command(size, runs), patience)
                lines = words.strip().splitlines()
                verdict = how or (lines[-1] if lines else "failed: it said nothing")
                if how.startswith("hung"):
                    hung.add(size)
            said.append({"bytes": size, "runs": runs, "verdict": verdict})
            said[-1]["seconds"] = round(time.monotonic() - begun, 2)
            keep(said)
            print(f"{runs:6} of {size:8,} bytes: {verdict}", file=sys.stderr, flush=True)
    return said


def verdict(said: list[Rung], needed: int) -> int:
    """The exit status."""
    if any(rung["verdict"] == "wrong" for rung in said):
        return 1
    lost = ("crashed", "hung", "failed", "not tried: one", "not tried: no time")
    return 2 * any(rung["runs"] <= needed and rung["verdict"].startswith(lost) for rung in said)


def main() -> int:
    """Climbs, or is one rung."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    out = os.environ.get("OUT")
    parser.add_argument("--json", type=Path, default=Path(out, "ladder.json") if out else None)
    parser.add_argument("--simulated", action="store_true", help="a few rungs, without a GPU")
    parser.add_argument("--rung", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rung:
        try:
            gpu: Gpu = SimulatedGpu(memory=4 << 30, pins=4 << 30) if given.simulated else current()
            print(rung(gpu, *given.rung))
        except Unavailable as error:
            print(f"not tried: {error}")
        return 0

    def keep(said: list[Rung]) -> None:
        if given.json is not None:
            given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")

    def command(size: int, runs: int) -> list[str]:
        simulated = ["--simulated"] if given.simulated else []
        return [sys.executable, __file__, "--rung", str(size), str(runs), *simulated]

    if not given.simulated:
        why = missing()
        if why:
            parser.exit(1, f"{why}\n")
    said = climbed(command, SIMULATED if given.simulated else RUNGS, keep)
    return verdict(said, CopyTuning().batch_runs)


if __name__ == "__main__":
    sys.exit(main())
