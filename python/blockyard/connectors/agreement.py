"""The length of a hit that all groups of layers agree to (G3)."""

from collections.abc import Sequence
from typing import NamedTuple

from blockyard._core import Keys
from blockyard.connectors.riders import Path, Rider
from blockyard.shared.groups import ChunkedAttention, Groups
from blockyard.yard.cache import KVCache
from blockyard.yard.presence import Presence

__all__ = ["Agreed", "Agreement", "agree"]


class Agreed(NamedTuple):
    """The length of a hit that every group agrees to."""

    blocks: int
    """Blocks from the beginning, with those that the engine has itself."""
    waits: bool
    """Whether some of what it needs is in flight, and nothing is missing."""
    group: int | None
    """The rider that made it this short; None if none did."""
    lacks: int | None
    """The block that this rider lacks to go on."""


class Agreement:
    """Agrees hits between the spine and the riders.

    Args:
        spine: The bookkeeping of the first group.
        riders: The other groups.
        groups: All groups.
        again: Blocks at the end of what the spine has that are computed again.
    """

    def __init__(self, spine: KVCache, riders: Sequence[Rider], groups: Groups, again: int) -> None:
        self._spine, self._riders, self._groups, self._again = spine, riders, groups, again
        self._size = groups.block_size
        self._step = groups.boundary // groups.block_size

    def of(self, path: Path, after: int, found: int | None) -> tuple[Agreed, int]:
        """Agrees the length of a hit, and returns how many blocks the spine has or will have.

        Args:
            path: The keys of a request.
            after: Blocks that the engine has itself.
            found: Tokens that the spine has behind these; None if some of them are in flight.
        """
        keys, far = path.keys, after
        if found is None:
            flags = self._spine.which(path.run(after, len(keys))).tobytes()
            end = flags.find(Presence.MISSING)
            far += max((len(flags) if end < 0 else end) - self._again, 0)
            ready = after + flags.find(Presence.FILLING)
        else:
            far += found // self._size
            ready = far
        # One token at least is computed, which no state may have seen before.
        most = (keys.tokens - 1) // self._size
        if far > most:
            far = max(after, most)
        agreed = agree(self._riders, path, after, far, self._step)
        if agreed.blocks > ready:
            agreed = agreed._replace(waits=True)
        return agreed, far

    def explain(self, path: Path, after: int) -> str:
        """Explains how long a hit is, and which group ends it.

        Args:
            path: The keys of a request.
            after: Blocks that the engine has itself.
        """
        probe = self._spine.find(path.keys, after)
        found = max(probe.host + probe.disk - self._again, 0) * self._size
        agreed, far = self.of(path, after, None if probe.stop == "filling" else found)
        hit, most = agreed.blocks * self._size, far * self._size
        lines = [
            f"{self._groups.name(0)} has {most:,} of {path.keys.tokens:,} tokens ({probe.stop})."
        ]
        if agreed.group is not None:
            lines.append(
                f"{self._groups.name(agreed.group)} ends the hit at {hit:,} tokens, because it "
                f"lacks block {agreed.lacks}; without it the hit would go on to {most:,}."
            )
        elif hit < most:
            lines.append(f"The hit ends at {hit:,} tokens, the last boundary of all groups.")
        if agreed.waits:
            lines.append("Some of it is in flight: ask again in a later step.")
        return " ".join(lines)


def agree(riders: Sequence[Rider], path: Path, after: int, far: int, step: int) -> Agreed:
    """Returns the greatest length that every rider has what it needs for, or will have.

    A missing block ends every length that needs it, so that the next candidate ends before it.

    Args:
        riders: The groups beside the spine.
        path: The keys of the request.
        after: Blocks that the engine has itself. They are agreed, and nothing is asked of them.
        far: Blocks that the spine has, with those.
        step: Blocks between boundaries.
    """
    keys = path.keys
    blocks, cut, lack = far, None, None
    while (blocks := blocks - blocks % step) > after:
        waits = False
        for rider in riders:
            start = rider.start(blocks)
            found = rider.cache.lacking(keys, max(after, start), blocks)
            if found < 0:
                waits = True
            elif found < blocks:
                cut, lack = rider.number, found
                blocks = _fall(rider, keys, after, found)
                break
        else:
            return Agreed(blocks, waits, cut, lack)
    return Agreed(after, waits=False, group=cut, lacks=lack)


def _fall(rider: Rider, keys: Keys, after: int, lacks: int) -> int:
    """Returns the next candidate below a missing block."""
    if isinstance(rider.kind, ChunkedAttention):
        # At the end of a chunk nothing is needed, also if nothing is there.
        return lacks
    return rider.cache.last_known(keys, after, lacks)
