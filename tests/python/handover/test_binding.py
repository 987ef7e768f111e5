"""Offers, their server and a peer, as Python has them: over loopback, with a yard's own holds."""

import ctypes
import os
import resource
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._core import Misuse, Offers, OfferServer, Peer, Unavailable
from blockyard.crane.copiers.lane_flights import Place, memory_places
from blockyard.crane.tiers.memory import MemoryTier

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=16)
BLOCKS = 9
FIELDS = {"model": "Llama", "dtype": "float16"}
SECRET = b"what both of them know"
SOON = 20.0


def places(tier: MemoryTier) -> list[Place]:
    return [place for plane in memory_places(tier, "the other side") for place in plane]


class Side:
    """A prefill side: a yard with a prompt of four blocks, and what it offers."""

    def __init__(self, **options: Any) -> None:
        self.cache = by.KVCache(device=BLOCKS)
        self.memory = MemoryTier(LAYOUT, BLOCKS, name="device")
        for plane in self.memory.planes:
            plane[...] = np.random.default_rng(1).integers(0, 256, plane.shape, np.uint8)
        self.keys = self.cache.keys(np.arange(64))
        lease = self.cache.begin(self.keys)
        self.cache.seal(lease, 64)
        self.cache.finish(lease)
        self.offers = Offers()
        self.id = os.urandom(16)
        given: dict[str, Any] = {
            "boot": self.cache.boot,
            "name": "P",
            "fields": FIELDS,
            "planes": [places(self.memory)],
            "blocks": BLOCKS,
        }
        self.server = OfferServer(self.offers, "127.0.0.1:0", **{**given, **options})

    def offer(self) -> Any:
        held = self.cache.hold(self.keys)
        assert held is not None
        self.offers.offer(self.id, held, time.monotonic())
        return held

    def peer(self, **options: Any) -> Peer:
        given: dict[str, Any] = {
            "boot": 7,
            "name": "D",
            "fields": FIELDS,
            "rank": 0,
            "block_bytes": LAYOUT.block_bytes,
        }
        return Peer(self.server.address, **{**given, **options})

    def close(self) -> None:
        assert self.server.close(patience=SOON)
        self.offers.end_all("closed")


@pytest.fixture
def side() -> Iterator[Side]:
    with closing(Side()) as made:
        yield made


def taken(peer: Peer, side: Side, keys: Any) -> tuple[int, int, str]:
    peer.take(1, side.id, side.cache.boot, keys, 0.0)
    end = time.monotonic() + SOON
    while not (answers := peer.taken()):
        assert time.monotonic() < end, "no answer"
        time.sleep(1e-3)
    return answers[0]


def landed(peer: Peer, number: int) -> tuple[int, int, str]:
    assert peer.wait(number, SOON)
    return peer.poll(0.0)[0]


def until(so: Any) -> None:
    end = time.monotonic() + SOON
    while not so():
        assert time.monotonic() < end, "it is not so"
        time.sleep(1e-3)


def test_the_bytes_of_held_blocks_land_in_the_slots_that_are_named(side: Side) -> None:
    held, peer = side.offer(), side.peer(secret=None)
    assert taken(peer, side, held.keys) == (1, 4, "")
    assert peer.has(np.vstack([held.keys[2:], np.full((1, 32), 9, np.uint8)])).tolist() == [
        True,
        True,
        False,
    ]
    memory = MemoryTier(LAYOUT, 6, name="host")
    number = peer.submit_up(held.keys, places(memory), [5, 0, 3, 2], 0.0)
    assert landed(peer, number) == (number, 4, "")
    for mine, theirs in zip(memory.planes, side.memory.planes, strict=True):
        assert (mine[[5, 0, 3, 2]] == theirs[held.slots]).all()
        assert not mine[[1, 4]].any()
    keys, slots, generations, reader = peer.blocks(side.id) or pytest.fail("it is open")
    assert (keys == held.keys).all()
    assert (slots == held.slots).all()
    assert (generations == held.generations).all()
    other = side.peer()
    other.offer(side.id, side.cache.boot, keys, slots, generations, reader)
    number = other.submit_up(held.keys[1:], places(memory), [1, 4, 0], 0.0)
    assert landed(other, number)[1:] == (3, "")
    assert side.server.stats()["sent_blocks"] == 7
    assert peer.stats()["got_bytes"] == 4 * LAYOUT.block_bytes
    peer.done(side.id)
    until(lambda: not held.is_held)
    assert side.offers.stats()["offers_ended_by_done"] == 1
    assert side.cache.stats()["held_blocks"] == 0
    assert peer.blocks(side.id) is None
    assert peer.close(patience=SOON)
    assert other.close(patience=SOON)


