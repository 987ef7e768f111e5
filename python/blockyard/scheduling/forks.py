"""n samples of a prompt: one computes it, and the others are forked of that one."""

from blockyard._core import Lease, Misuse, NoRoom
from blockyard.scheduling.request import Request
from blockyard.scheduling.seats import Seat
from blockyard.scheduling.shared import Shared

__all__ = ["Forks"]


class Forks:
    """Gives samples a seat beside the one that has computed their prompt.

    A fork shares the full blocks, and computes the others again: less than a block, or the last
    one, whose last token gives the logits of its own first token. Nothing is copied, as the first
    sample writes on in the block that a copy would read. A sample that finds no seat or no room
    waits in the queue like any other, and finds the prompt published.

    Args:
        shared: State that all parts of the scheduler share.
    """

    def __init__(self, shared: Shared) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._batch = shared.batch
        self._queue = shared.queue
        self._headroom = shared.headroom
        self._parking = shared.parking
        self._counters = shared.counters

    def fork(self, seat: Seat) -> None:
        """Forks the samples that wait for a seat whose prompt is computed.

        Call it before the first token of the seat is appended, and before a block of its last
        chunk is sealed.
        """
        group = seat.request.group
        while group is not None and group.leader is seat.request and group.waiting:
            entry = group.take()
            lease = self._lease(seat.lease, entry)
            if lease is None:
                self._queue.push(entry)
                continue
            self._counters.fork()
            entry.load()
            self._batch.add_loading(self._seats.bind(entry, lease, self._cache.limit()))

    def _lease(self, parent: Lease, entry: Request) -> Lease | None:
        """The lease of a fork; None where it waits in the queue."""
        # `safety` counts what begins in a step; and no sample overtakes what came before it.
        if self._parking.must_park or self._seats.full or entry.held:
            return None
        if any(other.rank < entry.rank for other in self._queue.next(1)):
            return None
        size = self._cache.block_size
        computed = (len(entry.new.prompt) - 1) // size * size
        # Its last block is a copy of a published one, which is found there; or what it has computed
        # is of no use any more, as the weights have changed.
        if parent.cached > computed or parent.state != "ready":
            return None
        try:
            reserve = self._headroom.reserve(entry.new.max_tokens - 1)
            return self._cache.fork(parent, computed, reserve=reserve)
        except (NoRoom, Misuse):
            # The headroom policy may raise, too: the begin of this request then raises.
            return None
