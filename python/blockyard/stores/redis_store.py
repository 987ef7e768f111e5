"""Redis or Valkey as a store: a value a key, a connection a session, and every call tried once."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from blockyard._core import Misuse, Unavailable
from blockyard._typing import override
from blockyard.shared.extras import install, missing
from blockyard.shared.validate import shown
from blockyard.stores.location import Location, number_of

if missing("redis", "hiredis"):
    raise Unavailable(f"a Redis store needs the packages redis and hiredis: {install('redis')}")

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["OPTIONS", "PASSWORD", "RedisStore", "open_at"]

OPTIONS: Final = ("ca", "certificate", "db", "key", "password_file", "timeout")
PASSWORD: Final = "BLOCKYARD_REDIS_PASSWORD"  # noqa: S105 - its name
"""The environment variable of the password."""
_TIMEOUT: Final = 1.0
_READ: Final = 4 << 20
"""Bytes that are read at once: fewer reads, at each of which another thread may take the GIL."""
_ANSWER: Final = 16 << 20
"""The longest answer that is no value."""
_AT_ONCE: Final = 1000
"""Keys of a SCAN, or of an UNLINK."""
_FULL: Final = 0.95
"""Part of its memory from which a store counts as at its limit."""
_PORT: Final = 6379
_LONG: Final = 20
"""Digits that no number of a server's has."""
_BEGIN: Final = 8
"""Letters by which a password is known again."""
_DIGITS: Final = 6
"""Of the number of a database."""

_Words = tuple[str | bytes | memoryview, ...]
_Answer = TypeVar("_Answer", bytes, int, list[Any])


def open_at(where: Location) -> "RedisStore":
    """Returns the store of a URL.

    Raises:
        Misuse: It names no host or socket, no database, or a file that is not there.
    """
    return RedisStore(where)


class RedisStore:
    """A Redis or Valkey server. Any thread may use it.

    Args:
        where: Its URL, read.
    """

    def __init__(self, where: Location) -> None:
        self.url = where.url
        self.timeout = number_of(where, "timeout", _TIMEOUT, least=1e-3, most=60)
        """Seconds that the server may take for a call."""
        self._secret = _Secret(where)
        self._more: dict[str, Any] = {"db": _database(where), **_encryption(where)}
        if where.scheme == "unix":
            if where.host or where.port or where.path in {"", "/"}:
                raise Misuse(f"{self.url}: give the path of a socket, as in unix:///run/redis.sock")
            self._more["path"] = where.path
        else:
            if not where.host:
                raise Misuse(f"{self.url}: give a host, as in {where.scheme}://127.0.0.1:{_PORT}")
            self._more |= {"host": where.host, "port": where.port or _PORT}
        self._kind: type[_Tcp | _Unix] = _KINDS[where.scheme]

    @override
    def __repr__(self) -> str:
        return f"RedisStore({self.url!r})"

    def connect(self) -> "RedisSession":
        """Returns a session, whose connection the server has answered.

        Raises:
            Unavailable: The server is down, or refuses this client.
        """
        link = self._kind(
            credential_provider=self._secret if self._secret.get_credentials() else None,
            driver_info=None,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=self.timeout,
            socket_read_size=_READ,
            socket_timeout=self.timeout,
            **self._more,
        )
        session = RedisSession(self.url, link, self.timeout, self._secret)
        try:
            session.call(bytes, "PING")
        except BaseException:
            session.close()
            raise
        return session


