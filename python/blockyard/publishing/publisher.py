"""`Publisher`: tells routers what a cache has, as vLLM tells them what it has itself."""

import ipaddress
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self
from weakref import WeakSet, ref

from blockyard._core import Cache, Misuse, Unavailable
from blockyard.publishing.event_stats import EVENT_STATS, PUBLISHER_STATS
from blockyard.publishing.options import PublisherOptions
from blockyard.shared.extras import require
from blockyard.shared.log import Limited, unclosed
from blockyard.shared.owner import is_foreign
from blockyard.shared.single import Single
from blockyard.shared.validate import one_of, shown

__all__ = ["Publisher"]

_MOST_PORT: Final = 65_535
_FORM: Final = f'give "tcp://host:port" with a port up to {_MOST_PORT} or "*", or "ipc://path"'
_HELP: Final = (
    'name one of this machine, as "tcp://127.0.0.1:5557"; or say interfaces="any" where a '
    "network that nobody else is in leads to the routers: it has no password"
)


_UNREAD: Final = 2
"""Answers that wait for one asker at most: each is as long as all that is kept, or a snapshot."""
_ALL: Final = -1
"""A first number that is never kept: all is told."""
_log = Limited(__name__, 0)
_SHIFT: Final = 20
"""Numbers of batches begin at the seconds since 1970, times 2**20: a restart is a gap forward."""
_NUMBER: Final = 8
_LINGER: Final = 1_000
"""Milliseconds in which subscribers can still take what was sent last, once it is closed."""
_END: Final = (-1).to_bytes(_NUMBER, "big", signed=True)
_MOST_SECONDS: Final = 1 << 42
"""So that no number looks like that of an end."""
_RUN: Final = 1_000
"""Ends without batches that are sent at once to one asker, and requests that are read at once."""
_SOON: Final = 10
"""Milliseconds between two looks, at most, while a request waits."""


def _check_endpoint(name: str, endpoint: str, *, interfaces: str) -> None:
    """Refuses an endpoint that others than this machine could reach, unless `interfaces` is "any".

    Raises:
        Misuse: It is no endpoint, or it is not of this machine alone.
    """
    if not isinstance(endpoint, str):
        raise Misuse(f"{name} = {shown(endpoint)}: {_FORM}")
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc" and address:
        return
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not host or not (port == "*" or _is_port(port)):
        raise Misuse(f'{name} = "{endpoint}": {_FORM}')
    if interfaces == "any":
        return
    try:
        local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise Misuse(f'{name} = "{endpoint}" can be reached from other machines: {_HELP}')


def _is_port(text: str) -> bool:
    # Of a larger one the socket would take what is left of it in 16 bits.
    return text.isascii() and text.isdigit() and int(text) <= _MOST_PORT


class _Sent:
    """What a subscriber can ask for again. One thread uses it.

    Args:
        first: The number of the first batch.
        most: Batches that are kept.
        most_bytes: Bytes that are kept; the last batch is, however long it is.
    """

    def __init__(self, first: int, most: int, most_bytes: int) -> None:
        self._batches: deque[bytes] = deque()
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self.next = first
        """The number of the batch that is sent next."""

    def add(self, payload: bytes) -> int:
        """Takes a batch; returns its number."""
        kept = self._batches
        kept.append(payload)
        self._bytes += len(payload)
        while len(kept) > self._most or (self._bytes > self._most_bytes and len(kept) > 1):
            self._bytes -= len(kept.popleft())
        self.next += 1
        return self.next - 1

    def since(self, start: int) -> Iterator[tuple[int, bytes]] | None:
        """Returns the batches from a number on; None where not all of them are kept.

        A number beyond the next one is of another publisher, one before this: all of this is new.
        """
        oldest = self.next - len(self._batches)
        if not oldest <= start <= self.next:
            return None
        return ((at, self._batches[at - oldest]) for at in range(start, self.next))


