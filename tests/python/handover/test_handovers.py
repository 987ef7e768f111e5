"""Blocks go from one cache to another over real sockets, and what may come between."""

import gc
import socket
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.peers import TakenOffer
from blockyard.handover.decode_side import DecodeSide
from blockyard.handover.prefill_side import PrefillSide
from blockyard.metrics.engine_view import EngineView
from disks import LAYOUT, OURS
from handover_rig import BLOCK, SIZE, Decoder, Prefiller, pair, until

OTHER = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=16, block_size=4, dtype="float16")
EMPTY = np.zeros((0, 32), np.uint8), np.zeros(0, np.uint32), np.zeros(0, np.uint64)
HALF = 2 * BLOCK + BLOCK // 2
"""Bytes by which a read of four blocks is cut: what frames are beside is less than half a block."""


def ended(prefiller: Prefiller, why: str, count: int = 1) -> None:
    """Waits until so many offers have ended so, and none is held."""
    stats = prefiller.side.stats
    until(lambda: stats()[f"offers_ended_by_{why}"] == count)
    assert stats()["offers_held"] == stats()["offer_blocks_held"] == 0


def test_a_prompt_is_taken_over_and_given_back() -> None:
    with pair() as (prefiller, decoder, _):
        for talk in range(3):
            offer = prefiller.computes(talk)
            held = prefiller.side.stats()
            assert (held["offers_held"], held["offer_blocks_held"]) == (1, 4)
            assert decoder.takes(f"request {talk}", talk, offer) == 4
            ended(prefiller, "done", talk + 1)
        stats = decoder.cache.stats()
        assert stats["remote_peer_got_blocks"] == 12
        assert stats["remote_peer_got_bytes"] == 12 * BLOCK
        assert stats["remote_peer_stale"] == stats["remote_peer_corrupt"] == 0
        assert prefiller.side.stats()["offers_sent_bytes"] == 12 * BLOCK
        assert decoder.cache.probe(decoder.keys(0)).remote == 0, "no name is left"


def test_nothing_is_written_to_a_peer() -> None:
    with pair() as (_, decoder, __):
        for talk in range(30):
            lease = decoder.begins(talk)
            decoder.cache.seal(lease, 4 * SIZE)
            decoder.cache.finish(lease)
            decoder.cache.demote(64)
            decoder.cache.step()
        stats = decoder.cache.stats()
        assert stats["copied_device_to_remote"] == stats["crane_flights"] == 0


def test_with_a_host_victims_are_parked_there_alone() -> None:
    with (
        pair() as (prefiller, _, __),
        by.local(LAYOUT, device=9, host=4, peers=[prefiller.side.listens], namespace=OURS) as cache,
    ):
        leases = [cache.begin(range(100 * talk, 100 * talk + 16)) for talk in range(2)]
        parked = cache.park(leases[0], 16)
        with pytest.raises(by.NoRoom):
            cache.park(leases[1], 16)
        cache.finish(leases[1])
        cache.abandon(parked)


@pytest.mark.law("INV-36d", "INV-36f")
def test_race_1_a_lease_that_has_ended_gives_no_block() -> None:
    with pair(lease=0.2, unread=0.2) as (prefiller, decoder, _):
        offer = prefiller.computes(1)
        until(lambda: prefiller.side.stats()["offers_held"] == 0)
        prefiller.recycles()
        assert decoder.takes("one", 1, offer) == 0
        assert decoder.side.stats()["handover_gone"] == 1


@pytest.mark.law("INV-36d")
def test_race_2_a_prefiller_that_is_gone_before_the_take() -> None:
    with pair() as (prefiller, decoder, relay):
        offer = prefiller.computes(1)
        relay.close()
        assert decoder.takes("one", 1, offer) == 0


@pytest.mark.law("INV-36d", "INV-36f", "T34")
def test_race_2_a_prefiller_that_dies_in_the_read() -> None:
    with pair(lease=0.2) as (prefiller, decoder, relay):
        offer = prefiller.computes(1)
        ticket = decoder.adopts("one", 1, offer)
        relay.most = relay.passed + HALF
        lease = decoder.begins(1, ticket)
        until(lambda: relay.passed >= relay.most, decoder.cache.step)
        assert lease.state == "loading"
        relay.cut()
        assert decoder.checked(1, lease) == 2, "the good ones before it are used"
        decoder.side.over("one")
        decoder.cache.finish(lease)
        ended(prefiller, "lease")