@pytest.mark.parametrize("verb", ["clear", "forget"])
def test_a_yard_that_clears_ends_its_offers_and_the_reader_learns_why(
    side: Side, verb: str
) -> None:
    held, peer = side.offer(), side.peer()
    keys = held.keys
    assert taken(peer, side, keys) == (1, 4, "")
    if verb == "clear":
        side.cache.clear()
    else:
        side.cache.forget(side.keys)
    assert not held.is_held
    memory = MemoryTier(LAYOUT, 4, name="host")
    number = peer.submit_up(keys, places(memory), range(4), 0.0)
    assert landed(peer, number)[1:] == (0, "missing")
    assert not any(plane.any() for plane in memory.planes)
    assert side.offers.stats()["offers_ended_by_cleared"] == 1
    assert taken(peer, side, keys) == (1, 0, "cleared")
    assert peer.state() == "well"


def test_offers_end_by_the_time_that_they_are_told(side: Side) -> None:
    offers, one, other = Offers(lease=3, unread=7), os.urandom(16), os.urandom(16)
    first, second = side.cache.hold(side.keys), side.cache.hold(side.keys, 2)
    assert first is not None
    assert second is not None
    generation = int(first.generations[0])
    offers.offer(one, first, 100.0)
    offers.offer(other, second, 101.0)
    told: Any = offers.take(one, 5, 102.0, first=1)
    keys, slots, generations, lease = told
    assert (len(keys), lease) == (3, 3.0)
    assert (slots == first.slots[1:]).all()
    assert (generations == first.generations[1:]).all()
    offers.renew(one, 5, 104.0)
    assert offers.sweep(106.9) == 0
    holding: list[Any] = [row[1:] for row in offers.holding()]
    assert holding == [
        (4, pytest.approx(6.9), 1, pytest.approx(0.1)),
        (2, pytest.approx(5.9), 0, pytest.approx(1.1)),
    ]
    assert offers.sweep(107.0) == 1
    assert (first.is_held, second.is_held) == (False, True)
    assert offers.take(one, 6, 107.0) == "ended"
    third = side.cache.hold(side.keys)
    assert third is not None
    # Slots that the other offer holds have the generation of before.
    assert [int(number) - generation for number in third.generations] == [0, 0, 1, 1]
    assert offers.end_oldest() == other
    assert offers.end(other, "room") is False
    stats = offers.stats()
    assert stats["offers_ended_by_lease"] == stats["offers_ended_by_room"] == 1
    assert stats["offers_held"] == stats["offer_blocks_held"] == 0


def test_an_offer_that_was_promised_is_to_be_had_soon(side: Side) -> None:
    now, keys = time.monotonic(), np.frombuffer(bytes(side.keys), np.uint8).reshape(-1, 32)
    side.offers.promise(side.id, now)
    with pytest.raises(Misuse, match="open already"):
        side.offers.promise(side.id, now)
    assert side.offers.is_promised(side.id)
    assert side.offers.take(side.id, 1, now) == "soon"
    with closing(side.peer()) as peer:
        peer.take(1, side.id, side.cache.boot, keys, now)
        assert answered(peer) == [(1, 0, "soon")]
        side.offer()
        assert not side.offers.is_promised(side.id)
        peer.take(1, side.id, side.cache.boot, keys, now)
        assert answered(peer) == [(1, 4, "")]
        peer.done(side.id)
    assert side.offers.stats()["offers_made"] == 1


