"""NIXL's agent, and the process that reads a prefill side's memory with one: `python -m` this.

Nothing ends a transfer of NIXL that was given up, and the other side's end may end the process that
has the agent. So it is in a process of its own, which knows no slots: it reads into staging that it
shares with the engine, and says when a read has ended. Its own end ends all of them.
"""

import ctypes
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import numpy as np

from blockyard._core import Unavailable
from blockyard.shared.log import described, silence

__all__ = ["Reading", "agent", "registered", "serve", "wheel"]

_WHEELS: Final = ("nixl_cu12", "nixl_cu13")
_QUIET: Final = {
    # It unloads what the system's library of this name has loaded at the process's end, which dies.
    "UCX_MODULES": "^efa",
    # By default it takes SIGHUP from the engine.
    "UCX_DEBUG_SIGNO": "0",
    "UCX_LOG_FILE": "stderr",
    "UCX_LOG_LEVEL": "fatal",
    "NIXL_LOG_LEVEL": "FATAL",
}
"""What the environment says where nobody else has said it."""
_PAUSE: Final = 2e-4
"""Seconds between two looks at what is read."""
_PARENT_DIES: Final = 1
"""What `prctl` calls the signal that a process gets when its parent dies."""
_WAIT: Final = 1000
"""Microseconds that the thread waits whose agent's memory is read."""


class Reading(NamedTuple):
    """Blocks that are read together: their bytes, and then the generations of their slots.

    Each is an array of shape (2, pieces, 3), uint64: in staging and in the other process, for each
    piece its address, its bytes and 0, as NIXL has it. In staging addresses begin at 0.
    """

    number: int
    bytes_: Any
    words: Any


def wheel() -> str | None:
    """Returns the module that has NIXL's agent; None where no wheel of it is installed."""
    return next((f"{name}._api" for name in _WHEELS if find_spec(name) is not None), None)


def agent(module: str, name: str) -> Any:  # noqa: ANN401 - it has no types
    """Returns a new agent of NIXL that reads, over UCX. It prints nothing.

    It has no thread of its own, which would spin: looking at a read makes it go on.

    Args:
        module: As `wheel` returns it.
        name: Its name, which no other agent has, nor gets.

    Raises:
        Unavailable: It does not start.
    """
    with _starting():
        found = _imported(module)
        # Its own handler prints to stdout.
        silence("nixl")
        config = found.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        return found.nixl_agent(name, config)


def registered(module: str, name: str, regions: list[tuple[int, int]]) -> tuple[Any, bytes]:
    """Returns a new agent whose memory others read, and its metadata. It prints nothing.

    Args:
        module: As in `agent`.
        name: As there.
        regions: Addresses and bytes of the memory.

    Raises:
        Unavailable: It does not start.
    """
    with _starting():
        found = _imported(module.replace("._api", "._bindings"))
        config = found.nixlAgentConfig()
        config.useProgThread, config.useListenThread = True, False
        # Its thread waits for so many microseconds where nothing comes. With 0 it spins.
        config.pthrDelay = _WAIT
        made = found.nixlAgent(name, config)
        made.createBackend("UCX", {})
        rows = [(first, nbytes, 0, "") for first, nbytes in regions]
        made.registerMem(found.nixlRegDList(found.DRAM_SEG, rows), [])
        return made, made.getLocalMD()


@contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # its errors have no common type, and do not say what is wrong
        names = [name for name in ("UCX_TLS", "UCX_NET_DEVICES") if name in os.environ]
        said = " ".join(f"{name}={os.environ[name]}" for name in names)
        raise Unavailable(
            f"NIXL's agent does not start{f' with {said}' if said else ''}: {described(error)}; "
            "UCX_LOG_LEVEL=warn says more"
        ) from error


def _imported(module: str) -> Any:  # noqa: ANN401 - it has no types
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    return import_module(module)


