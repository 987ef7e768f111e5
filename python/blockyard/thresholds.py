"""How copies between a GPU and its host are best made: measured once, and frozen here."""

from dataclasses import dataclass, fields

from blockyard.layout import natural

__all__ = ["Thresholds"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where one way of copying begins to beat another.

    They change how bytes move, never which: ranks may differ in them without harm. What they are
    by default is a judgement, which no measurement on a device has confirmed yet.

    Args:
        kernel_below: Bytes of a flight and plane below which a kernel copies over the link itself.
        piece_bytes: Least bytes of a piece for which it is worth its own copy.
        most_runs: Most copies that a flight of blocks of several pieces is made of; beyond, a ring
            is used.
        ring_bytes: Device memory, each way, in which scattered pieces are gathered into whole
            blocks; less where the smaller tier has less.
        groups: Thread blocks that gather and scatter at a time.
        link_groups: Thread blocks that copy over the link at a time.

    Raises:
        Misuse: One is no whole number, or too small; it is named.
    """

    kernel_below: int = 1 << 20
    piece_bytes: int = 48 << 10
    most_runs: int = 4096
    ring_bytes: int = 256 << 20
    groups: int = 128
    link_groups: int = 16

    def __post_init__(self) -> None:
        """Checks every field."""
        for field in fields(self):
            least = int(field.name in {"ring_bytes", "groups", "link_groups"})
            natural(f"thresholds: {field.name}", getattr(self, field.name), least=least)
