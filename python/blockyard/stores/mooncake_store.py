"""Mooncake Store: pools of memory over machines, and one host memory for the engines of a node.

Its client writes what it reads into memory that is registered with it, and may do so after a call
has failed. So it gets memory of its own here, from which values are copied; and where a call has
failed in a transfer, that memory is left to it for good.
"""

import ctypes
import math
import mmap
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote

from blockyard._core import Misuse, Unavailable
from blockyard._typing import override
from blockyard.shared.extras import install
from blockyard.shared.sizes import parse_bytes
from blockyard.shared.validate import shown
from blockyard.stores.location import Location, number_of

__all__ = ["OPTIONS", "MooncakeStore", "open_at"]

_OWN: Final = ("metrics", "timeout")
"""The options that the client is not told."""
OPTIONS: Final = ("client", "device", "host", "memory", "metadata", "protocol", *_OWN)
_PORT: Final = 50051
_METRICS: Final = 9003
"""The port at which a master answers by HTTP, if nobody says otherwise."""
_BUFFER: Final = 16 << 20
"""Bytes that the client takes for calls that are not made here."""
_POOL: Final = 64 << 20
"""Bytes of the memory that is shared with a node's client process."""
_HELD: Final = 64 << 20
"""Bytes of memory that may be left to the client, after transfers that failed."""
_AT_ONCE: Final = 500
_PAGE: Final = 4096
_QUICK: Final = 0.25
"""Seconds within which a node's client process has answered, or is dead."""
_KEYS: Final = 1 << 30
"""The most bytes of a list of keys."""
_NO_ROOM: Final = -200
_INVALID: Final = -600
_UNFINISHED: Final = -703
_NOT_THERE: Final = -704
_RPC: Final = frozenset({-900, -901})
_NAMES: Final = {
    -1: "internal error",
    _NO_ROOM: "it is full: give it more memory, or start its master with a lower "
    "eviction_high_watermark_ratio",
    _INVALID: "it refuses the length, or memory that is not registered",
    -601: "its master does not know this client any more",
    _UNFINISHED: "the value is still being written",
    _NOT_THERE: "there is no such value",
    -705: "there is such a value already",
    -706: "somebody reads the value",
    -707: "reading took longer than the value was kept for it",
    -800: "the transfer failed: the process that has the memory is dead, or hangs",
    -900: "no answer from its master, or from the node's client process",
    -901: "no answer from its master in time",
}
"""What a code means here."""
_CLEAN: Final = frozenset({_NO_ROOM, _INVALID, _UNFINISHED, _NOT_THERE, -705, -706, -707, *_RPC})
"""Codes of calls that began no transfer, or had ended it."""
_left: Final[list["_Memory"]] = []
"""Memory that a transfer may still write to, for as long as the process lives."""


def open_at(where: Location) -> "MooncakeStore":
    """Returns the store of a URL.

    Raises:
        Misuse: It names no master, a user, or a protocol that is none.
        Unavailable: The package is missing.
    """
    return MooncakeStore(where)


