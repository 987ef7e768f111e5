"""The carrier `nixl`, over a transport that is late, fails and dies when a test says so."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.tiers import nixl_peer, nixl_source
from blockyard.crane.tiers.nixl_peer import NixlPeer, Staging
from blockyard.crane.tiers.nixl_source import GENERATION_ROOM, Described
from blockyard.handover.prefill_side import PrefillSide
from disks import LAYOUT, OURS
from fake_nixl import Road, road
from handover_rig import (
    BLOCK,
    PATIENCE,
    Decoder,
    Prefiller,
    Relay,
    gives_up_now,
    pair,
    peer_of,
    staged,
    until,
)

__all__ = ["road"]

SUM = 64
"""Bytes of the frames by which the sum of a block comes."""


def taken(stats: dict[str, int]) -> tuple[int, int, int]:
    return tuple(stats[f"remote_peer_{name}"] for name in ("got_blocks", "stale", "corrupt"))  # type: ignore[return-value]


def gives_up(road: Road, prefiller: Prefiller, decoder: Decoder) -> Any:
    """Has a request end while its four blocks are read; these reads do not end."""
    peer, ticket = peer_of(decoder.cache), decoder.adopts(1, 1, prefiller.computes(1))
    road.held = True
    lease = decoder.begins(1, ticket)
    until(lambda: staged(peer) == 4, decoder.cache.step)
    decoder.cache.finish(lease)
    gives_up_now(decoder)
    until(lambda: peer.held_bytes == 4 * BLOCK, decoder.cache.step)
    decoder.cache.crane.remote.copier._flights.patience = PATIENCE
    decoder.side.over(1)
    return peer


def sums_come(relay: Relay, before: int) -> None:
    """Waits until the prefill side has sent the sums of four blocks, before it says anything else.

    Args:
        relay: Between both.
        before: What it had passed before these blocks were begun.
    """
    until(lambda: relay.passed >= before + 4 * SUM)


def has_thread(peer: NixlPeer) -> bool:
    return peer._thread is not None and peer._thread.is_alive()


def test_blocks_come_by_the_carrier_and_their_sums_by_the_connection(road: Road) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, relay):
        for talk in range(3):
            offer = prefiller.computes(talk)
            assert decoder.takes(f"request {talk}", talk, offer) == 4
            until(lambda: prefiller.side.stats()["offers_held"] == 0)
        assert taken(decoder.cache.stats()) == (12, 0, 0)
        assert prefiller.side.stats()["offers_sent_bytes"] == 0
        assert relay.passed < BLOCK * 12
        assert len(road.readers) == 1
        assert peer_of(decoder.cache).held_bytes == 0


def test_a_long_prompt_comes_in_several_reads(road: Road) -> None:
    with pair(carrier="nixl", device=80) as (prefiller, decoder, _):
        peer_of(decoder.cache)._blocks = 5
        offer = prefiller.computes(1, blocks=24)
        assert decoder.takes("one", 1, offer, blocks=24) == 24
        assert road.done > 8, "a block fits a quarter of the staging"


def test_blocks_of_several_flights_are_read_together(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer = peer_of(decoder.cache)
        tickets = {talk: decoder.adopts(talk, talk, prefiller.computes(talk)) for talk in (1, 2)}
        with monkeypatch.context() as patched:
            patched.setattr(nixl_peer.NixlPeer, "memory", lambda _: None)
            leases = {talk: decoder.begins(talk, ticket) for talk, ticket in tickets.items()}
            until(lambda: len(peer._flights) == 2)
        assert [decoder.checked(talk, lease) for talk, lease in leases.items()] == [4, 4]
        assert road.done == 2, "bytes, and generations"
        for talk, lease in leases.items():
            decoder.side.over(talk)
            decoder.cache.finish(lease)


def test_a_flight_that_ends_while_its_staging_is_taken_fails_no_other(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer, take = peer_of(decoder.cache), Staging.take

        def ends(staging: Staging, most: int) -> tuple[int, int]:
            monkeypatch.setattr(Staging, "take", take)
            peer.give_up(peer._flights[0].number)
            return take(staging, most)

        ticket = decoder.adopts("one", 1, prefiller.computes(1))
        monkeypatch.setattr(Staging, "take", ends)
        assert decoder.checked(1, decoder.begins(1, ticket)) == 0
        decoder.side.over("one")
        assert decoder.takes("two", 2, prefiller.computes(2)) == 4
        assert len(road.readers) == 1
        assert not road.readers[0].ended
        assert peer._life.staging.free == peer._blocks


@pytest.mark.law("INV-36c")
def test_race_3_a_read_that_was_given_up_writes_late_into_staging_alone(road: Road) -> None:
    """In nixl#2067 nothing ends a transfer in flight, nor what it writes late."""
    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer = gives_up(road, prefiller, decoder)
        assert any(
            f"holds {4 * BLOCK} bytes" in said for said in decoder.cache.crane.remote.troubles()
        )
        plane = decoder.cache.crane.device.planes[0]
        plane[...] = 77
        road.held = False
        until(lambda: peer.held_bytes == 0)
        assert road.done == 2, "it was written, late"
        assert (plane == 77).all()
        assert decoder.takes("two", 2, prefiller.computes(2)) == 4
        assert not road.readers[0].ended, "the same goes on"


