"""`make bench-peers-disk`: the disk tier beside vLLM's and LMCache's, in one run, in one folder.

    python benches/peers/disk.py [--path FOLDER] [--blocks 256] [--kib 2048] [--rounds 5] [--json F]

`setup.py vllm lmcache` must have run; a side that cannot start is named, and left out. Each side is
a process in an environment of its own. Their turns alternate with those of the disk alone, which is
the floor of `make bench-disk`, every second round from the last to the first. All sides write the
same blocks, handed over all at once in the same jobs, and read them in another order into memory of
their own, where every byte is compared; before that the page cache forgets the files. The peers
sync nothing: what a sync of their files takes afterwards is measured too. A figure is the median of
the rounds, a ratio that of the ratios of the rounds; one round before does not count. At the end a
bit is flipped in what each has on the disk.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.bench import machine
from peers.process import TARGET, Failed, Process
from peers.table import DISK, DISK_DIRECT, DISK_LOCAL, DISK_NATIVE, DISK_VLLM

JOB = 16
"""Blocks that are handed over together. vLLM's tier has one thread for each job."""
OURS = (DISK, "lane")
STORES = {
    "the disk alone": (DISK, "alone"),
    "blockyard": OURS,
    "blockyard, into new room": (DISK, "new"),
    DISK_VLLM: (DISK_VLLM, ""),
    DISK_LOCAL: (DISK_LOCAL, ""),
    DISK_DIRECT: (DISK_DIRECT, ""),
    DISK_NATIVE: (DISK_NATIVE, ""),
}
IDLE = (3, 4)
"""Of the times in `/proc/stat`, those in which nothing runs."""
TICKS = os.sysconf("SC_CLK_TCK")


class Turn(NamedTuple):
    """What one store took to write or to read all blocks."""

    seconds: float
    cpu: float
    synced: float = 0.0
    """Seconds of a sync afterwards, where it is not durable by itself."""


Turns = dict[tuple[str, str], list[Turn]]


def turns(sides: dict[str, Process], stores: dict[str, tuple[str, str]], rounds: int) -> Turns:
    """Plays all rounds; raises where a block that was read is not what was written."""
    seen: Turns = {(verb, name): [] for verb in ("write", "read") for name in stores}
    for count in range(rounds + 1):
        # Each is read as many turns after it was written: the host may have it in a cache.
        order = list(stores) if count % 2 == 0 else list(reversed(stores))
        for verb, name in ((verb, name) for verb in ("write", "read") for name in order):
            side, what = stores[name]
            said = sides[side].ask(do=verb, what=what)
            if said.get("wrong"):
                raise SystemExit(f"{name}: {said['wrong']} blocks are not what was written")
            if count:
                turn = Turn(said["seconds"], said["cpu"], said.get("synced", 0.0))
                seen[verb, name].append(turn)
        print(f"round {count} of {rounds}", file=sys.stderr, flush=True)
    return seen


def flipped(sides: dict[str, Process], stores: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Returns what each store does with a block in which a bit is flipped on the disk."""
    found = {}
    for name, (side, what) in stores.items():
        sides[side].ask(do="flip", what=what)
        try:
            wrong = sides[side].ask(do="read", what=what)["wrong"]
        except Failed:
            found[name] = "refused"
        else:
            # The disk alone gives nothing back that could be compared.
            found[name] = "served" if wrong else ""
    return found


def lines(seen: Turns, stores: dict[str, tuple[str, str]], nbytes: int) -> list[list[str]]:
    """Returns the rows of the table."""
    ours = next(name for name, store in stores.items() if store == OURS)

    def seconds(verb: str, name: str, *, durable: bool = False) -> list[float]:
        return [one.seconds + one.synced * durable for one in seen[verb, name]]

    def ratio(theirs: list[float], verb: str) -> str:
        mine = seconds(verb, ours)
        return f"{median(b / a for a, b in zip(mine, theirs, strict=True)):.2f}"

    def rate(took: list[float]) -> str:
        return f"{nbytes / median(took) / 1e9:.2f}"

    rows = []
    for name in stores:
        written, durable = seconds("write", name), seconds("write", name, durable=True)
        read = seconds("read", name)
        cpu = [f"{median(one.cpu for one in seen[verb, name]):.2f}" for verb in ("write", "read")]
        one = [rate(written), rate(durable), rate(read), ", ".join(cpu)]
        others = [ratio(written, "write"), ratio(durable, "write"), ratio(read, "read")]
        rows.append([name, *one, *(others if name != ours else [""] * 3)])
    return rows


def used(sides: dict[str, Process]) -> tuple[float, float]:
    """CPU seconds that all processes have used, and that this one and the sides have."""
    ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = sum(int(tick) for at, tick in enumerate(ticks[:8]) if at not in IDLE)
    own = sum(os.times()[:2]) * TICKS
    for side in sides.values():
        about = Path(f"/proc/{side.process.pid}/stat").read_text().rpartition(")")[2].split()
        own += int(about[11]) + int(about[12])
    return busy / TICKS, own / TICKS


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--path", type=Path, default=Path("target"), help="a folder on the disk")
    parser.add_argument("--blocks", type=int, default=256, help="a multiple of 16")
    parser.add_argument("--kib", type=int, default=2048, help="of a block, a multiple of 4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    block_bytes, missing = asked.kib << 10, {}
    sides: dict[str, Process] = {}
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix=".bench-disk-", dir=asked.path) as made:
        given = [str(number) for number in (asked.blocks, block_bytes, JOB)]
        for at, side in enumerate(dict.fromkeys(side for side, _ in STORES.values())):
            try:
                sides[side] = Process(side, TARGET / "disk", str(Path(made) / str(at)), *given)
            except (Failed, OSError) as error:
                missing[side] = str(error)
        if DISK not in sides:
            raise SystemExit(missing[DISK])
        stores = {name: store for name, store in STORES.items() if store[0] in sides}
        begun, start = time.monotonic(), used(sides)
        try:
            seen = turns(sides, stores, asked.rounds)
            everybody, own = (now - then for now, then in zip(used(sides), start, strict=True))
            took = time.monotonic() - begun
            bit = flipped(sides, stores)
        finally:
            for process in sides.values():
                process.close()
    others = (everybody - own) / ((os.cpu_count() or 1) * took)
    rows = lines(seen, stores, asked.blocks * block_bytes)
    versions = {what: one for side in sides.values() for what, one in side.about.items()}
    print("; ".join(f"{name} {one}" for name, one in versions.items()))
    print(f"{asked.rounds} rounds of {asked.blocks} blocks of {asked.kib} KiB; every block right\n")
    print("| GB/s | write | and synced | read, cold | CPU s: write, read | ", end="")
    print("ours / its write | ours / its synced write | ours / its read | a flipped bit is |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|---|")
    for row in rows:
        print(f"| {' | '.join([*row, bit[row[0]]])} |")
    print(
        f"\nOther processes, the kernel's and other machines' too, used {others:.0%} of the cores."
    )
    for side, why in missing.items():
        print(f"not run: {side}: {why}")
    if asked.json is not None:
        raw: dict[str, Any] = {"machine": machine(), "versions": versions, "others": others}
        raw["turns"] = [[*one, all_of_it] for one, all_of_it in seen.items()]
        raw["flipped"] = bit
        asked.json.write_text(json.dumps(raw) + "\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
