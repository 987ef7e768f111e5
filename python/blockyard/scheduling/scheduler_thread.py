"""Lets one scheduler at a time drive a cache, from one thread."""

from collections.abc import Callable
from threading import Thread, current_thread
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from blockyard._core import Misuse
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.shared import Shared
from blockyard.shared.owner import Owner, owned, thread_name
from blockyard.yard.cache import KVCache

__all__ = ["SchedulerThread", "driven", "made_sound"]

_RESULTS: Final = "Scheduler.results"
_SOUND: Final = frozenset({"fail", "reset", "results"})
"""Verbs that may follow an interrupted one."""

_drivers: "Final[WeakKeyDictionary[KVCache, ref[SchedulerThread]]]" = WeakKeyDictionary()
"""The driver of each cache."""


class SchedulerThread:
    """A scheduler as the one that drives its cache, and the thread that drives the scheduler.

    Args:
        shared: State that all parts of the scheduler share; an earlier driver is replaced.
        lifecycle: Its requests.
    """

    def __init__(self, shared: Shared, lifecycle: Lifecycle) -> None:
        self._cache = cache = shared.cache
        self._lifecycle = lifecycle
        self._seats = shared.seats
        self._batch = shared.batch
        self._replaced = False
        self._thread: Thread | None = None
        other = _driver_of(cache)
        if other is not None:
            other._replaced = True  # noqa: SLF001 - of its own kind
        _drivers[cache] = ref(self)

    @property
    def idle(self) -> bool:
        """Whether there is nothing more to do; a step without rows may be in flight."""
        return not len(self._lifecycle) and not len(self._seats) and not self._batch.computing

    def check(self, thread: Thread) -> None:
        """Refuses other threads than that of the first call, and all calls once it is replaced.

        Args:
            thread: The thread that calls.

        Raises:
            Misuse: It is one of these.
        """
        if self._thread is not thread:
            if self._thread is not None:
                raise Misuse(
                    f"this scheduler is another thread's, {thread_name(self._thread)}: call it "
                    "there, feed it through an AsyncEngine, or call release_thread() there first"
                )
            self._thread = thread
        if self._replaced:
            raise Misuse("another scheduler has taken this cache over: use that one")

    def check_whole(self, owner: Owner, verb: str) -> None:
        """Refuses a verb while something is half done.

        Raises:
            Misuse: A call was interrupted; the message describes the effect of `reset`.
        """
        cut = dict.fromkeys(name for _, name in owner.interrupted if name != _RESULTS)
        if cut:
            then = "it recomputes running requests, and none is lost"
            if not self._cache.config.recompute:
                then = "running requests with tokens end FAILED (kv_lost)"
            raise Misuse(
                f"{verb} after {' and '.join(cut)} was interrupted and left half done: call "
                f"reset() with an engine that was reset, too; {then}"
            )

    @staticmethod
    def is_whole(owner: Owner) -> bool:
        """Whether no verb was interrupted that only `reset` makes good."""
        return all(name == _RESULTS for _, name in owner.interrupted)

    def check_open(self) -> None:
        """Refuses a cache that is closed.

        Raises:
            Misuse: It is.
        """
        if self._cache.closed:
            raise Misuse("this cache is closed: make another one, and a scheduler on it")

    def release_thread(self) -> None:
        """Lets another thread have it: the next one that calls."""
        self.check(current_thread())
        self._thread = None

    @staticmethod
    def check_free(cache: KVCache) -> None:
        """Refuses a cache that is closed, or that another scheduler has something to do with.

        Raises:
            Misuse: It is one of these.
        """
        if cache.closed:
            raise Misuse("this cache is closed: make another one")
        other = _driver_of(cache)
        if other is not None and not other.idle:
            raise Misuse(
                f"another scheduler drives this cache, with {len(other._lifecycle)} requests: "  # noqa: SLF001 - of its own kind
                "use that one, or end its requests before you make another"
            )


def made_sound(owner: Owner) -> None:
    """Notes that nothing is half done any more; results of an interrupted call come again."""
    owner.interrupted[:] = [call for call in owner.interrupted if call[1] == _RESULTS]


def _driver_of(cache: KVCache) -> SchedulerThread | None:
    driver = _drivers.get(cache)
    return None if driver is None else driver()


class _Driven(Protocol):
    """An object with verbs that a driver guards."""

    @property
    def _owner(self) -> Owner: ...

    _thread: SchedulerThread


_S = TypeVar("_S", bound=_Driven)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def driven(verb: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Refuses a verb of another thread, one within another, and all once it is replaced.

    Raises:
        Misuse: It is one of these. Nothing is done.
    """
    sound = verb.__name__ in _SOUND

    def check(self: _S, thread: Thread) -> None:
        self._thread.check(thread)
        if self._owner.interrupted and not sound:
            self._thread.check_whole(self._owner, verb.__name__)

    return owned(verb, check)