def test_race_4_a_prefiller_that_was_started_again_has_other_offers() -> None:
    """In vllm#49238 the decode engine ended when the prefill engine came back."""
    with pair() as (prefiller, decoder, relay):
        old = prefiller.computes(1)
        again = Prefiller(advertise=relay.address)
        relay.target = again.side.listens
        relay.cut()
        new = again.computes(2)
        assert old.boot != new.boot
        assert decoder.takes("one", 1, old) == 0
        assert decoder.takes("two", 2, new) == 4
        again.close()


@pytest.mark.law("INV-36d")
@pytest.mark.parametrize("when", ["taken", "reading"])
def test_race_5_a_decoder_that_dies_holds_nothing(when: str) -> None:
    with pair(lease=0.2) as (prefiller, decoder, relay):
        offer = prefiller.computes(1)
        ticket = decoder.adopts("one", 1, offer)
        lease = None
        if when == "reading":
            relay.most = relay.passed + HALF
            lease = decoder.begins(1, ticket)
            until(lambda: relay.passed >= relay.most, decoder.cache.step)
        relay.close()
        ended(prefiller, "lease")
        if lease is not None:
            assert decoder.checked(1, lease) == 2
            decoder.cache.finish(lease)


@pytest.mark.law("INV-36d")
def test_race_6_an_offer_that_nobody_reads_ends() -> None:
    with pair(unread=0.2, lease=60.0) as (prefiller, _, __):
        prefiller.computes(1)
        ended(prefiller, "unread")


def test_race_7_a_done_may_come_twice_and_after_the_end() -> None:
    with pair() as (prefiller, decoder, _):
        first, second = prefiller.computes(1), prefiller.computes(2)
        decoder.adopts("one", 1, first)
        peer = decoder.cache.crane.remote.peers.get(first.at)
        peer.done(first.id)
        peer.done(first.id)
        decoder.side.over("one")
        ended_by = prefiller.side.stats
        until(lambda: ended_by()["offers_ended_by_done"] == 1)
        decoder.adopts("two", 2, second)
        assert prefiller.side.end(second)
        assert not prefiller.side.end(second)
        decoder.side.over("two")
        third = prefiller.computes(3)
        assert decoder.takes("three", 3, third) == 4
        until(lambda: ended_by()["offers_ended_by_done"] == 2)
        assert ended_by()["offers_ended_by_aborted"] == 1


def test_race_8_the_done_of_one_reader_ends_only_its_own() -> None:
    with pair() as (prefiller, decoder, relay):
        other = Decoder(relay.address)
        offer = prefiller.computes(1)
        mine, its = decoder.adopts("one", 1, offer), other.adopts("one", 1, offer)
        lease = decoder.begins(1, mine)
        assert decoder.checked(1, lease) == 4
        decoder.side.over("one")
        decoder.cache.finish(lease)
        # Behind its `done`, on the same connection: what it says comes after it.
        more = prefiller.computes(2)
        assert decoder.takes("two", 2, more) == 4
        until(lambda: prefiller.side.stats()["offers_ended_by_done"] == 1)
        assert prefiller.side.stats()["offers_held"] == 1, "the other one has yet to read it"
        prefiller.recycles()
        lease = other.begins(1, its)
        assert other.checked(1, lease) == 4
        other.side.over("one")
        other.cache.finish(lease)
        ended(prefiller, "done", 2)
        other.close()


def test_race_9_two_offers_of_one_prefix_end_alone() -> None:
    with pair() as (prefiller, decoder, _):
        first, second = prefiller.computes(1), prefiller.computes(1)
        assert prefiller.side.end(first)
        prefiller.recycles()
        assert decoder.takes("one", 1, second) == 4


@pytest.mark.parametrize("verb", ["clear", "update_weights", "forget"])
def test_race_10_what_the_prefiller_forgets_is_offered_no_more(verb: str) -> None:
    with pair() as (prefiller, decoder, _):
        offer = prefiller.computes(1)
        ticket = decoder.adopts("one", 1, offer)
        if verb == "forget":
            prefiller.cache.forget(prefiller.cache.keys(range(100, 100 + 4 * SIZE)))
        else:
            getattr(prefiller.cache, verb)()
        prefiller.recycles()
        lease = decoder.begins(1, ticket)
        assert decoder.checked(1, lease) == 0
        decoder.side.over("one")
        decoder.cache.finish(lease)
        ended(prefiller, "cleared")


