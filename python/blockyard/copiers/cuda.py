"""Copies between a GPU and pinned memory, on streams of its own.

Every flight waits for what the engine's stream was given before it: KV that is still being written
is copied whole, and a slot that is still being read is not overwritten. It also waits for earlier
flights the other way that touch its slots. What the engine's stream is given later waits for
nothing by itself: call `join` before a step that reads what is still coming up, or let the yard say
that it has landed.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from blockyard._core import Misuse, Unavailable, Unsupported
from blockyard.copiers import Landed, Receipt, Slots
from blockyard.copiers.ways import Starts, Way, width
from blockyard.gpu import Addresses, Gpu, GpuError, Memory, Move, Places, address_of
from blockyard.layout import natural
from blockyard.log import Limited
from blockyard.plan import Cause, Thresholds
from blockyard.tiers import Tier
from blockyard.tiers.pinned import Pinned

__all__ = ["CudaCopier", "Placed"]

# Slots up to which a kernel reads its tables over the link rather than from a copy of them.
_SHORT = 64
# Least words of the desk on which such tables are laid out.
_DESK = 1 << 14
_log = Limited("blockyard")


class Placed(Tier, Protocol):
    """A tier that a GPU reaches by address."""

    @property
    def gpu(self) -> Gpu:
        """Which."""

    @property
    def places(self) -> tuple[Places, ...]:
        """Where each plane of the layout is."""


class Device(Placed, Protocol):
    """Such a tier on the GPU itself."""

    @property
    def stream(self) -> int:
        """On which the engine computes."""


class CudaCopier:
    """Copies down and up on a stream each, and within the device on the one that goes up.

    All device and pinned memory, streams and events that it needs are made here; afterwards
    nothing is allocated, and a flight costs a few calls of the driver, however many blocks it has.
    While the engine's stream is being captured into a graph, `start` takes nothing: what is in the
    air goes on, and the rest begins after the capture.

    Args:
        device: The device tier; its `stream` is what flights wait for.
        host: The host tier, on the same GPU; None for none.
        thresholds: How copies are best made.
        depth: Flights in the air, each way, from which on `start` answers None.
        layers: In how many parts, by layers, KV comes up where it has a piece per layer, so that
            `join` can wait for a layer. With 1 it comes as a whole, which is faster.

    Raises:
        Misuse: The tiers are not of one GPU, or a number is out of range.
        Unavailable: There is not enough memory.
    """

    def __init__(
        self,
        device: Device,
        host: Placed | None = None,
        *,
        thresholds: Thresholds | None = None,
        depth: int = 64,
        layers: int = 1,
    ) -> None:
        natural("depth", depth)
        natural("layers", layers)
        if host is not None and host.gpu is not device.gpu:
            raise Misuse("the tiers are of two GPUs: give both the same gpu=")
        self._device = device
        self._gpu = device.gpu
        self._limits = Thresholds() if thresholds is None else thresholds
        self._layers = layers
        self._closed = False
        self._lost = ""
        self._memory: list[Memory] = []
        self._ways: dict[tuple[str, str, str], _Tabled] = {}
        self._lanes: dict[tuple[str, str], _Lane] = {}
        with self._gpu:
            try:
                self._open([device] if host is None else [device, host], depth)
            except GpuError as error:
                self._free()
                raise Unavailable(f"copies cannot be set up: {error}") from error
            except BaseException:
                self._free()
                raise

    @property
    def thresholds(self) -> Thresholds:
        """How copies are made."""
        return self._limits

    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Queues a copy, or answers None: `depth` are in the air, or a graph is being captured."""
        if self._closed:
            raise Misuse("the copier is closed")
        if self._lost:
            raise Unavailable(f"the device is lost ({self._lost}): start the process anew")
        pair = source.name, destination.name
        lane = self._lanes.get(pair)
        if lane is None:
            raise Unsupported(f"no copies from {pair[0]} to {pair[1]} here")
        task = self._task(pair, source, sources, destinations)
        flight: _Flight | None = None
        try:
            with self._gpu:
                if self._gpu.capturing(self._device.stream):
                    return None
                flight = lane.take(len(sources), 2 * len(sources) * task.by_kernel)
                if flight is not None:
                    self._queue(lane, flight, task, pair)
        except GpuError as error:
            self._lose(GpuError(error.name, "a copy", lost=True))
            if flight is None:
                raise Unavailable(f"the device is lost ({self._lost})") from error
        return flight

    def join(self, stream: object = None, *, layer: int | None = None) -> None:
        """Has the engine's stream wait for what was started upward, or within the device.

        One call before a step is enough. For a captured graph it comes before the launch.

        Args:
            stream: That which waits; None for the device tier's.
            layer: Which of the `layers` parts to wait for, from 0; None for all.

        Raises:
            Misuse: The stream is being captured, or there is no such part.
            GpuError: The driver refused.
        """
        waiting = self._device.stream if stream is None else address_of(stream)
        if layer is not None and not 0 <= layer < self._layers:
            raise Misuse(f"layer = {layer}: KV comes in parts 0 to {self._layers - 1}")
        lane = self._lanes["device", "device"]
        if not lane.flights:
            return
        event = lane.flights[-1].event if layer is None else lane.parts[layer]
        with self._gpu:
            if self._gpu.capturing(waiting):
                raise Misuse("join while a graph is captured: call it before the graph is launched")
            self._gpu.wait(waiting, event)

    def reset(self) -> None:
        """Waits until all that was taken has ended."""
        for lane in set(self._lanes.values()):
            if self._lost:
                return
            try:
                with self._gpu:
                    self._gpu.synchronize(lane.stream)
            except GpuError as error:
                self._lose(GpuError(error.name, "a stream", lost=True))
            lane.sweep()

    def close(self) -> None:
        """Waits until all that was taken has ended; then gives back what was made at the start."""
        if not self._closed:
            self._closed = True
            self.reset()
            self._free()

    def _open(self, tiers: list[Placed], depth: int) -> None:
        named = {tier.name: tier for tier in tiers}
        lanes = [_Lane(self, tiers, depth, self._layers)]
        self._lanes["device", "device"] = lanes[0]
        if len(tiers) > 1:
            lanes.append(_Lane(self, tiers, depth, 1))
            self._lanes |= {("host", "device"): lanes[0], ("device", "host"): lanes[1]}
            lanes[0].other, lanes[1].other = lanes[1], lanes[0]
        ways = {}
        for pair in self._lanes:
            source, destination = (named[name] for name in pair)
            for index, plane in enumerate(source.layout.planes):
                places = source.places[index], destination.places[index]
                ways[*pair, plane.name] = Way.between(*places, plane.piece_bytes, pair)
        ringed = [way.block_bytes for way in ways.values() if way.below and way.pieces > 1]
        if ringed and self._gpu.batches:
            for lane in lanes:
                lane.ring = self._gpu.allocate(max(*ringed, self._limits.ring_bytes))
                self._memory.append(lane.ring)
        atlas = _Atlas()
        for name, way in ways.items():
            ring = self._lanes[name[:2]].ring
            self._ways[name] = _Tabled(way, ring.address if ring is not None else 0, atlas)
        self._memory.append(atlas.unroll(self._gpu, lanes[0]))
        for tabled in self._ways.values():
            tabled.settle(atlas.address)
            self._gpu.prepare(tabled.way.width)
            self._gpu.prepare(tabled.ring_width)

    def _task(
        self, pair: tuple[str, str], source: Tier, sources: Slots, destinations: Slots
    ) -> "_Task":
        """What is to be queued for each plane."""
        breaks = np.ones(len(sources), np.bool_)
        np.not_equal(sources[1:] - sources[:-1], 1, out=breaks[1:])
        breaks[1:] |= destinations[1:] - destinations[:-1] != 1
        starts = np.flatnonzero(breaks)
        runs, blocks, batches = len(starts), len(sources), self._gpu.batches
        roads = []
        for plane in source.layout.planes if blocks else ():
            tabled = self._ways[*pair, plane.name]
            if self._layers > 1 and pair == ("host", "device") and tabled.way.pieces > 1:
                roads.append((tabled, "parts"))
            else:
                road = tabled.way.road(runs, blocks, self._limits, batches=batches)
                roads.append((tabled, road))
        return _Task(roads, sources, destinations, starts)

    def _queue(
        self, lane: "_Lane", flight: "_Flight", task: "_Task", pair: tuple[str, str]
    ) -> None:
        """Queues a flight, behind what it must wait for, and its event behind it."""
        try:
            lane.order(self._device.stream, pair, task.sources, task.destinations)
            self._send(lane, flight, task)
        except GpuError as error:
            flight.failed = error.name
            self._lose(error)
        lane.touch(pair, flight, task.sources, task.destinations)
        # What was queued before an error has an end like any other, and the flight none before it.
        self._gpu.record(flight.event, lane.stream)

    def _send(self, lane: "_Lane", flight: "_Flight", task: "_Task") -> None:
        """Queues the copies of every plane."""
        if task.by_kernel:
            lane.table(flight, task.sources, task.destinations)
        for tabled, road in task.roads:
            way = tabled.way
            if road == "rows":
                to, from_ = (
                    int(side.pieces[0]) + int(slots[0]) * side.stride
                    for side, slots in (
                        (way.destination, task.destinations),
                        (way.source, task.sources),
                    )
                )
                pitches = way.destination.stride, way.source.stride
                rows = way.piece_bytes, flight.blocks
                self._gpu.copy_rows(to, pitches[0], from_, pitches[1], *rows, lane.stream)
            elif road == "runs":
                runs = way.runs(task.sources, task.destinations, task.starts)
                self._gpu.copy(*runs, lane.stream)
            elif road == "ring":
                self._through_ring(lane, flight, tabled, task)
            elif road == "kernel":
                groups = self._limits.groups if way.below is None else self._limits.link_groups
                self._gpu.move(tabled.move(flight, groups), lane.stream)
        for part, event in enumerate(lane.parts):
            for tabled, road in task.roads:
                if road == "parts":
                    move = tabled.move(flight, self._limits.link_groups, part, len(lane.parts))
                    self._gpu.move(move, lane.stream)
            self._gpu.record(event, lane.stream)

    def _through_ring(
        self, lane: "_Lane", flight: "_Flight", tabled: "_Tabled", task: "_Task"
    ) -> None:
        """As many blocks at a time as the ring holds: whole below, in pieces above."""
        way, ring = tabled.way, lane.ring
        assert ring is not None  # noqa: S101 - made where a way has need of it
        down = way.below == "destination"
        held = ring.nbytes // way.block_bytes
        below = task.destinations if down else task.sources
        (to, from_, sizes), fillings = way.through(ring.address, held, below)
        copy, move, stream = self._gpu.copy, self._gpu.move, lane.stream
        for number, gather in enumerate(tabled.gathers(flight, held, self._limits.groups)):
            part = slice(fillings[number], fillings[number + 1])
            if down:
                move(gather, stream)
            copy(to[part], from_[part], sizes[part], stream)
            if not down:
                move(gather, stream)

    def _lose(self, error: GpuError) -> None:
        """An error of the driver: said, and if it is the last, everything in the air is lost."""
        if not error.lost:
            _log.warning("a copy failed: %s", error)
        elif not self._lost:
            self._lost = error.name
            _log.warning("the device is lost, and all that is in the air: %s", error)
            for lane in set(self._lanes.values()):
                lane.lose()

    def _free(self) -> None:
        for lane in set(self._lanes.values()):
            lane.free()
        for memory in self._memory:
            memory.free()
        self._memory.clear()


