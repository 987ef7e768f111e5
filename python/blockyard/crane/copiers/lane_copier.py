"""The calls that every copier has whose copies lanes of the core carry out."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, NoReturn

from blockyard._core import Misuse
from blockyard.crane.copiers import BlockKeys, Slots
from blockyard.crane.copiers.lane_flights import L, LaneFlights
from blockyard.crane.tiers import Tier
from blockyard.shared.owner import Owner, owned
from blockyard.shared.single import Single

__all__ = ["LaneCopier"]


class LaneCopier(ABC, Single, Generic[L]):
    """A copier between memory and one tier that stores the keys of its blocks.

    Its verbs and its receipts are for one thread at a time: a call that comes during another one is
    refused.

    Args:
        name: The name of that tier.
        flights: Its copies.
    """

    def __init__(self, name: str, flights: LaneFlights[L]) -> None:
        self._name, self._flights = name, flights
        self._owner = Owner()
        self._closed = False

    def start(self, source: Tier, destination: Tier, _from: Slots, _to: Slots) -> NoReturn:
        """Refuses: the tier needs the keys of its blocks.

        Raises:
            Misuse: Always.
        """
        raise Misuse(
            f"a plan from {source.name} to {destination.name} without keys: give the yard "
            f'keyed=("{self._name}",)'
        )

    def _is_down(self, destination: Tier, parents: BlockKeys | None) -> bool:
        """Returns whether a copy goes down.

        Raises:
            Misuse: It does, and has no parents; or the copier is closed.
        """
        self._check_open()
        down = destination.name == self._name
        if down and parents is None:
            raise Misuse(f'a plan to {self._name} without parents: give keyed=("{self._name}",)')
        return down

    def _check_open(self) -> None:
        if self._closed:
            raise Misuse("the copier is closed")

    @owned
    def collect(self) -> None:
        """Takes what the lanes have reported, and gives up what is late."""
        self._collect()

    @abstractmethod
    def _collect(self) -> None:
        """Does so, and logs what a user should know of the tier."""

    def is_still(self) -> bool:
        """Whether `collect` would find nothing, as `Counting`."""
        return self._flights.is_still()

    @property
    def ends(self) -> int:
        """How many copies have ended, as `Counting`."""
        return self._flights.ends

    def turn(self) -> AbstractContextManager[None]:
        """Collects once for all receipts that are polled until the end."""
        return self._flights.turn()

    @owned
    def reset(self) -> None:
        """Ends all copies: no memory is read or written any more."""
        self._end()

    def _end(self) -> None:
        self._flights.collected = False
        self._flights.give_up()
        self._collect()

    @owned
    def close(self) -> None:
        """Ends all copies, those that have not ended as failed, and takes no more."""
        self._closed = True
        self._end()
        self._leave()

    def _leave(self) -> None:
        """Lets go of the tier, where another copier may have it."""
