"""`make bench-peers`: Blockyard beside its peers, in one run, on the same work.

    python benches/peers/bench.py [--only ROW …] [--quick] [--json PATH] [--self-test]

`setup.py` must have run. Each side is a process in an environment of its own; their rounds take
turns, every peer's followed by one of Blockyard's. Before a row is timed each side has filled its
pool and played a round; what an operation needs is made before the clock starts. Figures are
thread CPU time, the median of the rounds' means; p99 and worst are of single operations, from
rounds of their own, since a clock around each costs something. A ratio is a side's median over
Blockyard's.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import work as sizes
from peers.process import SIDES, TARGET, Failed, Process
from peers.table import (
    LACKING,
    OURS,
    ROWS,
    Line,
    Spec,
    judged,
    markdown,
    middle,
)

SEED = 7
SLOW = 150.0
"""Microseconds by which the self-test slows Blockyard."""


Make = Callable[[str], Process]
Seen = dict[str, dict[str, Any]]


class Bench:
    """The sides that run, and their answers."""

    def __init__(self, make: Make, rounds: int) -> None:
        self.make, self.rounds = make, rounds
        self.running: dict[str, Process] = {}

    def side(self, name: str) -> Process:
        """Returns a side's process, which is started when it is first needed."""
        if name not in self.running:
            self.running[name] = self.make(name)
        return self.running[name]

    def close(self) -> None:
        """Ends all processes."""
        for process in self.running.values():
            process.close()
        self.running = {}

    def row(self, spec: Spec) -> Seen:
        """Plays a row on every side; returns their answers."""
        if spec.stat == "memory":
            return {side: self.memory(side, spec) for side in (spec.ours, *spec.sides)}
        seen: Seen = {}
        for side in (spec.ours, *spec.sides):
            self.begin(side, spec, seen)
        for _ in range(self.rounds):
            for side in self.turns(spec, seen):
                self.round(side, spec, seen)
        for side, said in seen.items():
            if "failed" not in said:
                said.update(figures(spec.stat, said))
                if "failed" in said:
                    print(f"  {spec.what}: {side}: {said['failed']}", file=sys.stderr)
        for process in self.running.values():
            # This frees the memory of the row.
            with contextlib.suppress(Failed):
                process.ask(do="make", row="")
        return seen

    def begin(self, side: str, spec: Spec, seen: Seen) -> None:
        """Makes a side's row, and warms it up."""
        try:
            made = self.side(side).ask(do="make", row=spec.row, **spec.asked)
            seen[side] = {"unit": made["unit"], "rounds": []}
            for _ in range(spec.warm):
                self.side(side).ask(do="round", how="alone")
        except Failed as error:
            self.fail(side, spec, error, seen)

    def round(self, side: str, spec: Spec, seen: Seen) -> None:
        """Plays a round on each clock of the row."""
        for how in _ways(spec, side):
            if "failed" in seen[side]:
                return
            try:
                said = self.side(side).ask(do="round", how=how)
                seen[side]["rounds"].append({**said, "how": how})
            except Failed as error:
                self.fail(side, spec, error, seen)

    def turns(self, spec: Spec, seen: Seen) -> list[str]:
        """Plays a round on every peer, each followed by Blockyard."""
        turns = [one for side in seen if side != spec.ours for one in (side, spec.ours)]
        return turns or [spec.ours]

    def fail(self, side: str, spec: Spec, error: Failed, seen: Seen) -> None:
        """Drops a side that failed; the others go on."""
        print(f"  {spec.what}: {error}", file=sys.stderr)
        seen[side] = {"failed": str(error)}
        gone = self.running.get(side)
        if gone is not None and gone.process.poll() is not None:
            del self.running[side]

    def memory(self, side: str, spec: Spec) -> dict[str, Any]:
        """Returns the bytes per block of a fresh process."""
        process = None
        try:
            process = self.make(side)
            made = process.ask(do="make", row=spec.row, **spec.asked)
            return {"value": made["grew"] / spec.asked["blocks"]}
        except Failed as error:
            return {"failed": str(error)}
        finally:
            if process is not None:
                process.close()


def _ways(spec: Spec, side: str) -> list[str]:
    if spec.stat == "beside":
        return ["long", "beside", "control", "control-beside"]
    if spec.stat == "two":
        return ["long", "two"]
    if spec.stat == "told":
        return ["told"]
    each = "each-wall" if side in spec.wall else "each"
    return [each] if spec.stat == "worst" else ["alone", each]