class MooncakeStore:
    """A Mooncake master and what it knows. Any thread may use it; its sessions share one client.

    Args:
        where: Its URL, read.
    """

    def __init__(self, where: Location) -> None:
        self.url = where.url
        if not where.host or where.path not in {"", "/"}:
            raise Misuse(f"{self.url}: give the master, as in mooncake://127.0.0.1:{_PORT}")
        if where.user or where.password:
            raise Misuse(f"{self.url}: Mooncake knows no users and no passwords")
        self.timeout = number_of(where, "timeout", 1.0, least=0.1, most=60)
        """Seconds for a call to the master; a transfer may take whole seconds more."""
        self._master = (where.host, where.port or _PORT)
        self._metrics = int(number_of(where, "metrics", _METRICS, least=1, most=65535))
        self._options = _options(where)
        self._lock = threading.Lock()
        self._client: _Client | None = None

    @override
    def __repr__(self) -> str:
        return f"MooncakeStore({self.url!r})"

    def connect(self) -> "MooncakeSession":
        """Returns a session; the first one starts the client, which takes a second and threads.

        The client stays until this store is dropped, also where no session is left: to start and to
        end it, it holds the interpreter's lock.

        Raises:
            Unavailable: The master or the node's client process is down, or the package is missing.
        """
        own = self._reach()
        with self._lock:
            if self._client is None or not self._client.join():
                self._client = self._start(own)
                self._client.join()
                weakref.finalize(self, self._client.leave).atexit = False
            client = self._client
        return MooncakeSession(self.url, client, (self._master[0], self._metrics))

    def _reach(self) -> str:
        """Returns this machine's address on the way to the master, or the node's client process.

        Where nobody listens there, the client's own calls take more than four seconds.
        """
        node = self._options.get("client")
        at = _address(self.url, node) if node else self._master
        try:
            with socket.create_connection(at, timeout=self.timeout) as probe:
                return str(probe.getsockname()[0])
        except OSError as error:
            what = "the node's client process" if node else "the master"
            raise Unavailable(f"{self.url}: {what} cannot be reached: {error}") from None

    def _start(self, own: str) -> "_Client":
        node = self._options.get("client")
        inner = _module(self.timeout).MooncakeDistributedStore()
        options = self._options
        if node:
            code = inner.setup_dummy(_POOL, _BUFFER, node)
        else:
            code = inner.setup(
                options.get("host", own),
                options.get("metadata", "P2PHANDSHAKE"),
                int(options.get("memory", "0")),
                _BUFFER,
                options.get("protocol", "tcp"),
                options.get("device", ""),
                "{}:{}".format(*self._master),
            )
        if code:
            raise Unavailable(f"{self.url}: its client does not start: {_named(code)}")
        return _Client(inner, self.url, shared=bool(node))


