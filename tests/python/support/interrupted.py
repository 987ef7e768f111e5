"""A program that is interrupted at any line of Blockyard's, and goes on."""

import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np

import blockyard as by
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.local_cache import LocalCache
from blockyard.scheduling.engine import Output, Step
from blockyard.scheduling.request import RequestState
from loop import continuation

LAYOUT = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=4)
SIZE = 4

_T = TypeVar("_T")
_PACKAGE = str(Path(by.__file__).parent)


class Interrupter:
    """Raises KeyboardInterrupt in Blockyard's code, as Ctrl-C may: at a line, or behind a call.

    Args:
        calls: Whether it counts calls of C that return, in place of lines: what they return is
            lost.
        timeout: Whether it raises a TimeoutError, as a signal handler may.
    """

    def __init__(self, *, calls: bool = False, timeout: bool = False) -> None:
        self.calls, self.timeout = calls, timeout
        self.left = self.times = 0
        self.where = ""
        self.passed: list[str] = []
        """What it has counted in the last call."""

    def during(self, lines: int, call: Callable[[], _T]) -> _T:
        """Makes a call, which is interrupted after that many lines, if it has so many."""
        self.left = lines
        self.passed.clear()
        before = signal.signal(signal.SIGUSR1, _time_out)
        if self.calls:
            sys.setprofile(self._profile)
        else:
            sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(None)
            sys.setprofile(None)
            signal.signal(signal.SIGUSR1, before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line":
            self._count(frame)
        return self._trace

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(_PACKAGE):
            self._count(frame)

    def _count(self, frame: FrameType) -> None:
        self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.passed.append(self.where)
        self.left -= 1
        if self.left < 0 and _is_finalized(frame):
            self.left = 0  # Python drops what is raised there: the next line outside is interrupted
        if self.left < 0:
            sys.settrace(None)
            sys.setprofile(None)
            self.times += 1
            if self.timeout:
                signal.raise_signal(signal.SIGUSR1)
            raise KeyboardInterrupt


def _is_finalized(frame: FrameType | None) -> bool:
    """Whether a frame is part of a `__del__`, which garbage collection may call at any line."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _time_out(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError


class Place(NamedTuple):
    """Where a call may be interrupted: before a line, or behind a call of C in it."""

    file: str
    line: int
    called: str
    """What of C was called; empty before the line."""
    time: int
    """How often it has been passed before."""


class Places:
    """Interrupts calls at places of some files of Blockyard's, one after the other.

    Args:
        folders: Files and folders below `blockyard/`; and of others the full names.
        times: At how many of the times that a call passes a place it is interrupted there.
    """

    def __init__(self, *folders: str, times: int = 1) -> None:
        self._files = tuple(str(Path(_PACKAGE) / one) for one in folders)
        self._times = times
        self._passed: Counter[tuple[str, int, str]] = Counter()
        self._wanted: Place | None = None
        self.found: set[Place] = set()
        """All places that calls have passed."""
        self._left: list[Place] = []
        self._raise: Callable[[], object] = _interrupt
        self.last: Place | None = None
        """Where it has interrupted last."""

    def each(self) -> Iterator[Place]:
        """Yields each place that the calls of `during` so far, and those meanwhile, have passed."""
        while self._left:
            yield self._left.pop()

    def during(
        self, call: Callable[[], object], at: Place | None, how: Callable[[], object] | None = None
    ) -> bool:
        """Makes a call; returns whether it was interrupted at that place.

        Args:
            call: The call.
            at: The place; None to make it undisturbed.
            how: What is done there; None to raise KeyboardInterrupt.
        """
        self._passed.clear()
        self._wanted, self._raise, self.last = at, how or _interrupt, None
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            call()
        except (KeyboardInterrupt, TimeoutError):
            if self.last is None:
                raise
        finally:
            sys.settrace(None)
            sys.setprofile(None)
        return self.last is not None

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        if event == "line":
            self._pass(frame, "")
        return self._trace

    def _profile(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(self._files):
            self._pass(frame, what.__name__)

    def _pass(self, frame: FrameType, called: str) -> None:
        at = frame.f_code.co_filename, frame.f_lineno, called
        place = Place(*at, self._passed[at])
        self._passed[at] += 1
        if place.time < self._times and place not in self.found:
            self.found.add(place)
            self._left.append(place)
        if place == self._wanted:
            sys.settrace(None)
            sys.setprofile(None)
            self.last = place
            self._raise()


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def alarm() -> Iterator[Callable[[], None]]:
    """Gives what lets a signal come whose handler raises, as a timeout's does."""

    def expired(*_: object) -> None:
        raise TimeoutError("alarm")

    before = signal.signal(signal.SIGUSR1, expired)
    try:
        yield lambda: signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def mark(tokens: tuple[int, ...]) -> int:
    """What the KV of a block is: it depends on all tokens up to its end."""
    return hash(tokens) % 251 + 1


class Bytes:
    """The device's memory: what is computed is written, and what is cached must be right."""

    def __init__(self, cache: LocalCache, device: MemoryTier) -> None:
        self.cache = cache
        self.raw = device.planes[0].reshape(device.blocks, -1)
        self.read = 0

    def check(self, lease: by.Lease, tokens: list[int], cached: int) -> None:
        table = self.cache.block_tables(lease)[0]
        for block in range(cached // SIZE):
            self.read += 1
            wanted = mark(tuple(tokens[: SIZE * (block + 1)]))
            assert (self.raw[table[block]] == wanted).all(), "a wrong byte was served"

    def write(self, lease: by.Lease, tokens: list[int], first: int, end: int) -> None:
        table = self.cache.block_tables(lease)[0]
        for block in range(first // SIZE, end // SIZE):
            self.raw[table[block]] = mark(tuple(tokens[: SIZE * (block + 1)]))


class Engine:
    """Computes real bytes, in order; a request ends by itself at some length, or at its limit."""

    def __init__(self, memory: Bytes, ends: dict[Hashable, int]) -> None:
        self.memory = memory
        self.ends = ends
        self.rows: dict[int, tuple[Hashable, int, list[int]]] = {}

    def reset(self) -> None:
        self.rows.clear()

    def compute(self, step: Step) -> Output:
        for stop in step.stops:
            self.rows.pop(stop.seat, None)
        starts = {start.seat: start for start in step.starts}
        seats, tokens, ended = [], [], []
        rows = [*step.decode.tolist(), *(chunk.seat for chunk in step.chunks)]
        for seat, start in starts.items():
            known = start.tokens.tolist()
            self.rows[seat] = start.request, len(known), known
        for at, seat in enumerate(rows):
            if seat not in self.rows:
                continue
            request, _, known = self.rows[seat]
            lease, first = step.leases[at], int(step.positions[at])
            if seat in starts:
                self.memory.check(lease, known, starts[seat].cached)
            end = first + int(step.counts[at])
            self.memory.write(lease, known, first, end)
            if end == len(known):
                known += continuation(request, end, 1)
                seats.append(seat)
                tokens.append(known[-1])
                ended.append(len(known) == self.ends[request])
                if ended[-1]:
                    del self.rows[seat]
        return Output(
            step.number,
            np.array(seats, np.int32),
            np.array(tokens, np.uint32),
            None,
            np.array(ended, np.bool_) if any(ended) else None,
        )


class Program:
    """A scheduler, a cache with real bytes and an engine, driven while it is interrupted."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        device = MemoryTier(LAYOUT, chance.choice((14, 18, 40)), name="device")
        host = MemoryTier(LAYOUT, chance.choice((12, 60)))
        self.cache = by.local(LAYOUT, memory=(device, host), ahead=chance.choice((0, 6)))
        options = by.SchedulerOptions(max_num_seqs=4, max_num_batched_tokens=24, stops="in-order")
        self.scheduler = by.Scheduler(self.cache, options)
        self.ends: dict[Hashable, int] = {}
        self.engine = Engine(Bytes(self.cache, device), self.ends)
        self.steps: deque[Step] = deque()
        self.wanted: dict[Hashable, tuple[list[int], int, int]] = {}
        self.found: dict[Hashable, list[int]] = {}
        self.interrupter = Interrupter()
        self.calls = 0
        shared = [chance.randrange(9) for _ in range(12)]
        for number in range(6):
            own = [100 * number + at for at in range(chance.randrange(1, 14))]
            self.wanted[number] = shared + own, chance.randrange(1, 9), chance.choice((1, 1, 2))

    # -- the calls, each of which may be interrupted -----------------------------------------

    def add(self, request: Hashable) -> None:
        prompt, most, n = self.wanted[request]
        samples = (request,) if n == 1 else ((request, 0), (request, 1))
        for at, sample in enumerate(samples):
            early = (hash((request, at)) % 3) == 0
            self.ends[sample] = len(prompt) + max(most - 2, 1) if early else 0
        self.results()
        there = any(self.scheduler.state(sample) or sample in self.found for sample in samples)
        if not there:
            self.scheduler.add(by.NewRequest(request, prompt, max_tokens=most, n=n))

    def schedule(self) -> None:
        self.steps.append(self.scheduler.schedule())

    def output(self) -> None:
        if self.steps:
            self.scheduler.on_output(self.engine.compute(self.steps.popleft()))

    def move(self) -> None:
        self.cache.step()

    def results(self) -> None:
        for result in self.scheduler.results():
            assert result.request not in self.found, "a request ended twice"
            assert result.state is RequestState.FINISHED, result
            self.found[result.request] = result.tokens.tolist()

    def reset(self) -> None:
        self.steps.clear()
        self.engine.reset()
        self.scheduler.reset()
        self.cache.reset()

    # -- the program -------------------------------------------------------------------------

    def call(self, verb: Callable[[], None]) -> bool:
        """Makes a call that may be interrupted; whether it was not."""
        try:
            self.interrupter.during(self.chance.randrange(900), verb)
        except KeyboardInterrupt:
            return False
        return True

    def mend(self) -> None:
        """What a user does after Ctrl-C: perhaps goes on first, and then resets."""
        if self.chance.random() < 0.3:
            try:
                self.scheduler.schedule()
                self.cache.step()
            except by.Misuse as error:
                if "call reset()" not in str(error):
                    raise
        while self.chance.random() < 0.3 and not self.call(self.reset):
            pass
        self.reset()

    def run(self, interrupts: int) -> None:
        waiting = list(self.wanted)
        while self.interrupter.times < interrupts and self.calls < 400:
            self.calls += 1
            verbs = [self.schedule, self.output, self.output, self.move, self.results]
            if self.chance.random() < 0.1:
                verbs = [self.reset]
            if waiting and self.chance.random() < 0.4:
                request = waiting.pop()
                verbs = [lambda request=request: self.add(request)]  # type: ignore[misc]
            for verb in verbs:
                if not self.call(verb):
                    waiting += [one for one in self.wanted if one not in waiting]
                    self.mend()
        self.end()

    def end(self) -> None:
        """Lets all end, and checks that nothing was lost or stands still, and that all is sound."""
        for request in self.wanted:
            self.add(request)
        for _ in range(20_000):
            self.schedule()
            while self.steps:
                self.output()
            self.move()
            self.results()
            if self.scheduler.idle:
                break
            if self.cache.blocks_in_flight() != (0, 0):
                time.sleep(1e-4)  # a worker may have to wait for this machine
        assert self.scheduler.idle, self.scheduler.stalled()
        for request, (prompt, most, n) in self.wanted.items():
            for sample in (request,) if n == 1 else ((request, 0), (request, 1)):
                count = self.ends[sample] - len(prompt) if self.ends[sample] else most
                assert self.found[sample] == continuation(sample, len(prompt), count)
        for _ in range(10_000):
            self.cache.step()
            if self.cache.blocks_in_flight() == (0, 0) and not self.cache.dispatched():
                break
            time.sleep(1e-4)
        assert self.cache.dispatched() == [], "a flight never ends"
        assert self.cache.crane.in_flight == 0
        assert self.cache.audit() is None
        assert [kind for kind, *_ in self.cache.holders()] == []
        self.cache.close()
