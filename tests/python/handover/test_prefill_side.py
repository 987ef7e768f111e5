"""A prefill side by itself: its addresses, what it is told to end, and a fork of its process."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.peers import Peers
from blockyard.handover.offer import Offer
from blockyard.handover.prefill_side import PrefillSide
from blockyard.stores.identity import fields_of
from disks import LAYOUT, OURS
from handover_rig import Prefiller, pair, until


@pytest.fixture
def prefiller() -> Iterator[Prefiller]:
    one = Prefiller()
    yield one
    one.close()


@pytest.mark.parametrize(
    "bad",
    ["offer", {"blockyard.offer": 1}, 7, Offer("id", "10.0.0.7:7000", 1)],  # type: ignore[arg-type]
)
def test_what_is_no_offer_is_not_ended_but_named(prefiller: Prefiller, bad: Any) -> None:
    prefiller.computes(1)
    with pytest.raises(by.Misuse, match="give what `offer` has returned"):
        prefiller.side.end(bad)
    assert prefiller.side.stats()["offers_held"] == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_not_promised_is_named(prefiller: Prefiller, as_json: bool) -> None:
    bad: Any = prefiller.side.promise().to_json() if as_json else "offer"
    with pytest.raises(by.Misuse, match="give what `promise` has returned"):
        prefiller.side.fulfil(bad, None)


def test_an_offer_is_ended_as_a_router_carries_it_and_none_is_none(prefiller: Prefiller) -> None:
    offer = prefiller.computes(1)
    assert not prefiller.side.end(None), "what `offer` returns where nothing is held"
    assert prefiller.side.end(offer.to_json(), "room")
    assert prefiller.side.stats()["offers_ended_by_room"] == 1


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_an_address_that_nobody_can_connect_to_is_in_no_offer(tmp_path: Path, listen: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    with by.local(LAYOUT, device=8, namespace=OURS) as cache:
        device = cache.crane.device

        def made(advertise: str | None) -> PrefillSide:
            return PrefillSide(
                cache, device, listen=listen, advertise=advertise, secret_file=secret
            )

        for wrong in (None, "0.0.0.0:7000", "[::]:7000"):
            with pytest.raises(by.Misuse, match="advertise"):
                made(wrong)
        side = made("10.0.0.7:7000")
        assert side.address == "10.0.0.7:7000"
        side.close()


def test_unlike_ranks_are_refused_by_the_name_of_the_field() -> None:
    layout = by.KVLayout.llama(layers=2, kv_heads=4, head_dim=8, block_size=4, ranks=2)
    with pair() as (prefiller, decoder, relay):
        peers = Peers(
            [relay.address],
            fields=fields_of(decoder.cache.config.identity, layout),
            rank=1,
            block_bytes=layout.block_bytes,
        )
        (peer,) = peers
        offer = prefiller.computes(1)
        keys = np.frombuffer(bytes(decoder.keys(1)), np.uint8).reshape(-1, 32)
        peer.take(1, offer.id, offer.boot, keys, time.monotonic())
        until(peer.taken)
        assert peer.why() == 'ranks is "1" there, and "2" here'
        peers.close(1.0)


def test_an_engine_of_several_ranks_is_refused() -> None:
    layout = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4, ranks=2)
    cache = by.KVCache(by.Config(layout=layout, device=8, namespace=OURS))
    with pytest.raises(by.Unsupported, match="2 ranks"):
        PrefillSide(cache, MemoryTier(layout, 8, name="device"))


def test_a_forked_child_that_ends_says_nothing() -> None:
    program = """
        import gc, os, sys
        import blockyard as by
        from blockyard.handover.prefill_side import PrefillSide

        layout = by.KVLayout.llama(layers=2, kv_heads=2, head_dim=8, block_size=4)
        cache = by.local(layout, device=8, namespace={"model": "m", "weights": "w"})
        side = PrefillSide(cache, cache.crane.device)
        lease = cache.begin(range(16))
        cache.seal(lease, 16)
        assert side.offer(cache.hold(lease)) is not None
        for drops in (False, True):
            child = os.fork()
            if not child:
                if drops:
                    del side
                    gc.collect()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert side.stats()["offers_held"] == 1
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 - of this test
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
