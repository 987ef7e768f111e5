"""The reservations of a simulation: each is checked when it is opened and when it ends."""

from collections import Counter
from dataclasses import dataclass

from blockyard._core import Misuse, NoRoom, Ticket
from blockyard.scheduling.headroom import Adaptive
from blockyard.scheduling.reservations import Reservations, SpentReservation
from blockyard.testing.checked_cache import CheckedCache
from blockyard.testing.simulated_engine import check

__all__ = ["CheckedReservations"]


@dataclass(slots=True)
class _Reservation:
    """What is known of a reservation from outside."""

    number: int
    deadline: int
    peer: str
    open: bool = True


class CheckedReservations:
    """The `Reservations` of one yard, with checks.

    Args:
        cache: The yard.
        seen: Where it counts.
    """

    def __init__(self, cache: CheckedCache, seen: Counter[str]) -> None:
        self._cache = cache
        self._seen = seen
        self._reservations = Reservations(cache, headroom={"decode": Adaptive(1.0, 0.0)})
        self._asked: dict[str, _Reservation] = {}

    def __len__(self) -> int:
        """Returns how many are open."""
        return sum(reservation.open for reservation in self._asked.values())

    def open(self, name: str, blocks: int, deadline: int, peer: str, *, running: int) -> bool:
        """Opens a reservation; it must succeed exactly where there is room and none is open."""
        room = self._cache.room()
        spare, kept = room.available, room.headroom
        check(running > 0 or not kept, f"{kept} blocks of headroom, and nothing runs")
        before = self._asked.get(name)
        try:
            reservation = self._reservations.open(
                name, blocks, deadline=deadline, peer=peer, running=running
            )
        except Misuse:
            check(before is not None and before.open, f"{name} is refused its first reservation")
            self._seen["2.6 second"] += 1
            return False
        except NoRoom:
            check(spare < blocks + max(running - kept, 0), f"{name} is refused {blocks} blocks")
            self._seen["2.6 refused"] += 1
            return False
        check(before is None or not before.open, f"{name} has two reservations")
        check(spare >= blocks + max(running - kept, 0), f"{name} is promised {blocks} of {spare}")
        self._asked[name] = _Reservation(reservation.id, deadline, peer)
        return True

    def commit(self, name: str) -> Ticket | None:
        """Returns the ticket for a request; None where there is none, or it has ended."""
        reservation = self._asked.get(name)
        if reservation is None:
            return None
        try:
            ticket = self._reservations.commit(reservation.number)
        except SpentReservation:
            check(not reservation.open, f"the reservation of {name} is open, and is refused")
            self._seen["2.6 spent"] += 1
            return None
        check(reservation.open, f"the reservation of {name} has ended, and is taken")
        self._seen["ticket committed"] += 1
        reservation.open = False
        return ticket

    def withdraw(self, name: str) -> None:
        """Releases a reservation whose request does not come."""
        reservation = self._asked.get(name)
        if reservation is None or not reservation.open:
            return
        self._seen["ticket released"] += 1
        reservation.open = False
        self._reservations.release(reservation.number)

    def expire(self, now: int) -> None:
        """Checks that exactly those expire whose deadline has passed."""
        late = [one for one in self._asked.values() if one.open and one.deadline < now]
        self._gone("2.6 expired", late, [one.id for one in self._reservations.expire(now)])

    def died(self, peer: str) -> None:
        """Checks that exactly those of a dead peer expire."""
        its = [one for one in self._asked.values() if one.open and one.peer == peer]
        self._gone("2.6 peer", its, [one.id for one in self._reservations.died(peer)])

    def _gone(self, name: str, mine: list[_Reservation], numbers: list[int]) -> None:
        check(sorted(one.number for one in mine) == sorted(numbers), f"{name}: {numbers}")
        self._seen[name] += len(mine)
        for one in mine:
            one.open = False

    def stats(self) -> dict[str, int]:
        """Returns the counters of the reservations."""
        stats = self._reservations.stats()
        check(stats["tickets_open"] == len(self), f"{len(self)} reservations are open: {stats}")
        return stats