class _Transfer:
    """A read that NIXL carries out, and what it is of."""

    def __init__(self, agent: Any, peer: str, of: list[Reading], stage: Any) -> None:  # noqa: ANN401 - it has no types
        self.of = of
        self._agent = agent
        here, there = (agent.get_xfer_descs(rows, "DRAM") for rows in stage)
        self._handle = agent.initialize_xfer("READ", here, there, peer)
        self._state = agent.transfer(self._handle)

    def has_ended(self) -> bool:
        if self._state == "PROC":
            self._state = self._agent.check_xfer_state(self._handle)
        if self._state == "ERR":
            raise RuntimeError("a read has ended with an error")
        if self._state == "PROC":
            return False
        # Not before its end: releasing a transfer does not end it.
        self._agent.release_xfer_handle(self._handle)
        return True


def _ended(transfers: list[_Transfer]) -> list[Reading]:
    """Takes out of a list what has ended; returns for what that was."""
    over = [one for one in transfers if one.has_ended()]
    for one in over:
        transfers.remove(one)
    return [reading for one in over for reading in one.of]


class _Reads:
    """What is read now: bytes, and generations behind them."""

    def __init__(self, agent: Any, base: int) -> None:  # noqa: ANN401 - it has no types
        self._agent, self._base = agent, np.uint64(base)
        self._peer = ""
        self._bytes: list[_Transfer] = []
        self._words: list[_Transfer] = []

    def __bool__(self) -> bool:
        return bool(self._bytes or self._words)

    def hear(self, word: str, what: Any) -> None:  # noqa: ANN401 - by the word
        """Does what it is told."""
        if word == "open":
            peer = self._agent.add_remote_agent(what)
            self._peer = peer.decode() if isinstance(peer, bytes) else peer
            return
        self._post(self._bytes, [what], what.bytes_)

    def _post(self, transfers: list[_Transfer], of: list[Reading], stage: Any) -> None:  # noqa: ANN401 - an array
        stage[0, :, 0] += self._base
        transfers.append(_Transfer(self._agent, self._peer, of, stage))

    def look(self) -> list[int]:
        """Looks at all; returns the numbers of those that have ended."""
        read = _ended(self._bytes)
        if read:
            # One for all: each costs more than some pieces.
            self._post(self._words, read, np.concatenate([one.words for one in read], 1))
        return [one.number for one in _ended(self._words)]


def serve(link: Connection, agent: Any, staging: tuple[int, int]) -> None:  # noqa: ANN401 - it has no types
    """Reads what it is told, until the link is closed or the transport fails.

    Args:
        link: What tells it, and is told.
        agent: The agent.
        staging: Its address in this process, and its bytes.
    """
    base, nbytes = staging
    agent.register_memory([(base, nbytes, 0, "")], "DRAM")
    reads = _Reads(agent, base)
    # That of the link makes a selector each time, which costs more than a read.
    words = select.poll()
    words.register(link.fileno(), select.POLLIN)
    try:
        while True:
            # One, and then it looks: with shared memory what was posted may have ended by that, and
            # the engine has something to do while the next one is read.
            has_heard = bool(words.poll(0 if reads else None))
            if has_heard:
                reads.hear(*link.recv())
            ended = reads.look()
            if ended:
                link.send(("ended", ended))
            elif reads and not has_heard:
                time.sleep(_PAUSE)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:  # noqa: BLE001 - its errors have no common type
        _failed(link, error)


def _failed(link: Connection, error: Exception) -> None:
    with suppress(OSError):
        link.send(("failed", described(error)[:300]))


def main(module: str, link: str, staging: str, engine: str) -> None:
    """Serves, and ends the process at once: NIXL's threads would keep it.

    Args:
        module: As `agent` has it.
        link: The descriptor of the link.
        staging: That of the staging.
        engine: The process that has started it, and with which it ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The link tells nothing while a forked child of the engine has it, too.
    ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(engine):
        os._exit(0)
    its = Connection(int(link))
    try:
        memory = mmap.mmap(int(staging), 0)
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        made = agent(module, f"decode {os.getpid()} {os.urandom(8).hex()}")
        serve(its, made, (address, len(memory)))
    except Exception as error:  # noqa: BLE001 - as there
        _failed(its, error)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