@pytest.mark.parametrize("how", ["refused", "ended", "unread", "all ended"])
def test_a_promise_ends_as_an_offer_does(side: Side, how: str) -> None:
    now = time.monotonic()
    side.offers.promise(side.id, now)
    if how == "refused":
        side.offers.refuse(side.id, 1, now)
    elif how == "ended":
        assert side.offers.end(side.id, "room")
    elif how == "unread":
        assert side.offers.sweep(now + 59) == 0
        assert side.offers.sweep(now + 61) == 1
    else:
        assert side.offers.end_all("closed") == 1
    assert not side.offers.is_promised(side.id)
    assert side.offers.take(side.id, 1, now) in {"ended", "no room"}
    name = {"refused": "done", "ended": "room", "unread": "unread", "all ended": "closed"}[how]
    assert side.offers.stats()[f"offers_ended_by_{name}"] == 1


def answered(peer: Peer) -> list[tuple[int, int, str]]:
    """What has become of a take, when that is known."""
    until = time.monotonic() + SOON
    while not (found := peer.taken()):
        assert time.monotonic() < until
        time.sleep(1e-3)
    return found


def test_a_secret_opens_other_addresses_and_another_one_does_not() -> None:
    with closing(Side(secret=SECRET)) as side:
        held = side.offer()
        peer = side.peer(secret=SECRET)
        assert taken(peer, side, held.keys) == (1, 4, "")
        wrong = side.peer(secret=b"what one of them knows")
        assert taken(wrong, side, held.keys) == (1, 0, "failed")
        assert "another secret" in wrong.why()
        assert "know" not in repr(wrong) + wrong.why()
        unlike = side.peer(secret=SECRET, fields={**FIELDS, "dtype": "float8"})
        assert taken(unlike, side, held.keys) == (1, 0, "failed")
        assert unlike.why() == 'dtype is "float16" there, and "float8" here'


def test_bad_input_is_named_and_nothing_is_done(side: Side) -> None:
    held = side.offer()
    good: dict[str, Any] = {"boot": 1, "name": "D", "fields": FIELDS, "rank": 0, "block_bytes": 64}
    bad: dict[str, dict[str, Any]] = {
        "boot = 0": {"boot": 0},
        "block_bytes = 0": {"block_bytes": 0},
        "secret has 5 bytes": {"secret": b"short"},
        "timeout": {"timeout": 0.0},
        "rest": {"rest": float("nan")},
        "fields": {"fields": {"model": 3}},
        "257 fields": {"fields": {str(at): "" for at in range(257)}},
        "70000 bytes": {"fields": {"model": "m" * 70_000}},
        "256 of a name": {"name": "n" * 300},
    }
    for word, options in bad.items():
        with pytest.raises(Misuse, match=word):
            Peer("127.0.0.1:1", **{**good, **options})
    for address in ("10.0.0.1:80", "example.org:80", "0.0.0.0:1", "127.0.0.1", ""):
        with pytest.raises(Misuse, match="without a secret it must be of this machine"):
            Peer(address, **good)
        with pytest.raises(Misuse, match="without a secret it must be of this machine"):
            OfferServer(side.offers, address, boot=1, name="", fields={}, planes=[], blocks=1)
    peer = side.peer()
    keys = held.keys
    calls: dict[str, Callable[[], object]] = {
        "id has 3 bytes": lambda: peer.done(b"abc"),
        "id has 0 bytes": lambda: side.offers.take(b"", 1, 0.0),
        "this offer is open already": side.offer,
        "4 keys, and 3 destinations": lambda: peer.submit_up(keys, [], [1, 2, 3], 0.0),
        "a block of these planes has 0 bytes": lambda: peer.submit_up(keys, [], range(4), 0.0),
        "keys": lambda: peer.has(np.zeros((2, 31), np.uint8)),
        "pass as many": lambda: peer.offer(side.id, 1, keys, [1], held.generations, 1),
        "65536": lambda: peer.offer(side.id, 1, keys, range(4), held.generations, 1, first=65_535),
        "why = 'x'|why = \"x\"": lambda: side.offers.end(side.id, "x"),  # type: ignore[arg-type]
        "lease = 0": lambda: Offers(lease=0),
        "1 ranks of 0 blocks": lambda: OfferServer(
            side.offers,
            "127.0.0.1:0",
            boot=1,
            name="",
            fields={},
            planes=[places(side.memory)],
            blocks=0,
        ),
    }
    for word, call in calls.items():
        with pytest.raises(Misuse, match=word):
            call()
    with pytest.raises(Unavailable, match="listen"):
        OfferServer(
            side.offers,
            side.server.address,
            boot=1,
            name="",
            fields={},
            planes=[places(side.memory)],
            blocks=BLOCKS,
        )
    assert held.is_held
    assert side.offers.stats()["offers_made"] == 1