class _Client:
    """A client of Mooncake, which the sessions of a process share.

    Its calls end the process where they come after its close, and hang in a child: neither is let
    through.
    """

    def __init__(self, inner: Any, url: str, *, shared: bool) -> None:  # noqa: ANN401 - it has no types
        self.inner = inner
        self.shared = shared
        """Whether it is that of a node's client process, with which it shares memory."""
        self._url = url
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._users = 1
        """The store that made it, and sessions."""
        self._calls = 0
        self._free: list[_Memory] = []
        """Memory of sessions that have ended. It stays registered."""

    def join(self) -> bool:
        """Counts one user more; returns False where it is another process's."""
        with self._lock:
            if self._pid != os.getpid() or not self._users:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        """Counts one user less. The last one closes the client, when its calls have ended."""
        with self._lock:
            self._users -= 1
            last = not self._users and not self._calls and self._pid == os.getpid()
        if last:
            self.inner.close()

    @contextmanager
    def calling(self) -> Iterator[Any]:
        """Lets a call be made.

        Raises:
            Unavailable: It is closed, or another process's.
        """
        with self._lock:
            if self._pid != os.getpid():
                raise Unavailable(f"{self._url}: a client does not survive a fork: connect again")
            if not self._users:
                raise Unavailable(f"{self._url}: its client is closed")
            self._calls += 1
        try:
            yield self.inner
        finally:
            with self._lock:
                self._calls -= 1
                last = not self._users and not self._calls
            if last:
                self.inner.close()

    def take(self, nbytes: int) -> "_Memory":
        """Returns registered memory, which nobody else uses.

        Raises:
            Unavailable: Too much was left to transfers, or the client refuses.
        """
        with self._lock:
            for place, one in enumerate(self._free):
                if one.view.nbytes >= nbytes:
                    return self._free.pop(place)
        size = -(-nbytes // _PAGE) * _PAGE
        held = sum(one.view.nbytes for one in _left)
        if held and held + size > _HELD:
            raise Unavailable(
                f"{self._url}: {held:,} bytes of memory were left to transfers that failed and may "
                "still go on: restart the engine to use this store again"
            )
        with self.calling() as inner:
            made = _Memory(inner.alloc_from_mem_pool(size) if self.shared else None, size)
            code = inner.register_buffer(made.address, size)
        if code:
            raise Unavailable(f"{self._url}: it registers no memory: {_named(code)}")
        return made

    def give(self, memory: "_Memory") -> None:
        """Takes memory back."""
        with self._lock:
            self._free.append(memory)


class _Memory:
    """Memory that transfers may read and write."""

    def __init__(self, address: int | None, nbytes: int) -> None:
        if address is None:
            self._map = mmap.mmap(-1, nbytes)
            held = (ctypes.c_char * nbytes).from_buffer(self._map)
            address = ctypes.addressof(held)
        elif not address:
            raise Unavailable("the memory that is shared with the node's client process is used up")
        else:
            held = (ctypes.c_char * nbytes).from_address(address)
        self.address = address
        self.view = memoryview(held).cast("B")


class MooncakeSession:
    """Memory of one thread, and the client. One thread at a time may use it.

    Args:
        url: What the store is called.
        client: The client, in which this session counts.
        metrics: Host and port at which the master answers by HTTP.
    """

    keeps: Final = True
    """As `Keeping`. Its upsert fails where two clients put one value at once."""

    def __init__(self, url: str, client: _Client, metrics: tuple[str, int]) -> None:
        self._url = url
        self._client: _Client | None = client
        self._metrics = metrics
        self._memory: _Memory | None = None

    def put(self, address: str, value: memoryview, ttl: float | None = None) -> None:  # noqa: ARG002 - Mooncake has none
        """Puts a value, for as long as Mooncake keeps it. One that is there already stays."""
        memory = self._room(value.nbytes)
        memory.view[: value.nbytes] = value.cast("B")
        code = self._transfer("put_from", address, memory, value.nbytes)
        if code:
            raise self._refused(code)

    def get(self, address: str, into: memoryview) -> memoryview | bytes | None:
        """Gets a value into memory of its own, which the next call overwrites."""
        memory = self._room(into.nbytes)
        code = self._transfer("get_into", address, memory, into.nbytes)
        if code >= 0:
            return memory.view[:code]
        if code in {_NOT_THERE, _UNFINISHED}:
            return None
        if code == _INVALID and self._size(address) > into.nbytes:
            return b""
        raise self._refused(code)

    def has(self, addresses: Sequence[str]) -> list[bool]:
        """Asks the master, who also says yes for a while of memory that is gone."""
        if not addresses:
            return []
        with self._open.calling() as inner:
            codes = inner.batch_is_exist([*addresses])
        if failed := [code for code in codes if code < 0 and code != _NOT_THERE]:
            raise self._unavailable(failed[0])
        return [code == 1 for code in codes]

    def delete(self, addresses: Sequence[str]) -> int:
        """Removes values, also such as somebody reads."""
        gone = 0
        for first in range(0, len(addresses), _AT_ONCE):
            with self._open.calling() as inner:
                codes = inner.batch_remove([*addresses[first : first + _AT_ONCE]], True)  # noqa: FBT003 - its own call
            gone += codes.count(0)
            if failed := [code for code in codes if code not in {0, _NOT_THERE}]:
                raise self._unavailable(failed[0])
        return gone

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Asks the master by HTTP for all its keys, and for the length of each."""
        for line in self._ask("/get_all_keys").split(b"\n"):
            key = line.decode("utf-8", "replace")
            if key.startswith(prefix) and (size := self._size(key)) >= 0:
                yield key, size

    def close(self) -> None:
        """Ends it; the client stays for other sessions of its store."""
        client, self._client = self._client, None
        if client is not None:
            if self._memory is not None:
                client.give(self._memory)
            client.leave()

    @property
    def _open(self) -> _Client:
        if self._client is None:
            raise Unavailable(f"{self._url}: this session is closed")
        return self._client

    def _room(self, nbytes: int) -> _Memory:
        """The memory, which only grows."""
        if self._memory is not None and self._memory.view.nbytes < nbytes:
            self._open.give(self._memory)
            self._memory = None
        if self._memory is None:
            self._memory = self._open.take(nbytes)
        return self._memory

    def _transfer(self, call: str, address: str, memory: _Memory, nbytes: int) -> int:
        client = self._open
        begun = time.monotonic()
        with client.calling() as inner:
            code = int(getattr(inner, call)(address, memory.address, nbytes))
        late = client.shared and code in _RPC and time.monotonic() - begun > _QUICK
        if code < 0 and (late or code not in _CLEAN):
            _left.append(memory)
            self._memory = None
        return code

    def _refused(self, code: int) -> Unavailable:
        if code == _INVALID and self._open.shared:
            # The node's client process is another than the one that was told of this memory.
            self._memory = None
        return self._unavailable(code)

    def _size(self, address: str) -> int:
        with self._open.calling() as inner:
            return int(inner.get_size(address))

    def _ask(self, path: str) -> bytes:
        host, port = self._metrics
        link = HTTPConnection(host, port, timeout=10)
        try:
            link.request("GET", quote(path))
            answer = link.getresponse()
            found = answer.read(_KEYS)
        except (OSError, HTTPException) as error:
            raise Unavailable(
                f"{self._url}: its master does not list its keys at {host}:{port}: {error}; give "
                "its metrics_port as the option metrics"
            ) from None
        finally:
            link.close()
        if answer.status != 200:  # noqa: PLR2004 - OK
            raise Unavailable(f"{self._url}: {host}:{port} answers with status {answer.status}")
        return found

    def _unavailable(self, code: int) -> Unavailable:
        return Unavailable(f"{self._url}: {_named(code)}")


def _named(code: int) -> str:
    return f"{_NAMES.get(code, 'an error')} ({code})"


def _options(where: Location) -> dict[str, str]:
    """What the client is told, as far as the URL says it."""
    found = {name: one for name, one in where.options.items() if name not in _OWN}
    if "client" in found:
        _address(where.url, found["client"])
        if others := sorted(set(found) - {"client"}):
            raise Misuse(
                f"{where.url}: {others[0]} is the node's client process's own: leave it out"
            )
    protocol = found.get("protocol", "tcp")
    if protocol not in {"tcp", "rdma"}:
        raise Misuse(f"{where.url}: protocol = {shown(protocol)}: must be tcp or rdma")
    if "memory" in found:
        found["memory"] = str(parse_bytes("memory", found["memory"], most=1 << 50))
    return found


def _address(url: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise Misuse(f"{url}: client = {shown(text)}: must be host:port")
    return host.strip("[]"), int(port)


def _module(timeout: float) -> Any:  # noqa: ANN401 - it has no types
    """Mooncake's module, told to give up in time, and to log errors alone."""
    # They are of the whole process, and read when a client starts; what somebody has set stays.
    whole = str(math.ceil(timeout))
    for name, value in {
        "MC_LOG_LEVEL": "ERROR",
        "MC_RPC_CONNECT_TIMEOUT_MS": str(round(1000 * timeout)),
        "MC_RPC_TIMEOUT_MS": str(round(1000 * timeout)),
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        "MC_TCP_PROGRESS_TIMEOUT_SEC": whole,
        "MC_TCP_STATUS_TIMEOUT_SEC": whole,
    }.items():
        os.environ.setdefault(name, value)
    try:
        return import_module("mooncake.store")
    except ImportError as error:
        raise Unavailable(
            f"a Mooncake store needs its client ({error}): {install('mooncake')}, and the system's "
            "libibverbs1 and librdmacm1"
        ) from None