class _Flight:
    """A receipt."""

    __slots__ = ("blocks", "event", "failed", "landed", "lane", "number", "span", "tables")

    def __init__(
        self, lane: "_Lane", number: int, blocks: int, event: int, span: tuple[int, int]
    ) -> None:
        self.lane = lane
        self.number = number
        self.blocks = blocks
        self.event = event
        self.span = span
        self.tables = 0, 0
        self.failed = ""
        self.landed: Landed | None = None

    def poll(self) -> Landed | None:
        """How it has ended, if it has: only the first of a lane asks the driver."""
        if self.landed is None and self.lane.flights[0] is self:
            self.lane.sweep()
        return self.landed


class _Lane:
    """One stream, and the flights on it, which end in the order in which they began."""

    def __init__(self, copier: CudaCopier, tiers: list[Placed], depth: int, parts: int) -> None:
        self.other: _Lane | None = None
        self.flights: deque[_Flight] = deque()
        self.ring: Memory | None = None
        self._copier = copier
        self._gpu = gpu = tiers[0].gpu
        self._last = 0
        self._touched = {tier.name: np.zeros(tier.blocks, np.uint64) for tier in tiers}
        # Slots are distinct where they are written, so that a tier bounds a flight: two of the
        # longest, or many short ones.
        self._size = max(4 * max(tier.blocks for tier in tiers), _DESK)
        self._desk = Pinned(gpu, 4 * self._size)
        try:
            self._copy = gpu.allocate(4 * self._size)
        except BaseException:
            self._desk.free()
            raise
        self._words = self._desk.array.view(np.uint32)
        self.stream = gpu.stream()
        self._computed = gpu.event()
        self.parts = [gpu.event() for _ in range(parts if parts > 1 else 0)]
        self._events = [gpu.event() for _ in range(depth)]
        self._all = [self._computed, *self.parts, *self._events]

    def take(self, blocks: int, words: int) -> _Flight | None:
        """A flight, with so many words of the desk; None when there is no event or no place."""
        start = self._place(words)
        if not self._events or start is None:
            return None
        self._last += 1
        flight = _Flight(self, self._last, blocks, self._events.pop(), (start, start + words))
        self.flights.append(flight)
        return flight

    def order(
        self, compute: int, pair: tuple[str, str], sources: Slots, destinations: Slots
    ) -> None:
        """What comes next waits for the engine, and for the other lane where their slots meet."""
        self._gpu.record(self._computed, compute)
        self._gpu.wait(self.stream, self._computed)
        other = self.other
        if other is None or not other.flights or not len(sources):
            return
        met = zip(pair, (sources, destinations), strict=True)
        last = max(int(other._touched[name][slots].max()) for name, slots in met)  # noqa: SLF001
        behind = last - other.flights[0].number
        if behind >= 0:
            self._gpu.wait(self.stream, other.flights[behind].event)

    def touch(
        self, pair: tuple[str, str], flight: _Flight, sources: Slots, destinations: Slots
    ) -> None:
        """This flight is the last that was at these slots."""
        for name, slots in zip(pair, (sources, destinations), strict=True):
            self._touched[name][slots] = flight.number

    def table(self, flight: _Flight, sources: Slots, destinations: Slots) -> None:
        """Lays out a flight's slots where a kernel reads them."""
        start, end = flight.span
        middle = start + flight.blocks
        self._words[start:middle] = sources
        self._words[middle:end] = destinations
        base = self._desk.address
        if flight.blocks > _SHORT:
            base, size = self._copy.address, 4 * (end - start)
            here, there = self._desk.address + 4 * start, base + 4 * start
            self._gpu.copy_rows(there, size, here, size, size, 1, self.stream)
        flight.tables = base + 4 * start, base + 4 * middle

    def sweep(self) -> None:
        """Lands what has ended."""
        try:
            with self._gpu:
                while self.flights and self._gpu.ended(self.flights[0].event):
                    self._land(self.flights.popleft())
        except GpuError as error:
            # What a stream ends with is the end of the device.
            self._copier._lose(GpuError(error.name, "a flight", lost=True))  # noqa: SLF001

    def lose(self) -> None:
        """Nobody knows how its flights end."""
        while self.flights:
            self.flights.popleft().landed = Landed(0, Cause.LOST)

    def free(self) -> None:
        """Gives back what it has."""
        self._desk.free()
        self._copy.free()
        self._gpu.discard(self.stream, self._all)

    def _land(self, flight: _Flight) -> None:
        self._events.append(flight.event)
        flight.landed = Landed(0, Cause.FAILED) if flight.failed else Landed(flight.blocks)

    def _place(self, words: int) -> int | None:
        """Where so many words of the desk are free: behind the newest flight, or at the start."""
        spans = [flight.span for flight in self.flights if flight.span[0] < flight.span[1]]
        if not spans or not words:
            return 0
        head, tail = spans[0][0], spans[-1][1]
        if tail <= head:
            return tail if head - tail >= words else None
        if self._size - tail >= words:
            return tail
        return 0 if head >= words else None


