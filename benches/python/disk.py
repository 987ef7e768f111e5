"""`make bench-disk`: what the disk tier reaches, as parts of what the disk or another way does.

    python benches/python/disk.py [--path FOLDER] [--mib 512] [--rounds 5] [--only NAME …]

Each row alternates with what it is compared with, in one process, and its figure is the median of
the ratios of the rounds: the machine is never alone, and no two days are alike. The floor is that
of `blockyard disk bench` (`DiskBaseline`, whose threads are the core's: as Python's they would be
slower than the disk at 72 KiB). A file per block is how other caches keep blocks on a disk: through
the page cache, written beside and renamed, and not durable. It fails where a goal is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import blockyard as by
from blockyard._core import DiskBaseline, DiskInspector, checksums
from blockyard.tools.disk.bench import BlockLane, in_turns, timed
from blockyard.tools.disk.bench import Figure as Timing
from report import Figure, busy, report

KIB, MIB = 1 << 10, 1 << 20
THREADS = 4
SIZES = {"2 MiB": 2 * MIB, "320 KiB": 320 * KIB, "72 KiB": 72 * KIB}
WRITE_GOALS = {"2 MiB": 0.90, "320 KiB": 0.80, "72 KiB": 0.70}
TABLE = 1 << 19
"""Blocks of 2 MiB that 1 TiB has."""
CHAIN = 64
"""Blocks of a sequence in that table."""
RECORD = np.dtype(
    [
        ("magic", "S4"),
        ("flags", "<u4"),
        ("stamp", "<u8"),
        ("sum", "V16"),
        ("identity", "<u8"),
        ("key", "u1", 32),
        ("parent", "u1", 32),
        ("length", "<u4"),
        ("slot", "<u4"),
        ("group", "<u2"),
        ("rank", "<u2"),
        ("nothing", "<u4"),
        ("check", "<u8"),
    ]
)
"""As `rust/disk/src/record.rs` has it."""
IDLE = (3, 4)
"""Of the times in `/proc/stat`, those in which nothing runs."""


class Given(NamedTuple):
    """The options."""

    path: Path
    nbytes: int
    rounds: int


def compared(name: str, goal: float | None, ours: Timing, other: Timing, nbytes: int) -> Figure:
    rates = [f"{one.rate(nbytes) / 1e9:.2f}" for one in (other, ours)]
    cpu = [f"{median(one.cpu):.2f}" for one in (other, ours)]
    about = f"{' and '.join(rates)} GB/s, CPU s {', '.join(cpu)}: the other, the tier"
    return Figure(name, ours.part_of(other), least=goal, about=about)


@contextmanager
def folder(given: Given) -> Iterator[Path]:
    """A folder on the disk, which goes away."""
    with tempfile.TemporaryDirectory(prefix=".bench-disk-", dir=given.path) as made:
        yield Path(made)


def lane_of(path: Path, given: Given, block_bytes: int) -> BlockLane:
    blocks = given.nbytes // block_bytes
    return BlockLane(path / "tier", blocks=blocks, block_bytes=block_bytes, threads=THREADS)


def floors(given: Given) -> Iterator[Figure]:
    """A tier beside the disk alone."""
    for size, block_bytes in SIZES.items():
        with folder(given) as path, lane_of(path, given, block_bytes) as lane:
            blocks = given.nbytes // block_bytes
            floor = DiskBaseline(
                path / "floor", slots=blocks, block_bytes=block_bytes, threads=THREADS
            )
            figures = in_turns(
                {"fw": floor.write, "w": lane.write, "fr": floor.read, "r": lane.read},
                given.rounds,
            )
        nbytes = blocks * block_bytes
        name = f"durable write with checksum, {size}"
        yield compared(name, WRITE_GOALS[size], figures["w"], figures["fw"], nbytes)
        goal = 0.90 if size == "2 MiB" else None
        name = f"verified read, {size}"
        yield compared(name, goal, figures["r"], figures["fr"], nbytes)


def beside(given: Given) -> Iterator[Figure]:
    """A tier beside one busy Python thread, and alone."""

    def accompanied(work: Callable[[], object]) -> None:
        with busy():
            work()

    for size in ("2 MiB", "72 KiB"):
        with folder(given) as path, lane_of(path, given, SIZES[size]) as lane:
            works: dict[str, Callable[[], object]] = {
                "w": lane.write,
                "bw": lambda lane=lane: accompanied(lane.write),  # type: ignore[misc]
                "r": lane.read,
                "br": lambda lane=lane: accompanied(lane.read),  # type: ignore[misc]
            }
            figures = in_turns(works, given.rounds)
        nbytes = given.nbytes // SIZES[size] * SIZES[size]
        goal = 0.90 if size == "2 MiB" else None
        name = f"beside a busy Python thread / alone, {size}"
        yield compared(f"write {name}", goal, figures["bw"], figures["w"], nbytes)
        yield compared(f"read {name}", goal, figures["br"], figures["r"], nbytes)


def records(survey: DiskInspector, block_bytes: int) -> np.ndarray:
    """A full table: sequences of `CHAIN` blocks, in slots without order."""
    mixed = np.random.default_rng(1)
    text = np.frombuffer(survey.text.encode(), np.uint8)
    table = np.zeros(TABLE, RECORD)
    table["magic"], table["identity"] = b"BYD1", checksums(text[None, None], [0])[0]
    table["stamp"] = (1 << 32) + np.arange(TABLE, dtype=np.uint64)
    table["key"] = mixed.integers(0, 256, (TABLE, 32), np.uint8)
    table["key"][:, 0] |= 1
    table["parent"][1:] = table["key"][:-1]
    table["parent"][::CHAIN] = 0
    table["flags"][::CHAIN] = 1
    table["length"], table["slot"] = block_bytes, mixed.permutation(TABLE)
    table["rank"] = survey.rank
    table = table[np.argsort(table["slot"])]
    raw = table.view(np.uint8).reshape(TABLE, 1, RECORD.itemsize)
    table["check"] = checksums(raw[:, :, :120], np.arange(TABLE, dtype=np.uint32))
    return table


def opening(given: Given) -> Iterator[Figure]:
    """A restart with all of 1 TiB restored; the payloads are a hole, which nobody reads."""
    layout = by.KVLayout.preset("llama-3-8b")
    names = {"model": "llama-3-8b", "weights": "none"}

    def local(root: Path, blocks: int) -> Any:
        return by.local(layout, device=9, disk=blocks, disk_path=root, namespace=names)

    with folder(given) as path:
        with local(path / "kv", 1) as cache:
            own = cache.crane._tiers["disk"].path
        table = records(DiskInspector(own), layout.block_bytes)
        os.truncate(own / "slots", TABLE * layout.block_bytes)
        (own / "table").write_bytes(table.tobytes())
        figure, opened = Timing([], []), list[Any]()
        for _ in range(given.rounds):
            with (own / "table").open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            seconds, cpu = timed(lambda: opened.append(local(path / "kv", TABLE)))
            figure.seconds.append(seconds)
            figure.cpu.append(cpu)
            with opened.pop() as cache:
                if cache.restored != TABLE:
                    raise SystemExit(f"{cache.restored} of {TABLE} blocks restored")
    name = f"open a table of {TABLE:,} blocks of 2 MiB, all restored, cold, s"
    yield Figure(name, median(figure.seconds), 1, about=f"CPU s {median(figure.cpu):.2f}")


def burst(given: Given) -> Iterator[Figure]:
    """Blocks in one burst, and what of them a new owner finds and can read."""
    blocks = 512
    with folder(given) as path:
        sizes = {"blocks": blocks, "block_bytes": 2 * MIB, "threads": THREADS}
        with BlockLane(path / "tier", **sizes) as lane:
            seconds, cpu = timed(lane.write)
        with BlockLane(path / "tier", **sizes) as lane:
            found = len(lane.lane.restore()[0])
            # Raises where a block is not what was written.
            lane.read()
    rate = f"{blocks * 2 * MIB / seconds / 1e9:.2f} GB/s, CPU s {cpu:.2f}"
    name = f"of {blocks} blocks of 2 MiB in a burst, into new room: found"
    yield Figure(name, found, least=blocks, about=rate)


class FilePerBlock:
    """Blocks as files, as other caches have them: not durable, and checked by nobody."""

    def __init__(self, path: Path, blocks: int, block_bytes: int) -> None:
        path.mkdir()
        self.names = [path / f"{number:064x}" for number in range(blocks)]
        mixed = np.random.default_rng(2)
        self.bytes = mixed.integers(0, 256, (16, block_bytes), np.uint8)
        self.into = np.empty((16, block_bytes), np.uint8)
        self.pool = ThreadPoolExecutor(THREADS)

    def _one(self, number: int) -> None:
        name = self.names[number]
        partial = name.with_suffix(".partial")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(file, self.bytes[number % 16])
        os.close(file)
        partial.replace(name)

    def _back(self, number: int) -> None:
        file = os.open(self.names[number], os.O_RDONLY)
        read = os.readv(file, [self.into[number % 16]])
        os.close(file)
        if read != self.into.shape[1]:
            raise SystemExit(f"{read} bytes of a block read")

    def write(self) -> None:
        list(self.pool.map(self._one, range(len(self.names))))

    def read(self) -> None:
        list(self.pool.map(self._back, range(len(self.names))))

    def cool(self) -> None:
        """Has the page cache forget all of them."""
        for name in self.names:
            with name.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files(given: Given) -> Iterator[Figure]:
    """A tier beside a file for each block, of 2 MiB."""
    block_bytes = SIZES["2 MiB"]
    blocks = given.nbytes // block_bytes
    with folder(given) as path, lane_of(path, given, block_bytes) as lane:
        peer = FilePerBlock(path / "files", blocks, block_bytes)
        floor = DiskBaseline(path / "floor", slots=blocks, block_bytes=block_bytes, threads=THREADS)
        floor.write()
        works = {
            "pw": peer.write,
            "w": lane.write,
            "pr": peer.read,
            "r": lane.read,
            "fr": floor.read,
        }
        # What it has left to write is not the next one's, and it is read cold.
        before = {"w": peer.cool, "pr": peer.cool}
        figures = in_turns(works, given.rounds, before=before)
        peer.pool.shutdown()
    nbytes = blocks * block_bytes
    peer_name = "/ a file per block, page cache, 2 MiB"
    yield compared(f"durable write {peer_name}", 3.0, figures["w"], figures["pw"], nbytes)
    yield compared(f"verified read {peer_name}, cold", 2.0, figures["r"], figures["pr"], nbytes)
    name = f"the disk alone, read {peer_name}, cold: the most there can be"
    yield compared(name, None, figures["fr"], figures["pr"], nbytes)


TABLES = {"floors": floors, "beside": beside, "opening": opening, "burst": burst, "files": files}


def used() -> tuple[float, float]:
    """CPU seconds that all processes have used, and that this one has."""
    ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = sum(int(tick) for at, tick in enumerate(ticks[:8]) if at not in IDLE)
    return busy / os.sysconf("SC_CLK_TCK"), sum(os.times()[:2])


def figures(given: Given, only: list[str]) -> Iterator[Figure]:
    """The rows of some tables, and what else was at work meanwhile."""
    start, begun = used(), time.monotonic()
    for name in only:
        yield from TABLES[name](given)
    everybody, own = (now - then for now, then in zip(used(), start, strict=True))
    cores = len(os.sched_getaffinity(0))
    others = (everybody - own) / (cores * (time.monotonic() - begun))
    about = f"of {cores}; the tier and the floor have {THREADS} threads"
    yield Figure("share of the cores that others used", others, about=about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", type=Path, default=Path("target"), help="a folder on the disk")
    parser.add_argument("--mib", type=int, default=512, help="bytes of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    given = Given(options.path, options.mib * MIB, options.rounds)
    given.path.mkdir(exist_ok=True)
    print(f"{options.rounds} rounds of {options.mib} MiB, on {given.path.resolve()}.\n")
    sys.exit(report(figures(given, options.only), options.json))


if __name__ == "__main__":
    main()
