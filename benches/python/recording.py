"""What recording costs the thread that schedules: a begin and a finish with it, and without.

The times are thread CPU time, so that the thread that writes is not in them. Batches with and
without a recording alternate; a row is the median of their differences.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import blockyard as by
from blockyard._core import Recorder
from report import Figure, asked, report

BATCH, ROUNDS = 50, 400
TURN, MOST = 306, 1_000.0
"""Blocks for which there is a target, and that."""


def cache(record: Path | None) -> by.KVCache:
    return by.KVCache(device=5000, record=record)


def served(one: by.KVCache, keys: by.Keys) -> float:
    """CPU nanoseconds of a begin and a finish of a prompt that is there."""
    start = time.thread_time_ns()
    for _ in range(BATCH):
        one.finish(one.begin(keys))
    return (time.thread_time_ns() - start) / BATCH


def told(recorder: Recorder, keys: by.Keys) -> float:
    """CPU nanoseconds of what a scheduler calls for a request: its arrival, and its end."""
    start = time.thread_time_ns()
    for _ in range(BATCH):
        recorder.ended(recorder.arrived(), keys, keys.tokens, 300)
    return (time.thread_time_ns() - start) / BATCH


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        plain, recording = cache(None), cache(Path(folder, "begins.rec"))
        for blocks in (0, 16, 306, 1024):
            telling = cache(Path(folder, f"told {blocks}.rec"))
            recorder = telling.recorder
            assert recorder is not None
            keys = plain.keys(range(blocks * 16 + 1))
            for one in (plain, recording):
                lease = one.begin(keys)
                one.seal(lease, keys.tokens)
                one.finish(lease)
            rows = []
            for _ in range(ROUNDS):
                rows.append((served(plain, keys), served(recording, keys), told(recorder, keys)))
                # The writers keep up, as nobody serves requests in a loop that does nothing else.
                time.sleep(0.002)
            dropped = recording.stats()["record_dropped"] + telling.stats()["record_dropped"]
            assert not dropped, f"{dropped} were dropped: a figure would flatter"
            more, hand = median(row[1] - row[0] for row in rows), median(row[2] for row in rows)
            most = MOST if blocks == TURN else None
            about = f"a begin and a finish {median(row[0] for row in rows):,.0f}"
            yield Figure(f"{blocks} blocks: more with a recording, ns", more, most, about=about)
            yield Figure(f"{blocks} blocks: told by hand, ns", hand, most)


if __name__ == "__main__":
    given = asked(__doc__)
    sys.exit(report(figures(), given.json))