class RedisSession:
    """A connection, which is made again after an error. One thread at a time may use it.

    Args:
        url: What the store is called.
        link: The client's connection.
        timeout: Seconds for a call.
        secret: What no message may have.
    """

    def __init__(self, url: str, link: "_Tcp | _Unix", timeout: float, secret: "_Secret") -> None:
        self._url = url
        self._link = link
        self._timeout = timeout
        self._secret = secret

    def put(self, address: str, value: memoryview, ttl: float | None = None) -> None:
        """Sets a key."""
        expires = () if ttl is None else ("PX", str(max(1, round(1000 * ttl))))
        if (said := self.call(bytes, "SET", address, value, *expires)) != b"OK":
            raise self._strange(said)

    def get(self, address: str, into: memoryview) -> memoryview | bytes | None:
        """Gets a key, and no more of it than fits, and a byte.

        An empty value counts as none: it is no value of a block. A key of another kind has an empty
        one: it is there, and the server is well.
        """
        most = into.nbytes
        (answer,) = self._each([("GETRANGE", address, "0", str(most))], most=most + 64)
        if isinstance(answer, bytes):
            return answer or None
        if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
            return b""
        raise self._strange(answer)

    def has(self, addresses: Sequence[str]) -> list[bool]:
        """Counts the keys that exist; asks for each where some do not."""
        if not addresses:
            return []
        # One answer takes a seventh of the time, and all or none is what is there most often.
        found = self.call(int, "EXISTS", *addresses)
        if found in {0, len(addresses)}:
            return [found > 0] * len(addresses)
        return [one == 1 for one in self._each([("EXISTS", one) for one in addresses])]

    def delete(self, addresses: Sequence[str]) -> int:
        """Unlinks keys: the server frees their memory beside its work."""
        gone = 0
        for first in range(0, len(addresses), _AT_ONCE):
            gone += self.call(int, "UNLINK", *addresses[first : first + _AT_ONCE])
        return gone

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Scans the keys, which does not stop the server."""
        pattern = "".join(f"\\{one}" if one in "\\*?[]" else one for one in prefix) + "*"
        seen: set[int] = set()
        at = b"0"
        while True:
            found = self.call(list, "SCAN", at, "MATCH", pattern, "COUNT", str(_AT_ONCE))
            match found:
                case [bytes(at), list(keys)]:
                    pass
                case _:
                    raise self._strange(found)
            # A scan gives some keys twice.
            new = [
                key
                for key in keys
                if isinstance(key, bytes) and key.isascii() and hash(key) not in seen
            ]
            seen.update(map(hash, new))
            lengths = self._each([("STRLEN", key) for key in new]) if new else []
            for key, length in zip(new, lengths, strict=True):
                if isinstance(length, int):
                    yield key.decode(), length
            if at == b"0":
                return

    def close(self) -> None:
        """Closes the connection."""
        self._link.drop()

    def notes(self) -> Sequence[str]:
        """As `Telling`: of the server's memory, its policy, and whether it is the primary."""
        found: dict[str, str] = {}
        for section in ("memory", "replication", "stats"):
            with suppress(Unavailable):  # not every client may ask
                text = self.call(bytes, "INFO", section).decode("utf-8", "replace")
                found |= dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        return _notes(found)

    def call(
        self, kind: type[_Answer], *words: str | bytes | memoryview, most: int = _ANSWER
    ) -> _Answer:
        """Asks the server once.

        Args:
            kind: What the answer must be.
            words: The command.
            most: The most bytes of an answer; beyond, the connection is closed.

        Raises:
            Unavailable: It is down, slow or full, or refuses; or its answer is of another kind.
        """
        (answer,) = self._each([words], most=most)
        if isinstance(answer, kind):
            return answer
        raise self._strange(answer)

    def _each(self, commands: Sequence[_Words], most: int = _ANSWER) -> Sequence[Any]:
        """Asks several things at once; an answer may be an error."""
        link = self._link
        link.begin(most, self._timeout)
        try:
            link.send(commands)
            return [self._answer() for _ in commands]
        except (redis.RedisError, OSError, ValueError, MemoryError, RecursionError) as error:
            # What is still on its way must not be taken for the next answer.
            link.drop()
            raise self._unavailable(error) from None
        except BaseException:
            link.drop()
            raise

    def _answer(self) -> object:
        try:
            return self._link.read_response()
        except redis.ResponseError as error:
            return error

    def _strange(self, answer: object) -> Unavailable:
        if isinstance(answer, Exception):
            return self._unavailable(answer)
        self._link.drop()
        return Unavailable(
            f"{self._url}: its answer is none to what was asked, but {type(answer).__name__}"
        )

    def _unavailable(self, error: Exception) -> Unavailable:
        if self._secret.is_in(str(error)):
            said = "it refuses, and repeats the password, as where it knows no AUTH"
        else:
            said = _said(error, self._timeout)
        return Unavailable(f"{self._url}: {said}")


