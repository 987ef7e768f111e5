"""The process that has NIXL's agent: what starts and ends it, and what it costs when it fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.tiers import nixl_peer, nixl_process, nixl_source
from blockyard.crane.tiers.nixl_peer import Staging
from blockyard.crane.tiers.nixl_source import Described
from fake_nixl import Reader, Road, road
from handover_rig import pair, peer_of, until

__all__ = ["road"]

AGENT = """
import time
class nixl_agent_config:
    def __init__(self, **_): pass
class nixl_agent:
    def __init__(self, name, config): {starts}
    def register_memory(self, rows, kind): pass
nixlAgentConfig, nixlAgent = nixl_agent_config, nixl_agent
"""


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes a module that stands for NIXL's, in the process of the agent."""

    def write(starts: str) -> None:
        (tmp_path / "made_up_agent.py").write_text(AGENT.format(starts=starts))
        monkeypatch.syspath_prepend(tmp_path)
        for module in (nixl_peer, nixl_source):
            monkeypatch.setattr(module, "needed_wheel", lambda: "made_up_agent")
        said = repr([(0, 1 << 47)]).encode()
        monkeypatch.setattr(nixl_source, "registered", lambda *_: (object(), said))

    return write


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped() -> int:
    """Places in memory of staging."""
    return Path("/proc/self/maps").read_text().count("blockyard-nixl")


def test_an_agent_that_cannot_start_says_why(
    agent: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """UCX says no more than NIXL_ERR_BACKEND of a transport, or a device, that is not there."""
    monkeypatch.setenv("UCX_TLS", "made_up")
    agent('raise RuntimeError("NIXL_ERR_BACKEND")')
    why = "does not start with UCX_TLS=made_up: RuntimeError: NIXL_ERR_BACKEND"
    with pair(carrier="nixl") as (prefiller, decoder, _):
        assert decoder.takes("one", 1, prefiller.computes(1)) == 0
        assert why in peer_of(decoder.cache).why()
    with pytest.raises(by.Unavailable, match=why):
        nixl_process.registered("made_up_agent", "prefill", [])


@pytest.mark.law("INV-35b")
def test_inv_35b_a_transport_that_fails_again_and_again_is_left_alone(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_peer, "_AGAIN", 0.01)
    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer, road.fails = peer_of(decoder.cache), "no transport of that name"
        for talk in range(1, 4):
            assert decoder.takes(talk, talk, prefiller.computes(talk)) == 0
        assert len(road.readers) == 3
        peer._next = time.monotonic() + 600.0
        assert peer.state() == "resting"
        assert "no transport" in peer.why()
        assert decoder.takes(4, 4, prefiller.computes(4)) == 0
        road.fails, peer._next = "", 0.0
        assert len(road.readers) == 3
        assert decoder.takes(5, 5, prefiller.computes(5)) == 4


def test_words_that_describe_nothing_start_nothing_again(
    road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_peer, "_AGAIN", 0.01)
    for said in (b"nonsense", b"[" * 200_000, b'{"pieces": []}'):
        monkeypatch.setattr(Described, "to_bytes", lambda _, said=said: said)
        road.readers.clear()
        with pair(carrier="nixl") as (prefiller, decoder, _):
            assert decoder.takes("one", 1, prefiller.computes(1)) == 0
            assert decoder.takes("two", 2, prefiller.computes(2)) == 0
            assert "where its memory is" in peer_of(decoder.cache).why(), said[:9]
            assert len(road.readers) == 1


class Frozen:
    """A reader that reads nothing of what it is told, as a process that was stopped."""

    def __init__(self, staging: Staging) -> None:
        self.link, self._its = Pipe()
        del staging
        os.set_blocking(self.link.fileno(), False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.link.fileno(), b"0" * 4096)
        os.set_blocking(self.link.fileno(), True)
        self.ended = False

    def end(self) -> None:
        self.ended = True


def test_a_process_that_hears_nothing_is_ended(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_peer, "_STUCK", 0.2)
    monkeypatch.setattr(nixl_peer, "_AGAIN", 0.05)
    frozen: list[Any] = []

    def start(staging: Staging) -> Any:
        if not frozen:
            frozen.append(Frozen(staging))
            return frozen[0]
        return Reader(road, staging)

    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer = peer_of(decoder.cache)
        peer._start = start
        ticket = decoder.adopts("one", 1, prefiller.computes(1))
        until(lambda: frozen and frozen[0].ended)
        lease = decoder.begins(1, ticket)
        assert decoder.checked(1, lease) == 4
        decoder.side.over("one")
        decoder.cache.finish(lease)
    assert len(road.readers) == 1


def test_it_ends_with_its_engine_though_a_child_has_the_link(
    agent: Callable[[str], None], tmp_path: Path
) -> None:
    """Its modules are the engine's, and none that lie where that was started."""
    agent("print(file=open('runs', 'w'))")
    here = tmp_path / "here"
    here.mkdir()
    (here / "random.py").write_text("raise SystemExit(9)")
    script = f"""
import os, sys, time
sys.path.insert(0, {str(tmp_path)!r})
from blockyard.crane.tiers import nixl_peer
nixl_peer.needed_wheel = lambda: "made_up_agent"
staging = nixl_peer.Staging(1, 4096)
reader = nixl_peer._Process(staging)
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(600)
while reader._process.poll() is None and not os.path.exists("runs"):
    time.sleep(0.01)
print(reader._process.pid, child, reader._process.poll(), flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-P", "-c", script]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=here)  # noqa: S603 - ours
    assert engine.stdout is not None
    pid, child, has_ended = engine.stdout.readline().decode().split()
    engine.kill()
    engine.wait()
    engine.stdout.close()
    try:
        assert has_ended == "None", "it runs"
        until(lambda: is_over(int(pid)))
    finally:
        for one in (child, pid):
            with suppress(ProcessLookupError):
                os.kill(int(one), signal.SIGKILL)


def is_over(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked how."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_twenty_lives_leak_nothing(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_peer, "_AGAIN", 0.0)
    with pair(carrier="nixl") as (prefiller, decoder, _):
        peer = peer_of(decoder.cache)
        # Stand-ins of other tests keep their memory.
        before, others = 0, mapped()
        for talk in range(20):
            assert decoder.takes(talk, talk, prefiller.computes(talk)) == 4
            before = before or descriptors()
            road.readers[-1].dies()
            until(lambda: peer._life is None)
        assert len(road.readers) == 20
        # The peer has no life before the last one has let go of all.
        until(lambda: descriptors() <= before and mapped() <= others)
