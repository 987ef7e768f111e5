"""What stores and peers of a rank count: name, unit, kind, metric and meaning of each number."""

from typing import Final

from blockyard.shared.stats import Kind, Stat

__all__ = ["REMOTE_STATS"]

_ROWS: Final[tuple[tuple[str, str, Kind, str, str], ...]] = (
    ("put_blocks", "blocks", "counter", "store_put_blocks", "blocks that a store has acknowledged"),
    ("put_bytes", "bytes", "counter", "store_put_bytes", "bytes of the acknowledged blocks"),
    ("got_blocks", "blocks", "counter", "store_got_blocks", "blocks that were fetched and checked"),
    ("got_bytes", "bytes", "counter", "store_got_bytes", "bytes of the fetched blocks"),
    ("deleted", "values", "counter", "store_deleted_values", "keys that every store has deleted"),
    (
        "failed",
        "calls",
        "counter",
        "store_calls_failed",
        "calls that a store refused or did not answer in time",
    ),
    (
        "corrupt",
        "values",
        "counter",
        "store_corrupt_values",
        "values that were not what was asked for, none of which was used",
    ),
    ("missing", "blocks", "counter", "store_missing_blocks", "blocks that no store had any more"),
    (
        "given_up",
        "copies",
        "counter",
        "store_copies_given_up",
        "copies that were cancelled because no store answered in time",
    ),
    (
        "rests",
        "rests",
        "counter",
        "store_rests",
        "how often a store was suspended after failures or slow calls",
    ),
    ("in_flight", "copies", "gauge", "store_copies_in_flight", "copies and deletes under way"),
    ("calls", "calls", "gauge", "store_calls", "jobs that threads are working on"),
    ("hung", "calls", "gauge", "store_calls_hung", "of these, jobs whose copy was cancelled"),
    (
        "held",
        "buffers",
        "gauge",
        "store_buffers_held",
        "staging buffers that a client has after their copy was cancelled",
    ),
    ("buffers", "buffers", "gauge", "store_buffers", "staging buffers, of one block each"),
    (
        "undeleted",
        "values",
        "gauge",
        "store_undeleted_values",
        "keys that a store has not confirmed as deleted, counted for each store",
    ),
    (
        "down_rests",
        "stores",
        "gauge",
        "store_resting{way=writes}",
        "stores whose writes are suspended until a retry",
    ),
    (
        "up_rests",
        "stores",
        "gauge",
        "store_resting{way=reads}",
        "stores whose reads are suspended until a retry",
    ),
    (
        "peer_got_blocks",
        "blocks",
        "counter",
        "peer_blocks",
        "blocks that were taken over and checked",
    ),
    (
        "peer_got_bytes",
        "bytes",
        "counter",
        "peer_bytes",
        "bytes of the blocks that were taken over",
    ),
    (
        "peer_stale",
        "blocks",
        "counter",
        "peer_stale_blocks",
        "blocks that a peer had given to others by then, none of which was used",
    ),
    (
        "peer_corrupt",
        "blocks",
        "counter",
        "peer_corrupt_blocks",
        "blocks whose checksum did not agree, none of which was used",
    ),
    ("peer_failed", "calls", "counter", "peer_failed", "connections that failed or were late"),
    ("peer_in_flight", "copies", "gauge", "peer_copies_in_flight", "copies from peers under way"),
    (
        "peer_held_bytes",
        "bytes",
        "gauge",
        "peer_held_bytes",
        "bytes of staging that reads of peers hold which were given up and have not ended",
    ),
    (
        "peer_resting",
        "peers",
        "gauge",
        "peers_resting",
        "peers that are suspended after failures until a retry",
    ),
)

REMOTE_STATS: Final = tuple(
    Stat(f"remote_{name}", unit, kind, metric, f"{about}, on this rank")
    for name, unit, kind, metric, about in _ROWS
)
"""The schema of `RemoteTier.stats`."""