class _Secret(redis.CredentialProvider):
    """The user and the password as they are when a connection is made: a file may be changed."""

    def __init__(self, where: Location) -> None:
        self._url = where.url
        self._user = where.user
        self._given = where.password
        self._file = where.options.get("password_file")
        self._last: str | None = None
        if self._given is not None and self._file is not None:
            raise Misuse(f"{self._url}: give a password or a password_file, not both")
        try:
            self.get_credentials()
        except Unavailable as error:
            raise Misuse(str(error)) from None

    @override
    def get_credentials(self) -> tuple[str] | tuple[str, str] | tuple[()]:  # type: ignore[override] # there may be none
        """Returns them, as `AUTH` takes them; nothing where there are none."""
        password = self._given or self._read() or os.environ.get(PASSWORD)
        self._last = password
        if self._user is not None:
            return self._user, password or ""
        return (password,) if password else ()

    def is_in(self, text: str) -> bool:
        """Whether what a server says has the password, or how that begins: some cut it."""
        return bool(self._last) and str(self._last)[:_BEGIN] in text

    def _read(self) -> str | None:
        if self._file is None:
            return None
        try:
            found = Path(self._file).read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is no text"
            raise Unavailable(f"{self._url}: the password_file cannot be read: {said}") from None
        if not found:
            raise Unavailable(f"{self._url}: the password_file is empty")
        return found


class _Socket:
    """A socket that gives up on an answer that is too long, or comes too slowly."""

    def __init__(self, inner: socket.socket, link: "_Bounded") -> None:
        self._inner = inner
        self._link = link

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the socket's
        return getattr(self._inner, name)

    def recv_into(self, *given: Any) -> int:  # noqa: ANN401 - as the socket's
        """Receives, and counts."""
        received = self._inner.recv_into(*given)
        self._link.spend(received)
        return received


class _Bounded:
    """A connection with a limit of bytes and of time for each call.

    The client has a timeout for each read alone, and would read what a server sends to the end.
    """

    _left = _ANSWER
    _until = float("inf")

    def begin(self, most: int, seconds: float) -> None:
        """Begins a call."""
        self._left = most
        self._until = time.monotonic() + seconds

    def spend(self, received: int) -> None:
        """Counts what was received.

        Raises:
            redis.ConnectionError: It is too much.
            TimeoutError: It is too late.
        """
        self._left -= received
        if self._left < 0:
            raise redis.ConnectionError("its answer is longer than what was asked for")
        if time.monotonic() > self._until:
            raise TimeoutError

    def send(self, commands: Sequence[_Words]) -> None:
        """Sends commands; connects first where it is not connected."""
        inner: Any = self
        inner.send_packed_command(inner.pack_commands(commands), check_health=False)

    def drop(self) -> None:
        """Closes the connection."""
        inner: Any = self
        inner.disconnect()

    def _connect(self) -> _Socket:
        return _Socket(super()._connect(), self)  # type: ignore[misc] # of the class that it is mixed into


class _Tcp(_Bounded, redis.Connection):
    pass


class _Tls(_Bounded, redis.SSLConnection):
    pass


class _Unix(_Bounded, redis.UnixDomainSocketConnection):
    pass


_KINDS: Final = {"redis": _Tcp, "valkey": _Tcp, "rediss": _Tls, "unix": _Unix}


