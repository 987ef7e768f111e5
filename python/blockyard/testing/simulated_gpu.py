"""A simulated GPU: streams, events, memory and the kernel, in ordinary memory and seeded order."""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np

from blockyard.crane.gpu import Addresses, Array, GpuError, Memory, Move, PitchedCopy
from blockyard.testing.gpu_memory import AddressSpace, Allocation

__all__ = ["SimulatedGpu"]

# Bytes copied between two steps of a copy: others' steps come between them.
_STEP = 1 << 14


class SimulatedGpu:
    """What `Gpu` asks for, without a GPU; in the worst order that the rules of CUDA allow.

    What is submitted to a stream is only queued. Whenever it is asked whether an event has come,
    some steps are taken, each of a stream chosen by the seed: streams overtake one another unless
    they wait, the runs of a batch are copied in any order, and tables are read as late as possible.
    An address that is neither allocated nor registered, a call outside `with`, and a record or wait
    on a stream that is being captured, are errors. There is one copy engine each way over the link,
    which does one copy after the other, of all streams. No kernel begins beside a `product`. A call
    whose runs find no place in the queue of their stream blocks until they do, and is counted.

    Args:
        seed: Seed of the order.
        batches: Whether it has the call that copies many runs.
        memory: Bytes of device memory.
        pins: Bytes of host memory that can be pinned.
        eager: Steps taken per question; 0 for none, so that nothing moves until `run`.
        entries: Runs of batches that a stream queues.
        kernel: Makes a move, instead of this; it gets what the kernel would.
    """

    device = None

    def __init__(  # noqa: PLR0913 - keywords
        self,
        seed: int = 0,
        *,
        batches: bool = True,
        memory: int = 1 << 30,
        pins: int = 1 << 30,
        eager: int = 8,
        entries: int = 1024,
        kernel: Callable[[Move], object] | None = None,
    ) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - it need not be hard to guess
        self.batches = batches
        self.space = AddressSpace(memory, pins)
        self._eager = eager
        self._entries = entries
        self._queued: Counter[int] = Counter()
        # The copies of each engine that have come to the head of their stream, in that order.
        self._engines: dict[str, deque[object]] = {"down": deque(), "up": deque()}
        self._products = 0
        self._kernel = kernel
        self._inside = 0
        self._ids = iter(range(1 << 40, 1 << 41))
        self._streams: dict[int, deque[Iterator[bool]]] = {0: deque()}
        # Of each event: how often it was recorded, and which of these records has come.
        self._records: dict[int, int] = {}
        self._come: dict[int, int] = {}
        self._capturing: set[int] = set()
        self._stuck: set[int] = set()
        self._widths: set[int] = set()
        self._failing: dict[str, tuple[str, bool, int]] = {}
        self._gone = ""
        self.calls: Counter[str] = Counter()
        """Native calls by name; what is made is "allocate"."""
        self.blocked = 0
        """Steps that calls have waited for, with the interpreter's lock held."""

    def __enter__(self) -> Self:
        """Allows calls."""
        if not self._inside:
            self.calls["enter"] += 1
            self._check("enter")
        self._inside += 1
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Restores what was before."""
        self._inside -= 1

    # For tests.

    def compute(self, work: Callable[[], object], stream: int = 0) -> None:
        """Submits the engine's own work to its stream."""
        self._queue(stream, self._once(work))

    def product(self, steps: int, stream: int = 0) -> None:
        """Submits a matrix product of that many steps, which leaves no room for a kernel."""
        self._queue(stream, self._multiply(steps))

    def hang(self, stream: int) -> None:
        """Makes the stream stop here, until `release`."""
        self._queue(stream, self._hold(stream))
        self._stuck.add(stream)

    def release(self) -> None:
        """Lets all stopped streams go on."""
        self._stuck.clear()

    def fail(
        self,
        call: str,
        name: str = "CUDA_ERROR_INVALID_VALUE",
        *,
        lost: bool = False,
        after: int = 0,
    ) -> None:
        """Makes one such call fail, after `after` that do not; with `lost` all later ones, too."""
        self._failing[call] = name, lost, after

    def lose(self, name: str = "CUDA_ERROR_DEINITIALIZED") -> None:
        """Loses the device: from now on every call fails."""
        self._gone = name
        for queue in self._streams.values():
            queue.clear()
        for engine in self._engines.values():
            engine.clear()
        self._queued.clear()

    @contextmanager
    def capture(self, stream: int = 0) -> Iterator[None]:
        """Captures a graph from this stream."""
        self._capturing.add(stream)
        try:
            yield
        finally:
            self._capturing.remove(stream)

    def run(self, steps: int = -1) -> bool:
        """Takes that many steps, or all that can be taken; returns whether any was taken."""
        taken = False
        while steps:
            steps -= 1
            ready = [stream for stream, queue in self._streams.items() if queue]
            self._chance.shuffle(ready)
            if not any(self._step(stream) for stream in ready):
                break
            taken = True
        return taken

    @property
    def held(self) -> int:
        """Bytes allocated and pinned, and streams and events made, and not given back."""
        return self.space.held + len(self._streams) - 1 + len(self._records)

    # The protocol `Gpu`.

    def allocate(self, nbytes: int) -> Memory:
        """Allocates device memory."""
        self._call("allocate")
        return self.space.allocate(nbytes, self._freed)

    def view(self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Returns a NumPy array."""
        assert isinstance(memory, Allocation)  # noqa: S101 - only `allocate` makes any
        return np.ndarray(shape, np.uint8, memory.array, 0, strides)

    def owns(self, address: int) -> bool:
        """Whether it was allocated, or registered, which is the same here."""
        self._call("owns")
        return self.space.owns(address)

    def register(self, address: int, nbytes: int) -> None:
        """Pins host memory."""
        self._call("allocate")
        self.space.register(address, nbytes)

    def unregister(self, address: int) -> None:
        """Unpins it."""
        self._call("free")
        self._idle("pinned memory")
        self.space.unregister(address)

    def node(self) -> int | None:
        """Returns None: it is near no node."""
        return None

    def stream(self) -> int:
        """Makes a stream."""
        self._call("allocate")
        self._streams[stream := next(self._ids)] = deque()
        return stream

    def event(self) -> int:
        """Makes an event."""
        self._call("allocate")
        event = next(self._ids)
        self._records[event] = self._come[event] = 0
        return event

    def discard(self, stream: int, events: list[int]) -> None:
        """Gives a stream and its events back; once more it does nothing, as CUDA's."""
        self._call("free")
        assert not self._streams.pop(stream, ())  # noqa: S101 - so it would be with CUDA's, unnoticed
        for event in events:
            self._records.pop(event, None)
            self._come.pop(event, None)

    def prepare(self, width: int) -> None:
        """Makes the kernel for moves of this width ready."""
        self._call("allocate")
        self._widths.add(width)

    def record(self, event: int, stream: int) -> None:
        """Records an event, as CUDA does."""
        self._call("record", stream)
        self._records[event] = number = self._records[event] + 1
        self._queue(stream, self._once(lambda: self._come.__setitem__(event, number)))

    def wait(self, stream: int, event: int) -> None:
        """Makes a stream wait, as CUDA does."""
        self._call("wait", stream)
        number = self._records[event]
        self._queue(stream, self._until(lambda: self._come.get(event, number) >= number))

    def ended(self, event: int) -> bool:
        """Whether the event has come; takes some steps first."""
        self._call("ended")
        self.run(self._chance.randint(0, self._eager))
        return self._come[event] == self._records[event]

    def capturing(self, stream: int) -> bool:
        """Whether a graph is being captured from this stream."""
        self._call("capturing")
        return stream in self._capturing

    def copy(self, to: Addresses, from_: Addresses, sizes: Addresses, stream: int) -> None:
        """Copies as CUDA does: tables are read now, bytes later, runs in any order."""
        self._call("copy", stream)
        assert self.batches and len(to) == len(from_) == len(sizes)  # noqa: S101, PT018
        runs = list(zip(to.tolist(), from_.tolist(), sizes.tolist(), strict=True))
        self._chance.shuffle(runs)
        self._submit(stream, runs, len(runs))

    @property
    def batches_blocks(self) -> bool:
        """Whether it has `copy_blocks`: wherever it has `copy`."""
        return self.batches

    def copy_blocks(self, blocks: PitchedCopy[Addresses], stream: int) -> None:
        """Copies many blocks, as CUDA does."""
        self._call("copy_blocks", stream)
        assert self.batches  # noqa: S101
        _, to_pitch, _, from_pitch, width, rows = blocks
        runs = []
        for to, from_ in zip(blocks.to.tolist(), blocks.from_.tolist(), strict=True):
            block = PitchedCopy(to, to_pitch, from_, from_pitch, width, rows)
            runs += _rows(block, "cuMemcpy3DBatchAsync")
        self._chance.shuffle(runs)
        self._submit(stream, runs, len(blocks.to))

    def copy_run(self, to: int, from_: int, nbytes: int, stream: int) -> None:
        """Copies one run, as CUDA does."""
        self._call("copy_run", stream)
        self._submit(stream, [(to, from_, nbytes)], 1)

    def copy_rows(self, rows: PitchedCopy[int], stream: int) -> None:
        """Copies the rows of one block, as CUDA does."""
        self._call("copy_rows", stream)
        self._submit(stream, _rows(rows, "cuMemcpy2DAsync"), 1)

    def move(self, move: Move, stream: int) -> None:
        """Moves as the kernel does."""
        self._call("move", stream)
        assert move.width in self._widths and move.groups > 0  # noqa: S101, PT018
        self._queue(stream, self._launch(move))

    def occupy(self, nanoseconds: int, stream: int) -> None:
        """Submits a product of a step for each microsecond."""
        self._call("occupy", stream)
        self._queue(stream, self._multiply(max(nanoseconds // 1000, 1)))

    def settle(self) -> None:
        """Runs until every stream is empty."""
        self._call("settle")
        if self._capturing:
            raise GpuError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "settle")
        self.run()

    def synchronize(self, stream: int) -> None:
        """Runs until the stream is empty."""
        self._call("synchronize")
        while self._streams[stream]:
            if not self.run(1):
                raise AssertionError("it would never return: a stream hangs")

    def _call(self, name: str, stream: int | None = None) -> None:
        assert self._inside, f"{name} outside `with`"  # noqa: S101
        self.calls[name] += 1
        self._check(name)
        if stream in self._capturing:
            raise GpuError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", name)

    def _check(self, name: str) -> None:
        if self._gone:
            raise GpuError(self._gone, name, lost=True)
        if name in self._failing:
            error, lost, after = self._failing.pop(name)
            if after:
                self._failing[name] = error, lost, after - 1
                return
            if lost:
                self.lose(error)
            raise GpuError(error, name, lost=lost)

    def _submit(self, stream: int, runs: list[tuple[int, int, int]], entries: int) -> None:
        """Queues a copy; blocks while there is no place for all of it."""
        self._queued[stream] += entries
        self._queue(stream, self._transfer(stream, runs, entries))
        while self._queued[stream] > max(self._entries, 0):
            self.blocked += 1
            if not self.run(1):
                raise AssertionError("a call never returns, with the interpreter's lock held")

    def _transfer(
        self, stream: int, runs: list[tuple[int, int, int]], entries: int
    ) -> Iterator[bool]:
        """Copies by the engine of this direction, in its turn."""
        ends = [self.space.on_device(end) for end in runs[0][:2]] if runs else [True, True]
        engine = self._engines["up" if ends[0] else "down"] if ends[0] != ends[1] else deque()
        turn = object()
        engine.append(turn)
        while engine[0] is not turn:
            yield False
        yield from self._carry(runs)
        engine.popleft()
        self._queued[stream] -= entries

    def _multiply(self, steps: int) -> Iterator[bool]:
        self._products += 1
        for _ in range(steps):
            yield True
        self._products -= 1

    def _queue(self, stream: int, work: Iterator[bool]) -> None:
        self._streams[stream].append(work)

    def _step(self, stream: int) -> bool:
        """Takes one step of a stream; returns whether it could be taken."""
        queue = self._streams[stream]
        try:
            return next(queue[0])
        except StopIteration:
            queue.popleft()
            return True

    def _freed(self, address: int) -> None:
        if self.space.allocated(address):
            self._idle("memory")
            self.space.free(address)

    def _idle(self, what: str) -> None:
        assert not any(self._streams.values()), f"{what} freed while streams work"  # noqa: S101

    @staticmethod
    def _once(work: Callable[[], object]) -> Iterator[bool]:
        work()
        # It has ended with its only step.
        yield from ()

    @staticmethod
    def _until(come: Callable[[], bool]) -> Iterator[bool]:
        while not come():
            yield False

    def _hold(self, stream: int) -> Iterator[bool]:
        return self._until(lambda: stream not in self._stuck)

    def _carry(self, runs: list[tuple[int, int, int]]) -> Iterator[bool]:
        parts = (
            (to + first, from_ + first, min(_STEP, size - first))
            for to, from_, size in runs
            for first in range(0, size, _STEP)
        )
        for number, (to, from_, size) in enumerate(parts):
            if number:
                yield True
            self.space.copy(to, from_, size)

    def _launch(self, move: Move) -> Iterator[bool]:
        while self._products:
            yield False
        if self._kernel is not None:
            self._kernel(move)
            return
        tables = move.from_pieces, move.to_pieces
        from_, to = (self.space.table(at, move.pieces, np.uint64) for at in tables)
        places = [(block, piece) for block in range(move.blocks) for piece in range(move.pieces)]
        self._chance.shuffle(places)
        for number, (block, piece) in enumerate(places):
            if number:
                yield True
            here, there = (
                self.space.table(at, move.blocks, np.uint32)[block] if at else block
                for at in (move.from_slots, move.to_slots)
            )
            ends = (
                int(to[piece]) + int(there) * move.to_stride,
                int(from_[piece]) + int(here) * move.from_stride,
            )
            assert not any(end % move.width for end in (*ends, move.piece_bytes))  # noqa: S101
            yield from self._carry([(*ends, move.piece_bytes)])


def _rows(block: PitchedCopy[int], call: str) -> list[tuple[int, int, int]]:
    """Each row of a block as a run: where it goes, where it is, and its bytes."""
    if min(block.to_pitch, block.from_pitch) < block.width:
        raise GpuError("CUDA_ERROR_INVALID_VALUE", call)
    return [
        (block.to + row * block.to_pitch, block.from_ + row * block.from_pitch, block.width)
        for row in range(block.rows)
    ]