@pytest.mark.law("INV-36c", "INV-36d")
@pytest.mark.parametrize("verb", ["finish", "clear", "reset"])
def test_race_12_what_comes_after_an_abort_is_written_nowhere(verb: str) -> None:
    with pair() as (prefiller, decoder, relay):
        offer = prefiller.computes(1)
        ticket = decoder.adopts("one", 1, offer)
        relay.most = relay.passed + HALF
        lease = decoder.begins(1, ticket)
        until(lambda: relay.passed >= relay.most, decoder.cache.step)
        plane = decoder.cache.crane.device.planes[0]
        if verb == "finish":
            decoder.cache.finish(lease)
            decoder.side.over("one")
            # Its flight ends by itself: here by the reset of the rank.
            decoder.cache.reset()
        elif verb == "reset":
            decoder.cache.reset(memory="lost")
        else:
            decoder.cache.clear()
            decoder.cache.reset()
        plane[:] = 250
        relay.most = float("inf")
        passed = relay.passed
        # What was held back comes through, or its connection is closed; another hand-over follows.
        again = prefiller.computes(2)
        assert decoder.takes("two", 2, again) in {0, 4}
        assert relay.passed >= passed
        table = 4
        rows = [row for row in range(len(plane)) if (plane[row] != 250).any()]
        assert len(rows) <= table, "no byte of the first has come into a slot"
        if verb != "finish":
            decoder.cache.finish(lease)


def test_race_13_a_victim_right_after_the_landing_is_parked() -> None:
    with pair() as (prefiller, _, relay):
        decoder = Decoder(relay.address, host=16)
        offer = prefiller.computes(1)
        lease = decoder.begins(1, decoder.adopts("one", 1, offer))
        assert decoder.checked(1, lease) == 4
        decoder.side.over("one")
        parked = decoder.cache.park(lease, lease.cached)
        ended(prefiller, "done")
        prefiller.recycles()
        lease = decoder.cache.begin(parked)
        assert decoder.checked(1, lease) == 4
        decoder.cache.finish(lease)
        decoder.close()


def test_race_14_two_requests_of_one_prefix_are_one_read() -> None:
    with pair() as (prefiller, decoder, _):
        offer = prefiller.computes(1)
        tickets = [decoder.adopts(name, 1, offer) for name in ("one", "two")]
        first = decoder.begins(1, tickets[0])
        second = decoder.cache.begin(decoder.keys(1), ticket=tickets[1], filling="soon")
        assert decoder.checked(1, first) == 4
        if isinstance(second, by.Soon):
            second = decoder.begins(1, tickets[1])
        assert decoder.checked(1, second) == 4
        assert prefiller.side.stats()["offers_sent_blocks"] == 4, "each block was read once"
        for name in ("one", "two"):
            decoder.side.over(name)
        decoder.cache.finish([first, second])
        ended(prefiller, "done")


def test_a_prompt_with_another_prefix_finds_what_it_shares() -> None:
    with pair() as (prefiller, decoder, _):
        offer = prefiller.computes(1, blocks=6)
        assert decoder.takes("one", 1, offer, blocks=4) == 4
        ended(prefiller, "done")


def test_what_is_there_already_is_not_read() -> None:
    with pair() as (prefiller, decoder, _):
        assert decoder.takes("one", 1, prefiller.computes(1)) == 4
        assert decoder.takes("two", 1, prefiller.computes(1)) == 4
        assert prefiller.side.stats()["offers_sent_blocks"] == 4
        ended(prefiller, "done", 2)


@pytest.mark.law("INV-35a")
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"namespace": OURS | {"weights": "v2"}}, "weights"),
        ({"namespace": OURS | {"model": "another"}}, "model"),
        ({"layout": OTHER}, "blocks of"),
    ],
)
def test_other_weights_and_blocks_are_refused_by_name(more: dict[str, Any], named: str) -> None:
    assert OTHER.block_bytes == LAYOUT.block_bytes, "only its dtype tells"
    with pair() as (prefiller, _, relay):
        other = Decoder(relay.address, **more)
        offer = prefiller.computes(1)
        assert other.takes("one", 1, offer) == 0
        assert f"{named} is" in other.cache.crane.remote.peers.get(offer.at).why()
        other.close()


