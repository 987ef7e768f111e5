"""Copies between a GPU and pinned memory, on streams of its own.

Every copy waits for what the engine's stream was given before it: KV that is still being written
is copied whole, and a slot that is still being read is not overwritten. It also waits for earlier
copies the other way that touch its slots. What the engine's stream is given later waits for
nothing by itself: call `join` before a step that reads what is still coming up, or wait until the
yard reports that it has landed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Literal, Protocol

from blockyard._core import Misuse, Unavailable, Unsupported, consecutive
from blockyard.crane.copiers import Landed, Pair, Receipt, Slots
from blockyard.crane.copiers.copy_method import Addressing, AddressTables, Method
from blockyard.crane.copiers.copy_stream import CALLS, CopyPart, CopyStream, GpuStream, QueuedCopy
from blockyard.crane.copiers.transfer import Transfer
from blockyard.crane.gpu import Gpu, GpuError, Memory, Places, address_of, freed
from blockyard.crane.tiers import Tier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.log import Limited
from blockyard.shared.owner import Owner, broke_in, owned
from blockyard.shared.plan import Cause
from blockyard.shared.single import Single
from blockyard.shared.validate import integer

__all__ = ["CudaCopier", "Placed"]

Job = tuple[Transfer, Method | Literal["layers"]]
_log = Limited("blockyard")


class Placed(Tier, Protocol):
    """A tier that a GPU reaches by address."""

    @property
    def gpu(self) -> Gpu:
        """The GPU."""

    @property
    def places(self) -> tuple[Places, ...]:
        """Where each plane of the layout is."""


class GpuTier(Placed, Protocol):
    """Such a tier on the GPU itself."""

    @property
    def stream(self) -> int:
        """The stream on which the engine computes."""


class CudaCopier(Single):
    """Copies down and up on a stream each, and within the device on the one that goes up.

    It makes all device and pinned memory, streams and events at construction; afterwards it
    allocates nothing, and a copy costs a few calls of the driver for every thousand blocks. What
    the driver would make the caller wait for is queued later, when the receipt is polled. While
    the engine's stream is being captured into a graph, `start` takes nothing: copies in flight go
    on, and new ones begin after the capture. Its verbs and its receipts are for one thread at a
    time: a call that comes during another one is refused.

    Args:
        device: The device tier; copies wait for its `stream`.
        host: The tier below, pinned for the same GPU, whatever its name; None for none.
        copy_tuning: How copies are best made.
        depth: Most copies in flight each way; `start` then returns None.
        layers: The number of parts in which KV comes up where a block has several pieces, so that
            `join` can wait for the first layers. Each part is an equal share of the
            pieces, in the layout's order or that of adopted tensors (K and V of layer 0, then of
            layer 1, …). With 1 it comes as a whole, which is faster.
        streams: The streams up and down, which copiers of other groups of layers share; None for
            two of its own.

    Raises:
        Misuse: The tiers are not of one GPU, or a number is out of range.
        Unavailable: There is not enough memory.
    """

    def __init__(  # noqa: PLR0913 - keywords
        self,
        device: GpuTier,
        host: Placed | None = None,
        *,
        copy_tuning: CopyTuning | None = None,
        depth: int = 64,
        layers: int = 1,
        streams: tuple[GpuStream, GpuStream] | None = None,
    ) -> None:
        depth = integer("depth", depth)
        layers = integer("layers", layers)
        if host is not None and host.gpu is not device.gpu:
            raise Misuse("the tiers are of two GPUs: give both the same gpu=")
        self._device = device
        self._gpu = device.gpu
        self._limits = CopyTuning() if copy_tuning is None else copy_tuning
        self._layers = layers
        self._closed = self._ended = False
        self._lost = ""
        self._memory: list[Memory] = []
        self._transfers: dict[tuple[str, str, str], Transfer] = {}
        self._streams: list[CopyStream] = []
        self._by_pair: dict[Pair, CopyStream] = {}
        self._up: Pair = ("device" if host is None else host.name), "device"
        self._owner = Owner()
        self._turning = 0
        """The thread that has a turn; 0 for none."""
        self._captured: bool | None = None
        """Whether a graph is being captured; None where this turn has not asked yet."""
        for plane in device.layout.planes:
            if layers > 1 and plane.pieces > 1 and plane.pieces % layers:
                raise Misuse(
                    f"layers = {layers}: plane {plane.name!r} has {plane.pieces} pieces a block, "
                    "which do not divide into so many parts"
                )
        try:
            with self._gpu:
                on = streams or (GpuStream(self._gpu), GpuStream(self._gpu))
                self._open([device] if host is None else [device, host], depth, on)
        except GpuError as error:
            self._free()
            raise Unavailable(f"copies cannot be set up: {error}") from error
        except BaseException:
            self._free()
            raise

    @property
    def copy_tuning(self) -> CopyTuning:
        """How copies are made."""
        return self._limits

    @owned
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        """Queues a copy; returns None when too much is in flight, or during a capture."""
        if self._closed:
            raise Misuse("the copier is closed")
        if self._lost:
            raise Unavailable(f"the device is lost ({self._lost}): restart the process")
        pair = source.name, destination.name
        stream = self._by_pair.get(pair)
        if stream is None:
            raise Unsupported(f"no copies from {pair[0]} to {pair[1]} here")
        jobs = self._jobs(pair, source, consecutive(sources, destinations), len(sources))
        task = CopyPart(stream, pair, sources, destinations, jobs)
        receipt: Receipt | None = None
        try:
            with self._gpu:
                coming = [one for one in self._streams if one.later]
                alive = all(map(self._go_on, coming))
                if not alive or stream.later or stream.coming(pair, sources, destinations):
                    return None
                if self._capturing():
                    return None
                cut = self._cut(task)
                if cut is not None:
                    receipt = _Parts(stream, cut, self.go_on)
                    self._keep_on(stream)
                else:
                    receipt = self._begin(task)
        except GpuError as error:
            self._fail(stream, error)
            if receipt is None:
                what = "the device is lost" if error.lost else "the copy was refused"
                raise Unavailable(f"{what}: {error}") from error
        return receipt

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lets all calls until the end share what the driver is asked once."""
        self._captured = None
        if self._turning or self._lost or self._closed:
            yield
            return
        try:
            self._gpu.__enter__()
        except GpuError as error:
            self._lose(GpuError(error.name, "a turn", lost=True))
            yield
            return
        try:
            self._turning = get_ident()
            yield
        finally:
            self._turning = 0
            try:
                self._gpu.__exit__(None, None, None)
            except GpuError as error:
                self._lose(GpuError(error.name, "a turn", lost=True))

    @owned
    def go_on(self, stream: CopyStream) -> None:
        """Queues parts that were taken and not queued yet, as far as there is room."""
        self._keep_on(stream)

    def _keep_on(self, stream: CopyStream) -> None:
        if stream.later and not self._closed:
            try:
                with self._gpu:
                    self._go_on(stream)
            except GpuError as error:
                self._fail(stream, error)
            except Exception as error:
                if broke_in(error):
                    # What is in the queue ends, and the rest goes on with the next call.
                    raise
                # It fails what is to come, never the caller.
                _log.warning("copies that were not queued yet failed: %r", error)
                stream.drop(Cause.FAILED)

    @owned
    def join(self, stream: object = None, *, layer: int | None = None) -> bool:
        """Makes the engine's stream wait for copies that were started up or within the device.

        One call before a step is enough. For a captured graph it comes before the launch. It knows
        what was started, not what a crane still holds back: call `Crane.join` for that.

        Args:
            stream: The stream that waits; None for the device tier's.
            layer: The last of the `layers` parts to wait for, from 0; None for all.

        Returns:
            Whether the stream waits for all of them; False if some are not queued yet.

        Raises:
            Misuse: The stream is being captured, or there is no such part.
            GpuError: The driver refused.
        """
        waiting = self._device.stream if stream is None else address_of(stream)
        if layer is not None and not 0 <= layer < self._layers:
            raise Misuse(f"layer = {layer}: KV comes in parts 0 to {self._layers - 1}")
        return self._wait("join", waiting, self._by_pair["device", "device"], layer)

    @owned
    def fence(self, stream: object = None) -> bool:
        """Makes the engine's stream wait for copies that were started down.

        One call is enough before a step that writes slots which they read.

        Args:
            stream: As in `join`.

        Returns:
            As `join`.

        Raises:
            Misuse: The stream is being captured.
            GpuError: The driver refused.
        """
        waiting = self._device.stream if stream is None else address_of(stream)
        down = self._by_pair.get(self._up[::-1])
        up = self._by_pair["device", "device"]
        return down is None or down is up or self._wait("fence", waiting, down)

    def _wait(self, verb: str, waiting: int, stream: CopyStream, layer: int | None = None) -> bool:
        with self._gpu:
            if self._gpu.capturing(waiting):
                raise Misuse(f"{verb} while a graph is captured: call it before its launch")
            self._go_on(stream)
            stream.record_ends()
            if stream.queued:
                whole = layer is None or not stream.parts
                event = stream.queued[-1].event if whole else stream.parts[layer or 0]
                self._gpu.wait(waiting, event)
        return not stream.later

    @owned
    def reset(self) -> None:
        """Waits until every queued copy has ended; those not queued yet have failed."""
        if not self._ended:
            self._end()

    def _end(self) -> None:
        self._turning = 0
        for stream in self._streams:
            stream.drop(Cause.FAILED)
            try:
                with self._gpu:
                    stream.record_ends()
                    stream.synchronize()
            except GpuError as error:
                self._lose(GpuError(error.name, "a stream", lost=True))
            stream.sweep()

    @owned
    def close(self) -> None:
        """Waits until every copy has ended, then gives back all memory, streams and events.

        Where it is interrupted, call it again.
        """
        self._closed = True
        if not self._ended:
            self._end()
        self._ended = True
        self._free()

    def _open(self, tiers: list[Placed], depth: int, on: tuple[GpuStream, GpuStream]) -> None:
        named = {tier.name: tier for tier in tiers}
        most = self._limits.queued_runs
        make = partial(CopyStream, runs=most, lose=self._lose, owner=self._owner)
        up = make(on[0], tiers, depth, parts=self._layers)
        self._streams.append(up)
        self._by_pair["device", "device"] = up
        if len(tiers) > 1:
            self._by_pair[self._up] = up
            down = make(on[1], tiers, depth, parts=1)
            self._streams.append(down)
            self._by_pair[self._up[::-1]] = down
            down.other, up.other = up, down
        addressings = {}
        for pair in self._by_pair:
            source, destination = (named[name] for name in pair)
            apart = self._layers > 1 and pair == self._up
            for index, plane in enumerate(source.layout.planes):
                places = source.places[index], destination.places[index]
                addressing = Addressing.between(*places, plane.piece_bytes, pair, apart=apart)
                addressings[*pair, plane.name] = addressing
        ringed = [one.block_bytes for one in addressings.values() if one.below and one.pieces > 1]
        rings: dict[CopyStream, Memory] = {}
        if ringed and self._gpu.batches and self._limits.batch_runs:
            least, most = max(ringed), max(ringed) * min(tier.blocks for tier in tiers)
            nbytes = min(max(least, self._limits.ring_bytes), most)
            parts = self._limits.ring_parts
            rings = {stream: stream.ring(nbytes, parts) for stream in self._streams}
        tables = AddressTables(self._gpu)
        for stream in self._streams:
            stream.add_tables(tables)
        for name, addressing in addressings.items():
            ring = rings.get(self._by_pair[name[:2]])
            self._transfers[name] = Transfer(self._gpu, addressing, ring, tables, self._limits)
        tables.upload(up.handle, self._memory)
        for stream in self._streams:
            stream.bind(tables.address)
        for transfer in self._transfers.values():
            transfer.bind(tables.address)

    def _jobs(self, pair: Pair, source: Tier, runs: int, blocks: int) -> list[Job]:
        """Returns how each plane is copied."""
        jobs: list[Job] = []
        layers = self._layers > 1 and pair == self._up
        for plane in source.layout.planes if blocks else ():
            transfer = self._transfers[*pair, plane.name]
            layered = layers and transfer.addressing.pieces > 1
            jobs.append((transfer, "layers" if layered else transfer.method(runs, blocks)))
        return jobs

    def _capturing(self) -> bool:
        """Whether the engine's stream is being captured; the driver is asked once a turn."""
        mine = self._turning == get_ident()
        if mine and self._captured is not None:
            return self._captured
        captured = self._gpu.capturing(self._device.stream)
        if mine:
            self._captured = captured
        return captured

    def _cut(self, task: CopyPart) -> list[CopyPart] | None:
        """Returns parts of a copy that is too long for the driver's queue; None otherwise."""
        most, blocks = self._limits.queued_runs, len(task.sources)
        calls, runs = task.calls, task.runs
        if (calls <= CALLS and runs <= most) or blocks == 1:
            return None
        # While one is copied, the next is in the queue.
        return task.cut(max(int(blocks / max(calls / CALLS, runs / most)) // 2, 1))

    def _go_on(self, stream: CopyStream) -> bool:
        """Queues waiting parts, as far as there is room; returns whether the device works."""
        if self._lost:
            stream.drop(Cause.LOST)
        if stream.later and self._capturing():
            return True
        while stream.later and not self._lost:
            part = stream.later[0]
            if not part.is_queued and self._begin(part) is None:
                break
            # Where the device was lost, there are no parts any more.
            if stream.later:
                stream.later.popleft()
        return not self._lost

    def _begin(self, task: CopyPart) -> QueuedCopy | None:
        """Queues a copy, or a part of one, if its stream has room."""
        tables = any(method in {"kernel", "ring", "layers"} for _, method in task.jobs)
        for stream in self._streams:
            stream.record_ends()
        # The slots of both sides, behind a word with their position.
        copy = task.stream.take(task, 2 * len(task.sources) + 1 if tables else 0)
        if copy is not None:
            try:
                self._queue(copy, task)
            except GpuError as error:
                # Its end cannot be observed.
                self._lose(GpuError(error.name, "a copy", lost=True))
        return copy

    def _queue(self, copy: QueuedCopy, task: CopyPart) -> None:
        """Queues a copy, behind what it must wait for, and its event behind it."""
        stream, sources, destinations = task.stream, task.sources, task.destinations
        try:
            stream.mark(task, copy.number)
            stream.order(self._device.stream, task.pair, sources, destinations)
            if copy.span[0] < copy.span[1]:
                stream.table(copy.span, task)
            for transfer, method in task.jobs:
                if method != "layers":
                    transfer.send(method, task)
            for part, event in enumerate(stream.parts):
                for transfer, method in task.jobs:
                    if method == "layers":
                        transfer.move(task, part, len(stream.parts))
                self._gpu.record(event, stream.handle)
            copy.failed = False
        except GpuError as error:
            self._lose(error)
        except BaseException as error:
            _log.warning("a copy of %d blocks failed: %r", copy.blocks, error)
            if broke_in(error):
                raise
        finally:
            # What was queued before an error still runs: the copy ends behind it.
            stream.end(copy)

    def _fail(self, stream: CopyStream, error: GpuError) -> None:
        """Fails the waiting parts, after a call was refused before anything was queued."""
        if error.lost:
            self._lose(error)
        elif stream.later:
            _log.warning("copies that were not queued yet failed: %s", error)
            stream.drop(Cause.FAILED)

    def _lose(self, error: GpuError) -> None:
        """Logs an error of the driver; after one that ends the device, all copies are lost."""
        if not error.lost:
            _log.warning("a copy failed: %s", error)
            return
        if not self._lost:
            self._lost = error.name
            _log.warning("the device is lost, with all copies in flight: %s", error)
        for stream in self._streams:
            stream.lose()

    def _free(self) -> None:
        for stream in self._streams:
            stream.free()
        freed(self._gpu, self._memory)


class _Parts:
    """The receipt for all parts of a copy.

    Args:
        stream: Where they are queued, with nothing else between them.
        parts: All of them, in order.
        go_on: Is called to queue more of them, where there is room.
    """

    def __init__(
        self, stream: CopyStream, parts: Sequence[CopyPart], go_on: Callable[[CopyStream], object]
    ) -> None:
        self._stream = stream
        self._go_on = go_on
        self._parts = parts
        self._ended = self._good = 0
        """Parts that have ended, and the leading good blocks of them."""
        self._cause: Cause | None = None
        for number, part in enumerate(parts, stream.last + 1):
            # A copy the other way with a common slot waits for it, though it is not queued yet.
            stream.mark(part, number)
        stream.later.extend(parts)

    def poll(self) -> Landed | None:
        """Returns how they have ended, once all have; the leading good blocks count."""
        self._go_on(self._stream)
        while self._ended < len(self._parts):
            landed = self._parts[self._ended].poll()
            if landed is None:
                return None
            good, cause = self._good, self._cause
            if landed.cause is Cause.LOST:
                good, cause = 0, Cause.LOST
            elif cause is None:
                good, cause = good + landed.good, landed.cause
            # At once, so that each counts once whatever interrupts.
            self._good, self._cause, self._ended = good, cause, self._ended + 1
        return Landed(self._good, self._cause)
