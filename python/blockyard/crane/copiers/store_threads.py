"""Threads that ask shared stores: each takes a job, calls a client, and says what came of it."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, Literal

from blockyard._core import StoreJob, StoreLane, Unavailable
from blockyard.crane.tiers.remote import RemoteTier, StorePlace, is_tail
from blockyard.shared.log import described
from blockyard.stores import Keeping, Session, Store
from blockyard.stores.address import identity_address
from blockyard.stores.identity import text_of

__all__ = ["StoreThreads"]

_WAIT: Final = 1.0
"""Seconds after which a thread that waits for a job looks at the time."""
_TTL: Final = 3600.0
"""Seconds that a store keeps a block without a key."""
_LONGEST: Final = 400
"""Letters of a reason."""
_NAMED: Final = 60.0
"""Seconds after which a store is given the clear text of an identity again."""
_EXIT: Final = 0.5
"""Seconds that the interpreter's end waits for threads; those in a client's call are left."""

Clock = Callable[[], float]
Way = Literal["down", "up"]


class StoreThreads:
    """The threads of one lane: some that put and delete, and as many that get.

    They start with the first job. A thread has a session of its own with each store, which is
    closed after an error; the next job connects again. What a client does not return from holds
    its thread, and nobody else: `close` waits for no such thread.

    Args:
        tier: The stores, in order: a put goes to the first that takes it, and a get asks one after
            the other. Its lane gives the jobs.
        threads: Threads each way.
        clock: Seconds.
    """

    def __init__(
        self, tier: RemoteTier, *, threads: int = 2, clock: Clock = time.monotonic
    ) -> None:
        tier.threads = self
        self._lane = lane = tier.lane
        # They have no tier, so that one that is dropped ends them.
        made = partial(_Asking, lane, tier.stores, tier.place, tier.fields, clock)
        self._make: Callable[[Way], _Asking] = made
        self._count = threads
        self._threads: list[threading.Thread] = []
        # Where it is dropped its threads end: they have the lane alone.
        weakref.finalize(self, lane.close, patience=0.0).atexit = False
        _running.add(self)

    def start(self) -> None:
        """Starts those that have not started.

        Raises:
            Unavailable: The system gives no thread.
        """
        ways: tuple[Way, ...] = ("down", "up")
        for at in range(2 * self._count):
            # One whose start was interrupted has no number, and is not alive.
            if at < len(self._threads) and self._threads[at].is_alive():
                continue
            way = ways[at % 2]
            run = self._make(way).run
            thread = threading.Thread(target=run, name=f"blockyard-store-{way}", daemon=True)
            self._threads[at : at + 1] = [thread]
            try:
                thread.start()
            except RuntimeError as error:
                raise Unavailable(f"no thread to ask stores: {error}") from None

    def close(self, patience: float) -> bool:
        """Waits for the threads of a lane that is closed, as long at most.

        Returns:
            Whether all have ended.
        """
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Ends them as the interpreter does: none may wait in the core when that is gone."""
        self._lane.close(patience=0.0)
        self.close(_EXIT)


_running: weakref.WeakSet[StoreThreads] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for threads in list(_running):
        threads.end()