def secret(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.law("INV-36g")
@pytest.mark.parametrize("wrong", [False, True])
def test_both_know_the_secret_or_nothing_is_said(tmp_path: Path, wrong: bool) -> None:
    ours = secret(tmp_path, "ours", "0123456789abcdef\n")
    its = secret(tmp_path, "its", "0123456789abcdef0" if wrong else "0123456789abcdef")
    prefiller = Prefiller(secret_file=ours)
    decoder = Decoder(prefiller.side.listens, secret_file=its)
    assert decoder.takes("one", 1, prefiller.computes(1)) == (0 if wrong else 4)
    why = decoder.cache.crane.remote.peers.get(prefiller.side.listens).why()
    assert "0123456789abcdef" not in why
    decoder.close()
    prefiller.close()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"listen": "0.0.0.0:0"}, "secret"),
        ({"listen": "localhost"}, "give host:port"),
        ({"listen": 7000}, "give host:port"),
        ({"advertise": "host:0"}, "give host:port"),
        ({"lease": 0}, "lease = 0: must be seconds, more than 0"),
        ({"lease": -1}, "lease = -1: must be seconds, more than 0"),
        ({"unread": "1"}, "must be seconds"),
        ({"secret_file": "/nowhere"}, "it cannot be read"),
        ({"secret_file": b"x"}, "give the path of a file"),
    ],
)
def test_a_prefill_side_refuses_what_cannot_be(more: dict[str, Any], said: str) -> None:
    with by.local(LAYOUT, device=8, namespace=OURS) as cache:
        with pytest.raises(by.Misuse, match=said):
            PrefillSide(cache, cache.crane.device, **more)
        assert cache.audit() is None


def test_a_prefill_side_is_given_a_cache_and_its_memory() -> None:
    with by.local(LAYOUT, device=8, namespace=OURS) as cache:
        wrong: Any
        for wrong in (None, cache, "device"):
            with pytest.raises(by.Misuse, match=r"give the memory of the cache, as crane\.device"):
                PrefillSide(cache, wrong)
        wrong = cache.crane
        with pytest.raises(by.Misuse, match=r"give a cache, such as that of by\.local"):
            PrefillSide(wrong, cache.crane.device)


def test_a_secret_is_long_enough_and_never_shown(tmp_path: Path) -> None:
    short = secret(tmp_path, "short", "fifteen letters")
    with by.local(LAYOUT, device=8, namespace=OURS) as cache:
        with pytest.raises(by.Misuse, match="15 bytes") as refused:
            PrefillSide(cache, cache.crane.device, secret_file=short)
        assert "fifteen" not in str(refused.value)
        with pytest.raises(by.Misuse, match="a word of 64 characters: it cannot") as refused:
            PrefillSide(cache, cache.crane.device, secret_file="0af1" * 16)
        assert "0af1" not in str(refused.value)


def test_a_port_that_is_taken_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        by.local(LAYOUT, device=8, namespace=OURS) as cache,
        pytest.raises(by.BlockyardError, match=str(taken.getsockname()[1])),
    ):
        PrefillSide(cache, cache.crane.device, listen=f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ("127.0.0.1:7000", "give a list"),
        (["127.0.0.1"], "give host:port"),
        (["127.0.0.1:0"], "give host:port"),
        ([7000], "give host:port"),
        (["127.0.0.1:7000", "127.0.0.1:7000"], "name one twice"),
        (["10.0.0.7:7000"], "secret"),
    ],
)
def test_peers_that_cannot_be_are_refused(peers: Any, said: str) -> None:
    with pytest.raises(by.Misuse, match=said):
        by.local(LAYOUT, device=8, namespace=OURS, peers=peers)


def test_a_secret_without_peers_is_refused() -> None:
    with pytest.raises(by.Misuse, match=r"without peers: give.*give it to PrefillSide"):
        by.local(LAYOUT, device=8, namespace=OURS, secret_file=Path("s"))


def test_a_namespace_names_model_and_weights() -> None:
    with pytest.raises(by.Misuse, match="namespace names no model"):
        by.local(LAYOUT, device=8, peers=["127.0.0.1:7000"])
    with by.local(LAYOUT, device=8) as cache, pytest.raises(by.Misuse, match="names no model"):
        PrefillSide(cache, cache.crane.device)


