"""Histograms that the loop fills in plain numbers, of a clock that decides nothing."""

from bisect import bisect_left
from collections.abc import Callable
from functools import wraps
from math import inf
from typing import Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from blockyard._core import Misuse

__all__ = [
    "COPIES",
    "SIZES",
    "STEPS",
    "WAITS",
    "Clock",
    "Copied",
    "CopyTimes",
    "CraneNumbers",
    "Histogram",
    "Reading",
    "StepTimes",
    "checked_clock",
    "timed",
]

STEPS: Final = (2e-5, 2e-4, 2e-3)
"""Edges for a part of the bookkeeping, in seconds: at its best it takes between 5 and 500 us."""
COPIES: Final = (1e-3, 1e-2, 0.1)
"""Edges for a flight, from its submission to its report, in seconds."""
SIZES: Final = (float(1 << 20),)
"""The edge for the bytes of a flight: below it the latency of a link counts, not its bandwidth."""
WAITS: Final = (0.1, 1.0, 10.0)
"""Edges for what requests wait, in seconds."""

Clock: TypeAlias = Callable[[], float]
"""Returns seconds, from any beginning. Nothing is decided by it."""


def checked_clock(clock: Clock) -> Clock:
    """A clock that returns seconds, as far as one can see.

    Raises:
        Misuse: It does not.
    """
    given: object = clock
    if not callable(given) or not isinstance(given(), int | float):
        raise Misuse(f"clock = {clock!r:.60}: must return seconds, such as time.monotonic")
    return clock


class Reading(NamedTuple):
    """A histogram at one moment."""

    counts: tuple[int, ...]
    """Values up to each edge and above the one before; above the last edge at the end."""
    total: float
    """The sum of all values."""


class Histogram:
    """How many values were how large. One thread adds; any may read.

    A bisection in a tuple and two additions: the histograms of `prometheus_client`, which have a
    lock, take three times as long.

    Args:
        edges: The largest value of each bucket, in rising order; one bucket more has what is above.

    Example:
        >>> times = Histogram((1.0, 10.0))
        >>> times.add(0.5)
        >>> times.add(10.0)
        >>> times.read()
        Reading(counts=(1, 1, 0), total=10.5)
    """

    __slots__ = ("_counts", "_total", "edges")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Counts a value; one below 0, as of a clock that was set back, counts as 0.

        One that is no number or has no end is counted, and not summed: sums stay numbers.
        """
        if 0.0 < value < inf:
            self._total += value
        self._counts[bisect_left(self.edges, value)] += 1

    def read(self) -> Reading:
        """Returns what was counted; the sum may lack the value that is being added just now."""
        return Reading(tuple(self._counts), self._total)


class Copied(NamedTuple):
    """What one rank has copied from one tier to another."""

    times: Reading
    """Of the flights of which every block came whole, from their submission to their report."""
    sizes: Reading
    """Of the flights of which a block came whole, the bytes of those blocks."""


class CraneNumbers(NamedTuple):
    """What one rank has to say, for the process that exports: it can be pickled."""

    rank: int
    stats: dict[str, int]
    """As `Crane.stats` has it."""
    copies: dict[tuple[str, str], Copied]
    """By the two tiers; empty where the crane does not measure."""
    made: int = 0
    """When its crane was made, in nanoseconds: one that was made anew counts from 0."""


class CopyTimes:
    """How long flights between two tiers take, and how large they are. One thread adds."""

    __slots__ = ("_sizes", "_times")

    def __init__(self) -> None:
        self._sizes = Histogram(SIZES)
        self._times = Histogram(COPIES)

    def add(self, seconds: float | None, nbytes: int) -> None:
        """Counts a flight.

        Args:
            seconds: How long it took; None where not all of it came whole, as that says nothing.
            nbytes: Bytes of the blocks that came whole; a flight without one has no size.
        """
        if nbytes:
            self._sizes.add(nbytes)
        if seconds is not None:
            self._times.add(seconds)

    def read(self) -> Copied:
        """Returns what was counted."""
        return Copied(self._times.read(), self._sizes.read())


class StepTimes:
    """How long some parts of a step take.

    Args:
        clock: Seconds. Nothing is decided by it.
        parts: The names of the parts.

    Raises:
        Misuse: The clock does not return seconds.
    """

    __slots__ = ("clock", "parts")

    def __init__(self, clock: Clock, *parts: str) -> None:
        self.clock = checked_clock(clock)
        self.parts = {part: Histogram(STEPS) for part in parts}
        """A histogram of each part."""

    def read(self) -> dict[str, Reading]:
        """Returns what was counted of each part."""
        return {part: times.read() for part, times in self.parts.items()}


class _Timed(Protocol):
    """What has verbs that can be timed."""

    _times: StepTimes | None


_S = TypeVar("_S", bound=_Timed)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Verb: TypeAlias = Callable[Concatenate[_S, _P], _R]


def timed(part: str) -> Callable[[_Verb[_S, _P, _R]], _Verb[_S, _P, _R]]:
    """Counts how long a verb takes, where its object has `_times`; one that raises is not counted.

    Args:
        part: The part of a step that it is.
    """

    def of(verb: _Verb[_S, _P, _R]) -> _Verb[_S, _P, _R]:
        bare = cast("Callable[[_S], _R]", verb)

        @wraps(verb)
        def measured(self: _S, /, *args: _P.args, **keywords: _P.kwargs) -> _R:
            times = self._times
            if times is None:
                # As in `owned`: a call that unpacks nothing costs less.
                return verb(self, *args, **keywords) if args or keywords else bare(self)
            clock = times.clock
            began = clock()
            answer = verb(self, *args, **keywords)
            times.parts[part].add(clock() - began)
            return answer

        return measured

    return of
