"""The text of a scrape, of the format that every Prometheus reads."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import isinf, isnan
from typing import Final

from prometheus_client.metrics_core import Metric

__all__ = ["CONTENT_TYPE", "Labels", "text"]


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ENDINGS: Final = {"counter": "_total", "info": "_info"}
"""What this format adds to the name of a family."""


class Labels(dict[str, str]):
    """Labels that stay as they are: how they are written is known once for all scrapes.

    Example:
        >>> Labels({"tier": "host", "set": "idle"}).words
        '{tier="host",set="idle"}'
    """

    __slots__ = ("words",)

    def __init__(self, labels: dict[str, str]) -> None:
        super().__init__(labels)
        inside = ",".join(f"{name}={_quoted(value)}" for name, value in labels.items())
        self.words: Final = f"{{{inside}}}" if labels else ""
        """As they are written; nothing where there are none."""


def _quoted(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'"{escaped}"'


def text(metrics: Iterable[Metric]) -> str:
    """Returns metrics as `prometheus_client.generate_latest` does, so that a scrape is below 1 ms.

    A scrape of 249 series takes 1.5 ms with that one, which looks at each label of each sample
    anew, and 0.4 ms with this: thread CPU time of `benches/python/exporting.py`, on two cores of an
    AMD EPYC. Here labels are written once, as the series of an engine stay the same.
    """
    return "".join(_lines(metrics))


def _lines(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        yield _head(metric.name, metric.type, metric.documentation)
        for name, labels, value, *_ in metric.samples:
            words = labels.words if isinstance(labels, Labels) else Labels(labels).words
            yield f"{name}{words} {value if isinstance(value, int) else _number(value)}\n"


@lru_cache(1024)
def _head(name: str, kind: str, about: str) -> str:
    full = f"{name}{_ENDINGS.get(kind, '')}"
    said = about.replace("\\", r"\\").replace("\n", r"\n")
    kind = "gauge" if kind == "info" else kind
    return f"# HELP {full} {said}\n# TYPE {full} {kind}\n"


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
