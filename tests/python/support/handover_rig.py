"""A prefill and a decode engine in one process, over real sockets, and what may come between."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import blockyard as by
from blockyard._core import Ticket
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.offer import Offer
from blockyard.handover.prefill_side import PrefillSide
from blockyard.yard.asking import Asking
from disks import LAYOUT, OURS, value

SIZE = LAYOUT.block_size
BLOCK = LAYOUT.block_bytes
PATIENCE = 60.0
"""Seconds: a busy machine is no fault."""


def until(done: Callable[[], object], step: Callable[[], object] = lambda: None) -> None:
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "it never came"
        step()
        time.sleep(1e-3)


def gives_up_now(decoder: "Decoder") -> None:
    """Lets the copies that are under way be late at once."""
    flights = decoder.cache.crane.remote.copier._flights
    flights.patience, flights._due = 1e-9, 0.0


def peer_of(cache: Any) -> Any:
    """The only peer of a cache."""
    (peer,) = cache.crane.remote.peers
    return peer


def staged(peer: Any) -> int:
    """How many blocks have staging, of a peer whose blocks NIXL reads."""
    life = peer._life
    return 0 if life is None else sum(batch.count for batch in list(life.batches.values()))


class Relay:
    """A connection passes through it, and what P sends is cut off or held when the test says so."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.passed = 0
        """Bytes that P has sent."""
        self.most = float("inf")
        """How many of them go through before it holds the rest."""
        self._links: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listening.accept()
                host, _, port = self.target.rpartition(":")
                try:
                    its = socket.create_connection((host, int(port)))
                except OSError:
                    ours.close()
                    continue
                self._links += [ours, its]
                for ends in ((ours, its, False), (its, ours, True)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                while data:
                    most = len(data)
                    if counts:
                        while self.passed >= self.most:
                            if self._closed:
                                return
                            time.sleep(1e-3)
                        most = int(min(most, self.most - self.passed))
                        self.passed += most
                    sink.sendall(data[:most])
                    data = data[most:]
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Ends all connections that pass through it."""
        links, self._links = self._links, []
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            # To close it alone wakes nobody who accepts.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()


class Prefiller:
    """A cache that computes prompts, and its side."""

    def __init__(self, *, device: int = 40, **more: Any) -> None:
        self.cache: Any = by.local(LAYOUT, device=device, namespace=OURS)
        self.side = PrefillSide(self.cache, self.cache.crane.device, **more)

    def computes(self, talk: int, blocks: int = 4) -> Offer:
        """Computes a prompt of full blocks, and offers it."""
        plane = self.cache.crane.device.planes[0]
        with_tokens = range(100 * talk, 100 * talk + SIZE * blocks)
        lease = self.cache.begin(with_tokens)
        until(lambda: lease.state != "loading", self.cache.step)
        table = self.cache.block_tables(lease)[0]
        for block in range(blocks):
            plane[table[block]] = value(talk, block)
        self.cache.seal(lease, SIZE * blocks)
        held = self.cache.hold(self.cache.keys(with_tokens))
        self.cache.finish(lease)
        offer = self.side.offer(held)
        assert offer is not None
        return offer

    def recycles(self) -> None:
        """Writes others into all slots that are not held."""
        for talk in range(500, 520):
            with suppress(by.NoRoom):
                lease = self.cache.begin(range(100 * talk, 100 * talk + 4 * SIZE))
                table = self.cache.block_tables(lease)[0]
                self.cache.crane.device.planes[0][table] = 251
                self.cache.seal(lease, 4 * SIZE)
                self.cache.finish(lease)

    def close(self) -> None:
        self.side.close()
        assert self.cache.audit() is None
        self.cache.close()


class Decoder:
    """A cache that takes prompts over, and what a scheduler would do with it."""

    def __init__(
        self, *peers: str, layout: by.KVLayout = LAYOUT, device: int = 40, **more: Any
    ) -> None:
        self.cache: Any = by.local(
            layout, device=device, peers=list(peers), **({"namespace": OURS} | more)
        )
        side = self.cache.decode_side
        assert isinstance(side, DecodeSide)
        self.side = side
        self.asking = Asking([self.cache], side)

    def keys(self, talk: int, blocks: int = 4) -> by.Keys:
        keys: by.Keys = self.cache.keys(range(100 * talk, 100 * talk + SIZE * blocks + 1))
        return keys

    def adopts(self, name: Any, talk: int, offer: Any, blocks: int = 4) -> Ticket:
        """Brings a request as far as its begin."""
        ticket = self.side.reserve(name, SIZE * blocks + 1, SIZE, patience=PATIENCE)
        assert ticket is not None
        self.side.offered(name, offer)
        until(lambda: self.asking.take(name, self.keys(talk, blocks)) is not None)
        return ticket

    def begins(self, talk: int, ticket: Ticket | None = None, blocks: int = 4) -> by.Lease:
        lease: by.Lease = self.cache.begin(self.keys(talk, blocks), ticket=ticket)
        self.cache.step()
        return lease

    def lands(self, lease: by.Lease) -> None:
        until(lambda: lease.state != "loading", self.cache.step)

    def checked(self, talk: int, lease: by.Lease) -> int:
        """Returns how many blocks were found, each of which has its bytes."""
        self.lands(lease)
        plane = self.cache.crane.device.planes[0]
        table = self.cache.block_tables(lease)[0]
        found = -(-lease.cached // SIZE)
        for block in range(found):
            assert (plane[table[block]] == value(talk, block)).all(), (talk, block)
        return found

    def takes(self, name: Any, talk: int, offer: Any, blocks: int = 4) -> int:
        """Takes a prompt over, from its room to its end; returns how many blocks have come."""
        lease = self.begins(talk, self.adopts(name, talk, offer, blocks), blocks)
        found = self.checked(talk, lease)
        self.side.over(name)
        self.cache.finish(lease)
        return found

    def close(self) -> None:
        assert self.cache.audit() is None
        self.cache.close()


@contextmanager
def pair(*, carrier: str = "tcp", **more: Any) -> Iterator[tuple[Prefiller, Decoder, Relay]]:
    """A prefiller and a decoder, with a relay between them."""
    with ExitStack() as opened:
        relay = Relay()
        opened.callback(relay.close)
        one = Prefiller(advertise=relay.address, carrier=carrier, **more)
        opened.callback(one.close)
        relay.target = one.side.listens
        other = Decoder(relay.address, carrier=carrier)
        opened.callback(other.close)
        yield one, other, relay
