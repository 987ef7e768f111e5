"""What a disk counts: name, unit, kind, metric and meaning of each number."""

from typing import Final

from blockyard.shared.stats import Stat

__all__ = ["DISK_STATS"]

DISK_STATS: Final = (
    Stat(
        "disk_written_blocks",
        "blocks",
        "counter",
        "disk_written_blocks",
        "blocks that this rank's disk has written durably",
    ),
    Stat(
        "disk_written_bytes",
        "bytes",
        "counter",
        "disk_written_bytes",
        "bytes of the blocks that this rank's disk has written durably",
    ),
    Stat(
        "disk_read_blocks",
        "blocks",
        "counter",
        "disk_read_blocks",
        "blocks that this rank's disk has read and checked",
    ),
    Stat(
        "disk_read_bytes",
        "bytes",
        "counter",
        "disk_read_bytes",
        "bytes of the blocks that this rank's disk has read and checked",
    ),
    Stat(
        "disk_syncs",
        "syncs",
        "counter",
        "disk_syncs",
        "syncs, each of which makes a group of writes durable",
    ),
    Stat(
        "disk_failed",
        "failures",
        "counter",
        "disk_failures",
        "reads, writes and syncs that failed",
    ),
    Stat(
        "disk_corrupt",
        "blocks",
        "counter",
        "disk_corrupt_blocks",
        "blocks without a record, or whose bytes did not match the record",
    ),
    Stat(
        "disk_given_up",
        "copies",
        "counter",
        "disk_copies_given_up",
        "copies that were cancelled because the disk did not answer in time",
    ),
    Stat(
        "disk_rests",
        "rests",
        "counter",
        "disk_rests",
        "how often a disk was suspended after consecutive failures",
    ),
    Stat(
        "disk_in_flight",
        "copies",
        "gauge",
        "disk_copies_in_flight",
        "copies that are running",
    ),
    Stat(
        "disk_held",
        "slots",
        "gauge",
        "disk_held_slots",
        "slots that a disk's threads are writing, or hang at",
    ),
    Stat(
        "disk_hung",
        "slots",
        "gauge",
        "disk_hung_slots",
        "slots at which a disk's threads hang, after their copy was cancelled",
    ),
    Stat(
        "disk_down_rests",
        "disks",
        "gauge",
        "disk_resting{way=writes}",
        "disks whose writes are suspended until a retry",
    ),
    Stat(
        "disk_up_rests",
        "disks",
        "gauge",
        "disk_resting{way=reads}",
        "disks whose reads are suspended until a retry",
    ),
    Stat(
        "disk_dead",
        "disks",
        "gauge",
        "disks_dead",
        "dead disks: every read, or every write, has failed for a minute",
    ),
    Stat(
        "disk_clearing",
        "disks",
        "gauge",
        "disks_clearing",
        "disks on which a clear is not durable yet",
    ),
)
"""The schema of `DiskTier.stats`."""
