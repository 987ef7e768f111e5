"""What the benches share: figures beside their targets, as a table and JSON, and a busy thread."""

import argparse
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Figure(NamedTuple):
    """What was measured, and what it may be."""

    what: str
    seen: float
    most: float | None = None
    least: float | None = None
    about: str = ""

    @property
    def target(self) -> str:
        """Its target, if it has one."""
        return "".join(
            f"{sign} {goal:g}" for sign, goal in (("≤", self.most), ("≥", self.least)) if goal
        )

    @property
    def verdict(self) -> str:
        """Whether it reaches its target."""
        if not self.target:
            return ""
        over = self.most is not None and self.seen > self.most
        return "missed" if over or self.seen < (self.least or self.seen) else "met"


def asked(description: str | None, **numbers: float) -> argparse.Namespace:
    """Reads the command line: an option for each number, and `--json`."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=type(number), default=number)
    parser.add_argument("--json", type=Path, help="where the figures are written, too")
    return parser.parse_args()


def report(figures: Iterable[Figure], path: Path | None = None) -> int:
    """Prints each figure as it comes, and writes all; returns 1 where one was missed, else 0."""
    print("| | seen | target | | |\n|---|--:|--:|---|---|")
    rows = []
    for one in figures:
        cells = (
            one.what,
            f"{one.seen:{',.0f' if one.seen >= 1000 else '.3g'}}",
            one.target,
            one.verdict,
            one.about,
        )
        print(f"| {' | '.join(cells)} |", flush=True)
        rows.append({**one._asdict(), "verdict": one.verdict})
    if path is not None:
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["verdict"] == "missed" for row in rows))


@contextmanager
def busy() -> Iterator[None]:
    """Has a thread compute meanwhile; it gives the interpreter's lock back every 5 ms."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
