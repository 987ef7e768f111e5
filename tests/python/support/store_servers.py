"""Servers of stores, on loopback and free ports, each ended by its own number."""

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from needs import need, without

_DIE_WITH_PARENT: Final = 1
_libc = ctypes.CDLL(None)
OWNER: Final = """
import sys, time
from mooncake.store import MooncakeDistributedStore
master, nbytes = sys.argv[1:]
made = MooncakeDistributedStore()
assert made.setup("127.0.0.1", "P2PHANDSHAKE", int(nbytes), 1 << 24, "tcp", "", master) == 0
print("ready", flush=True)
time.sleep(1e6)
"""


class Server(NamedTuple):
    """A server that runs."""

    url: str
    port: int
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Has it answer nothing: returns when each of its threads stands still.

        A thread that runs on another core answers on until the signal reaches it.
        """
        self.process.send_signal(signal.SIGSTOP)
        stats = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        for stat in list(stats):
            while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)

    def go_on(self) -> None:
        """Has it answer again."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a crash does."""
        self.process.kill()
        self.process.wait()


class Mooncake(NamedTuple):
    """A master, and a process that has memory."""

    url: str
    master: Server
    owner: Server


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def redis_server(
    folder: Path, *words: str, memory: str = "64mb", policy: str = "allkeys-lru", port: int = 0
) -> Iterator[Server]:
    """Runs Redis.

    Args:
        folder: A folder of its own.
        words: Further words of its command line.
        memory: Its maxmemory.
        policy: What it evicts.
        port: Its port; 0 for a free one.
    """
    port = port or free_port()
    command = [need("redis-server"), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    command += ["--maxmemory", memory, "--maxmemory-policy", policy]
    # A port of TLS is given as its own word.
    command += [] if "--tls-port" in words else ["--port", str(port)]
    with _running([*command, *words], lambda: _answers(port)) as process:
        yield Server(f"redis://127.0.0.1:{port}", port, process)


@contextmanager
def mooncake(nbytes: int = 256 << 20) -> Iterator[Mooncake]:
    """Runs a master of Mooncake, and a process that has memory.

    Args:
        nbytes: How much.
    """
    with ExitStack() as stack:
        port, metrics = free_port(), free_port()
        words = ["--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1"]
        words += [f"--metrics_port={metrics}", "--client_ttl=2"]
        command = [str(_mooncake() / "mooncake_master"), *words]
        process = stack.enter_context(_running(command, lambda: _answers(port)))
        master = Server(f"127.0.0.1:{port}", port, process)
        command = [sys.executable, "-c", OWNER, master.url, str(nbytes)]
        process = stack.enter_context(_running(command, None))
        url = f"mooncake://127.0.0.1:{port}?metrics={metrics}&timeout=2"
        yield Mooncake(url, master, Server("", 0, process))


@contextmanager
def mooncake_node(master: str, nbytes: int = 256 << 20, *, port: int = 0) -> Iterator[Server]:
    """Runs the client process of a node, which has memory for the engines beside it.

    Args:
        master: Host and port of the master.
        nbytes: How much memory.
        port: Its port; 0 for a free one.
    """
    port = port or free_port()
    words = ["--host=127.0.0.1", f"--port={port}", f"--global_segment_size={nbytes >> 20} MB"]
    words += [f"--master_server_address={master}", "--metadata_server=P2PHANDSHAKE"]
    command = [str(_mooncake() / "mooncake_client"), *words, "--protocol=tcp", "--threads=2"]
    with _running(command, lambda: _answers(port)) as process:
        yield Server(f"mooncake://{master}?client=127.0.0.1:{port}", port, process)


def _mooncake() -> Path:
    """The folder of its programs; skips where it cannot be imported."""
    found = importlib.util.find_spec("mooncake")
    if found is None or not found.submodule_search_locations:
        without("mooncake", "no Mooncake: `make test-stores` installs it")
    try:
        import mooncake.store  # noqa: F401, PLC0415 - it may not be there
    except ImportError as error:
        without("mooncake", f"Mooncake cannot be imported: {error}")
    return Path(found.submodule_search_locations[0])


@contextmanager
def _running(
    command: Sequence[str], is_up: Callable[[], bool] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program until it is up, or has said so, and to the end."""

    def die_with_parent() -> None:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)

    out = subprocess.PIPE if is_up is None else subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - the words are ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - it makes one system call
        env={**os.environ, "MC_LOG_LEVEL": "ERROR"},
    )
    try:
        if is_up is None:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", command
        else:
            until = time.monotonic() + 30
            while not is_up():
                assert process.poll() is None, command
                assert time.monotonic() < until, command
                time.sleep(0.01)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