class _Task(NamedTuple):
    """What a flight is to carry, and how each plane of it goes."""

    roads: "list[tuple[_Tabled, str]]"
    sources: Slots
    destinations: Slots
    starts: Starts
    """Of the runs of blocks whose slots are consecutive on both sides."""

    @property
    def by_kernel(self) -> bool:
        """Whether a kernel reads the slots."""
        return any(road in {"kernel", "ring", "parts"} for _tabled, road in self.roads)


class _Atlas:
    """Tables of addresses, which lie on the device for kernels to read."""

    def __init__(self) -> None:
        self.address = 0
        self._pages: list[Addresses] = []
        self._size = 0

    def add(self, page: Addresses) -> int:
        """Takes a table; answers with its offset in bytes."""
        offset = self._size
        self._pages.append(page)
        self._size += page.nbytes
        return offset

    def unroll(self, gpu: Gpu, lane: _Lane) -> Memory:
        """Puts all of them on the device, and waits for that."""
        staging = Pinned(gpu, self._size)
        try:
            memory = gpu.allocate(self._size)
            staging.array.view(np.uint64)[:] = np.concatenate(self._pages)
            size = self._size
            gpu.copy_rows(memory.address, size, staging.address, size, size, 1, lane.stream)
            gpu.synchronize(lane.stream)
        finally:
            staging.free()
        self.address = memory.address
        return memory


