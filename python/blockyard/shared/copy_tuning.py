"""How copies between a GPU and its host are best made: measured once, and frozen here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from blockyard._core import Misuse
from blockyard.shared.validate import integer, nearest, shown

__all__ = ["CopyTuning"]

_POSITIVE = {"queued_runs", "ring_bytes", "ring_parts", "groups", "link_groups"}


@dataclass(frozen=True, slots=True)
class CopyTuning:
    """Where one method of copying begins to beat another.

    They change how bytes move, never which bytes: ranks may differ in them without harm. The
    defaults are those of an H200 on PCIe 5, measured by `make bench-gpu`.

    Args:
        kernel_below: Bytes of a flight and plane below which a kernel copies over the link itself,
            where a block is in several pieces.
        whole_below: The same where a block is in one piece, so that one DMA could do it, which
            waits for no thread block of the engine's.
        piece_bytes: Least bytes of a piece that is worth a copy of its own. From 64 KiB on that is
            faster by 6 %, but each such copy costs its caller up to 1 µs.
        most_runs: Most copies that a flight of blocks of several pieces is made of; beyond, a ring
            is used.
        rows_bytes: Least bytes of a piece from which a block whose pieces are evenly apart goes as
            one 2-D copy, without a ring or a kernel. By default it never does, as the ring is
            faster: 97 against 91 % of the link down, 96 against 89 % up, in pieces of 32 KiB.
        batch_runs: Most copies in one call of `cuMemcpyBatchAsync`. With 0 that call is not used:
            kernels copy over the link, which is slower.
        queued_runs: Most of these in the driver's queue at a time, each way: the others are queued
            as those end, whenever a receipt is polled.
        ring_bytes: Device memory, each way, in which scattered pieces are gathered into whole
            blocks; less where the smaller tier has less.
        ring_parts: Parts of the ring. With 2 or more, one is filled while another is emptied, so
            that gathering and scattering cost no time of the link (some 3 %), and a flight costs
            its caller two to three times the calls.
        groups: Thread blocks that gather and scatter at a time.
        link_groups: Thread blocks that copy over the link at a time.

    Raises:
        Misuse: One is no integer, or too small; the message names it.
    """

    kernel_below: int = 1 << 20
    whole_below: int = 64 << 10
    piece_bytes: int = 256 << 10
    most_runs: int = 4096
    rows_bytes: int = 1 << 40
    batch_runs: int = 1024
    queued_runs: int = 1024
    ring_bytes: int = 128 << 20
    ring_parts: int = 2
    groups: int = 128
    link_groups: int = 16

    def __post_init__(self) -> None:
        """Checks every field."""
        for field in fields(self):
            least = int(field.name in _POSITIVE)
            given = integer(f"copy_tuning: {field.name}", getattr(self, field.name), least=least)
            object.__setattr__(self, field.name, given)

    @classmethod
    def of(cls, given: object) -> Self:
        """Returns a tuning as it is, or made of some of them by name.

        Args:
            given: CopyTuning, or a mapping.

        Raises:
            Misuse: It is neither, a name is unknown, or a value is out of range.
        """
        if isinstance(given, cls):
            return given
        names = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise Misuse(
                f"copy_tuning = {shown(given)}: give a mapping with some of {', '.join(names)}"
            )
        for name in given:
            if name not in names:
                near = nearest(str(name), names)
                raise Misuse(f"there is no {name!r} in copy_tuning: did you mean {near!r}?")
        return cls(**given)
