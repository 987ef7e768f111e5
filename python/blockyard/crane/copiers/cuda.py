"""Copies between a GPU and pinned memory, on streams of its own.

Every flight waits for what the engine's stream was given before it: KV that is still being written
is copied whole, and a slot that is still being read is not overwritten. It also waits for earlier
flights the other way that touch its slots. What the engine's stream is given later waits for
nothing by itself: call `join` before a step that reads what is still coming up, or let the yard say
that it has landed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from blockyard._core import Misuse, Unavailable, Unsupported, consecutive
from blockyard.crane.copiers import Receipt, Slots
from blockyard.crane.copiers.address_tables import AddressTables
from blockyard.crane.copiers.addressing import Addressing, Road
from blockyard.crane.copiers.parts import Parts
from blockyard.crane.copiers.stream import CALLS, CopyStream, Flight, Part
from blockyard.crane.copiers.transfer import Transfer
from blockyard.crane.gpu import Gpu, GpuError, Memory, Places, address_of, freed
from blockyard.crane.tiers import Tier
from blockyard.shared.log import Limited
from blockyard.shared.plan import Cause
from blockyard.shared.thresholds import Thresholds
from blockyard.shared.validate import integer

__all__ = ["CudaCopier", "Placed"]

Job = tuple[Transfer, Road | Literal["layers"]]
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
    nothing is allocated, and a flight costs a few calls of the driver for every thousand blocks.
    What the driver would make the caller wait for is queued later, when its receipt is polled.
    While the engine's stream is being captured into a graph, `start` takes nothing: what is in the
    air goes on, and the rest begins after the capture.

    Args:
        device: The device tier; its `stream` is what flights wait for.
        host: The host tier, on the same GPU; None for none.
        thresholds: How copies are best made.
        depth: Flights in flight, each way, from which on `start` answers None.
        layers: In how many parts KV comes up where a block has several pieces, so that `join` can
            wait for the first layers: each is the next so many pieces, in the layout's order, or
            that in which tensors were adopted (K and V of layer 0, then of layer 1, …). With 1 it
            comes as a whole, which is faster.

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
        depth = integer("depth", depth)
        layers = integer("layers", layers)
        if host is not None and host.gpu is not device.gpu:
            raise Misuse("the tiers are of two GPUs: give both the same gpu=")
        self._device = device
        self._gpu = device.gpu
        self._limits = Thresholds() if thresholds is None else thresholds
        self._layers = layers
        self._closed = False
        self._lost = ""
        self._memory: list[Memory] = []
        self._routes: dict[tuple[str, str, str], Transfer] = {}
        self._streams: list[CopyStream] = []
        self._lanes: dict[tuple[str, str], CopyStream] = {}
        self._turning = False
        self._captured: bool | None = None
        """Whether a graph is being captured, as far as it was asked in this turn."""
        for plane in device.layout.planes:
            if layers > 1 and plane.pieces > 1 and plane.pieces % layers:
                raise Misuse(
                    f"layers = {layers}: plane {plane.name!r} has {plane.pieces} pieces a block, "
                    "which do not divide into so many parts"
                )
        try:
            with self._gpu:
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
        """Queues a copy; None when too much is in flight, or a graph is being captured."""
        if self._closed:
            raise Misuse("the copier is closed")
        if self._lost:
            raise Unavailable(f"the device is lost ({self._lost}): start the process anew")
        pair = source.name, destination.name
        lane = self._lanes.get(pair)
        if lane is None:
            raise Unsupported(f"no copies from {pair[0]} to {pair[1]} here")
        jobs = self._jobs(pair, source, consecutive(sources, destinations), len(sources))
        task = Part(lane, pair, sources, destinations, jobs)
        receipt: Receipt | None = None
        try:
            with self._gpu:
                coming = [one for one in self._streams if one.later]
                alive = all(map(self._go_on, coming))
                if not alive or lane.later or lane.coming(pair, sources, destinations):
                    return None
                if self._capturing():
                    return None
                cut = self._cut(task)
                if cut is not None:
                    receipt = Parts(lane, cut, self.go_on)
                    self.go_on(lane)
                else:
                    receipt = self._begin(task)
        except GpuError as error:
            self._fail(lane, error)
            if receipt is None:
                what = "the device is lost" if error.lost else "the copy was refused"
                raise Unavailable(f"{what}: {error}") from error
        return receipt

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is asked of the driver once holds for all calls until the end."""
        if self._turning or self._lost or self._closed:
            yield
            return
        try:
            self._gpu.__enter__()
        except GpuError as error:
            self._lose(GpuError(error.name, "a turn", lost=True))
            yield
            return
        self._turning = True
        try:
            yield
        finally:
            self._turning, self._captured = False, None
            try:
                self._gpu.__exit__(None, None, None)
            except GpuError as error:
                self._lose(GpuError(error.name, "a turn", lost=True))

    def go_on(self, lane: CopyStream) -> None:
        """Queues what was taken and not queued yet, as far as there is room."""
        if lane.later and not self._closed:
            try:
                with self._gpu:
                    self._go_on(lane)
            except GpuError as error:
                self._fail(lane, error)
            except Exception as error:  # noqa: BLE001 - it fails what is to come, never the caller
                _log.warning("copies that were not queued yet failed: %r", error)
                lane.drop(Cause.FAILED)

    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Has the engine's stream wait for what was started upward, or within the device.

        One call before a step is enough. For a captured graph it comes before the launch. It knows
        what was started, not what a crane still holds back: call `Crane.join`.

        Args:
            stream: That which waits; None for the device tier's.
            layer: Which of the `layers` parts to wait for, from 0; None for all.

        Returns:
            Whether that is all; if not, some of it is not queued yet.

        Raises:
            Misuse: The stream is being captured, or there is no such part.
            GpuError: The driver refused.
        """
        waiting = self._device.stream if stream is None else address_of(stream)
        if layer is not None and not 0 <= layer < self._layers:
            raise Misuse(f"layer = {layer}: KV comes in parts 0 to {self._layers - 1}")
        lane = self._lanes["device", "device"]
        with self._gpu:
            if self._gpu.capturing(waiting):
                raise Misuse("join while a graph is captured: call it before the graph is launched")
            self._go_on(lane)
            if lane.flights:
                whole = layer is None or not lane.parts
                event = lane.flights[-1].event if whole else lane.parts[layer or 0]
                self._gpu.wait(waiting, event)
        return not lane.later

    def reset(self) -> None:
        """Waits until all that was queued has ended; what was not queued yet has failed."""
        for lane in self._streams:
            lane.drop(Cause.FAILED)
            try:
                with self._gpu:
                    lane.synchronize()
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
        most = self._limits.queued_runs
        up = CopyStream(self._gpu, tiers, depth, self._layers, most, self._lose)
        self._streams.append(up)
        self._lanes["device", "device"] = up
        if len(tiers) > 1:
            self._lanes["host", "device"] = up
            down = CopyStream(self._gpu, tiers, depth, 1, most, self._lose)
            self._streams.append(down)
            self._lanes["device", "host"] = down
            down.other, up.other = up, down
        ways = {}
        for pair in self._lanes:
            source, destination = (named[name] for name in pair)
            apart = self._layers > 1 and pair == ("host", "device")
            for index, plane in enumerate(source.layout.planes):
                places = source.places[index], destination.places[index]
                way = Addressing.between(*places, plane.piece_bytes, pair, apart=apart)
                ways[*pair, plane.name] = way
        ringed = [way.block_bytes for way in ways.values() if way.below and way.pieces > 1]
        rings: dict[CopyStream, Memory] = {}
        if ringed and self._gpu.batches and self._limits.batch_runs:
            least, most = max(ringed), max(ringed) * min(tier.blocks for tier in tiers)
            nbytes = min(max(least, self._limits.ring_bytes), most)
            rings = {lane: lane.ring(nbytes, self._limits.ring_parts) for lane in self._streams}
        atlas = AddressTables(self._gpu)
        for lane in self._streams:
            lane.chart(atlas)
        for name, way in ways.items():
            ring = rings.get(self._lanes[name[:2]])
            self._routes[name] = Transfer(self._gpu, way, ring, atlas, self._limits)
        atlas.unroll(up.stream, self._memory)
        for lane in self._streams:
            lane.settle(atlas.address)
        for route in self._routes.values():
            route.settle(atlas.address)

    def _jobs(self, pair: tuple[str, str], source: Tier, runs: int, blocks: int) -> list[Job]:
        """How each plane goes."""
        jobs: list[Job] = []
        for plane in source.layout.planes if blocks else ():
            route = self._routes[*pair, plane.name]
            layers = self._layers > 1 and pair == ("host", "device") and route.way.pieces > 1
            jobs.append((route, "layers" if layers else route.road(runs, blocks)))
        return jobs

    def _capturing(self) -> bool:
        """Whether the engine's stream is being captured; asked once a turn."""
        if self._captured is not None:
            return self._captured
        captured = self._gpu.capturing(self._device.stream)
        if self._turning:
            self._captured = captured
        return captured

    def _cut(self, task: Part) -> list[Part] | None:
        """Parts of a flight that is too long for the driver's queue; None for one that is not."""
        most, blocks = self._limits.queued_runs, len(task.sources)
        calls, runs = task.calls, task.runs
        if (calls <= CALLS and runs <= most) or blocks == 1:
            return None
        # While one is copied, the next is in the queue.
        return task.cut(max(int(blocks / max(calls / CALLS, runs / most)) // 2, 1))

    def _go_on(self, lane: CopyStream) -> bool:
        """Queues what is to come, as far as there is room; whether the device is there still."""
        if self._lost:
            lane.drop(Cause.LOST)
        if lane.later and self._capturing():
            return True
        while lane.later and not self._lost:
            part = lane.later[0]
            part.flight = self._begin(part)
            if part.flight is None:
                break
            # Unless the device was lost, and all that was to come with it.
            if lane.later:
                lane.later.popleft()
        return not self._lost

    def _begin(self, task: Part) -> Flight | None:
        """Queues a flight, or a part of one, if its lane has what it needs."""
        lane, blocks = task.lane, len(task.sources)
        tables = any(road in {"kernel", "ring", "layers"} for _, road in task.jobs)
        # The slots of both sides, behind the word that says where they begin.
        words = 2 * blocks + 1 if tables else 0
        flight = lane.take(blocks, words, task.calls, task.runs)
        if flight is not None:
            try:
                self._queue(flight, task)
            except GpuError as error:
                # Nobody will know when it has ended.
                self._lose(GpuError(error.name, "a copy", lost=True))
        return flight

    def _queue(self, flight: Flight, task: Part) -> None:
        """Queues a flight, behind what it must wait for, and its event behind it."""
        lane, sources, destinations = task.lane, task.sources, task.destinations
        try:
            lane.mark(task, flight.number)
            lane.order(self._device.stream, task.pair, sources, destinations)
            if flight.span[0] < flight.span[1]:
                lane.table(flight.span, task)
            for route, road in task.jobs:
                if road != "layers":
                    route.send(road, task)
            for part, event in enumerate(lane.parts):
                for route, road in task.jobs:
                    if road == "layers":
                        route.move(task, part, len(lane.parts))
                self._gpu.record(event, lane.stream)
        except GpuError as error:
            flight.failed = True
            self._lose(error)
        except BaseException as error:
            flight.failed = True
            _log.warning("a copy of %d blocks failed: %r", flight.blocks, error)
            if not isinstance(error, Exception):
                raise
        finally:
            # What was queued before an error has an end like any other, and only then it is over.
            lane.end(flight)

    def _fail(self, lane: CopyStream, error: GpuError) -> None:
        """Something was refused before anything was queued: what was to come has failed."""
        if error.lost:
            self._lose(error)
        elif lane.later:
            _log.warning("copies that were not queued yet failed: %s", error)
            lane.drop(Cause.FAILED)

    def _lose(self, error: GpuError) -> None:
        """An error of the driver: said, and if it is the last, everything in flight is lost."""
        if not error.lost:
            _log.warning("a copy failed: %s", error)
            return
        if not self._lost:
            self._lost = error.name
            _log.warning("the device is lost, and all that is in flight: %s", error)
        for lane in self._streams:
            lane.lose()

    def _free(self) -> None:
        for lane in self._streams:
            lane.free()
        freed(self._gpu, self._memory)
