"""A simulated carrier of hand-overs: its messages are late, lost, doubled or overtaken."""

import ctypes
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from blockyard._typing import NDArray
from blockyard.crane.tiers.peers import TakenOffer

__all__ = ["AT", "Block", "Road", "SimulatedPeer", "SimulatedPeers"]

AT: Final = "127.0.0.1:7000"
"""The address of the prefill side, in every life of it."""
_TIMEOUT: Final = 6
"""Ticks after which a peer that does not answer has failed."""
_FAILURES: Final = 3
_REST: Final = 8
_KEY: Final = 32


class Message(NamedTuple):
    """What one side says to the other, and to whom it answers."""

    to: str
    by: str
    word: str
    what: tuple[Any, ...]


class Block(NamedTuple):
    """A block as it was read: its bytes may be those of two blocks."""

    slot: int
    generation: int
    """As it was offered."""
    data: bytes
    sum: int
    now: int
    """The slot's generation after the last byte was read."""


class Road:
    """Brings messages, each to its fate; without one it takes a tick.

    Args:
        seen: Where it counts.
    """

    def __init__(self, seen: Counter[str]) -> None:
        self.seen = seen
        self.now = 0
        self.fates: deque[tuple[str, int]] = deque()
        """The fates of the next messages: "late", "lost" or "twice", and ticks."""
        self.dones: deque[tuple[str, int]] = deque()
        """Those of the next that say that an offer is done."""
        self.muted = 0
        """The tick until which nothing is renewed, as the machine is busy."""
        self.spoilt = 0
        """Of so many blocks that come next a bit is flipped."""
        self._air: list[tuple[int, int, Message]] = []
        self._sent = 0

    def send(self, to: str, by: str, word: str, *what: Any) -> None:  # noqa: ANN401 - of the word
        """Sends a message."""
        if word == "renew" and self.now < self.muted:
            self.seen["handover renewal late"] += 1
            return
        fates = self.dones if word == "done" and self.dones else self.fates
        fate, ticks = fates.popleft() if fates else ("", 0)
        if fate:
            self.seen[f"handover message {fate}"] += 1
            self.seen[f"handover {word} {fate}"] += 1
        message = Message(to, by, word, what)
        self._sent += 1
        if fate != "lost":
            late = ticks if fate == "late" else 0
            self._air.append((self.now + 1 + late, self._sent, message))
        if fate == "twice":
            self._air.append((self.now + 1 + ticks, self._sent, message))

    def come(self, to: str) -> list[Message]:
        """Returns what has come for somebody."""
        due = sorted(one for one in self._air if one[0] <= self.now and one[2].to == to)
        if due:
            self._air = [one for one in self._air if one not in due]
        return [message for *_, message in due]

    def drop(self, of: str) -> None:
        """Loses what is under way from and to somebody who is gone."""
        self._air = [one for one in self._air if of not in {one[2].to, one[2].by}]


class _Known(NamedTuple):
    """What an offer has, as far as it is known here."""

    boot: int
    keys: list[bytes]
    slots: list[int]
    generations: list[int]
    reader: int


class _Wanted(NamedTuple):
    id: bytes
    at: int
    known: _Known


@dataclass(slots=True)
class _Flight:
    """Blocks that are received."""

    wanted: list[_Wanted]
    planes: Sequence[tuple[NDArray[np.uint64], int, int]]
    slots: list[int]
    since: int
    good: int
    why: str
    """Why no more than the good ones."""
    come: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Take:
    id: bytes
    boot: int
    keys: list[bytes]
    reader: int
    since: int
    is_wanted: bool = True


