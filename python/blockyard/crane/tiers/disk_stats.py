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
    Stat("disk_syncs", "syncs", "counter", "disk_syncs", "group commits"),
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
        "blocks whose bytes did not match their record, or without a record",
    ),
    Stat(
        "disk_given_up",
        "copies",
        "counter",
        "disk_copies_given_up",
        "copies that the disk did not answer in time",
    ),
    Stat(
        "disk_rests",
        "rests",
        "counter",
        "disk_rests",
        "how often a disk began to rest after failures in a row",
    ),
    Stat(
        "disk_in_flight",
        "copies",
        "gauge",
        "disk_copies_in_flight",
        "copies that have not ended",
    ),
    Stat(
        "disk_held",
        "slots",
        "gauge",
        "disk_held_slots",
        "slots that a disk's threads write or hang at",
    ),
    Stat(
        "disk_hung",
        "slots",
        "gauge",
        "disk_hung_slots",
        "slots that a disk's threads hang at, whose copy was given up",
    ),
    Stat(
        "disk_down_rests",
        "disks",
        "gauge",
        "disk_resting{way=writes}",
        "disks that rest from writes until a retry",
    ),
    Stat(
        "disk_up_rests",
        "disks",
        "gauge",
        "disk_resting{way=reads}",
        "disks that rest from reads until a retry",
    ),
    Stat(
        "disk_dead",
        "disks",
        "gauge",
        "disks_dead",
        "disks that have failed at each try for a minute, one way or both",
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
