"""The length of a hit that all groups of layers agree to (G3)."""

from collections.abc import Sequence
from functools import partial

from blockyard._core import Keys, Riders
from blockyard.connectors.riders import Rider
from blockyard.shared.groups import ChunkedAttention, Groups
from blockyard.yard.cache import KVCache
from blockyard.yard.presence import Presence

__all__ = ["Agreement", "starts"]


class Agreement:
    """Agrees hits between the spine and the riders.

    Args:
        spine: The bookkeeping of the first group.
        riders: The other groups.
        groups: All groups.
        again: Blocks at the end of what the spine has that are computed again.
    """

    def __init__(self, spine: KVCache, riders: Sequence[Rider], groups: Groups, again: int) -> None:
        self._spine, self._groups, self._again = spine, groups, again
        self._size = groups.block_size
        # At the end of a chunk nothing is needed, also if nothing is there.
        caches = [(rider.cache, isinstance(rider.kind, ChunkedAttention)) for rider in riders]
        step = groups.boundary // groups.block_size
        self._riders = Riders(caches, partial(starts, riders), step)

    def of(
        self, keys: Keys, after: int, found: int | None
    ) -> tuple[int, bool, int | None, int | None, int]:
        """Agrees the length of a hit.

        Args:
            keys: The keys of a request.
            after: Blocks that the engine has itself.
            found: Tokens that the spine has behind these; None if some of them are in flight.

        Returns:
            The blocks, from the beginning; whether some of what it needs is in flight, and nothing
            is missing; the rider that made it this short, and the block that this one lacks to go
            on, both None if none did; and the blocks that the spine has or will have.
        """
        if found is not None:
            far = after + found // self._size
            return self._riders.agree(keys, after, far, far)
        flags = self._spine.which(keys).tobytes()
        end = flags.find(Presence.MISSING, after)
        far = max((len(flags) if end < 0 else end) - self._again, after)
        ready = max(flags.find(Presence.FILLING, after), after)
        return self._riders.agree(keys, after, far, ready)

    def explain(self, keys: Keys, after: int) -> str:
        """Explains how long a hit is, and which group ends it.

        Args:
            keys: The keys of a request.
            after: Blocks that the engine has itself.
        """
        probe = self._spine.find(keys, after)
        found = max(probe.host + probe.disk + probe.remote - self._again, 0) * self._size
        agreed = self.of(keys, after, None if probe.stop == "filling" else found)
        blocks, waits, cut, lacks, far = agreed
        hit, most = blocks * self._size, far * self._size
        lines = [f"{self._groups.name(0)} has {most:,} of {keys.tokens:,} tokens ({probe.stop})."]
        if cut is not None:
            lines.append(
                f"{self._groups.name(cut)} ends the hit at {hit:,} tokens, because it "
                f"lacks block {lacks}; {self._groups.name(0)} goes on to {most:,}."
            )
        elif hit < most:
            lines.append(f"The hit ends at {hit:,} tokens, the last boundary of all groups.")
        if waits:
            lines.append("Some of it is in flight: ask again in a later step.")
        return " ".join(lines)


def starts(riders: Sequence[Rider], blocks: int) -> list[int]:
    """Returns the first block that each rider needs at a length; the length for none."""
    needs = [rider.needs(blocks * rider.cache.block_size) for rider in riders]
    return [one.start if one else blocks for one in needs]
