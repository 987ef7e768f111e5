"""A peer whose blocks NIXL reads, out of the prefill side's memory, into staging.

What NIXL writes it may write late: so it writes into staging and never into a slot, and staging is
free again when the read has ended by NIXL's own word, or with the process that has its agent.
"""

import math
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

import numpy as np

from blockyard._core import Peer
from blockyard._typing import NDArray, override
from blockyard.crane.tiers import nixl_process
from blockyard.crane.tiers.nixl_process import Reading
from blockyard.crane.tiers.nixl_source import GENERATION_ROOM, Described, needed_wheel
from blockyard.shared.log import Limited, described

__all__ = ["NixlPeer", "Reader", "Staging"]

_STAGING: Final = 64 << 20
"""Bytes of staging for a peer."""
_MOST: Final = 4096
"""Blocks that it has at most."""
_PARTS: Final = 4
"""So many reads fill it, at least."""
TOGETHER: Final = 8 << 20
"""Bytes that are read together at most, but one block in any case: the next ones are prepared
meanwhile."""
_LOOK: Final = 0.25
_STUCK: Final = 30.0
"""Seconds in which reads that were given up hold staging and none ends, after which the process of
the agent is ended, and with it all reads."""
_AGAIN: Final = 1.0
"""Seconds from a start of that process to the next one, and twice as many after each in vain,
up to `_DOUBLED` times."""
_DOUBLED: Final = 6
_VAIN: Final = 3
"""Starts in vain, one after the other, after which the peer rests until the next one."""
_PAGE: Final = 4096
_log = Limited("blockyard", 1.0)


