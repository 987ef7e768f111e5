"""Fails held requests that keep others waiting for too long."""

from collections.abc import Iterable
from typing import Final

from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import Request
from blockyard.scheduling.shared import Shared
from blockyard.shared.log import Limited

__all__ = ["Unread", "named"]

_log = Limited(__name__)
_SHOWN: Final = 3
"""Most requests named in a sentence."""


class Unread:
    """Counts the steps for which held requests keep others waiting (INV-25).

    Where a held request can be parked or computed again it makes room at once, and nothing is
    counted here. Else it fails in the end.

    Args:
        shared: State that all parts of the scheduler share.
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

    def keepers(self) -> list[Request]:
        """The held requests that keep seats or blocks, those with a seat first, then the newest."""
        return self.seated() + _newest(self._queue.held & self._queue.parked)

    def seated(self) -> list[Request]:
        """The held requests that have a seat, the newest first."""
        return _newest(seat.request for seat in self._batch.held)

    @property
    def waiting(self) -> Request | None:
        """The request that waits for their seats or blocks; None if none does."""
        entry = self._waiting
        gone = entry is None or entry.lease is not None or entry.gone
        return None if gone or not self.keepers() else entry

    def relent(self) -> None:
        """Notes that no request waits for them in this step, as far as is known yet."""
        self._waiting = None

    def outlast(self, waiting: Request, keepers: list[Request]) -> None:
        """Counts a step in which they keep a request waiting, and fails the first that may not.

        Args:
            waiting: The request that waits.
            keepers: The `keepers` where it waits for room below the device, else the `seated`.
        """
        self._waiting = waiting
        for entry in keepers:
            entry.kept_steps += 1
        late = next((entry for entry in keepers if entry.kept_steps > self.most), None)
        # Its seat and blocks are free at its ack: no other one fails before.
        if late is None or any(seat.pending_end for seat in self._seats.stopping_seats()):
            return
        why = (
            f"unread: it was held, and kept others waiting for {late.kept_steps} steps, and this "
            "engine cannot recompute it"
        )
        _log.warning("request %r fails, %s", late.id, why)
        self._lifecycle.give_up(late, why)


def _newest(entries: Iterable[Request]) -> list[Request]:
    return sorted(entries, key=lambda entry: entry.rank, reverse=True)


def named(entries: Iterable[Request]) -> str:
    """The ids of some requests, of many the first."""
    ids = [repr(entry.id) for entry in entries]
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