class _Asking:
    """What one thread does."""

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place
        self,
        lane: StoreLane,
        stores: Sequence[Store],
        place: StorePlace,
        fields: Mapping[str, str],
        clock: Clock,
        way: Way,
    ) -> None:
        self._lane, self._stores, self._place, self._fields = lane, stores, place, fields
        self._clock, self._way = clock, way
        self._sessions: list[Session | None] = [None] * len(stores)
        self._named: dict[int, float] = {}
        """When a store was given the clear text of the identity."""

    def run(self) -> None:
        """Does one job after the other, until the lane is closed."""
        try:
            while True:
                found = self._lane.take(self._way, _WAIT, self._clock())
                if found is not None:
                    self._serve(*found)
                    _let_go(found[1])
                elif self._lane.closed:
                    return
                # A view of the value would keep its buffer.
                found = None
        finally:
            for store in range(len(self._stores)):
                self._drop(store)

    def _serve(self, job: StoreJob, value: memoryview | None) -> None:
        if job.kind == "get":
            self._get(job, value)
        elif job.kind == "put":
            self._put(job, value)
        else:
            self._delete(job)

    def _put(self, job: StoreJob, value: memoryview | None) -> None:
        (key,) = job.keys
        address, ttl = self._place.address(key), _TTL if is_tail(key) else None
        assert value is not None  # noqa: S101 - a put has one
        for store in range(len(self._stores)):

            def put(session: Session, store: int = store) -> None:
                self._name(session, store)
                session.put(address, value, ttl)

            if self._ask(job, store, put):
                job.done()
                return
        job.fail()

    def _get(self, job: StoreJob, value: memoryview | None) -> None:
        address = self._place.address(*job.keys)
        assert value is not None  # noqa: S101 - a get has room for one
        found: list[memoryview | bytes | None] = []
        heard = True
        for store in range(len(self._stores)):
            asked = self._ask(job, store, lambda session: found.append(session.get(address, value)))
            got = found.pop() if asked else None
            is_there = got is not None
            # Whatever it is, the lane says whether it is the block.
            if got is not None and job.landed(got):
                got = None
                return
            # As in `_let_go`.
            got = None
            if is_there and isinstance(self._sessions[store], Keeping):
                # Else no put would ever bring the right one there.
                self._ask(job, store, lambda session: session.delete([address]))
            heard &= asked
        # Only where each store has said so it is nowhere.
        if heard:
            job.missing()
        else:
            job.fail()

    def _delete(self, job: StoreJob) -> None:
        addresses = [self._place.address(key) for key in job.keys]
        store = job.store
        assert store is not None  # noqa: S101 - a delete is for one
        if self._ask(job, store, lambda session: session.delete(addresses)):
            job.done()
        else:
            job.fail()

    def _ask(self, job: StoreJob, store: int, call: Callable[[Session], object]) -> bool:
        """Calls a store, where it is to be asked; returns whether it has answered."""
        if not job.ask(store):
            return False
        begun = self._clock()
        try:
            call(self._session(store))
        # Whatever a client raises is the end of its call, and not of this thread.
        except BaseException as error:  # noqa: BLE001
            job.refused(_reason(error, self._stores[store].url), max(0.0, self._clock() - begun))
            self._drop(store)
            return False
        job.answered(max(0.0, self._clock() - begun))
        return True

    def _session(self, store: int) -> Session:
        session = self._sessions[store]
        if session is None:
            self._sessions[store] = session = self._stores[store].connect()
        return session

    def _name(self, session: Session, store: int) -> None:
        """Says in clear text whose values these are, and again later: a store may lose it."""
        now = self._clock()
        if abs(now - self._named.get(store, -inf)) > _NAMED:
            address = identity_address(self._place.identity)
            session.put(address, memoryview(text_of(self._fields)))
            self._named[store] = now

    def _drop(self, store: int) -> None:
        session, self._sessions[store] = self._sessions[store], None
        if session is not None:
            # As in a call: it is not the end of this thread.
            with suppress(BaseException):
                session.close()


def _let_go(value: memoryview | None) -> None:
    """Ends the view of a job's buffer, also where an error of a client keeps it in a cycle.

    Frames that an error has keep those that called them: until the garbage collector comes the
    buffer would be held, and a way may have one alone. No client needs it beyond its call.
    """
    if value is not None:
        # What a client has made of it is its own.
        with suppress(BufferError):
            value.release()


def _reason(error: BaseException, url: str) -> str:
    """Says why a call has failed. Of errors that are not a store's the text may have secrets."""
    if not isinstance(error, Unavailable):
        return type(error).__name__
    said = described(error).removeprefix("Unavailable: ").removeprefix(f"{url}: ")
    return " ".join(said[:_LONGEST].split())
