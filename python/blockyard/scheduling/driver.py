"""Who drives a cache: one scheduler at a time, and that from one thread."""

from collections.abc import Callable
from threading import Thread, current_thread
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from blockyard._core import Misuse
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.shared import Shared
from blockyard.shared.owner import Owner, owned, thread_name
from blockyard.yard.cache import KVCache

__all__ = ["Driver", "driven", "made_sound"]

_RESULTS: Final = "Scheduler.results"
_SOUND: Final = frozenset({"fail", "reset", "results"})
"""Verbs that do with what an interrupted one has left."""

_drivers: "Final[WeakKeyDictionary[KVCache, ref[Driver]]]" = WeakKeyDictionary()
"""The driver of each cache."""


class Driver:
    """A scheduler as the one that drives its cache, and the thread that drives the scheduler.

    Args:
        shared: What it shares with its parts; a driver that the cache had is replaced.
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
        """Refuses another thread than that of the first call, and all once it is replaced.

        Args:
            thread: The thread that calls.

        Raises:
            Misuse: It is one of these.
        """
        if self._thread is not thread:
            if self._thread is not None:
                raise Misuse(
                    f"this scheduler is another thread's, {thread_name(self._thread)}: call it "
                    "there, feed it through an AsyncEngine, or call hand_over() there first"
                )
            self._thread = thread
        if self._replaced:
            raise Misuse("another scheduler has taken this cache over: use that one")

    def check_whole(self, owner: Owner, verb: str) -> None:
        """Refuses a verb while something is half done.

        Raises:
            Misuse: A call was interrupted; it says what `reset` makes of it.
        """
        cut = dict.fromkeys(name for _, name in owner.interrupted if name != _RESULTS)
        if cut:
            then = "it recomputes what ran, and no request is lost"
            if not self._cache.config.recompute:
                then = (
                    "what ran and has tokens ends FAILED (kv_lost), as this engine recomputes none"
                )
            raise Misuse(
                f"{verb} after {' and '.join(cut)} was interrupted and left half done: call "
                f"reset() with an engine that was reset, too; {then}"
            )

    def check_open(self) -> None:
        """Refuses a cache that is closed.

        Raises:
            Misuse: It is.
        """
        if self._cache.closed:
            raise Misuse("this cache is closed: make another one, and a scheduler on it")

    def hand_over(self) -> None:
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
    """Notes that nothing is half done any more; what `results` gave to nobody it gives again."""
    owner.interrupted[:] = [call for call in owner.interrupted if call[1] == _RESULTS]


def _driver_of(cache: KVCache) -> Driver | None:
    driver = _drivers.get(cache)
    return None if driver is None else driver()


class _Driven(Protocol):
    """What a driver drives."""

    @property
    def _owner(self) -> Owner: ...

    _driver: Driver


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
        self._driver.check(thread)
        if self._owner.interrupted and not sound:
            self._driver.check_whole(self._owner, verb.__name__)

    return owned(verb, check)