class Staging:
    """Memory that is shared with the process that reads, and what of it is free.

    Args:
        blocks: How many fit.
        block_bytes: Bytes of each.
    """

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.blocks, self.block_bytes = blocks, block_bytes
        generations = -(-blocks * block_bytes // _PAGE) * _PAGE
        self.generations = generations
        """Where the room for generations begins."""
        self.nbytes = generations + blocks * GENERATION_ROOM
        self.file = os.memfd_create("blockyard-nixl", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, self.nbytes)
            self._bytes = np.frombuffer(mmap.mmap(self.file, self.nbytes), np.uint8)
        except BaseException:
            os.close(self.file)
            raise
        self.address = int(self._bytes.__array_interface__["data"][0])
        self._free = [(0, blocks)]

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return sum(count for _, count in self._free)

    def take(self, most: int) -> tuple[int, int]:
        """Takes up to `most` blocks side by side; returns the first, and how many."""
        at = max(range(len(self._free)), key=lambda at: min(self._free[at][1], most), default=None)
        if at is None:
            return 0, 0
        first, count = self._free[at]
        taken = min(count, most)
        self._free[at : at + 1] = [(first + taken, count - taken)] if count > taken else []
        return first, taken

    def give(self, first: int, count: int) -> None:
        """Gives blocks back."""
        every = sorted([*self._free, (first, count)])
        self._free = every[:1]
        for begin, length in every[1:]:
            before, size = self._free[-1]
            if before + size == begin:
                self._free[-1] = (before, size + length)
            else:
                self._free.append((begin, length))

    def words(self, first: int, index: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Returns generations that were read beside the block `first`."""
        begin = self.generations + first * GENERATION_ROOM
        end = begin + 8 * (int(index.max()) + 1)
        return self._bytes[begin:end].view(np.uint64)[index]

    def close(self) -> None:
        """Lets go of it: the other process may have it still."""
        os.close(self.file)
        self._bytes = np.empty(0, np.uint8)  # a view of none would keep it


class Reader(Protocol):
    """What reads into staging, by the words of `nixl_process.serve`."""

    link: Connection

    def end(self) -> None:
        """Ends it, and with it all that it reads; the link stays. Called again, it is done."""


class _Process:
    """NIXL's agent, in a process of its own."""

    def __init__(self, staging: Staging) -> None:
        module = needed_wheel()
        self.link, its = Pipe()
        command = [sys.executable, "-P", "-m", nixl_process.__name__, module]
        handed = [its.fileno(), staging.file]
        # Its modules are ours, and none that lie where the engine was started.
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [*command, *map(str, handed), str(os.getpid())],
                pass_fds=handed,
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except BaseException:
            self.link.close()
            raise
        finally:
            its.close()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class _Part(NamedTuple):
    """Some blocks of a flight, from its block `row` on, and which they are of a batch."""

    flight: int
    row: int
    at: int
    blocks: int


@dataclass(eq=False)
class _Batch:
    """Blocks that are read together, of any flights, and where in staging they are."""

    first: int
    count: int
    parts: list[_Part]
    """What of it was not landed."""
    index: NDArray[np.intp]
    words: NDArray[np.uint64] | None = None
    """The generations of its slots; None until the transport has ended it."""


@dataclass(eq=False)
class _Flight:
    number: int
    slots: NDArray[np.uint32]
    boot: int
    row: int = 0
    """The next block that is read."""


@dataclass
class _Life:
    """A process that reads, its staging, and what it reads: of one life of the prefill side."""

    reader: Reader
    staging: Staging
    told: tuple[int, bytes] | None = None
    """The life of the prefill side that it was told of, by its boot, and what that has said."""
    where: Described | None = None
    """What that has said of its memory; None where it makes no sense."""
    batches: dict[int, _Batch] = field(default_factory=dict)
    """Those whose staging is in use, by their numbers, in the order in which they were posted."""
    stuck: float = math.inf
    """Since when reads that were given up hold some of its staging, and none has ended."""

    def end(self) -> None:
        self.reader.end()
        self.reader.link.close()
        self.staging.close()


class NixlPeer(Peer):
    """A `Peer` whose blocks NIXL brings. Offers and leases go over its connection, as ever.

    It has a thread more, and a process that has NIXL's agent, from the first offer on that it
    takes. Where that process ends, or the transport fails, or the prefill side has another life,
    all that it was reading fails, its staging is left, and another one starts: no agent is told
    twice of one prefill side.

    Args:
        address: As in `Peer`; so are the others.
        block_bytes: As there.
        staging: Bytes of memory that blocks pass through. One block fits at least.
        start: What starts the reader.
        given: As in `Peer`.

    Raises:
        Unsupported: NIXL is not installed.
    """

    def __new__(  # noqa: D102 - it is the class's
        cls,
        address: str,
        *,
        block_bytes: int,
        staging: int = _STAGING,  # noqa: ARG004 - as in __init__
        start: Callable[[Staging], Reader] | None = None,
        **given: Any,  # noqa: ANN401 - as in Peer
    ) -> Self:
        if start is None:
            needed_wheel()
        return super().__new__(cls, address, block_bytes=block_bytes, carrier="nixl", **given)

    def __init__(
        self,
        address: str,
        *,
        block_bytes: int,
        staging: int = _STAGING,
        start: Callable[[Staging], Reader] | None = None,
        **_given: Any,  # noqa: ANN401 - as in Peer
    ) -> None:
        self._address, self._pid = address, os.getpid()
        self._blocks = min(max(staging // block_bytes, 1), _MOST)
        self._block_bytes = block_bytes
        self._start: Callable[[Staging], Reader] = start or _Process
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ends = False
        self._life: _Life | None = None
        self._next = -math.inf
        """When a process may be started: at once where none was."""
        self._vain = 0
        """Processes, one after the other, that have ended before they had read anything."""
        self._flights: list[_Flight] = []
        self._numbers = 0
        self._held = 0
        """Blocks of staging that reads hold whose flights have ended."""

    @override
    def take(self, *args: Any, **given: Any) -> None:  # noqa: ANN401 - as there
        """Asks for an offer, as `Peer.take`."""
        super().take(*args, **given)
        self._begin()

    @override
    def offer(self, *args: Any, **given: Any) -> None:  # noqa: ANN401 - as there
        """Tells it of an offer that another rank's has taken, as `Peer.offer`."""
        super().offer(*args, **given)
        self._begin()

    @override
    def shut(self, down: bool, now: float) -> bool:  # noqa: FBT001 - as there
        """Whether a flight would fail at once, as `Peer.shut`: also where staging is held."""
        return super().shut(down, now) or self._is_full or self._rests

    @override
    def state(self) -> Literal["well", "resting", "trying"]:
        """Returns what it is at, as `Peer.state`."""
        return "resting" if self._is_full or self._rests else super().state()

    @override
    def why(self) -> str:
        """Returns why it rests, as `Peer.why`."""
        if self._is_full:
            return f"{self.held_bytes} bytes of staging are held by reads that have not ended"
        return super().why()

    @property
    def held_bytes(self) -> int:
        """Bytes of staging that reads hold that were given up and have not ended."""
        return self._held * self._block_bytes

    @override
    def close(self, *, patience: float = 1.0) -> bool:
        """Ends all flights, and the process that reads, as `Peer.close`."""
        ended = super().close(patience=patience)
        if self._pid != os.getpid():
            return ended
        with self._lock:
            self._ends, thread = True, self._thread
        if thread is None:
            return ended
        os.eventfd_write(self.signal, 1)
        if (life := self._life) is not None:
            # Its thread may be at a process that hears nothing.
            life.reader.end()
        thread.join(patience)
        return ended and not thread.is_alive()

    @property
    def _is_full(self) -> bool:
        return 4 * self._held > 3 * self._blocks

    @property
    def _rests(self) -> bool:
        return self._life is None and self._vain >= _VAIN and time.monotonic() < self._next

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._ends:
                name = "blockyard-nixl"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    # -- its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ends:
                try:
                    self._turn()
                except Exception as error:  # noqa: BLE001 - no descriptor, or no memory: they come back
                    # A process that has ended may have said why.
                    if self._life is None or self._heard(self._life):
                        self._lose(described(error))
                    time.sleep(_LOOK)
        finally:
            life, self._life = self._life, None
            if life is not None:
                life.end()
            self._held = 0

    def _turn(self) -> None:
        life = self._life or self._live()
        links: list[Any] = [self.signal] if life is None else [self.signal, life.reader.link]
        waits: Any = wait(links, _LOOK)
        begun = self.begun()
        for number in begun:
            boots, slots, _ = self.wanted(number)
            if len(slots):
                one = boots == boots[0]
                rows = len(slots) if one.all() else int(one.argmin())
                self._flights.append(_Flight(number, slots[:rows], int(boots[0])))
        if life is None:
            return
        if life.reader.link in waits and not self._heard(life):
            return
        where = self._told(life)
        if where is None:
            return
        self._land(life, where)
        self._read(life, where)
        self._count(life)

    def _live(self) -> _Life | None:
        """Starts a process that reads, unless one was started just now, or nobody needs another."""
        now, is_first = time.monotonic(), self._next == -math.inf
        if now < self._next or not (is_first or self._flights or self.offering):
            return None
        try:
            life = self._life = self._started()
        finally:
            # Not before: it does not rest meanwhile.
            self._next = now + _AGAIN
        # Who hears nothing for so long was stopped.
        patience = struct.pack("ll", int(_STUCK), int(_STUCK % 1 * 1e6))
        with socket.socket(fileno=os.dup(life.reader.link.fileno())) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        return life

    def _started(self) -> _Life:
        staging = Staging(self._blocks, self._block_bytes)
        try:
            return _Life(self._start(staging), staging)
        except BaseException:
            staging.close()
            raise

    def _heard(self, life: _Life) -> bool:
        """Takes what the process has said; returns whether it goes on."""
        try:
            while life.reader.link.poll():
                word, what = life.reader.link.recv()
                if word == "failed":
                    self._lose(f"NIXL: {what}")
                    return False
                self._vain, life.stuck = 0, math.inf
                for number in what:
                    batch = life.batches[number]
                    batch.words = life.staging.words(batch.first, batch.index)
        except (EOFError, OSError):
            self._lose("the process that has NIXL's agent has ended")
            return False
        return True

    def _lose(self, why: str) -> None:
        """Ends the process: all that it reads has ended by that, and has failed."""
        life, self._life = self._life, None
        self._held = 0
        rest = _AGAIN * (2 ** min(self._vain, _DOUBLED) - 1)
        self._next = max(self._next, time.monotonic() + rest)
        self._vain += 1
        if life is not None:
            life.end()
        self._fail([] if life is None else life.batches.values(), why)

    def _fail(self, batches: Iterable[_Batch], why: str) -> None:
        """Fails what waits to be read, and the flights of what is read."""
        flights = {part.flight for batch in batches for part in batch.parts}
        flights |= {one.number for one in self._flights}
        self._flights = []
        if flights:
            _log.warning("%s: %s", self._address, why)
        for number in sorted(flights):
            self.fail(number, why)

    def _told(self, life: _Life) -> Described | None:
        """Tells the process of the prefill side, once; returns where that is, if it lives still."""
        memory = self.memory()
        if memory is None:
            return None
        boot, said = memory
        if life.told not in {None, memory}:
            # An agent that knows one life of it is not told of another.
            new = [one for one in self._flights if one.boot == boot]
            self._flights = [one for one in self._flights if one.boot != boot]
            self._lose("the prefill side was started again")
            self._flights, self._vain, self._next = new, 0, -math.inf
            return None
        if life.told is None:
            life.told, life.where = memory, Described.of(said, self._block_bytes)
            if life.where is not None:
                life.reader.link.send(("open", life.where.agent))
        if life.where is None:
            self._fail([], "the prefill side says wrongly where its memory is")
        return life.where

    def _land(self, life: _Life, described: Described) -> None:
        """Has what was read checked and copied, and frees its staging."""
        for number, batch in list(life.batches.items()):
            if batch.words is None:
                continue
            base, words = life.staging.address + batch.first * self._block_bytes, batch.words
            left = []
            for part in batch.parts:
                places = described.places(base, batch.count, part.at)
                if not self.land(*part[:2], places, words[part.at : part.at + part.blocks]):
                    left.append(part)
            batch.parts = left
            if not left:
                life.staging.give(batch.first, batch.count)
                del life.batches[number]

    def _read(self, life: _Life, described: Described) -> None:
        """Posts reads, as far as there is staging."""
        most = max(min(self._blocks // _PARTS, TOGETHER // self._block_bytes), 1)
        while self._wanting(life, described) is not None:
            first, room = life.staging.take(most)
            if not room:
                break
            parts, slots, count = list[_Part](), list[NDArray[np.uint32]](), 0
            while count < room and (flight := self._wanting(life, described)) is not None:
                wanted = flight.slots[flight.row : flight.row + room - count]
                parts.append(_Part(flight.number, flight.row, count, len(wanted)))
                slots.append(wanted)
                flight.row += len(wanted)
                count += len(wanted)
            if count < room:
                life.staging.give(first + count, room - count)
            if not parts:
                break  # all were given up meanwhile
            every = np.concatenate(slots)
            bytes_ = described.bytes_of(every, first * self._block_bytes)
            begin = life.staging.generations + first * GENERATION_ROOM
            words, index = described.generations_of(every, begin)
            self._numbers += 1
            life.batches[self._numbers] = _Batch(first, count, parts, index)
            life.reader.link.send(("read", Reading(self._numbers, bytes_, words)))

    def _wanting(self, life: _Life, described: Described) -> _Flight | None:
        """Returns the first flight of which something is to be read."""
        boot = 0 if life.told is None else life.told[0]
        while self._flights:
            flight = self._flights[0]
            if flight.row == len(flight.slots) or self.wait(flight.number, 0.0):
                self._flights.pop(0)
            elif flight.boot != boot or int(flight.slots.max()) >= described.blocks:
                self._flights.pop(0)
                self.fail(flight.number, "another prefill side answers there")
            else:
                return flight
        return None

    def _count(self, life: _Life) -> None:
        """Counts what is held, and ends a process of which none of that ends for too long."""
        reads = (batch for batch in life.batches.values() if batch.words is None)
        parts = (part for batch in reads for part in batch.parts)
        gone = [part for part in parts if self.wait(part.flight, 0.0)]
        self._held = sum(part.blocks for part in gone)
        now = time.monotonic()
        life.stuck = min(life.stuck, now) if gone else math.inf
        if now > life.stuck + _STUCK:
            self._lose(f"reads of {_STUCK:.0f} s ago have not ended")
