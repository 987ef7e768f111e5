"""What is kept of preempted requests in all groups of layers, or in none (G8)."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from blockyard._core import Keys, NoRoom, Parked
from blockyard.connectors.connector import Connector
from blockyard.connectors.orders import Ids
from blockyard.connectors.riders import Held, Path, Rider, Told

__all__ = ["GroupKeeps", "HybridRow", "Keep", "lengths_of"]

_TOUCHED: Final = 4
"""Lengths of a request at which its blocks are touched while it runs."""
_Flight: TypeAlias = tuple[int, int]
"""A flight: the number of its group, and its own there."""


@dataclass(slots=True, eq=False)
class Keep:
    """What is kept of a request in the groups beside the spine; its connector has the spine's."""

    tokens: int
    parked: dict[int, tuple[Parked, int]] = field(default_factory=dict)
    """What each rider keeps, and how many tokens that was."""
    air: set[_Flight] = field(default_factory=set)
    """Flights that copy it down and have not ended."""

    def parts(self) -> dict[int, Parked]:
        """Returns what each rider keeps."""
        return {group: parked for group, (parked, _) in self.parked.items()}


@dataclass(slots=True, eq=False)
class HybridRow:
    """A request."""

    path: Path
    first: int = 0
    """Blocks that the engine had itself when it asked last."""
    matched: int = 0
    """Tokens that it was told of, behind these."""
    keep: Keep | None = None
    lengths: set[int] = field(default_factory=set)
    """Lengths at which riders were loaded or offloaded."""
    junction: int = 0
    """The length up to which the spine went on when a rider ended the last hit; 0 for none."""
    cut: int | None = None
    """The group that ended this hit; None if it has been counted, or none did."""
    _touched: dict[int, list[Keys]] = field(default_factory=dict)
    """By kind of group, the keys of what is touched of it."""
    prompt: int = 0
    """Tokens of its prompt."""

    def add(self, length: int) -> None:
        """Notes a length at which riders have something of it."""
        if length not in self.lengths:
            self.lengths.add(length)
            self._touched.clear()

    def touched(self, rider: Rider) -> list[Keys]:
        """Returns the keys of what a rider has of it at its longest lengths, as one row or none."""
        rows = self._touched.get(id(rider.kind))
        if rows is None:
            rows = rider.rows(self.path, sorted(self.lengths)[-_TOUCHED:])
            self._touched[id(rider.kind)] = rows
        return rows