class SimulatedPeer:
    """Does what a `Peer` and its thread do, by ticks; it has the interface of that.

    Args:
        road: What carries its messages.
        name: Whom answers are for.
        readers: Returns the number of the next reader.
    """

    def __init__(self, road: Road, name: str, readers: Callable[[], int]) -> None:
        self._road, self._readers, self.name = road, readers, name
        self._takes: dict[int, _Take] = {}
        self._known: dict[bytes, _Known] = {}
        self._leases: dict[tuple[bytes, int], tuple[int, int]] = {}
        """When each lease is to be renewed next, and how often."""
        self._answers: list[tuple[int, int, str]] = []
        self._flights: dict[int, _Flight] = {}
        self._landed: list[tuple[int, int, str]] = []
        self._rung = 0
        self._number = 0
        self._failures = 0
        self._rests = 0
        self._hung = 0
        """Until when it rests as it did not answer."""
        self._closed = False
        self.timeout = _TIMEOUT
        """Ticks after which what it has asked for has failed."""
        self.late_bytes = 0
        """Blocks that came for flights that had ended."""

    # -- the interface of `Peer` -----------------------------------------------------------------

    def take(
        self,
        number: int,
        id: bytes,  # noqa: A002 - as the binding
        boot: int,
        keys: NDArray[np.uint8],
        _now: float,
    ) -> None:
        """Asks for an offer."""
        if self._closed or self._is_resting:
            self._answers.append((number, 0, "failed"))
            return
        take = _Take(id, boot, _split(keys), self._readers(), self._road.now)
        self._takes[number] = take
        self._say("take", id, boot, take.reader, number)

    def taken(self) -> list[tuple[int, int, str]]:
        """Returns what has become of takes."""
        found, self._answers = self._answers, []
        return found

    def blocks(
        self,
        id: bytes,  # noqa: A002 - as the binding
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint64], int] | None:
        """Returns what is known of an offer."""
        known = self._known.get(id)
        if known is None:
            return None
        return (
            np.frombuffer(b"".join(known.keys), np.uint8).reshape(-1, _KEY),
            np.array(known.slots, np.uint32),
            np.array(known.generations, np.uint64),
            known.reader,
        )

    def offer(  # noqa: PLR0913, PLR0917 - as the binding
        self,
        id: bytes,  # noqa: A002
        boot: int,
        keys: NDArray[np.uint8],
        slots: NDArray[np.uint32],
        generations: NDArray[np.uint64],
        reader: int,
    ) -> None:
        """Is told of an offer that another rank has taken."""
        where = slots.tolist(), generations.tolist()
        self._learn(id, _Known(boot, _split(keys), *where, reader), 1)

    def has(self, keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns which keys offers here have."""
        every = {key for known in self._known.values() for key in known.keys}
        return np.array([key in every for key in _split(keys)], np.bool_)

    def shut(self, down: bool, now: float) -> bool:  # noqa: ARG002, FBT001 - as the binding
        """Returns whether it rests."""
        self._road.seen["race 16 nothing can be asked"] += self._is_resting and bool(self._known)
        self._road.seen["race 21 no read begins"] += self._road.now < self._hung
        return down or self._is_resting or self._closed

    def submit_up(
        self,
        keys: NDArray[np.uint8],
        planes: Sequence[tuple[NDArray[np.uint64], int, int]],
        destinations: NDArray[np.uint32],
        _now: float,
    ) -> int:
        """Begins to receive blocks."""
        number, self._number = self._number, self._number + 1
        wanted: list[_Wanted] = []
        for key in _split(keys):
            one = self._wanted(key)
            if one is None:
                break
            wanted.append(one)
        why = "" if len(wanted) == len(keys) else "missing"
        if self._closed or self._is_resting:
            wanted, why = [], "given up" if self._closed else "failed"
        if not wanted:
            self._report(number, 0, why)
            return number
        slots = destinations.tolist()
        flight = _Flight(wanted, planes, slots, self._road.now, len(wanted), why)
        self._flights[number] = flight
        for row, one in enumerate(wanted):
            self._say("read", one.id, one.known.reader, one.at, (number, row))
        return number

    def look(self, _now: float) -> int:
        """Returns how many have ended: it is a `Bell`, too."""
        return self._rung

    def poll(self, _now: float) -> list[tuple[int, int, str]]:
        """Returns the flights that have ended."""
        found, self._landed = self._landed, []
        return found

    def give_up(self, number: int, *, late: bool = False) -> None:
        """Touches the memory of a flight no more."""
        flight = self._flights.pop(number, None)
        if flight is None:
            return
        self._report(number, 0, "given up")
        if late:
            self._road.seen["handover flight late"] += 1
            self._note(good=False)

    def done(self, id: bytes) -> None:  # noqa: A002 - as the binding
        """Needs an offer no more."""
        self._leave(id, "done")

    def refuse(self, id: bytes, _why: str) -> None:  # noqa: A002
        """Does not take an offer, or needs it no more."""
        if not self._leave(id, "refuse") and not self._closed and not self._is_resting:
            self._say("refuse", id, self._readers())

    def state(self) -> str:
        """Returns whether it is left alone."""
        return "resting" if self._is_resting else "well"

    def stats(self) -> dict[str, int]:
        """Returns what the tier asks for."""
        names = ("blocks", "bytes", "stale", "corrupt", "failed")
        return dict.fromkeys(names, 0) | {"in_flight": len(self._flights)}

    def why(self) -> str:
        """Returns why it is left alone."""
        return "it does not answer"

    def close(self, *, patience: float) -> bool:  # noqa: ARG002 - as the binding
        """Receives nothing more."""
        for number in list(self._flights):
            self.give_up(number)
        for id_, reader in self._leases:
            self._say("done", id_, reader)
        self._leases.clear()
        self._closed = True
        return True

    # -- its thread ------------------------------------------------------------------------------

    def turn(self) -> None:
        """Takes what has come, gives up what is late, and renews its leases."""
        if self._closed:
            return
        for message in self._road.come(self.name):
            self._hear(message)
        now = self._road.now
        for number, take in list(self._takes.items()):
            if number in self._takes and now > take.since + self.timeout:
                del self._takes[number]
                self._answers.append((number, 0, "failed"))
                self._note(good=False)
        for number, flight in list(self._flights.items()):
            if number in self._flights and now > flight.since + self.timeout:
                self._end(number, self._leading(flight), "failed")
                self._note(good=False)
        for (id_, reader), (due, every) in list(self._leases.items()):
            if now >= due:
                self._leases[id_, reader] = now + every, every
                self._say("renew", id_, reader)

    def broken(self) -> None:
        """Its connection has ended: what was asked on it fails."""
        self._road.drop(self.name)
        asked = bool(self._takes or self._flights)
        for number in list(self._takes):
            del self._takes[number]
            self._answers.append((number, 0, "failed"))
        for number, flight in list(self._flights.items()):
            self._end(number, self._leading(flight), "failed")
        if asked:
            self._note(good=False)

    def rest(self, ticks: int) -> None:
        """Is left alone for so many ticks."""
        self._rests = self._road.now + ticks
        self.broken()

    @property
    def is_idle(self) -> bool:
        """Whether no offer is open here and nothing was asked."""
        return not (self._known or self._leases or self._takes or self._flights)

    @property
    def open(self) -> dict[bytes, int]:
        """The offers that are open here, with the number of the reader."""
        return {id_: known.reader for id_, known in self._known.items()}

    @property
    def flying(self) -> int:
        """Flights that have not ended."""
        return len(self._flights)

    def _say(self, word: str, *what: Any) -> None:  # noqa: ANN401 - of the word
        self._road.send(AT, self.name, word, *what)

    def _hear(self, message: Message) -> None:
        word, what = message.word, message.what
        if word == "blocks":
            self._told(*what)
        elif word == "gone":
            number, id_, why = what
            take = self._takes.pop(number, None)
            if take is not None:
                self._road.seen[f"handover take {why}"] += 1
                self._answers.append((number, 0, why))
            self._gone(id_)
        elif word == "block":
            self._came(*what)
        else:
            (number, row), id_ = what
            self._gone(id_)
            self._road.seen["race 1 before"] += number in self._flights
            self._cut(number, row, "missing")

    def _told(
        self,
        number: int,
        boot: int,
        keys: list[bytes],
        where: tuple[list[int], list[int]],
        lease: int,
    ) -> None:
        take = self._takes.pop(number, None)
        self._note(good=True)
        if take is None:
            # It was given up, or this is an answer that has come twice.
            return
        blocks = 0
        while blocks < min(len(keys), len(take.keys)) and keys[blocks] == take.keys[blocks]:
            blocks += 1
        if not take.is_wanted or not blocks:
            self._road.seen["handover abandoned take"] += not take.is_wanted
            self._answers.append((number, 0, "other keys" if take.is_wanted else "given up"))
            self._say("refuse", take.id, take.reader)
            return
        slots, generations = where
        known = _Known(boot, keys[:blocks], slots[:blocks], generations[:blocks], take.reader)
        self._learn(take.id, known, max(lease // 3, 1))
        self._answers.append((number, blocks, ""))

    def _learn(self, id_: bytes, known: _Known, every: int) -> None:
        self._known[id_] = known
        self._leases[id_, known.reader] = self._road.now + every, every

    def _gone(self, id_: bytes) -> None:
        self._known.pop(id_, None)
        for lease in [lease for lease in self._leases if lease[0] == id_]:
            del self._leases[lease]

    def _leave(self, id_: bytes, word: str) -> bool:
        """Ends an offer here; returns whether there was one, or a take of it was out."""
        known = self._known.pop(id_, None)
        if known is not None:
            self._leases.pop((id_, known.reader), None)
            self._say(word, id_, known.reader)
            return True
        for take in self._takes.values():
            if take.id == id_ and take.is_wanted:
                take.is_wanted = False
                return True
        return False

    def _wanted(self, key: bytes) -> _Wanted | None:
        for id_, known in self._known.items():
            if key in known.keys:
                return _Wanted(id_, known.keys.index(key), known)
        return None

    def _came(self, place: tuple[int, int], block: Block) -> None:
        """Writes a block that has come, and then looks at what was said of it."""
        number, row = place
        flight = self._flights.get(number)
        if flight is None:
            self.late_bytes += 1
            self._road.seen["handover late bytes"] += 1
            return
        if row >= flight.good or row in flight.come:
            return
        flight.since = self._road.now
        data = block.data
        if self._road.spoilt:
            self._road.spoilt -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        _write(flight, row, data)
        known, at = flight.wanted[row].known, flight.wanted[row].at
        offered = known.slots[at], known.generations[at]
        if (block.slot, block.generation) != offered or block.now != offered[1]:
            self._road.seen["handover stale"] += 1
            self._cut(number, row, "missing")
        elif block.sum != zlib.crc32(data):
            self._road.seen["handover corrupt"] += 1
            self._cut(number, row, "corrupt")
        else:
            self._note(good=True)
            flight.come.add(row)
            self._settle(number)

    def _cut(self, number: int, row: int, why: str) -> None:
        flight = self._flights.get(number)
        if flight is not None and row < flight.good:
            flight.good, flight.why = row, why
            self._settle(number)

    def _settle(self, number: int) -> None:
        flight = self._flights[number]
        if self._leading(flight) >= flight.good:
            self._end(number, flight.good, flight.why)

    @staticmethod
    def _leading(flight: _Flight) -> int:
        return next((row for row in range(flight.good) if row not in flight.come), flight.good)

    def _end(self, number: int, good: int, why: str) -> None:
        flight = self._flights.pop(number)
        self._road.seen["handover blocks landed"] += good
        self._road.seen["race 1 good before stale"] += bool(good and why == "missing")
        self._report(number, good, why if good < len(flight.slots) else "")

    def _report(self, number: int, good: int, why: str) -> None:
        self._landed.append((number, good, why))
        self._rung += 1

    def _note(self, *, good: bool) -> None:
        self._failures = 0 if good else self._failures + 1
        if self._failures >= _FAILURES:
            self._failures = 0
            self._hung = self._road.now + _REST
            self._road.seen["race 21 the peer rests"] += 1
            self.rest(_REST)

    @property
    def _is_resting(self) -> bool:
        return self._road.now < self._rests


class SimulatedPeers:
    """The peers of a rank, as `Peers`: there is one prefill side.

    Args:
        peer: What is at its address.
    """

    def __init__(self, peer: SimulatedPeer) -> None:
        self.peer = self.bell = peer

    def __len__(self) -> int:
        """Returns how many there are."""
        return 1

    def __iter__(self) -> Iterator[SimulatedPeer]:
        """Yields it."""
        yield self.peer

    def offering(self) -> Iterator[SimulatedPeer]:
        """Yields it, as it may have offers."""
        yield self.peer

    def get(self, address: str) -> SimulatedPeer | None:
        """Returns what is at an address."""
        return self.peer if address == AT else None

    def has(self, keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Returns which keys offers here have."""
        return self.peer.has(keys)

    def tell(self, offer: TakenOffer) -> None:
        """Is told of an offer that another rank has taken."""
        where = offer.keys, offer.slots, offer.generations
        self.peer.offer(offer.id, offer.boot, *where, offer.reader)

    def end(self, _at: str, number: bytes) -> None:
        """Reads no more of it."""
        self.peer.done(number)

    def stats(self) -> dict[str, int]:
        """Returns what the tier asks for."""
        return self.peer.stats() | {"resting": int(self.peer.state() != "well"), "held_bytes": 0}

    def troubles(self) -> tuple[str, ...]:
        """Says nothing."""
        return ()

    def close(self, patience: float) -> bool:
        """Ends it."""
        return self.peer.close(patience=patience)


def _split(keys: NDArray[np.uint8]) -> list[bytes]:
    return [row.tobytes() for row in keys]


def _write(flight: _Flight, row: int, data: bytes) -> None:
    """Writes a block where its flight wants it."""
    slot, at = flight.slots[row], 0
    for pieces, stride, size in flight.planes:
        for piece in pieces.tolist():
            if piece:
                ctypes.memmove(piece + slot * stride, data[at : at + size], size)
            at += size