def test_race_21_staging_full_of_held_buffers_lets_the_peer_rest(road: Road) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer_of(decoder.cache)._blocks = 4
        peer = gives_up(road, prefiller, decoder)
        assert peer.shut(down=False, now=time.monotonic())
        assert decoder.cache.stats()["remote_peer_held_bytes"] == 4 * BLOCK
        assert decoder.cache.stats()["remote_peer_resting"] == 1
        assert f"{4 * BLOCK} bytes of staging are held" in peer.why()
        assert decoder.takes(2, 2, prefiller.computes(2)) == 0, "it is computed"
        road.held = False
        until(lambda: not peer.shut(down=False, now=time.monotonic()))
        assert decoder.takes(3, 3, prefiller.computes(3)) == 4


def test_a_process_of_which_no_read_ends_is_ended_however_little_it_holds(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_peer, "_STUCK", 0.05)
    monkeypatch.setattr(nixl_peer, "_AGAIN", 0.05)
    with pair(carrier="nixl") as (prefiller, decoder, _):
        gives_up(road, prefiller, decoder)
        until(lambda: road.readers[0].ended, decoder.cache.step)
        road.held = False
        assert decoder.takes(2, 2, prefiller.computes(2)) == 4
        assert len(road.readers) == 2


@pytest.mark.law("INV-36f")
@pytest.mark.parametrize("ends", ["a word", "its process"])
def test_race_22_a_transport_that_fails_costs_a_computation(
    road: Road, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_peer, "_AGAIN", 0.05)
    with pair(carrier="nixl") as (prefiller, decoder, _):
        ticket = decoder.adopts("one", 1, prefiller.computes(1))
        road.held = True
        lease = decoder.begins(1, ticket)
        peer = peer_of(decoder.cache)
        until(lambda: staged(peer), decoder.cache.step)
        if ends == "a word":
            road.fails = "nixlRemoteDisconnectError"
        else:
            road.dies = True
        assert decoder.checked(1, lease) == 0
        decoder.side.over("one")
        decoder.cache.finish(lease)
        road.held, road.fails, road.dies = False, "", False
        assert road.readers[0].ended
        assert decoder.cache.stats()["remote_peer_failed"] == 1
        assert decoder.takes("two", 2, prefiller.computes(2)) == 4
        assert len(road.readers) == 2
        until(lambda: peer.held_bytes == 0)


@pytest.mark.law("INV-36b", "INV-35a")
def test_blocks_that_are_recycled_between_bytes_and_generations_are_refused(road: Road) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, relay):
        offer = prefiller.computes(1)

        def ends(number: int) -> None:
            if number == 1:
                # Sums that have come agree with the bytes: those were read.
                sums_come(relay, before)
                prefiller.side.end(offer)
                prefiller.recycles()

        ticket = decoder.adopts("one", 1, offer)
        before, road.before = relay.passed, ends
        lease = decoder.begins(1, ticket)
        assert decoder.checked(1, lease) == 0
        assert taken(decoder.cache.stats())[:2] == (0, 1)
        decoder.side.over("one")
        decoder.cache.finish(lease)