class GroupKeeps:
    """Keeps what a length needs in every group, and gives it up in all.

    Args:
        spine: The connector of the first group, which keeps the spine's part.
        riders: The other groups.
        null: The engine's id of the null block.
    """

    def __init__(self, spine: Connector, riders: Sequence[Rider], null: int) -> None:
        self._spine, self._riders, self._null = spine, riders, null
        self._has_states = any(rider.is_state for rider in riders)
        self._by_flight: dict[_Flight, Keep] = {}
        self.no_room = 0
        """Requests that were not kept because a rider had no room."""

    def keep(  # noqa: PLR0913, PLR0917 - a request, and what it has
        self,
        request: Hashable,
        path: Path,
        tables: Sequence[Ids],
        tokens: int,
        told: Told,
        below: Iterable[int],
    ) -> Keep | None:
        """Keeps a preempted request at the longest length of which all groups have what it needs.

        Args:
            request: Its id.
            path: Its keys.
            tables: A table per group of its blocks, spine first.
            tokens: Tokens that are computed.
            told: The states that the engine has of it.
            below: Boundaries whose states may be below, because they were offloaded or loaded.

        Returns:
            What is kept; None if a block is nowhere, or there is no room: then no group keeps it,
            and its full blocks are offloaded.
        """
        for length in self.lengths(tokens, path.keys, told, below):
            whole = self._whole(path, tables, told, length)
            if whole is not None:
                keep = self._save(request, path, length, whole, tables[0])
                break
        else:
            keep = None
            self._spine.preempted(request, path.keys, (), 0)
        if keep is None and tokens:
            self._spine.offload(path.keys, tables[0][: tokens // path.size])
        return keep

    def _save(
        self, request: Hashable, path: Path, length: int, whole: list[Held], ids: Ids
    ) -> Keep | None:
        """Keeps a request at a length: the riders first, so that none gives up anything before."""
        keep, kept = Keep(length), False
        try:
            for rider, held in zip(self._riders, whole, strict=True):
                parked = rider.save(path, held, length)
                if parked is not None:
                    keep.parked[rider.number] = parked, parked.computed
            kept = self._spine.preempted(request, path.keys, ids, length)
        except NoRoom:
            self.no_room += 1
            self._spine.preempted(request, path.keys, (), 0)
        finally:
            if not kept:
                self.abandon(keep)
        if not kept:
            return None
        for group, parked in keep.parts().items():
            keep.air |= {(group, plan.flight) for plan in parked.plans}
        self._by_flight.update(dict.fromkeys(keep.air, keep))
        return keep

    def is_whole(self, request: Hashable, keep: Keep, tokens: int) -> bool:
        """Whether all that was kept is, and the request has a token to compute behind it.

        Args:
            request: Whose it is.
            keep: What was kept.
            tokens: All tokens of the request.
        """
        riders = all(
            parked.state == "kept" and parked.computed == computed
            for parked, computed in keep.parked.values()
        )
        return riders and self._spine.kept(request) == keep.tokens < tokens

    def abandon(self, keep: Keep | None) -> None:
        """Gives up what riders keep; it is found as what others have offloaded."""
        if keep is None:
            return
        for rider in self._riders:
            if rider.number in keep.parked:
                rider.cache.abandon(keep.parked[rider.number][0])
        for name in keep.air:
            self._by_flight.pop(name, None)

    def land(self, names: Iterable[_Flight]) -> None:
        """Takes flights of riders that have ended."""
        for name in names:
            keep = self._by_flight.pop(name, None)
            if keep is not None:
                keep.air.discard(name)

    def last(self, tokens: int, told: Told, boundary: int) -> int:
        """Returns the last boundary at which all groups may have what they need; 0 for none.

        Args:
            tokens: Tokens that are computed.
            told: The states that the engine has of the request.
            boundary: Tokens between boundaries.
        """
        if not self._has_states:
            return tokens // boundary * boundary
        return max((one for one in lengths_of(told, tokens) if one % boundary == 0), default=0)

    def lengths(self, tokens: int, keys: Keys, told: Told, below: Iterable[int] = ()) -> list[int]:
        """Returns lengths at which a request may be kept, the longest first.

        Args:
            tokens: Tokens that are computed.
            keys: Its keys.
            told: The states that the engine has of it.
            below: Boundaries whose states may be below, because they were offloaded or loaded.
        """
        # One token at least is computed, which no state may have seen before.
        most = min(tokens, keys.tokens - 1)
        if not self._has_states:
            return [most] if most > 0 else []
        lengths = {*lengths_of(told, most), *below}
        return sorted((one for one in lengths if 0 < one <= most), reverse=True)

    def _whole(
        self, path: Path, tables: Sequence[Ids], told: Told, length: int
    ) -> list[Held] | None:
        """Returns what each rider needs at a length; None if a block is nowhere."""
        whole: list[Held] = []
        for rider, table in zip(self._riders, tables[1:], strict=True):
            held = rider.held(table, told, length, self._null)
            complete = rider.whole(path, held, length, tables[0])
            if complete is None:
                return None
            whole.append(complete)
        return whole


def lengths_of(told: Told, most: int) -> list[int]:
    """Returns the lengths of which all states are there, ascending, up to the most tokens."""
    each = [set(states) for states in told.values()]
    lengths = set[int].intersection(*each) if each else set[int]()
    return sorted(length for length in lengths if length <= most)