def figures(stat: str, said: dict[str, Any]) -> dict[str, Any]:
    """Returns a side's figures from its rounds."""

    def mean(how: str, clock: str) -> list[float]:
        return [
            one[clock] / one["operations"] / said["unit"]
            for one in said["rounds"]
            if one["how"] == how
        ]

    each = [took / said["unit"] for one in said["rounds"] for took in one.get("each", ())]
    if stat == "worst":
        longest = [max(one["each"]) for one in said["rounds"]]
        each = [took * said["unit"] for took in each]
        return {"value": middle(longest), "wall": middle(longest), "each": each}
    if stat == "told":
        return {"value": middle(each), "wall": middle(each), "each": each}
    if stat in {"beside", "two"}:
        share = middle(mean("long", "wall")) / middle(mean(stat, "wall"))
        value = share
        if stat == "beside":
            alone, beside = mean("control", "wall"), mean("control-beside", "wall")
            value = share / (middle(alone) / middle(beside))
        errors = [error for one in said["rounds"] for error in one.get("errors", ())]
        # A thread that raised did not make all of its calls.
        found = {"failed": f"raised {errors[0]}"} if errors else {"value": value}
        return {**found, "share": share, "errors": errors}
    return {
        "value": middle(mean("alone", "cpu")),
        "wall": middle(mean("alone", "wall")),
        "each": each,
    }


def compare(bench: Bench, specs: dict[str, Spec]) -> Iterator[tuple[str, list[Line], Any]]:
    """Plays row after row."""
    for name, spec in specs.items():
        begun = time.monotonic()
        seen = bench.row(spec)
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        yield name, judged(name, spec, seen), seen


def self_test(work: Path, rows: tuple[str, ...] = ("keys", "match", "decode-256")) -> list[str]:
    """Compares a slowed Blockyard with itself, which must miss goals; returns complaints."""
    specs = {
        name: ROWS[name]._replace(
            sides=("itself",),
            goals={"itself": 0.4},
            wall=(),
            asked={**ROWS[name].asked, "blocks": 2_000},
        )
        for name in rows
    }
    SIDES["itself"] = SIDES[OURS]
    wrong = []
    for slow, wanted in ((0.0, "met"), (SLOW, "missed")):
        more = ("--slow", str(slow)) if slow else ()

        def make(side: str, more: tuple[str, ...] = more) -> Process:
            return Process(side, work, *(more if side == OURS else ()))

        bench = Bench(make, rounds=3)
        lines = [line for _, part, _ in compare(bench, specs) for line in part]
        bench.close()
        print(markdown(lines, specs))
        found = {line.row: line.verdict for line in lines if line.side == "itself"}
        wrong += [
            f"{row}, slowed by {slow:g} µs: {found.get(row)}, wanted {wanted}"
            for row in rows
            if found.get(row) != wanted
        ]
    return wrong


def machine() -> str:
    """Returns a description of this machine."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return (
        f"{cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load at the start {load}"
    )


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="two rounds, not five")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--self-test", action="store_true")
    asked = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    work = TARGET / "work.u32"
    sizes.write(work, SEED)
    if asked.self_test:
        wrong = self_test(work)
        print("\n".join(wrong) or "a slowed Blockyard shows up")
        return int(bool(wrong))
    print(machine(), flush=True)
    bench = Bench(lambda side: Process(side, work), rounds=2 if asked.quick else 5)
    specs = {name: ROWS[name] for name in ROWS if name in asked.only}
    lines: list[Line] = []
    raw: dict[str, Any] = {"machine": machine(), "rows": {}}
    for name, part, seen in compare(bench, specs):
        lines += part
        raw["rows"][name] = {"lines": [line._asdict() for line in part], "seen": seen}
        if asked.json:
            asked.json.write_text(json.dumps(raw))
    raw["versions"] = {side: one.about for side, one in bench.running.items()}
    if asked.json:
        asked.json.write_text(json.dumps(raw))
    print("; ".join(f"{name} {one}" for name, one in versions(bench).items()) + "\n")
    bench.close()
    print(f"{markdown(lines, ROWS)}\n\n{LACKING}")
    return 0


def versions(bench: Bench) -> dict[str, str]:
    """Returns the version of each package."""
    return {name: said for one in bench.running.values() for name, said in one.about.items()}


if __name__ == "__main__":
    sys.exit(main())