def test_peers_are_given_once_and_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(
        'device = 8\npeers = ["127.0.0.1:7000"]\n[namespace]\nmodel = "m"\nweights = "w"\n'
        "[layout]\nblock_size = 4\n"
    )
    config = by.Config(layout=LAYOUT, device=8, namespace=OURS, peers=["127.0.0.1:7000"])
    assert by.Config.of(config.to_mapping()) == config
    assert config.fingerprint == by.Config(layout=LAYOUT, device=8, namespace=OURS).fingerprint
    with by.local(config) as cache:
        assert cache.decode_side is not None
        assert cache.lookup is cache.decode_side
    with pytest.raises(by.Misuse, match="give them once"):
        by.local(config, peers=["127.0.0.1:7001"])


@pytest.mark.law("INV-36a")
def test_inv_36a_the_memory_of_what_is_held_outlives_its_cache() -> None:
    with pair() as (prefiller, decoder, _):
        offer = prefiller.computes(1)
        plane = weakref.ref(prefiller.cache.crane.device.planes[0].base)
        ticket = decoder.adopts("one", 1, offer)
        prefiller.cache.close()
        gc.collect()
        assert plane() is not None, "its side reads it"
        ended(prefiller, "cleared")
        lease = decoder.begins(1, ticket)
        assert decoder.checked(1, lease) == 0
        decoder.cache.finish(lease)


def test_its_close_ends_all_in_time() -> None:
    with pair() as (prefiller, decoder, relay):
        offers = [prefiller.computes(talk) for talk in range(3)]
        ticket = decoder.adopts("one", 0, offers[0])
        relay.most = relay.passed + HALF
        lease = decoder.begins(0, ticket)
        until(lambda: relay.passed >= relay.most, decoder.cache.step)
        assert prefiller.side.close()
        assert prefiller.side.close()
        stats = prefiller.side.stats()
        assert (stats["offers_held"], stats["offers_ended_by_closed"]) == (0, 3)
        with pytest.raises(by.Misuse, match="closed"):
            prefiller.computes(5)
        relay.cut()
        assert decoder.checked(0, lease) == 2
        decoder.cache.finish(lease)


def test_an_offer_that_is_made_while_another_thread_closes_ends_with_it() -> None:
    class Closing:
        """Offers whose side is closed just before one is made."""

        def offer(self, *given: Any) -> None:
            side._offers = offers
            side.close()
            offers.offer(*given)

    with pair() as (prefiller, _, __):
        side: Any = prefiller.side
        offers, side._offers = side._offers, Closing()
        lease = prefiller.cache.begin(range(16))
        prefiller.cache.seal(lease, 16)
        held = prefiller.cache.hold(lease)
        prefiller.cache.finish(lease)
        assert side.offer(held) is None
        assert not held.is_held
        assert side.stats()["offers_held"] == 0


def test_what_is_no_held_blocks_is_refused() -> None:
    with pair() as (prefiller, _, __):
        assert prefiller.side.offer(None) is None
        wrong: Any = "held"
        with pytest.raises(by.Misuse, match=r"give what KVCache\.hold has returned"):
            prefiller.side.offer(wrong)
        lease = prefiller.cache.begin(range(16))
        prefiller.cache.seal(lease, 16)
        held = prefiller.cache.hold(prefiller.cache.keys(range(16)))
        prefiller.cache.finish(lease)
        assert held is not None
        held.release()
        assert prefiller.side.offer(held) is None, "it was given back"


def test_blocks_of_another_cache_are_not_offered() -> None:
    with pair() as (prefiller, _, __), by.local(LAYOUT, device=8, namespace=OURS) as other:
        lease = other.begin(range(16))
        other.seal(lease, 16)
        held = other.hold(lease)
        assert held is not None
        with pytest.raises(by.Misuse, match="of another cache"):
            prefiller.side.offer(held)
        assert held.is_held, "it goes on"
        assert prefiller.side.stats()["offers_held"] == 0
        held.release()
        other.finish(lease)


def test_memory_that_is_not_the_devices_is_refused() -> None:
    with (
        by.local(LAYOUT, device=8, host=8, namespace=OURS) as cache,
        pytest.raises(by.Misuse, match="the host's memory"),
    ):
        PrefillSide(cache, MemoryTier(LAYOUT, 8))
    twice = by.KVCache(block_size=2 * SIZE, device=8, namespace=OURS)
    with pytest.raises(by.Misuse, match=f"blocks of {2 * SIZE}"):
        PrefillSide(twice, MemoryTier(LAYOUT, 8, name="device"))


