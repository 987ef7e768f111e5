"""The stops and acks of a simulation: which acks the scheduler must ignore."""

from collections import Counter
from collections.abc import Sequence

from blockyard.scheduling.engine import Ack, Stop
from blockyard.testing.simulated_engine import check

__all__ = ["Acks"]


class Acks:
    """The stops that were sent, and the acks that came back.

    Args:
        seen: Where acks are counted that must have no effect.
    """

    def __init__(self, seen: Counter[str]) -> None:
        self._seen = seen
        self._sent: set[Stop | Ack] = set()
        self._given: set[Ack] = set()

    def sent(self, stop: Stop) -> None:
        """Notes a stop; the same stop is sent again where its ack was lost."""
        self._seen["T29 present"] += stop in self._sent
        self._sent.add(stop)

    def given(self, acks: Sequence[Ack], ignored: int, *, dead: bool) -> None:
        """Checks how many acks of a poll the scheduler has ignored.

        Args:
            acks: The acks.
            ignored: How many the scheduler says it has ignored.
            dead: Whether the engine is dead; the acks inside its outputs are not counted.
        """
        foreign = sum(ack not in self._sent for ack in acks)
        twice = 0
        for ack in acks:
            twice += ack in self._sent and ack in self._given
            self._given.add(ack)
        late = ignored - twice - foreign
        check(
            late >= 0 or dead,
            f"T30, T31: some of {twice} repeated and {foreign} foreign acks had an effect",
        )
        for name, number in (("T30", twice), ("T31 foreign", foreign), ("T31 late", max(late, 0))):
            self._seen[name] += number
