"""NIXL itself: a decode side, and two lives of a prefill side in forked children. Run it.

The process that reads is killed; the first life forks, is stopped in a read, and is killed in one.
"""

import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from blockyard.crane.tiers import nixl_peer
from handover_rig import BLOCK, PATIENCE, Decoder, Prefiller, gives_up_now, peer_of, staged, until


def prefill(link: Connection) -> None:
    """What the process of a prefill engine does: what it is told."""
    heard: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    one = Prefiller(listen=link.recv(), carrier="nixl")
    link.send(one.side.listens)
    with suppress(EOFError):
        while True:
            word = link.recv()
            if word == "fork":
                os.kill(os.getpid(), signal.SIGHUP)
                if (child := os.fork()) == 0:
                    sys.exit(7)
                ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                link.send((ended, heard, one.side.stats()["offers_sent_bytes"]))
            else:
                link.send(one.computes(word).to_json())
    one.close()


class Life:
    """A prefill engine: it waits for its address."""

    def __init__(self) -> None:
        self._link, its = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._link.close()
            prefill(its)
            sys.exit(0)
        its.close()

    def asked(self, what: Any) -> Any:
        self._link.send(what)
        return self._link.recv()

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def ends(self) -> int:
        """Lets it end, and returns how it has."""
        self._link.close()
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reads(decoder: Decoder, life: Life, talk: int) -> Any:
    """Has blocks being read of a prefill engine that is stopped; returns their lease."""
    ticket = decoder.adopts(talk, talk, life.asked(talk))
    os.kill(life.pid, signal.SIGSTOP)
    # Until then its threads go on.
    os.waitpid(life.pid, os.WUNTRACED)
    lease, peer = decoder.begins(talk, ticket), peer_of(decoder.cache)
    until(lambda: staged(peer) == 4, decoder.cache.step)
    return lease


def ended(decoder: Decoder, talk: int, lease: Any) -> None:
    assert decoder.checked(talk, lease) == 0
    decoder.cache.finish(lease)
    decoder.side.over(talk)


def play(first: Life, second: Life) -> None:
    address = first.asked("127.0.0.1:0")
    decoder = Decoder(address, carrier="nixl")
    peer, plane = peer_of(decoder.cache), decoder.cache.crane.device.planes[0]
    assert decoder.takes(1, 1, first.asked(1)) == 4

    life: Any = peer._life
    os.kill(life.reader._process.pid, signal.SIGKILL)
    until(lambda: peer._life is not life)
    assert decoder.takes(2, 2, first.asked(2)) == 4
    assert decoder.cache.stats()["remote_peer_got_bytes"] == 8 * BLOCK
    said = first.asked("fork")
    assert said == (7, [signal.SIGHUP], 0), "no signal is NIXL's, and it alone has brought bytes"

    lease = reads(decoder, first, 3)
    gives_up_now(decoder)
    until(lambda: peer.held_bytes == 4 * BLOCK, decoder.cache.step)
    ended(decoder, 3, lease)
    plane[...] = 77
    os.kill(first.pid, signal.SIGCONT)
    until(lambda: not staged(peer))
    assert (plane == 77).all(), "what comes late goes into staging alone"

    decoder.cache.crane.remote.copier._flights.patience = PATIENCE
    life, lease = peer._life, reads(decoder, first, 4)
    os.kill(first.pid, signal.SIGKILL)
    ended(decoder, 4, lease)
    assert second.asked(address) == address
    assert decoder.takes(5, 5, second.asked(5)) == 4
    assert peer._life is not life, "another one reads of another life"
    decoder.close()
    assert second.ends() == 0


if __name__ == "__main__":
    vars(nixl_peer)["_AGAIN"] = 0.0
    lives = Life(), Life()
    try:
        play(*lives)
    finally:
        for one in lives:
            one.kill()