def _database(where: Location) -> int:
    """The number of the database, which is the path of all but a socket."""
    given = where.options.get("db")
    path = "" if where.scheme == "unix" else where.path.strip("/")
    if given and path:
        raise Misuse(f"{where.url}: give the database as the path or as db, not both")
    text = given or path or "0"
    if not text.isdecimal() or not text.isascii() or len(text) > _DIGITS:
        raise Misuse(f"{where.url}: the database must be a number, such as 0, not {shown(text)}")
    return int(text)


def _encryption(where: Location) -> dict[str, str]:
    """What TLS is to be told."""
    names = {"ca": "ssl_ca_certs", "certificate": "ssl_certfile", "key": "ssl_keyfile"}
    found = {}
    for name, its in names.items():
        if name not in where.options:
            continue
        path = where.options[name]
        if where.scheme != "rediss":
            raise Misuse(f"{where.url}: {name} is for rediss:// alone")
        if not Path(path).is_file():
            raise Misuse(f"{where.url}: {name} = {shown(path)}: there is no such file")
        found[its] = path
    return found


def _said(error: Exception, timeout: float) -> str:
    """What is wrong, and what to do; the text of a server is cut."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    for begin, said in _ANSWERS.items():
        if text.startswith(begin):
            return f"{said}: {text}"
    kinds: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        ((redis.TimeoutError, TimeoutError), f"no answer within {timeout:g} s"),
        (redis.AuthenticationError, f"it refuses the password or user: {text}"),
        (redis.exceptions.NoPermissionError, f"its user may not do this: {text}"),
        (redis.OutOfMemoryError, "it is full, and evicts nothing that would make room"),
        (redis.ReadOnlyError, "it is a replica, and takes no values: give the URL of the primary"),
        (redis.BusyLoadingError, "it is still loading its data"),
        (redis.exceptions.MovedError, "it is a node of a cluster, which is not supported"),
    ]
    return next((said for kind, said in kinds if isinstance(error, kind)), text)


_ANSWERS: Final = {
    "Authentication required": "it wants a password: give a password_file, or set "
    "BLOCKYARD_REDIS_PASSWORD",
    "MISCONF": "it cannot save to its disk, and refuses to write until it can",
    "Error 2 ": "there is no such socket: start the server, or give its unixsocket",
    "Error 13 ": "this process may not open its socket",
    "Error 111 ": "nobody listens there: start the server, or give its host and port",
    "Error 32 ": "it has closed the connection",
    "Error 104 ": "it has closed the connection",
    "max number": "it has all the clients that it takes: raise maxclients",
}
"""What answers mean that begin with these words."""


def _notes(info: dict[str, str]) -> list[str]:
    """What an operator should know of a server's `INFO`."""
    notes = []
    if info.get("role") == "slave":
        notes.append("it is a replica, and takes no values: give the URL of the primary")

    def number(name: str) -> int:
        text = info.get(name, "")
        return int(text) if text.isdecimal() and len(text) < _LONG else 0

    used, limit = number("used_memory"), number("maxmemory")
    policy = info.get("maxmemory_policy", "")
    if "maxmemory" not in info:
        return notes
    if not limit:
        notes.append(
            "it has no maxmemory, and takes all memory of its machine: set maxmemory, and "
            "maxmemory-policy allkeys-lru"
        )
    elif not policy.startswith("allkeys-"):
        full = "is full" if used > _FULL * limit else "will be full"
        notes.append(
            f"it {full} at {limit:,} bytes, and evicts no blocks ({policy}): puts fail then; set "
            "maxmemory-policy allkeys-lru"
        )
    elif evicted := number("evicted_keys"):
        notes.append(
            f"it has evicted {evicted:,} keys ({policy}) at its limit of {limit:,} bytes: more "
            "maxmemory would keep them longer"
        )
    return notes
