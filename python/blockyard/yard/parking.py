"""Parking: a preempted sequence leaves the device with its KV kept, and comes back later."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from blockyard._core import Cache, Lease, Misuse, NoRoom, Parked, Soon, Ticket
from blockyard.shared.layout import BELOW, LowerTier
from blockyard.shared.log import Limited
from blockyard.shared.stats import Stat
from blockyard.shared.validate import integer, one_of
from blockyard.yard.config import Config

__all__ = ["Parking", "PreemptMode", "checked_mode"]

PreemptMode: TypeAlias = Literal["park", "full-blocks", "recompute"]
"""How much of a victim's KV is kept: all; its full blocks, so that the tail is recomputed; or
nothing."""

_T = TypeVar("_T")

_log = Limited(__name__)


def _checked(given: object, kind: type[_T]) -> _T:
    if isinstance(given, kind):
        return given
    raise Misuse(f"{given!r:.60}: must be a {kind.__name__}")


def checked_mode(name: str, mode: object) -> PreemptMode:
    """Returns the mode.

    Raises:
        Misuse: There is no such mode.
    """
    return one_of(name, mode, get_args(PreemptMode))


class Parking:
    """Takes sequences off the device without losing their work, and brings them back.

    Parking is lazy. A parked sequence stays where it is, and leaves block by block, the tail first,
    when `relieve` asks for the room; its slots on a lower tier, the nearest that has room, are
    promised before anything is given up. It comes back at the token at which it was parked.

    The cache's `block_costs` say whether parking pays: whether KV is loaded faster than recomputed.

    Args:
        cache: The cache that holds the sequences.
        config: The configuration of that cache.
        mode: How much KV is kept. Without a tier below the device it is "recompute", and that is
            logged. None: "park" if there is one.
        resume_retries: How often a resume whose loads fail is tried again.
        max_stalled_steps: Steps that a parked sequence may be first in the queue and find no room,
            or free none although room is needed, before it is recomputed instead.

    Raises:
        Misuse: There is no such mode, or it recomputes and the engine cannot.
    """

    SCHEMA: Final = (
        Stat(
            "preempt_mode",
            "0 to 2",
            "gauge",
            "preempt_mode",
            "KV that a preempted request keeps: 0 none, 1 its full blocks, 2 its partial block too",
        ),
        Stat(
            "parkings",
            "sequences",
            "counter",
            "victims{fate=parked}",
            "sequences that were parked (preempted, KV kept)",
        ),
        Stat(
            "kept_blocks",
            "blocks",
            "counter",
            "kept_blocks",
            "blocks that parked sequences had when they were parked",
        ),
        Stat("resumes", "sequences", "counter", "resumes", "parked sequences that began to resume"),
        Stat(
            "cheaper",
            "sequences",
            "counter",
            "victims{fate=cheaper}",
            "preempted sequences that are recomputed because copying their KV would take longer",
        ),
        Stat(
            "no_host",
            "sequences",
            "counter",
            "victims{fate=no_host}",
            "preempted sequences that are recomputed because no lower tier had room",
        ),
        Stat(
            "relieved",
            "blocks",
            "counter",
            "relieved_blocks",
            "blocks of parked sequences that were copied to a lower tier to make room",
        ),
        Stat(
            "lowered",
            "blocks",
            "counter",
            "lowered_blocks",
            "blocks of parked sequences that were copied from the host to the disk",
        ),
        Stat(
            "retried",
            "sequences",
            "counter",
            "resumes_retried",
            "resumed sequences that were parked again because a load failed",
        ),
        Stat(
            "aged",
            "sequences",
            "counter",
            "parked_lost{why=aged}",
            "parked sequences that were recomputed because they found no room for too long",
        ),
        Stat(
            "kv_lost",
            "sequences",
            "counter",
            "parked_lost{why=kv_lost}",
            "parked sequences that were recomputed because their KV was lost",
        ),
    )
    """Name, unit, kind, metric and meaning of each number in `stats`."""

    def __init__(
        self,
        cache: Cache,
        config: Config,
        *,
        mode: PreemptMode | None = None,
        resume_retries: int = 2,
        max_stalled_steps: int = 1024,
    ) -> None:
        if mode is not None:
            checked_mode("mode", mode)
        # A store may lose what is kept there: only what can be computed again is.
        weak = config.recompute and config.remote_writes
        sure = BELOW if weak else BELOW[: BELOW.index("remote")]
        self._tiers: list[LowerTier] = [tier for tier in sure if config.blocks_of(tier)]
        if not self._tiers:
            if mode is not None and mode != "recompute":
                _log.warning("there is no host to park on: victims are recomputed")
            mode = "recompute"
        self.mode: PreemptMode = mode or "park"
        self.must_park = not config.recompute
        """Whether a victim that is not parked is lost."""
        if self.must_park and self._tiers and self.mode != "park":
            raise Misuse(f"preempt mode {mode!r}: must be 'park', as this engine cannot recompute")
        resume_retries = integer("resume_retries", resume_retries, least=0)
        max_stalled_steps = integer("max_stalled_steps", max_stalled_steps, least=0)
        self._cache = cache
        self._size = config.block_size
        self._ahead = config.ahead_of("host")
        self._resume_retries = resume_retries
        self._max_stalled_steps = max_stalled_steps
        self._counts = dict.fromkeys((stat.name for stat in self.SCHEMA), 0)

    @property
    def tier(self) -> LowerTier:
        """The nearest tier below the device."""
        return self._tiers[0] if self._tiers else "host"

    def limits(self) -> list[int]:
        """Returns the blocks that each tier below the device may hold now."""
        return [self._cache.limit(tier) for tier in self._tiers]

    def largest(self) -> tuple[int, LowerTier]:
        """Returns the most blocks that one tier below the device may hold now, and that tier."""
        sizes = ((limit, tier) for limit, tier in zip(self.limits(), self._tiers, strict=True))
        return max(sizes, key=lambda one: one[0], default=(0, "host"))

    def promise(self, lease: Lease) -> Ticket | None:
        """Promises slots below for a victim that must be parked; None where there are none (T7)."""
        _checked(lease, Lease)
        # Of a store nothing can be promised.
        for tier in [tier for tier in self._tiers if tier != "remote"]:
            with suppress(NoRoom):
                return self._cache.promise(lease.blocks, tier=tier)
        return None

    def park(
        self, lease: Lease, computed: int, *, after: int | None = None, ticket: Ticket | None = None
    ) -> Parked | None:
        """Parks a sequence, once the engine has acknowledged its stop.

        Args:
            lease: The sequence; spent when it is parked.
            computed: Tokens whose KV the engine has acknowledged.
            after: A step in flight that may still write: slots are held back until it is done.
            ticket: The ticket that `promise` returned.

        Returns:
            The handle that keeps it; None where it must be recomputed: finish the lease then.
        """
        _checked(lease, Lease)
        computed = integer("computed", computed, least=0)
        if self.mode == "recompute" or lease.state == "detached":
            return None
        if self.mode == "full-blocks":
            computed = max(computed - computed % self._size, lease.cached)
        if not computed:
            return None
        blocks = -(-computed // self._size)
        if not self.must_park and not self._cache.worth_loading(blocks, tier=self._goes_to(blocks)):
            self._counts["cheaper"] += 1
            return None
        try:
            parked = self._cache.park(lease, computed, after=after, ticket=ticket)
        except NoRoom:
            self._counts["no_host"] += 1
            return None
        self._counts["parkings"] += 1
        self._counts["kept_blocks"] += parked.blocks
        return parked

    def _goes_to(self, blocks: int) -> LowerTier:
        """The tier that so many blocks are parked on, as far as that is known before."""
        if len(self._tiers) > 1:
            fits = (tier for tier in self._tiers if self._cache.room(tier).available >= blocks)
            return next(fits, self.tier)
        return self.tier

    def coming(self, parked: Iterable[Parked]) -> int:
        """Counts device blocks that parked sequences can give back, or are giving back (INV-25)."""
        return sum(handle.alone + handle.moving for handle in parked)

    def relieve(self, blocks: int, parked: Iterable[Parked]) -> int:
        """Copies blocks of parked sequences down, so that other sequences have room.

        Args:
            blocks: Device blocks that are needed; those on their way down count.
            parked: The sequences, in reverse order of their return.

        Returns:
            Blocks that were put on their way.
        """
        handles = [_checked(handle, Parked) for handle in parked]
        blocks -= sum(handle.moving for handle in handles)
        begun = 0
        for handle in handles:
            if blocks - begun <= 0:
                break
            most = min(blocks - begun, handle.alone)
            plan = self._cache.demote(most, of=handle) if most else None
            begun += 0 if plan is None else len(plan)
        self._counts["relieved"] += begun
        return begun

    def relieve_all(self, parked: Iterable[Parked]) -> int:
        """Copies all blocks of parked sequences down, those that others hold too included.

        Args:
            parked: The sequences.

        Returns:
            Blocks that were put on their way.
        """
        begun = 0
        for handle in parked:
            blocks = _checked(handle, Parked).on_device
            plan = self._cache.demote(blocks, of=handle) if blocks else None
            begun += 0 if plan is None else len(plan)
        self._counts["relieved"] += begun
        return begun

    def lower(self, parked: Iterable[Parked]) -> int:
        """Moves kept blocks from the host to the disk, while the host is short of room (INV-34).

        It is short when it has fewer blocks available than its watermark, `ahead`.

        Args:
            parked: The sequences, in reverse order of their return.

        Returns:
            Blocks that were put on their way.
        """
        if len(self._tiers) < 2 or not self._cache.limit("disk"):  # noqa: PLR2004
            # There is nowhere to move to, or no longer.
            return 0
        down, _up = self._cache.blocks_in_flight("host")
        lacks = self._ahead - self._cache.room("host").available - down
        begun = 0
        for handle in parked:
            while begun < lacks and handle.state == "kept" and handle.below[0]:
                plan = self._cache.demote(lacks - begun, of=handle, to="disk")
                if plan is None:
                    break
                begun += len(plan)
        self._counts["lowered"] += begun
        return begun

    def resume(self, parked: Parked, *, reserve: int = 0) -> Lease | Soon:
        """Brings a sequence back, with the cache's `begin`.

        Args:
            parked: The handle that `park` returned; spent when it comes back.
            reserve: Tokens of growth to promise.

        Returns:
            Its lease, which loads where blocks must come up; or `Soon`, while its own blocks are
            on their way down.

        Raises:
            NoRoom: There is too little room now: try again later. It stays parked.
        """
        lease = self._cache.begin(_checked(parked, Parked), reserve=reserve)
        self._counts["resumes"] += isinstance(lease, Lease)
        return lease

    def resume_incomplete(self, lease: Lease, tries: int) -> Parked | None:
        """Parks a resume whose loads failed again (T19, T20).

        Args:
            lease: A lease of `resume` whose `state` is "incomplete".
            tries: How often that has happened to it, this time included.

        Returns:
            The handle that keeps it; None where it was tried often enough. Where the engine can
            recompute, `grow(lease, 0)` then goes on from the good blocks; else its KV is lost.
        """
        _checked(lease, Lease)
        if tries > self._resume_retries:
            return None
        parked = self._cache.park(lease, lease.cached)
        self._counts["retried"] += 1
        return parked

    def load_limit(self, failed: int) -> int | None:
        """Limits the loads of a request's next begin, so that it does not retry forever (T4).

        Args:
            failed: How often in a row its loads failed and left it no room to go on.

        Returns:
            None for no limit; 0 where its loads failed often enough, and it can be recomputed.
        """
        return 0 if failed > self._resume_retries and not self.must_park else None

    def gives_up(self, parked: Parked, stalled_steps: int) -> bool:
        """Whether a parked sequence must be recomputed (T13, T17, T21).

        It must where its keeps are broken, or where it stalled for too long. Each yes is counted:
        ask once.
        """
        if parked.state == "broken":
            self._counts["kv_lost"] += 1
            return True
        if not self.is_stalled(stalled_steps):
            return False
        self._counts["aged"] += 1
        return True

    def is_stalled(self, stalled_steps: int) -> bool:
        """Whether a sequence has found no room, or freed none, for too many steps (T17)."""
        return stalled_steps > self._max_stalled_steps and not self.must_park

    def stats(self) -> dict[str, int]:
        """Returns counters; `SCHEMA` has units and meanings."""
        return self._counts | {"preempt_mode": get_args(PreemptMode)[::-1].index(self.mode)}
