"""Who is in an object whose calls must not overlap: a second caller is refused, and never waits."""

import sys
from collections.abc import Callable
from functools import wraps
from threading import Thread, current_thread, main_thread
from types import CodeType, FrameType
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from blockyard._core import Misuse

__all__ = ["Owner", "Reentry", "broke_in", "is_foreign", "is_signalled", "owned", "thread_name"]


class Reentry(Misuse):
    """A thread has called a verb from within another one, as a signal handler may."""


class Owner:
    """The call that has an object now. Objects that change together have one owner."""

    __slots__ = ("_left", "held", "interrupted")

    def __init__(self) -> None:
        self.held: dict[None, tuple[Thread, str]] = {}
        """The thread that is in a verb, and the verb's name; empty between two calls."""
        self.interrupted: list[tuple[Thread, str]] = []
        """Calls that a KeyboardInterrupt, or what a signal handler has raised, has cut short; a
        scheduler forgets them once it has mended what they left, and elsewhere nobody asks."""
        self._left: dict[int, tuple[tuple[Thread, str], tuple[Thread, str]]] = {}
        """Which call takes over from which; few, as each was interrupted in its last act."""

    def enter(self, other: tuple[Thread, str], mine: tuple[Thread, str]) -> None:
        """Takes over from a call that was interrupted before it gave back what it had.

        Raises:
            Misuse: The other call is under way.
        """
        # It is on no stack, so that it never gives back what it has, if it has that still. One call
        # takes it over: whoever is the first here. Where that one was interrupted before it had it,
        # the first behind that one does.
        last, heir = other, None
        while heir is not mine:
            if _is_under_way(last) or self.held.get(None) is not other:
                raise self.refusal(other, mine[1])
            heir = self._left.setdefault(id(last), (last, mine))[1]
            last = heir
        self.interrupted.append(other)
        self.held[None] = mine

    def refusal(self, other: tuple[Thread, str], verb: str) -> Misuse:
        """Returns what to raise in a call that came during another one."""
        thread, name = other
        if thread is current_thread():
            return Reentry(
                f"{verb} was called within {name}, by a signal handler or a callback: set a flag "
                f"there, and call {verb} when {name} has returned"
            )
        return Misuse(
            f"{verb} was called while {thread_name(thread)} is in {name}, and nothing was done: "
            "one thread at a time, so have one thread drive it, or put a lock of yours around both"
        )


def broke_in(error: BaseException) -> bool:
    """Whether an error may come from elsewhere than the call that it has ended.

    It does where a signal handler has raised it, as a timeout does, or a verb within a verb. So the
    call may have done its work.
    """
    return isinstance(error, Reentry) or is_foreign(error)


def is_foreign(error: BaseException) -> bool:
    """Whether an error is an interrupt, or a signal handler has raised it: nobody here has.

    It is, too, where another error has replaced that one, within the call that has ended.
    """
    return not isinstance(error, Exception) or is_signalled(error)


def is_signalled(error: BaseException) -> bool:
    """Whether a signal handler that is written in Python has raised an error, or one behind it."""
    if current_thread() is not main_thread():
        return False
    callers: set[FrameType] = set()
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - it is documented
    while frame is not None:
        callers.add(frame)
        frame = frame.f_back
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        trace = one.__traceback__
        if one is not error and trace is not None and trace.tb_frame in callers:
            break  # a caller handles it, and calls this
        while trace is not None:
            if _handles_a_signal(trace.tb_frame):
                return True
            trace = trace.tb_next
        one = one.__context__
    return False


def _handles_a_signal(frame: FrameType) -> bool:
    """Whether a signal has called it: with the frame that it has interrupted, its own caller."""
    interrupted = frame.f_back
    if interrupted is None:
        return False
    given = frame.f_locals.values()
    return any(
        value is interrupted
        or (isinstance(value, tuple) and any(one is interrupted for one in value))
        for value in given
    )


def _is_under_way(call: tuple[Thread, str]) -> bool:
    """Whether a verb is on the stack of the thread that has called it.

    Of another thread, whose stack changes meanwhile, it counts as long as that thread lives.
    """
    if call[0] is not current_thread():
        return call[0].is_alive()
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - it is documented
    while frame is not None:
        if frame.f_code is _ALONE and frame.f_locals.get("mine") is call:
            return True
        frame = frame.f_back
    return False


def thread_name(thread: Thread) -> str:
    """A thread in words, such as "thread 'MainThread' (140735)"."""
    return f"thread {thread.name!r} ({thread.ident})"


class _Owned(Protocol):
    """What has verbs that must not overlap."""

    @property
    def _owner(self) -> Owner: ...


_S = TypeVar("_S", bound=_Owned)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def owned(
    verb: Callable[Concatenate[_S, _P], _R], check: Callable[[_S, Thread], None] | None = None
) -> Callable[Concatenate[_S, _P], _R]:
    """Refuses a verb while a thread is in one of the same owner, this thread included.

    A verb is no part of another one: what several of them need is a function without this.

    Args:
        verb: The verb.
        check: Refuses it for other reasons, of the object and the thread that calls.

    Raises:
        Misuse: A thread is in a verb; the message names both. Nothing is done.
    """
    name = verb.__qualname__.replace("._", ".")
    bare = cast("Callable[[_S], _R]", verb)

    @wraps(verb)
    def alone(self: _S, /, *args: _P.args, **keywords: _P.kwargs) -> _R:
        owner = self._owner
        # Each call has a tuple of its own, so that it gives back only what it has taken. The
        # taking is one call of C, which no thread and no signal can divide. The giving back is the
        # last act: what an interrupt keeps from it is found out by the next call.
        mine = current_thread(), name
        try:
            other = owner.held.setdefault(None, mine)
            if other is not mine:
                owner.enter(other, mine)
            if check is not None:
                check(self, mine[0])
            # Most calls give nothing more, and a call that unpacks nothing costs a third less.
            found = verb(self, *args, **keywords) if args or keywords else bare(self)
        except BaseException as error:
            if owner.held.get(None) is mine:
                if is_foreign(error):
                    owner.interrupted.append(mine)
                del owner.held[None]
            raise
        del owner.held[None]
        return found

    return alone


_ALONE: CodeType = owned(thread_name).__code__  # type: ignore[type-var] # any function
