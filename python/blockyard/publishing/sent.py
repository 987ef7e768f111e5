"""The batches that were sent last, by their numbers."""

from collections import deque
from collections.abc import Iterator

__all__ = ["Sent"]


class Sent:
    """What a subscriber can ask for again. One thread uses it.

    Args:
        first: The number of the first batch.
        most: Batches that are kept.
        most_bytes: Bytes that are kept; the last batch is, however long it is.
    """

    def __init__(self, first: int, most: int, most_bytes: int) -> None:
        self._batches: deque[bytes] = deque()
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self.next = first
        """The number of the batch that is sent next."""

    def add(self, payload: bytes) -> int:
        """Takes a batch; returns its number."""
        kept = self._batches
        kept.append(payload)
        self._bytes += len(payload)
        while len(kept) > self._most or (self._bytes > self._most_bytes and len(kept) > 1):
            self._bytes -= len(kept.popleft())
        self.next += 1
        return self.next - 1

    def since(self, start: int) -> Iterator[tuple[int, bytes]] | None:
        """Returns the batches from a number on; None where not all of them are kept.

        A number beyond the next one is of another publisher, one before this: all of this is new.
        """
        oldest = self.next - len(self._batches)
        if not oldest <= start <= self.next:
            return None
        return ((at, self._batches[at - oldest]) for at in range(start, self.next))
