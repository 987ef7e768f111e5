"""Histograms as samples: how many values there were up to each edge."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.samples import Sample

from blockyard.metrics.labels import Labels
from blockyard.shared.timings import Reading

__all__ = ["Buckets", "joined"]


class Buckets:
    """The series of one histogram; its labels are made once.

    Args:
        name: The name of its family.
        labels: Its labels.
        edges: Its edges, without the one that is infinite.
    """

    def __init__(self, name: str, labels: dict[str, str], edges: Iterable[float]) -> None:
        self._bucket, self._count, self._sum = (
            f"{name}_{ending}" for ending in ("bucket", "count", "sum")
        )
        self._labels: Final = Labels(labels)
        every = (*edges, float("inf"))
        self._edges = [Labels({**labels, "le": _words(edge)}) for edge in every]

    def __len__(self) -> int:
        """How many series it has."""
        return len(self._edges) + 2

    def samples(self, reading: Reading) -> Iterator[Sample]:
        """Yields what was counted; the count is the sum of the buckets, so that they agree."""
        count = 0
        for labels, count in zip(self._edges, accumulate(reading.counts), strict=True):
            yield Sample(self._bucket, labels, count)
        yield Sample(self._count, self._labels, count)
        yield Sample(self._sum, self._labels, reading.total)


def _words(edge: float) -> str:
    """An edge as Prometheus reads and writes it."""
    return "+Inf" if edge == float("inf") else repr(edge)


def joined(readings: list[Reading], edges: tuple[float, ...]) -> Reading:
    """Returns several histograms of the same edges as one."""
    if len(readings) == 1:
        return readings[0]
    counts, total = [0] * (len(edges) + 1), 0.0
    for reading in readings:
        counts = [mine + more for mine, more in zip(counts, reading.counts, strict=True)]
        total += reading.total
    return Reading(tuple(counts), total)