@pytest.mark.law("INV-36b", "INV-35a")
def test_generations_alone_refuse_what_was_recycled_after_its_sums(road: Road) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, relay):
        offer = prefiller.computes(1)
        ticket = decoder.adopts("one", 1, offer)
        before, road.held = relay.passed, True
        lease = decoder.begins(1, ticket)
        # The sums have come, and agree with the bytes: these are the same in the recycled slots.
        sums_come(relay, before)
        prefiller.side.end(offer)
        road.held = False
        assert decoder.checked(1, lease) == 0
        assert taken(decoder.cache.stats())[:2] == (0, 1)
        decoder.side.over("one")
        decoder.cache.finish(lease)


@pytest.mark.law("INV-35a")
def test_a_bit_that_flips_on_the_way_is_found(road: Road) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, _):

        def flips(here: Any) -> None:
            if road.done == 0:
                at = int(here[0, 0]) + 2 * int(here[0, 1]) // 4
                ctypes.c_uint8.from_address(at).value ^= 4

        road.after = flips
        offer = prefiller.computes(1)
        assert decoder.takes("one", 1, offer) < 4
        assert taken(decoder.cache.stats())[2] == 1


def test_race_4_another_life_of_the_prefill_side_has_another_reader(road: Road) -> None:
    """In nixl#2109 and vllm#49238 one reader was to meet the new life as it had the old one."""
    with pair(carrier="nixl") as (prefiller, decoder, relay):
        assert decoder.takes("one", 1, prefiller.computes(1)) == 4
        old = prefiller.computes(3)
        again = Prefiller(advertise=relay.address, carrier="nixl")
        relay.target = again.side.listens
        relay.cut()
        # It learns by this one that the connection is cut.
        assert decoder.takes("old", 3, old) == 0
        assert decoder.takes("two", 2, again.computes(2)) == 4
        assert len(road.readers) == 2
        assert road.readers[0].ended
        # The same life registers its memory again.
        again.side.close()
        where: Any = {"listen": "127.0.0.1:0", "advertise": relay.address, "carrier": "nixl"}
        again.side = PrefillSide(again.cache, again.cache.crane.device, **where)
        relay.target = again.side.listens
        assert decoder.takes("older", 3, old) == 0, "by which it learns that, too"
        assert decoder.takes("three", 3, again.computes(3)) == 4
        assert len(road.readers) == 3
        assert road.readers[1].ended
        again.close()


@pytest.mark.usefixtures("road")
def test_a_prefill_side_without_the_carrier_is_refused_by_name() -> None:
    with ExitStack() as opened:
        prefiller = Prefiller()
        opened.callback(prefiller.close)
        decoder = Decoder(prefiller.side.listens, carrier="nixl")
        opened.callback(decoder.close)
        assert decoder.takes("one", 1, prefiller.computes(1)) == 0
        assert 'carrier is "tcp" there, and "nixl" here' in peer_of(decoder.cache).why()


@pytest.mark.usefixtures("road")
def test_readers_over_tcp_read_from_a_prefill_side_with_the_carrier() -> None:
    with ExitStack() as opened:
        prefiller = Prefiller(carrier="nixl")
        opened.callback(prefiller.close)
        decoder = Decoder(prefiller.side.listens)
        opened.callback(decoder.close)
        assert decoder.takes("one", 1, prefiller.computes(1)) == 4
        assert prefiller.side.stats()["offers_sent_bytes"] == 4 * BLOCK


def test_a_close_with_reads_in_the_air_ends(road: Road) -> None:
    with pair(carrier="nixl") as (prefiller, decoder, _):
        ticket = decoder.adopts("one", 1, prefiller.computes(1))
        road.held = True
        decoder.begins(1, ticket)
        peer = peer_of(decoder.cache)
        until(lambda: staged(peer), decoder.cache.step)
        peer.close()
        assert peer.closed
        until(lambda: not has_thread(peer))
        assert road.readers[0].ended


def test_without_the_wheel_both_sides_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_source, "wheel", lambda: None)
    with pytest.raises(by.Unsupported, match=r"\[nixl\]"):
        by.local(LAYOUT, device=9, namespace=OURS, peers=["127.0.0.1:1"], carrier="nixl")
    with pytest.raises(by.Unsupported, match=r"\[nixl\]"):
        Prefiller(carrier="nixl")
    with pytest.raises(by.Misuse, match=r"carrier = .rdma."):
        by.local(LAYOUT, device=9, namespace=OURS, peers=["127.0.0.1:1"], carrier="rdma")  # type: ignore[arg-type]


