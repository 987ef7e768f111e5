"""What another connector brings into blocks of vLLM, where a MultiConnector has both in it."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

__all__ = ["OthersLoads", "OthersRow", "comes_from_afar", "is_certain"]


class OthersRow(Protocol):
    """What is asked of a row of the scheduler's half."""

    request: Any
    ids: list[int]
    tables: list[list[int]]
    scheduled: int
    local: int
    has: int
    given: int

    def blocks(self, first: int, end: int | None = None) -> list[int]:
        """Returns the ids of some of its blocks, of all groups."""


class OthersLoads:
    """Follows which blocks another connector fills, and until when it is doubtful whether it has.

    vLLM tells a connector that does not load of a request's blocks with 0 tokens. Such a request
    runs in that step; if not, another connector loads, and vLLM runs it when that has ended. If it
    runs with more tokens than vLLM had, another connector loads while it runs.

    Args:
        block_size: Tokens of a block.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self.admitted: list[OthersRow] = []
        """Rows that were given blocks since the last step."""
        self.doubtful: list[OthersRow] = []
        """Rows that another connector brings something while they run, until it is there."""

    def admit(self, row: OthersRow) -> None:
        """Takes a row that was given its blocks for the next step, and not by a load of ours.

        Args:
            row: Its `has` becomes the tokens that its blocks hold for certain.
        """
        # At the second call for a load it is what has come, and 0 at the first.
        row.has = int(row.request.num_computed_tokens) or row.local
        if self.doubtful:
            row.has = min(row.has, self._certain_tokens(row))
        self.admitted.append(row)

    def lent_blocks(self, counts: Mapping[str, int]) -> list[int]:
        """Returns the blocks that another connector fills from this step on.

        Args:
            counts: Tokens of each request in this step.
        """
        lent: list[int] = []
        admitted, self.admitted = self.admitted, []
        for row in admitted:
            first, count = row.has // self._size, counts.get(row.request.request_id)
            if count is None:
                lent += row.blocks(first)
            elif row.scheduled - count > row.has:
                row.given = row.scheduled - count
                self.doubtful.append(row)
                lent += row.blocks(first, -(-row.given // self._size))
        return lent

    def settle(self, rows: Iterable[OthersRow]) -> None:
        """Forgets what is doubtful no more: its step has ended, or it is not among these rows."""
        live = set(map(id, rows))
        self.doubtful = [row for row in self.doubtful if not is_certain(row) and id(row) in live]

    def _certain_tokens(self, row: OthersRow) -> int:
        """Returns the tokens before the first block of a row, in any group, that is doubtful."""
        size = self._size
        doubted: set[int] = set()
        for one in self.doubtful:
            if not is_certain(one):
                doubted.update(one.blocks(one.has // size, -(-one.given // size)))
        # vLLM finds a block of each group by itself: one of a window may be another request's.
        tables = row.tables or [row.ids]
        places = (at for ids in tables for at, block in enumerate(ids) if block in doubted)
        return min(places, default=len(row.ids)) * size


def is_certain(row: OthersRow) -> bool:
    """Whether a step has ended that has read all that another connector brought beside it.

    Where that has failed, vLLM takes the tokens back in the same step.
    """
    if row.given:
        ended = row.request.num_computed_tokens - row.request.num_in_flight_tokens
        if ended > row.given:
            row.given = 0
    return not row.given


def comes_from_afar(request: Any) -> bool:
    """Whether a prefiller has the prompt of a request, and a connector of vLLM brings it."""
    params = request.kv_transfer_params
    return isinstance(params, Mapping) and bool(params.get("do_remote_prefill"))
