"""What metrics cost: a step that is measured beside one that is not, and a scrape.

    python benches/python/exporting.py [--steps 4000]

Thread CPU time. Steps of 64 decodes with and without `metrics=True` take turns, on caches of their
own; a step is `schedule`, `on_output`, `commit` and `dispatch`. The scrape is of an engine that has
every tier and part, so that no engine has more series; it takes turns with one whose text
`prometheus_client.generate_latest` writes. It fails where a target is missed.
"""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

import blockyard as by
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.metrics.collector import EngineCollector
from blockyard.metrics.engine_view import EngineView
from blockyard.metrics.text import text
from blockyard.publishing.publisher import Publisher
from blockyard.scheduling.options import SchedulerOptions
from blockyard.scheduling.reservations import Reservations
from report import Figure, asked, report
from steps import decoding, turn

ROWS = 64
STEP_US, SCRAPE_MS = 2.0, 1.0
"""Most that metrics may add to a step, and that a scrape may take."""


def one(scheduler: by.Scheduler, tick: int) -> float:
    """Returns the CPU microseconds of one step with its copies, as `step` of a local cache."""
    spent = turn(scheduler)
    begun = time.thread_time_ns()
    scheduler.cache.commit([], now=tick)
    scheduler.cache.dispatch()
    return spent + (time.thread_time_ns() - begun) / 1e3


def step(count: int) -> tuple[float, float, float]:
    """Returns the medians of a plain step, of a measured one, and of what that one takes more."""
    plain, measured = (
        decoding(by.KVCache(block_size=16, device=30_000), ROWS, 0, metrics=metrics)
        for metrics in (False, True)
    )
    spent = np.empty((count, 2))
    for at in range(count):
        # Each goes first as often: the second finds its code in the CPU's caches.
        for which in (0, 1) if at % 2 else (1, 0):
            spent[at, which] = one((plain, measured)[which], at)
    more = np.median(spent[:, 1] - spent[:, 0])
    return float(np.median(spent[:, 0])), float(np.median(spent[:, 1])), float(more)


def scrape(times: int = 200) -> tuple[int, float, float]:
    """Returns the series, and the median CPU milliseconds of a scrape with our text and theirs."""
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)
    device, host, disk = (MemoryTier(layout, 64, name=name) for name in ("device", "host", "disk"))
    with (
        by.local(layout, memory=(device, host, disk)) as cache,
        Publisher(cache, "tcp://127.0.0.1:*") as publisher,
    ):
        scheduler = by.Scheduler(cache, SchedulerOptions(max_num_seqs=8), metrics=True)
        engine = EngineView(scheduler, reservations=Reservations(cache), publisher=publisher)
        collector = EngineCollector({"0": engine})
        registry = CollectorRegistry()
        registry.register(collector)
        ways = (lambda: text(collector.collect()).encode(), lambda: generate_latest(registry))
        spent = np.array([[_milliseconds(way) for way in ways] for _ in range(times)])
        ours, theirs = np.median(spent, axis=0)
        return collector.most_series, float(ours), float(theirs)


def _milliseconds(work: Callable[[], object]) -> float:
    begun = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun) / 1e6


def figures(count: int) -> Iterator[Figure]:
    plain, measured, more = step(count)
    yield Figure(f"a step of {ROWS} decodes without metrics, µs", plain)
    yield Figure("the same with metrics, µs", measured)
    yield Figure(f"what metrics add to a step, median of {count:,} pairs, µs", more, STEP_US)
    series, spent, theirs = scrape()
    yield Figure(f"a scrape of {series} series, ms", spent, SCRAPE_MS)
    yield Figure("the same, written by `generate_latest`, ms", theirs)


if __name__ == "__main__":
    given = asked(__doc__, steps=4_000)
    sys.exit(report(figures(given.steps), given.json))