# -- what is read, and where to --------------------------------------------------------------------


def described(pieces: list[tuple[int, int, int]], blocks: int) -> Described:
    address, stride, nbytes = np.array(pieces, np.uint64).T
    return Described(b"agent", address, stride, nbytes, blocks, 1 << 40)


def pieces_of(read: Any) -> Iterator[tuple[int, int, int]]:
    """Where each piece is there and here, and its bytes."""
    for (here, nbytes, _), (there, *_) in zip(*read.tolist(), strict=True):
        yield there, here, nbytes


PIECES = {
    "apart": [(1000, 16, 16), (5000, 16, 16), (9000, 16, 16)],
    "in a slot": [(1000, 64, 40), (1040, 64, 24)],
    "unlike": [(1000, 16, 16), (5000, 48, 8), (5008, 48, 40)],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=list(PIECES))
def test_each_byte_is_read_once_to_its_place(pieces: list[tuple[int, int, int]]) -> None:
    where, slots = described(pieces, 40), np.array([7, 8, 9, 3, 30, 31, 4], np.uint32)
    size = sum(nbytes for _, _, nbytes in pieces)
    found: dict[int, int] = {}
    for there, here, nbytes in pieces_of(where.bytes_of(slots)):
        for step in range(nbytes):
            assert here + step not in found
            found[here + step] = there + step
    assert len(found) == size * len(slots)
    for row, slot in enumerate(slots.tolist()):
        places = where.places(0, len(slots), row)
        wanted = [at + slot * stride + b for at, stride, nbytes in pieces for b in range(nbytes)]
        staged = [
            found[int(first) + b]
            for firsts, _, nbytes in places
            for first in firsts
            for b in range(nbytes)
        ]
        assert staged == wanted


def test_side_by_side_blocks_are_one_read_a_piece() -> None:
    where = described([(1000, 16, 16), (5000, 16, 16)], 40)
    assert where.bytes_of(np.arange(5, 25, dtype=np.uint32)).shape == (2, 2, 3)


@pytest.mark.parametrize(
    "slots", [[3], [5, 4], [0, 9000, 512, 8999, 511], list(range(0, 4000, 500))]
)
def test_the_generation_of_each_slot_is_read_within_its_room(slots: list[int]) -> None:
    where = described([(0, 16, 16)], 10_000)
    reads, index = where.generations_of(np.array(slots, np.uint32))
    read: dict[int, int] = {}
    for there, here, nbytes in pieces_of(reads):
        for word in range(0, nbytes, 8):
            read[(here + word) // 8] = (there + word - (1 << 40)) // 8
    assert [read[at] for at in index.tolist()] == slots
    assert 8 * len(read) <= len(slots) * GENERATION_ROOM


def test_what_is_malformed_describes_nothing() -> None:
    good = described(PIECES["apart"], 40).to_bytes()
    assert Described.of(good, 48) is not None
    for bad in (
        b"",
        b"[]",
        b"{}",
        good[:-1],
        good.replace(b"1000", b"-1"),
        good.replace(b'"blocks": 40', b'"blocks": 0'),
        good.replace(b"[1000, ", b"[18446744073709551000, "),
        good.replace(b"[1000, 16,", b"[1000, 18446744073709551000,"),
        good.replace(b"[1000, 16, 16]", b"1000, 16, 48"),
        good.replace(b"[1000, 16, 16]", b"[[1000], [16], [16]]"),
        b'{"agent": "", "pieces": [1000, 16, 48], "blocks": 4, "generations": 1}',
        b'{"agent": "", "pieces": [], "blocks": 4, "generations": 1}',
    ):
        assert Described.of(bad, 48) is None, bad
    assert Described.of(good, 47) is None


def test_staging_gives_out_what_is_free() -> None:
    staging = Staging(10, 100)
    assert [staging.take(4) for _ in range(4)] == [(0, 4), (4, 4), (8, 2), (0, 0)]
    staging.give(4, 4)
    staging.give(0, 4)
    assert staging.take(9) == (0, 8)
    assert staging.free == 0
    staging.give(8, 2)
    assert staging.free == 2
    staging.close()
