"""What recording costs the thread that schedules: a begin and a finish with it, and without.

The times are thread CPU time, so that the thread that writes is not in them. Batches with and
without a recording alternate; a row is the median of their differences.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import blockyard as by
from blockyard._core import Recorder

BATCH, ROUNDS = 50, 400


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


def main() -> int:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        plain, recording = cache(None), cache(Path(folder, "begins.rec"))
        print("| blocks of the prompt | begin and finish | more with a recording | told by hand |")
        print("|--:|--:|--:|--:|")
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
            before, more = (
                statistics.median(row[0] for row in rows),
                statistics.median(row[1] - row[0] for row in rows),
            )
            by_hand = statistics.median(row[2] for row in rows)
            dropped = recording.stats()["record_dropped"] + telling.stats()["record_dropped"]
            print(f"| {blocks} | {before:,.0f} | {more:,.0f} | {by_hand:,.0f} |")
            assert not dropped, f"{dropped} were dropped: a figure would flatter"
    return 0


if __name__ == "__main__":
    sys.exit(main())
