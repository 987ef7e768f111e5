"""`make bench-handover`: what a hand-over costs, beside what carries it alone, and in a step.

    python benches/python/handover.py [--mib 128] [--rounds 9]

By tcp, both go over loopback,
with one thread each side. The plain socket sends the same bytes and receives
them into the same memory, a block a call to send: no frames, no sums, no generations. Each row
alternates with what it is compared with, in one process, and its figure is the median of the ratios
of the rounds. It fails where a goal is missed. The rows of NIXL are in `handover_nixl.py`.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

import blockyard as by
import handover_nixl
from blockyard._core import Offers, OfferServer, Peer
from blockyard.crane.copiers.lane_flights import Place, memory_places
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.tools.disk.bench import Figure as Timing
from blockyard.tools.disk.bench import timed
from handover_steps import OFFERS, beside
from report import Figure, asked, busy, report

MIB = 1 << 20
SIZES = {"2 MiB": 32, "128 KiB": 2}
"""Layers of the models whose blocks have these sizes."""
GOAL = 0.80
PART = 8
"""Blocks of a flight, as of a plan."""
PAUSE = 1e-3
"""Seconds between two looks at the flights, fewer than between two steps of an engine."""


def places(tier: MemoryTier) -> list[Place]:
    return [place for plane in memory_places(tier, "the other side") for place in plane]


class Both:
    """A prefill side that offers blocks, a peer of it, and a plain socket over the same memory."""

    def __init__(self, layers: int, nbytes: int) -> None:
        layout = by.KVLayout.llama(layers=layers, kv_heads=8, head_dim=128)
        self.blocks, self.block_bytes = nbytes // layout.block_bytes, layout.block_bytes
        # Slot 0 is the yard's.
        self.source = MemoryTier(layout, self.blocks + 1, name="device")
        self.target = MemoryTier(layout, self.blocks + 1, name="device")
        (plane,) = self.source.planes
        plane[...] = np.random.default_rng(1).integers(0, 256, plane.shape, np.uint8)
        cache = by.KVCache(device=self.blocks + 1)
        keys = cache.keys(np.arange(16 * self.blocks))
        lease = cache.begin(keys)
        cache.seal(lease, 16 * self.blocks)
        self.held = cache.hold(keys)
        assert self.held is not None
        self.keys, self.slots = self.held.keys, self.held.slots
        self.offers, name = Offers(), os.urandom(16)
        self.offers.offer(name, self.held, time.monotonic())
        fields = {"model": "a measurement"}
        self.server = OfferServer(
            self.offers,
            "127.0.0.1:0",
            boot=cache.boot,
            name="prefill",
            fields=fields,
            planes=[places(self.source)],
            blocks=self.blocks + 1,
        )
        self.peer = Peer(
            self.server.address,
            boot=1,
            name="decode",
            fields=fields,
            rank=0,
            block_bytes=self.block_bytes,
        )
        self.peer.take(0, name, cache.boot, self.keys, 0.0)
        while not (answers := self.peer.taken()):
            time.sleep(PAUSE)
        assert answers == [(0, self.blocks, "")], answers
        self._places = places(self.target)

    def handed_over(self) -> None:
        flying = set()
        for first in range(0, self.blocks, PART):
            part = slice(first, first + PART)
            ends = self._places, self.slots[part], 0.0
            flying.add(self.peer.submit_up(self.keys[part], *ends))
        while flying:
            for number, _, why in self.peer.poll(0.0):
                if why:
                    raise SystemExit(f"{why}: {self.peer.why()} {self.peer.stats()}")
                flying.remove(number)
            if flying:
                time.sleep(PAUSE)

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

    def check(self) -> None:
        (source,), (target,) = self.source.planes, self.target.planes
        if not (source[self.slots] == target[self.slots]).all():
            raise SystemExit("the bytes differ")

    def close(self) -> None:
        self.peer.close()
        self.server.close()
        self.offers.end_all("closed")


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