def test_only_peers_with_an_open_offer_are_asked_for_blocks() -> None:
    with pair() as (prefiller, _, __):
        others = [f"127.0.0.1:{port}" for port in range(7000, 7100)]
        decoder = Decoder(*others, prefiller.side.address, device=40)
        peers = decoder.cache.crane.remote.peers
        assert not list(peers.offering())
        offer = prefiller.computes(1)
        ticket = decoder.adopts("one", 1, offer)
        assert list(peers.offering()) == [peers.get(offer.at)]
        lease = decoder.begins(1, ticket)
        assert decoder.checked(1, lease) == 4
        decoder.side.over("one")
        decoder.cache.finish(lease)
        assert not list(peers.offering())
        decoder.close()


def test_offers_are_explained() -> None:
    with pair() as (prefiller, decoder, _):
        offer = prefiller.computes(1)
        (line,) = prefiller.side.explain()
        assert f"Offer {offer.id.hex()[:8]} has held 4 blocks" in line
        assert "nobody has taken it" in line
        decoder.adopts("one", 1, offer)
        assert "1 readers have a lease" in prefiller.side.explain()[0]
        assert prefiller.side.make_room()
        assert not prefiller.side.make_room()
        ended(prefiller, "room")


def test_caches_of_hybrid_models_are_refused_by_name() -> None:
    cache = by.KVCache(block_size=4, namespace=OURS, engine=8, group=1, linked=False)
    memory = by.local(LAYOUT, device=8)
    with memory, pytest.raises(by.Unsupported, match="hybrid models"):
        PrefillSide(cache, memory.crane.device)


def test_of_an_engine_that_allocates_its_blocks_itself_the_host_is_offered() -> None:
    cache = by.KVCache(block_size=4, namespace=OURS, engine=8, host=8)
    with by.local(LAYOUT, device=8) as memory, pytest.raises(by.Misuse, match="the cache's host"):
        PrefillSide(cache, memory.crane.device)


def test_the_numbers_of_both_sides_are_exported() -> None:
    with pair() as (prefiller, decoder, _):
        assert decoder.takes("one", 1, prefiller.computes(1)) == 4
        ended(prefiller, "done")
        views: list[tuple[Any, dict[str, int]]] = [
            (prefiller.side, EngineView(prefiller.cache, handover=prefiller.side).stats()),
            (decoder.side, EngineView(decoder.cache, handover=decoder.side).stats()),
        ]
        for side, found in views:
            names = {stat.metric: stat.name for stat in side.SCHEMA}
            assert {metric: found[metric] for metric in names} == {
                metric: side.stats()[name] for metric, name in names.items()
            }
        assert views[0][1]["offers_ended{by=done}"] == 1
        assert views[1][1]["handover_offers{result=taken}"] == 1
    wrong: Any = "a side"
    with pytest.raises(by.Misuse, match="give a PrefillSide or a DecodeSide"):
        EngineView(by.KVCache(device=8), handover=wrong)


def test_a_rank_that_is_told_reads_what_another_has_taken() -> None:
    with pair() as (prefiller, decoder, relay):
        other = Decoder(relay.address)
        side = DecodeSide(
            decoder.cache, decoder.cache.crane.remote.peers, ranks=[other.cache.crane.remote.peers]
        )
        offer = prefiller.computes(1)
        side.reserve("one", 17, SIZE, patience=60.0)
        assert side.offered("one", offer)
        until(lambda: side.ask("one", decoder.keys(1)) is not None)
        assert other.cache.adopt(other.keys(1), 4) == 4
        lease = other.begins(1)
        assert other.checked(1, lease) == 4
        other.cache.finish(lease)
        side.over("one")
        ended(prefiller, "done")
        stranger = TakenOffer("127.0.0.1:1", offer.id, offer.boot, *EMPTY, 1)
        with pytest.raises(by.Misuse, match="give all ranks the same peers"):
            other.cache.crane.remote.peers.tell(stranger)
        other.close()


def test_after_new_weights_under_one_namespace_nothing_is_offered() -> None:
    one = Prefiller()
    one.cache.update_weights()
    lease = one.cache.begin(range(16))
    one.cache.seal(lease, 16)
    held = one.cache.hold(one.cache.keys(range(16)))
    one.cache.finish(lease)
    assert held is not None
    assert one.side.offer(held) is None
    assert one.cache.stats()["held_blocks"] == 0
    one.close()
