"""The carrier `nixl` over NIXL itself, by TCP on the loopback, with a process that really dies."""

import subprocess
import sys
from pathlib import Path

import pytest

from handover_play import Play, Setup, asks
from needs import need

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    need("nixl")
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")


@pytest.mark.law("INV-36f")
def test_race_22_the_process_that_reads_is_killed_and_nothing_is_printed() -> None:
    """The prefill side is in it, too: NIXL's own logger prints to stdout."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(SUPPORT)!r})
from blockyard.crane.tiers import nixl_peer
from fake_nixl import peer_of
from handover_rig import BLOCK, pair, until
nixl_peer._AGAIN = 0.0
with pair(carrier="nixl") as (prefiller, decoder, _):
    assert decoder.takes("one", 1, prefiller.computes(1)) == 4
    peer = peer_of(decoder.cache)
    first = peer._life
    os.kill(first.reader._process.pid, signal.SIGKILL)
    until(lambda: peer._life is not first)
    assert decoder.takes("two", 2, prefiller.computes(2)) == 4
    stats = decoder.cache.stats()
    assert stats["remote_peer_got_bytes"] == 8 * BLOCK, stats
    assert prefiller.side.stats()["offers_sent_bytes"] == 0
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - ours
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()


@pytest.mark.law("INV-36c", "INV-36f")
def test_either_engine_killed_and_stopped() -> None:
    seen = Play(Setup(7, carrier="nixl"), asks(7, 6), kills=1, stops=1).run()
    assert seen["requests"] == 6
    assert 2 * seen["prefiller lived, blocks taken over"] >= seen["prefiller lived"] > 0