@dataclass(slots=True)
class _Asker:
    """One who asks. One thread uses it.

    ZeroMQ lets go of an answer some time after the asker has read it. So the count of unread
    answers says when there is certainly room, and never that somebody does not read: a request
    without room waits. Requests of one asker that wait are answered together.
    """

    unread: list[Any] = field(default_factory=list)
    """The ends of its answers that ZeroMQ still holds, oldest first."""
    waiting: int = 0
    """Requests that wait. The last one gets the answer, those before it an end alone."""
    start: int = 0
    """The first number that any of them lacks."""

    def ask(self, start: int, newest: int) -> None:
        """Takes a request for all from number `start` on, where `newest` is the next one."""
        start = start if start <= newest else _ALL
        self.start = min(self.start, start) if self.waiting else start
        self.waiting += 1

    def room(self) -> bool:
        """Whether an answer may be sent to it."""
        self.unread = [end for end in self.unread if not end.done]
        return len(self.unread) < _UNREAD


_unheard: Final[WeakSet[Cache]] = WeakSet()
"""Caches whose publisher was interrupted before it ran: the next one may listen in its place."""


class Publisher(Single):
    """Publishes what happens to a cache's blocks, from a thread of its own.

    A subscriber gets three frames: the topic, a number of 8 bytes, and a batch in msgpack. Numbers
    rise by one from batch to batch and never come twice, over restarts neither as long as the clock
    does not go back. Whoever has missed one asks the replay socket with the first number that it
    lacks, and gets every batch since; where they are not kept any more, one batch, with the newest
    number, that clears what is known and tells all.

    No call of the cache waits for it, whatever a subscriber does: what a slow one does not take is
    dropped for it alone, and it sees the gap. For one who asks and does not read, two answers wait;
    what it asks for then is answered once it reads, all in one answer. Any thread may call its
    methods. Make it together with the cache, after fork.

    Args:
        cache: The cache, which must not have a listener yet.
        endpoint: Where subscribers connect.
        replay: Where they ask for what they have missed; None for nowhere.
        interfaces: "loopback" refuses endpoints that other machines can reach; "any" takes them.
            Whoever connects reads the tokens of all prompts.
        options: What it says, and how much it keeps.
        clock: Seconds since 1970, for the first number and the time of batches.

    Raises:
        Misuse: An endpoint is not on loopback, the cache has a listener, or a value is out of
            range.
        Unavailable: pyzmq is not installed, or an endpoint is in use.

    Example:
        >>> import blockyard as by
        >>> from blockyard.publishing.publisher import Publisher
        >>> cache = by.KVCache(device=64)
        >>> with Publisher(cache, "tcp://127.0.0.1:*") as publisher:
        ...     publisher.endpoint.startswith("tcp://127.0.0.1:")
        True
    """

    SCHEMA: Final = (*EVENT_STATS, *PUBLISHER_STATS)
    """Name, unit, kind, metric and meaning of each number in `stats` that is exported."""

    def __init__(  # noqa: PLR0913 - keywords
        self,
        cache: Cache,
        endpoint: str = "tcp://127.0.0.1:5557",
        *,
        replay: str | None = None,
        interfaces: Literal["loopback", "any"] = "loopback",
        options: PublisherOptions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        one_of("interfaces", interfaces, ("loopback", "any"))
        options = options or PublisherOptions()
        _check_endpoint("endpoint", endpoint, interfaces=interfaces)
        if replay is not None:
            _check_endpoint("replay", replay, interfaces=interfaces)
        self.cache: Final = cache
        """The cache of which it tells."""
        self._clock = clock
        self._topic, self._rank = options.topic.encode(), options.rank
        self._every = options.every
        self._sent = _Sent(_first(clock()), options.keep, options.keep_bytes)
        self._counts = dict.fromkeys(("batches", "replays", "rejected"), 0)
        self._askers: dict[bytes, _Asker] = {}
        self._asked = threading.Condition()
        self._turns = self._wanted = 0
        self._closing = False
        self._context = _context()
        thread: threading.Thread | None = None
        try:
            self._pub = self._bind("PUB", endpoint, options.backlog)
            # Without a limit: what is above one is dropped in silence, the end of an answer too.
            self._replay: Any = None if replay is None else self._bind("ROUTER", replay, 0)
            self.endpoint: str = _bound(self._pub)
            """Where subscribers connect, with the port that was found for "*"."""
            self.replay: str | None = None if self._replay is None else _bound(self._replay)
            """Where they ask for what they have missed."""
            # The thread keeps no publisher alive that is dropped.
            what = ref(self), self._asked, self._replay, self._context
            name = "blockyard-publisher"
            thread = threading.Thread(target=_run, args=what, name=name, daemon=True)
            # Last, as a cache keeps its listener for good.
            _listen(cache, options)
            thread.start()
            self._thread = thread
            _unheard.discard(cache)
        except BaseException as error:
            if is_foreign(error):
                _unheard.add(cache)
            _end(self._context, thread, error)
            raise

    def _bind(self, kind: str, endpoint: str, most: int) -> Any:  # noqa: ANN401 - zmq has no stubs here
        import zmq  # noqa: PLC0415 - it is in an extra

        socket = self._context.socket(getattr(zmq, kind))
        socket.setsockopt(zmq.SNDHWM, most)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        # Only what is not copied says when it has gone.
        socket.copy_threshold = 0
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise Unavailable(f'"{endpoint}" cannot be bound: {error.strerror}') from error
        return socket

    def flush(self, *, timeout: float = 10.0) -> bool:
        """Waits until all is sent that has happened so far.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether it is.
        """
        with self._asked:
            # The turn that is under way may have looked before.
            wanted = self._turns + 2
            self._wanted = max(self._wanted, wanted)
            self._asked.notify_all()
            done = self._asked.wait_for(lambda: self._turns >= wanted or self._closing, timeout)
        return done and self._turns >= wanted

    def stats(self) -> dict[str, int]:
        """Returns counters.

        What `event_stats` of the cache says, and: "batches" that were sent; "replays", requests
        that were answered with batches, the others with a snapshot; "rejected" requests that were
        none, or that waited when their asker sent another: they got an end alone, and that one's
        answer has all; and "next", the number of the next batch.
        """
        return self.cache.event_stats() | self._counts | {"next": self._sent.next}

    @property
    def alive(self) -> bool:
        """Whether its thread runs. It ends with `close`, or when the cache is broken."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Sends what has happened, and ends its thread and its sockets. The cache goes on.

        Requests that have arrived are answered. It waits a second at most for those that do not
        take what is sent.
        """
        with self._asked:
            self._closing = True
            self._asked.notify_all()
        self._thread.join()

    def __del__(self) -> None:
        """Ends its thread and its sockets where it was not closed; it waits for neither."""
        thread: threading.Thread | None = getattr(self, "_thread", None)
        if thread is not None and not self._closing:
            self._closing = True
            unclosed(
                f"the Publisher at {self.endpoint}", "call close(), or use it in a `with`", self
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the thread ----------------------------------------------------------------------

    def begin_turn(self) -> int | None:
        """Sends what has happened; returns for how many milliseconds to wait, None at the end."""
        self._answer_all()
        if self._closing:
            self._send_all()
            self._answer_last()
            return None
        self._send_all()
        with self._asked:
            self._turns += 1
            waits = self._turns >= self._wanted
            self._asked.notify_all()
        pause = int(self._every * 1000) or 1 if waits else 0
        return min(pause, _SOON) if self._askers else pause

    def end(self) -> None:
        """Notes that its thread does no more."""
        with self._asked:
            self._closing = True
            self._asked.notify_all()

    def _send_all(self) -> None:
        more = True
        while more:
            payload, more = self.cache.take_events(now=self._clock(), rank=self._rank)
            if payload is not None:
                self._send(payload)

    def _send(self, payload: bytes) -> None:
        number = self._sent.add(payload).to_bytes(_NUMBER, "big")
        self._counts["batches"] += 1
        self._pub.send_multipart((self._topic, number, payload))

    # -- those who ask -------------------------------------------------------------------

    def take(self, frames: list[bytes]) -> None:
        """Takes one request: identity, empty, and the first number that is lacked."""
        *_, start = frames
        if not 1 < len(frames) <= 3 or len(start) != _NUMBER:  # noqa: PLR2004 - as in the docstring
            self._counts["rejected"] += 1
            return
        asker = self._askers.setdefault(frames[0], _Asker())
        self._counts["rejected"] += asker.waiting > 0
        asker.ask(int.from_bytes(start, "big"), self._sent.next)

    def _answer_all(self) -> None:
        """Answers those who wait and have room."""
        for to, asker in list(self._askers.items()):
            while asker.room() and asker.waiting:
                self._answer(to, asker)
            if not asker.unread:
                del self._askers[to]

    def _answer_last(self) -> None:
        """Answers all who wait, whether they have room or not."""
        for _ in range(_RUN):
            if self._replay is None or not self._replay.poll(0):
                break
            self.take(self._replay.recv_multipart())
        for to, asker in self._askers.items():
            while asker.waiting:
                self._answer(to, asker)

    def _answer(self, to: bytes, asker: _Asker) -> None:
        """Sends the ends of requests that others have followed, or else the answer."""
        answered = min(asker.waiting - 1, _RUN) or 1
        if asker.waiting == 1:
            for number, payload in self._batches(asker.start):
                self._reply(to, self._topic, number.to_bytes(_NUMBER, "big"), payload)
        for _ in range(answered - 1):
            self._reply(to, b"", _END, b"")
        asker.unread.append(self._reply(to, b"", _END, b"", copy=False, track=True))
        asker.waiting -= answered

    def _batches(self, start: int) -> Iterable[tuple[int, bytes]]:
        batches = self._sent.since(start)
        if batches is None:
            gone, snapshot = self.cache.snapshot_events(now=self._clock(), rank=self._rank)
            if gone is not None:
                self._send(gone)
            # What it tells is what the newest batch has left.
            return ((self._sent.next - 1, snapshot),)
        self._counts["replays"] += 1
        return batches

    def _reply(self, to: bytes, *frames: bytes, **how: bool) -> Any:  # noqa: ANN401 - as above
        return self._replay.send_multipart((to, b"", *frames), **how)


def _run(
    publisher: "ref[Publisher]",
    asked: threading.Condition,
    replay: Any,  # noqa: ANN401 - as above
    context: Any,  # noqa: ANN401 - as above
) -> None:
    """The thread: it takes turns, and while it waits it has no publisher that it keeps alive."""
    try:
        while (it := publisher()) is not None and (pause := it.begin_turn()) is not None:
            del it
            if replay is None:
                with asked:
                    asked.wait(pause / 1000)
            elif replay.poll(pause):
                frames = replay.recv_multipart()
                if (it := publisher()) is not None:
                    it.take(frames)
    except Exception:  # noqa: BLE001 - nobody else hears of it
        _log.exception("nothing is published any more")
    finally:
        if (it := publisher()) is not None:
            it.end()
        context.destroy(linger=_LINGER)


def _first(seconds: float) -> int:
    if not 0 <= seconds < _MOST_SECONDS:
        raise Misuse(f"clock() = {shown(seconds)}: give one of seconds since 1970")
    return int(seconds * (1 << _SHIFT))


def _context() -> Any:  # noqa: ANN401 - as above
    try:
        require("publishing", "events", "zmq")
    except ModuleNotFoundError as error:
        raise Unavailable(str(error)) from error
    import zmq  # noqa: PLC0415 - it is in an extra

    return zmq.Context()


def _end(context: Any, thread: threading.Thread | None, error: BaseException) -> None:  # noqa: ANN401 - as above
    """Ends the sockets of a publisher that could not be made."""

    def end() -> None:
        if thread is not None and thread.is_alive():
            thread.join()  # it has them, and ends as the publisher is gone
        context.destroy(linger=0)

    if is_foreign(error):
        # A socket that was being made is open as long as the error has its frames, and waited for.
        threading.Thread(target=end, daemon=True).start()
    else:
        end()


def _listen(cache: Cache, options: PublisherOptions) -> None:
    """Listens, or has what an interrupted publisher has begun to listen to."""
    again = cache in _unheard
    _unheard.add(cache)
    try:
        cache.listen(ring=options.ring, salts=options.salts)
    except Misuse as error:
        if not again or "has a listener" not in str(error):
            _unheard.discard(cache)
            raise


def _bound(socket: Any) -> str:  # noqa: ANN401 - as above
    import zmq  # noqa: PLC0415 - it is in an extra

    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
