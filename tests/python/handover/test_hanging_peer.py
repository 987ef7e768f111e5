"""A prefill engine that stands still within reads: what they hold, and what comes of others."""

import time
from typing import Any

import pytest

from handover_rig import BLOCK, pair, until

pytestmark = pytest.mark.law("INV-36c", "INV-36d")


def test_race_21_reads_that_hang_hold_nothing_after_their_deadline_and_no_other_begins() -> None:
    """Bytes come into slots, and the close of a socket is an end: no staging can be full."""
    with pair() as (prefiller, decoder, relay):
        remote, now = decoder.cache.crane.remote, [time.monotonic()]
        copier, side, (peer,) = remote.copier, decoder.side, remote.peers
        copier._flights.clock = side._clock = lambda: now[0]
        stats: Any = decoder.cache.stats
        tickets = [decoder.adopts(talk, talk, prefiller.computes(talk)) for talk in range(3)]
        relay.most = relay.passed + BLOCK // 2
        leases = [decoder.begins(talk, ticket) for talk, ticket in enumerate(tickets)]
        until(lambda: relay.passed >= relay.most, decoder.cache.step)
        assert stats()["remote_peer_in_flight"] == 3
        # The connection will be closed, and no other one can be made.
        there, relay.target = relay.target, "127.0.0.1:1"
        now[0] += 2 * copier._flights.patience
        assert [decoder.checked(talk, lease) for talk, lease in enumerate(leases)] == [0] * 3
        assert stats()["remote_peer_in_flight"] == 0
        slots = decoder.cache.block_tables(leases)[:, :4].ravel()
        plane = decoder.cache.crane.device.planes[0]
        plane[slots] = 250
        for talk in range(3):
            side.over(talk)
        relay.most = float("inf")
        assert [decoder.takes(talk, talk, prefiller.computes(talk)) for talk in (3, 4)] == [0, 0]
        assert (peer.state(), stats()["remote_peer_resting"]) == ("resting", 1)
        said = f"The peer {relay.address} is left alone, and is tried again soon: {peer.why()}."
        assert remote.troubles() == (said,)
        assert said in decoder.cache.explain(leases[0]).lines
        relay.target = there
        asked = peer.stats()["connected"]
        assert decoder.takes(5, 5, prefiller.computes(5)) == 0
        assert (side.stats()["handover_gone"], peer.stats()["connected"]) == (3, asked)
        now[0] += 1.0
        assert decoder.takes(6, 6, prefiller.computes(6)) == 4
        assert (peer.state(), remote.troubles()) == ("well", ())
        assert (plane[slots] == 250).all(), "no byte has come late into a slot"
        decoder.cache.finish(leases)
