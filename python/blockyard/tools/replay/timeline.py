"""Columns over modelled time, and quantiles."""

from collections.abc import Sequence
from operator import add

import numpy as np
from numpy.typing import NDArray

from blockyard.tools.replay.result import Series, Spread

__all__ = ["Timeline", "merged", "spread"]

_MOST = 400
"""The most intervals of a timeline; when there are more, neighbours are merged."""
_SUMS = ("device_hit", "host_hit", "missed", "bytes_down", "bytes_up", "preempted")
_LEVELS = ("device_used", "device_pinned", "device_promised", "host_used", "running", "waiting")

_STAYS = ("device_used", "host_used")
"""Levels of an engine that has ended."""


def spread(values: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> Spread:
    """Returns quantiles of values that stand for `weights` observations each; 0 without values."""
    if not len(values):
        return Spread(mean=0.0, p50=0.0, p90=0.0, p99=0.0, max=0.0, quantiles=[0.0] * 101)
    counts = np.ones(len(values), np.int64) if weights is None else weights
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(counts[order])
    # A quantile is the least value that its share of the observations does not exceed.
    ranks = np.maximum(np.ceil(np.linspace(0.0, 1.0, 101) * ends[-1]), 1)
    at = np.searchsorted(ends, ranks)
    quantiles = [round(float(value), 6) for value in values[order][at]]
    return Spread(
        mean=round(float(np.average(values, weights=counts)), 6),
        p50=quantiles[50],
        p90=quantiles[90],
        p99=quantiles[99],
        max=quantiles[100],
        quantiles=quantiles,
    )


class Timeline:
    """Columns over modelled time in a bounded number of intervals of equal length.

    Args:
        interval: Seconds of an interval; it doubles whenever there are too many intervals.
    """

    __slots__ = ("_interval", "_most", "_rows", "_sums")

    def __init__(self, interval: float = 0.25) -> None:
        self._interval = interval
        self._rows: list[list[int]] = []
        self._sums = [0] * len(_SUMS)
        self._most = [0] * len(_LEVELS)

    @property
    def end(self) -> float:
        """The end of the interval that is being filled, in seconds."""
        return (len(self._rows) + 1) * self._interval

    def add(self, name: str, amount: int) -> None:
        """Adds to a sum of this interval."""
        self._sums[_SUMS.index(name)] += amount

    def close(self, now: float, levels: Sequence[int]) -> None:
        """Notes levels, in the order of `_LEVELS`, and closes the intervals ended by `now`."""
        self._most = list(map(max, self._most, levels))
        while self.end <= now:
            self._rows.append([*self._sums, *self._most])
            self._sums = [0] * len(_SUMS)
            self._most = list(levels)
            if len(self._rows) >= _MOST:
                self._halve()

    def _halve(self) -> None:
        pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
        cut = len(_SUMS)
        self._rows = [
            [*map(add, first[:cut], second[:cut]), *map(max, first[cut:], second[cut:])]
            for first, second in pairs
        ]
        self._interval *= 2

    def series(self, levels: Sequence[int]) -> Series:
        """Returns all columns; the last interval may not be full."""
        rows = [*self._rows, [*self._sums, *map(max, self._most, levels)]]
        columns = dict(zip(_SUMS + _LEVELS, map(list, zip(*rows, strict=True)), strict=True))
        seconds = [round((at + 1) * self._interval, 6) for at in range(len(rows))]
        return Series(seconds=seconds, **columns)


def merged(parts: Sequence[Series]) -> Series:
    """Returns the columns of engines side by side, in the longest of their intervals.

    An engine that has ended keeps its content and runs nothing.
    """
    interval = max(part.seconds[0] for part in parts)
    columns: dict[str, NDArray[np.int64]] = {}
    for name in _SUMS + _LEVELS:
        each = [_coarser(part, name, interval) for part in parts]
        rows = max(map(len, each))
        after = [int(of[-1]) if name in _STAYS else 0 for of in each]
        padded = [
            np.pad(of, (0, rows - len(of)), constant_values=last)
            for of, last in zip(each, after, strict=True)
        ]
        columns[name] = np.sum(padded, axis=0)
        if name in _LEVELS and name not in {"running", "waiting"}:
            columns[name] = np.rint(columns[name] / len(parts)).astype(np.int64)
    seconds = [round((at + 1) * interval, 6) for at in range(len(columns["missed"]))]
    return Series(seconds=seconds, **{name: of.tolist() for name, of in columns.items()})


def _coarser(part: Series, name: str, interval: float) -> NDArray[np.int64]:
    """Returns a column in longer intervals; the last one may not be full."""
    column = np.array(getattr(part, name), np.int64)
    starts = np.arange(0, len(column), round(interval / part.seconds[0]))
    return (np.add if name in _SUMS else np.maximum).reduceat(column, starts)
