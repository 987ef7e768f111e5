"""A simulated GPU whose copies take the time planted for them, by a clock of its own."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockyard._typing import override
from blockyard.crane.gpu import Addresses, Move, PitchedCopy
from blockyard.testing.simulated_gpu import SimulatedGpu


@dataclass(frozen=True)
class Link:
    """What copies take."""

    rate: float = 50e9
    """Bytes per second of a copy over the link."""
    copy: float = 20e-6
    """Seconds that the caller takes to begin one: the link has nothing of it before."""
    run: float = 0.1e-6
    """Seconds that it takes for each run of it."""
    kernel: float = 10e9
    """Bytes per second of a kernel over the link."""
    launch: float = 5e-6
    """Seconds to begin one."""
    within: float = 1e12
    """Bytes per second of a kernel within the device."""


class TimedGpu(SimulatedGpu):
    """Copies at once, and has each event come when a simple model of a link says so."""

    def __init__(self, link: Link | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.now = self.occupied = 0.0
        self.link = Link() if link is None else link
        self.idle_from: dict[int, float] = defaultdict(float)
        self.comes: dict[int, float] = {}

    def clock(self) -> float:
        return self.now

    def takes(self, stream: int, seconds: float, after: float = 0.0) -> None:
        """What was just submitted, on a stream that does one thing after the other."""
        self.run()
        self.idle_from[stream] = max(self.idle_from[stream], self.now, after) + seconds

    @override
    def occupy(self, nanoseconds: int, stream: int) -> None:
        self.takes(stream, nanoseconds / 1e9)
        self.occupied = self.idle_from[stream]

    def crosses(self, stream: int, runs: int, nbytes: int) -> None:
        """What was just submitted in one call, for the link."""
        self.now += self.link.copy + runs * self.link.run
        self.takes(stream, nbytes / self.link.rate)

    @override
    def copy(self, to: Addresses, from_: Addresses, sizes: Addresses, stream: int) -> None:
        super().copy(to, from_, sizes, stream)
        self.crosses(stream, len(sizes), int(sizes.sum()))

    @override
    def copy_run(self, *what: int) -> None:
        super().copy_run(*what)
        nbytes, stream = what[-2:]
        self.crosses(stream, 0, nbytes)

    @override
    def copy_blocks(self, blocks: PitchedCopy[Addresses], stream: int) -> None:
        super().copy_blocks(blocks, stream)
        count = len(blocks.to)
        self.crosses(stream, count, count * blocks.width * blocks.rows)

    @override
    def copy_rows(self, rows: PitchedCopy[int], stream: int) -> None:
        super().copy_rows(rows, stream)
        self.crosses(stream, 0, rows.width * rows.rows)

    @override
    def move(self, move: Move, stream: int) -> None:
        super().move(move, stream)
        tables = move.from_pieces, move.to_pieces
        ends = [int(self.space.table(at, move.pieces, np.uint64)[0]) for at in tables]
        speed = self.link.within if all(map(self.space.on_device, ends)) else self.link.kernel
        size = move.blocks * move.pieces * move.piece_bytes
        self.takes(stream, self.link.launch + size / speed, self.occupied)

    @override
    def record(self, event: int, stream: int) -> None:
        super().record(event, stream)
        self.run()
        self.comes[event] = max(self.idle_from[stream], self.now)

    @override
    def wait(self, stream: int, event: int) -> None:
        super().wait(stream, event)
        self.run()
        self.idle_from[stream] = max(self.idle_from[stream], self.comes.get(event, 0.0))

    @override
    def ended(self, event: int) -> bool:
        assert super().ended(event)
        if self.now >= self.comes.get(event, 0.0):
            return True
        # Whoever asks early asks again when it has come.
        self.now = self.comes[event]
        return False

    @override
    def synchronize(self, stream: int) -> None:
        super().synchronize(stream)
        self.now = max(self.now, self.idle_from[stream])

    @override
    def _carry(self, runs: list[tuple[int, int, int]]) -> Iterator[bool]:
        for to, from_, size in runs:
            self.space.copy(to, from_, size)
        yield True