class _Tabled:
    """A way whose addresses lie where a kernel reads them."""

    def __init__(self, way: Way, ring: int, atlas: _Atlas) -> None:
        self.way = way
        pieces = np.arange(way.pieces, dtype=np.uint64) * np.uint64(way.piece_bytes)
        self._ring = Places(np.uint64(ring) + pieces, way.block_bytes)
        self._tables = [
            atlas.add(places.pieces) for places in (way.source, way.destination, self._ring)
        ]
        above = way.destination if way.below == "source" else way.source
        self.ring_width = width(above, self._ring, way.piece_bytes)

    def settle(self, address: int) -> None:
        """The atlas lies there."""
        self._tables = [address + offset for offset in self._tables]

    def move(self, flight: _Flight, groups: int, part: int = 0, parts: int = 1) -> Move:
        """Straight from slots to slots; of the pieces, only one of so many parts."""
        way = self.way
        first, end = (way.pieces * which // parts for which in (part, part + 1))
        from_slots, to_slots = flight.tables
        return Move(
            self._tables[0] + 8 * first,
            way.source.stride,
            from_slots,
            self._tables[1] + 8 * first,
            way.destination.stride,
            to_slots,
            flight.blocks,
            end - first,
            way.piece_bytes,
            way.width,
            groups,
        )

    def gathers(self, flight: _Flight, held: int, groups: int) -> Iterator[Move]:
        """Between the device and the ring, so many of the flight's blocks at a time."""
        way, ring = self.way, self._ring
        source = self._tables[0], way.source.stride
        target = self._tables[1], way.destination.stride
        inside = self._tables[2], ring.stride, 0
        sizes = way.pieces, way.piece_bytes, self.ring_width, groups
        from_slots, to_slots = flight.tables
        for first in range(0, flight.blocks, held):
            blocks, skip = min(held, flight.blocks - first), 4 * first
            if way.below == "destination":
                yield Move(*source, from_slots + skip, *inside, blocks, *sizes)
            else:
                yield Move(*inside, *target, to_slots + skip, blocks, *sizes)
