"""What stands for NIXL: it reads memory of this process, when a test lets it, as late as it likes.

The prefill side and the reader of the decode side are those of the package; only the agents are
made up, and the reader is a thread. A read that is held writes when it is let go, whatever has
become of who wanted it: as NIXL does.
"""

import ctypes
import os
import socket
import threading
from ast import literal_eval
from itertools import count
from multiprocessing.connection import Pipe
from typing import TYPE_CHECKING, Any

import pytest

from blockyard.crane.tiers import nixl_peer, nixl_process, nixl_source
from blockyard.crane.tiers.nixl_peer import Staging

if TYPE_CHECKING:
    from collections.abc import Callable


class Road:
    """What all agents of a test share."""

    def __init__(self) -> None:
        self.held = False
        """Whether reads do not end."""
        self.fails = ""
        """What a look at a read raises."""
        self.dies = False
        """Whether a look ends the reader without a word."""
        self.before: Callable[[int], None] = lambda _: None
        """Called before a read is done, with its number; it may change memory."""
        self.after: Callable[[Any], None] = lambda _: None
        """Called with the addresses and bytes of what was written."""
        self.done = 0
        self.readers: list[Reader] = []


class Handle:
    def __init__(self, here: Any, there: Any) -> None:
        self.here, self.there, self.ended = here, there, False


class Agent:
    """As NIXL's, as far as the carrier calls it."""

    def __init__(self, road: Road) -> None:
        self.road = road
        self.peers: list[bytes] = []
        self.regions: list[tuple[int, int]] = []

    def register_memory(self, regions: Any, kind: str) -> None:
        assert kind == "DRAM"
        self.regions += [(first, first + nbytes) for first, nbytes, _, _ in regions]

    def add_remote_agent(self, metadata: bytes) -> bytes:
        assert not self.peers, "one agent is told of one prefill side"
        self.peers.append(metadata)
        return b"a prefill side"

    def get_xfer_descs(self, rows: Any, kind: str) -> Any:
        assert kind == "DRAM"
        return rows

    def initialize_xfer(self, operation: str, here: Any, there: Any, peer: str) -> Handle:
        assert (operation, peer) == ("READ", "a prefill side")
        remote = [(at, at + size) for at, size in literal_eval(self.peers[0].decode())]
        for ends, regions in ((here, self.regions), (there, remote)):
            for first, nbytes, _ in ends.tolist():
                assert any(a <= first and first + nbytes <= b for a, b in regions), (
                    "it is not registered"
                )
        return Handle(here, there)

    def transfer(self, _: Handle) -> str:
        return "PROC"

    def check_xfer_state(self, handle: Handle) -> str:
        if self.road.dies:
            raise EOFError
        if self.road.fails:
            raise RuntimeError(self.road.fails)
        if self.road.held:
            return "PROC"
        self.road.before(self.road.done)
        for (to, nbytes, _), (from_, _, _) in zip(
            handle.here.tolist(), handle.there.tolist(), strict=True
        ):
            ctypes.memmove(to, from_, nbytes)
        self.road.after(handle.here)
        self.road.done += 1
        handle.ended = True
        return "DONE"

    def release_xfer_handle(self, handle: Handle) -> None:
        assert handle.ended, "what is released has not ended"


class Reader:
    """A reader whose end lets no read go on, as the end of a process."""

    def __init__(self, road: Road, staging: Staging) -> None:
        self.link, self._its = Pipe()
        self.agent, self.ended = Agent(road), False
        place = staging.address, staging.nbytes
        # It may write late: the memory stays.
        self.staging: Any = staging, staging._bytes
        what = self._its, self.agent, place
        self._thread = threading.Thread(target=self._serve, args=what, daemon=True)
        self._thread.start()
        road.readers.append(self)

    def _serve(self, *what: Any) -> None:
        try:
            nixl_process.serve(*what)
        finally:
            self._its.close()

    def end(self) -> None:
        self.ended = True

    def dies(self) -> None:
        """Ends without a word, as a process that was killed."""
        with socket.socket(fileno=os.dup(self._its.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
        # Its memory goes with it.
        self.staging = None


@pytest.fixture
def road(monkeypatch: pytest.MonkeyPatch) -> Road:
    """NIXL is installed, as far as anybody sees."""
    made = Road()
    for module in (nixl_peer, nixl_source):
        monkeypatch.setattr(module, "needed_wheel", lambda: "a stand-in")
    # Each has metadata of its own.
    numbers = count()
    said = lambda *what: (object(), f"{what[2]!r}  # {next(numbers)}".encode())  # noqa: E731
    monkeypatch.setattr(nixl_source, "registered", said)
    # Where nobody wakes the thread, it need not be waited for.
    monkeypatch.setattr(nixl_peer, "_LOOK", 0.02)
    monkeypatch.setattr(nixl_peer, "_Process", lambda staging: Reader(made, staging))
    return made
