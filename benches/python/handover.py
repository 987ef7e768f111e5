"""`make bench-handover`: what a hand-over costs, beside what carries it alone, and in a step.

    python benches/python/handover.py [--mib 128] [--rounds 9]

By tcp, both go over loopback,
with one thread each side. The plain socket sends the same bytes and receives
them into the same memory, a block a call to send: no frames, no sums, no generations. Each row
alternates with what it is compared with, in one process, and its figure is the median of the ratios
of the rounds. It fails where a goal is missed. The rows of NIXL are in `handover_nixl.py`.
"""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from statistics import median
from typing import Any

import handover_nixl
from blockyard._core import Peer
from blockyard.tools.disk.bench import Figure as Timing
from blockyard.tools.disk.bench import timed
from handed import Handed
from handover_steps import OFFERS, beside
from report import Figure, asked, busy, report

MIB = 1 << 20
SIZES = {"2 MiB": 32, "128 KiB": 2}
"""Layers of the models whose blocks have these sizes."""
GOAL = 0.80


class Both(Handed):
    """A prefill side that offers blocks, a peer of it, and a plain socket over the same memory."""

    def __init__(self, layers: int, nbytes: int) -> None:
        super().__init__(layers, nbytes)
        self.opens(Peer)

    def plain(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = socket.create_connection(listener.getsockname())
            receiver, _ = listener.accept()
        (source,), (target,) = self.source.planes, self.target.planes
        rows: list[Any] = [memoryview(row).cast("B") for row in source[1:]]

        def send() -> None:
            for row in rows:
                sender.sendall(row)

        thread = threading.Thread(target=send)
        thread.start()
        into = memoryview(target[1:]).cast("B")
        while into:
            into = into[receiver.recv_into(into) :]
        thread.join()
        sender.close()
        receiver.close()


def rounds_of(both: Both, rounds: int) -> dict[str, Timing]:
    """Both begin in turns; the first round counts for nothing."""
    works = {"plain": both.plain, "ours": both.handed_over}
    found = {name: Timing([], []) for name in works}
    for count in range(rounds + 1):
        for name in works if count % 2 else reversed(works):
            both.target.planes[0][...] = 0
            seconds, cpu = timed(works[name])
            both.check()
            if count:
                found[name].seconds.append(seconds)
                found[name].cpu.append(cpu)
    return found


def figures(mib: int, rounds: int) -> Iterator[Figure]:
    for size, layers in SIZES.items():
        with closing(Both(layers, mib * MIB)) as both:
            for beside in (False, True):
                if beside:
                    with busy():
                        found = rounds_of(both, rounds)
                else:
                    found = rounds_of(both, rounds)
                ours, plain = found["ours"], found["plain"]
                rates = [f"{one.rate(mib * MIB) / 1e9:.2f}" for one in (plain, ours)]
                cpu = [f"{median(one.cpu):.2f}" for one in (plain, ours)]
                about = f"{' and '.join(rates)} GB/s, CPU s {', '.join(cpu)}: the socket, and ours"
                what = f"hand-over / a plain socket, {size}"
                what += ", beside a busy Python thread" if beside else ""
                part = ours.part_of(plain)
                yield Figure(what, part, least=None if beside else GOAL, about=about)


def steps(rounds: int) -> Iterator[Figure]:
    ratios, alone = beside(rounds)
    about = f"rounds {', '.join(f'{one:.2f}' for one in sorted(ratios))}; without {alone:.0f} µs"
    what = f"thread CPU of a step of 256 beside {OFFERS} hand-overs / without"
    yield Figure(what, median(ratios), most=1.1, about=about)


def main() -> None:
    options = asked(__doc__, mib=128, rounds=9)
    print(f"{options.rounds} rounds of {options.mib} MiB.\n")
    mib, count = options.mib, options.rounds
    rows = chain(figures(mib, count), handover_nixl.figures(mib, count), steps(count))
    sys.exit(report(rows, options.json))


if __name__ == "__main__":
    main()