def test_its_threads_go_on_while_python_holds_its_lock(side: Side) -> None:
    held, peer = side.offer(), side.peer()
    keys = held.keys
    assert taken(peer, side, keys) == (1, 4, "")
    memory = MemoryTier(LAYOUT, 4, name="host")
    where = places(memory)
    # It does not release the lock.
    sleep = ctypes.PyDLL(None).usleep
    number = peer.submit_up(keys, where, range(4), 0.0)
    sleep(900_000)
    assert peer.poll(0.0) == [(number, 4, "")]


def test_a_forked_child_refuses_and_its_parent_goes_on(side: Side) -> None:
    held, peer = side.offer(), side.peer()
    keys = held.keys
    assert taken(peer, side, keys) == (1, 4, "")
    child = os.fork()
    if not child:
        code = 1
        try:
            refused = 0
            for call in (
                lambda: side.offers.sweep(0.0),
                lambda: side.offers.end(side.id, "room"),
                lambda: peer.done(side.id),
                lambda: peer.take(1, side.id, 1, keys, 0.0),
                peer.taken,
                lambda: peer.blocks(side.id),
                lambda: peer.has(keys),
                lambda: peer.offering,
                lambda: peer.shut(down=False, now=0.0),
                lambda: peer.poll(0.0),
                lambda: peer.wait(0, 0.0),
                peer.state,
                peer.stats,
                peer.why,
            ):
                try:
                    call()
                except Misuse:
                    refused += 1
            closed = peer.closed and side.server.closed and peer.close() and side.server.close()
            peer.give_up(0)
            code = 0 if refused == 14 and closed else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    memory = MemoryTier(LAYOUT, 4, name="host")
    number = peer.submit_up(keys, places(memory), range(4), 0.0)
    assert landed(peer, number)[1:] == (4, "")
    assert held.is_held


def test_a_server_without_descriptors_serves_on_when_they_come_back() -> None:
    program = """
        import resource, socket, time
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        import test_binding as t
        with t.closing(t.Side()) as side:
            held = side.offer()
            host, port = side.server.address.split(":")
            many = []
            while True:
                try:
                    many.append(socket.create_connection((host, int(port))))
                except OSError as error:
                    assert error.errno == 24, error
                    break
            assert len(many) > 20
            for one in many:
                one.close()
            peer = side.peer()
            # Where it was let in too late, it asks again.
            t.until(lambda: t.taken(peer, side, held.keys) == (1, 4, ""))
        print("served")
    """
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "served\n", done.stderr


def test_a_peer_for_which_there_is_no_descriptor_is_named(side: Side) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(Unavailable, match=f'peer "{side.server.address}": .*descriptors'):
            side.peer()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_stranger_that_speaks_something_else_is_counted(side: Side) -> None:
    host, port = side.server.address.split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""
    until(lambda: side.server.stats()["faulty"] == 1)
