"""Held requests that keep from others what those wait for, and how long they may."""

from collections.abc import Iterable
from typing import Final

from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import Request
from blockyard.scheduling.shared import Shared
from blockyard.shared.log import Limited

__all__ = ["Unread", "named"]

_log = Limited(__name__)
_SHOWN: Final = 3
"""Requests that a sentence names."""


class Unread:
    """Counts the steps for which held requests keep others waiting (INV-25).

    Where a held request can be parked or computed again it makes room at once, and nothing is
    counted here. Else it fails in the end.

    Args:
        shared: What it shares with the other parts.
        lifecycle: How a request fails.
    """

    def __init__(self, shared: Shared, lifecycle: Lifecycle) -> None:
        self._seats = shared.seats
        self._batch = shared.batch
        self._queue = shared.queue
        self._lifecycle = lifecycle
        self.most: Final = shared.options.max_held_steps
        """Steps for which it may."""
        self._waiting: Request | None = None

    def keepers(self, *, below: bool = True) -> list[Request]:
        """The held requests that keep seats or blocks, those with a seat first, then the newest.

        Args:
            below: Whether those count, too, that are parked.
        """
        keepers = [seat.request for seat in self._batch.held]
        if below:
            keepers += [entry for entry in tuple(self._queue.held) if entry.parked is not None]
        return sorted(keepers, key=lambda entry: (entry.parked is None, entry.rank), reverse=True)

    @property
    def waiting(self) -> Request | None:
        """The request that waits for what they keep; None where none does."""
        entry = self._waiting
        gone = entry is None or entry.lease is not None or entry.terminal
        return None if gone or not self.keepers() else entry

    def relent(self) -> None:
        """Notes that no request waits for them in this step, as far as is known yet."""
        self._waiting = None

    def outlast(self, waiting: Request, *, below: bool) -> None:
        """Counts a step in which they keep a request waiting, and fails the first that may not.

        Args:
            waiting: The request that waits.
            below: Whether it waits for room below the device, which parked ones keep, too.
        """
        self._waiting = waiting
        keepers = self.keepers(below=below)
        for entry in keepers:
            entry.kept_steps += 1
        late = next((entry for entry in keepers if entry.kept_steps > self.most), None)
        # What one gives back is there at its ack: no other one fails before.
        if late is None or any(seat.pending_end for seat in self._seats.stopping_seats()):
            return
        why = (
            f"unread: it was held, and kept others waiting for {late.kept_steps} steps, and this "
            "engine cannot recompute it"
        )
        _log.warning("request %r fails, %s", late.id, why)
        self._lifecycle.give_up(late, why)


def named(entries: Iterable[Request]) -> str:
    """The ids of some requests, of many the first."""
    ids = [repr(entry.id) for entry in entries]
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
