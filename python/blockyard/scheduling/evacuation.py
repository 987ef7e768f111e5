"""Moves requests to other engines: stops them, writes what they have to stores, and ends them."""

from collections.abc import Iterable
from typing import Final

from blockyard._core import Unavailable
from blockyard.scheduling.lifecycle import Lifecycle
from blockyard.scheduling.request import Move, Request, RequestState
from blockyard.scheduling.shared import Shared
from blockyard.shared.layout import TIERS
from blockyard.shared.log import Limited

__all__ = ["PATIENCE", "Evacuation"]

PATIENCE: Final = 5.0
"""Seconds for which a request that moves is written to a store, by default."""
_KEY: Final = 32
"""Bytes of a key."""
_CHUNK: Final = 64
"""Blocks of one request that are on their way at a time."""
_FLYING: Final = 256
"""Blocks on their way at a time, of all requests."""
_HASHED: Final = 65_536
"""Tokens whose keys are made in a turn, or those of one request: 0.4 ms or so."""
_PAUSE: Final = 0.01
"""Seconds until blocks that failed are written again; they double, up to `_LONGEST`."""
_LONGEST: Final = 1.0

_log = Limited(__name__)


class Evacuation:
    """Has requests go on at another engine. It never waits: each turn looks, and goes on.

    Args:
        shared: State that all parts of the scheduler share.
        lifecycle: How requests stop and end.
    """

    def __init__(self, shared: Shared, lifecycle: Lifecycle) -> None:
        self._cache = shared.cache
        self._seats = shared.seats
        self._clock = shared.clock
        self._counters = shared.counters
        self._moving = shared.moving
        self._lookups = shared.lookups
        self._lifecycle = lifecycle
        self.closed = False
        """Whether all requests leave, and no other is taken."""

    def check_open(self) -> None:
        """Refuses a new request while all leave.

        Raises:
            Unavailable: They do.
        """
        if self.closed:
            raise Unavailable(
                "evacuate_all moves the requests of this scheduler to other engines: add this one "
                "there, or here when `results` has returned the others"
            )

    def begin(self, entry: Request, patience: float) -> None:
        """Begins to move a request. Another call for it gives it another limit.

        Args:
            entry: The request; one that is about to end otherwise does that.
            patience: Seconds after which it ends in any case.
        """
        move, now = self._moving.get(entry), self._clock()
        if move is not None:
            move.since, move.patience = now, patience
            return
        seat = None if entry.seat is None else self._seats.at(entry.seat)
        if seat is not None and seat.pending_end is not None:
            return
        move = self._moving[entry] = Move(now, patience)
        loads = entry.state is RequestState.LOADING
        self._lifecycle.move(entry)
        if not loads:
            self._lookups.give_up(entry)
        if not entry.epoch:
            # It never ran: there is nothing of its own to write.
            move.blocks = 0
            self._end(entry, move)

    def begin_all(self, entries: Iterable[Request], patience: float) -> None:
        """Begins to move requests, and takes no other before all of them have their results."""
        self.closed = True
        for entry in entries:
            self.begin(entry, patience)

    def turn(self) -> None:
        """Goes on with all that moves, the first first, and ends what is written or over.

        An interrupt at any place costs nothing: the next turn does what is left.
        """
        now, flying, hashed = self._clock(), 0, 0
        for entry, move in list(self._moving.items()):
            over = move.is_over(now) or self._cache.closed
            if entry.terminal:
                # It has ended otherwise, or an interrupt came just behind its end.
                self._drop(entry, move)
            elif entry.seat is not None:
                if over:
                    said = f"the engine has not stopped it in {move.patience:g} s"
                    self._lifecycle.cut(entry, f"moved: {said}, and it was not written")
                    self._drop(entry, move)
            elif over or self._lacks_store() is not None:
                self._end(entry, move)
            elif move.blocks is None and hashed >= _HASHED:
                continue
            else:
                if move.blocks is None:
                    hashed += entry.keys.unmade(entry.outputs)
                    if (blocks := self._there(entry)) is not None:
                        # Its loads have ended: what a peer has under these names is in no store.
                        self._lookups.give_up(entry)
                        move.blocks = blocks
                flying += self._write(entry, move, now, flying)
                if move.written == move.blocks:
                    self._end(entry, move)

    def told(self) -> None:
        """Notes that results were returned: where all have ended, requests may come again."""
        if self.closed and not len(self._lifecycle):
            self.closed = False

    def reset(self) -> None:
        """Takes requests again, as a reset has ended all that moved."""
        self.closed = False

    def _lacks_store(self) -> str | None:
        """Why nothing can be written; None where it can be."""
        config = self._cache.config
        if not (config.remote_writes and config.remote_blocks and self._cache.limit("remote")):
            return "this engine has no store: pass stores=[...] to by.local"
        if self._cache.has_own_weights:
            return "the weights are no more those that the namespace of the store names"
        return None

    def _there(self, entry: Request) -> int | None:
        """The leading full blocks of a request that are on any tier; None while a copy decides."""
        probe = self._cache.probe(entry.keyed(self._cache))
        if probe.flight is not None:
            return None
        return int(sum(getattr(probe, tier) for tier in TIERS))

    def _write(self, entry: Request, move: Move, now: float, flying: int) -> int:
        """Has the next blocks of a request written; returns how many are on their way."""
        blocks = move.blocks or 0
        while True:
            end = min(move.written + _CHUNK, blocks)
            chunk = entry.keys.raw[move.written * _KEY : end * _KEY]
            left = end - move.written - self._cache.written(chunk, "remote")
            if left or end == blocks:
                break
            move.written, move.failures = end, 0
        if not left:
            move.written = end
            return 0
        may = now >= move.again and flying + left <= _FLYING
        plans = self._cache.write_down(chunk, "remote", b"")[0] if may else []
        if plans:
            if move.planned == move.written:
                # They were planned before, and have failed.
                move.again = now + min(_PAUSE * 2**move.failures, _LONGEST)
                move.failures += 1
            move.planned = move.written
        elif may and (there := self._there(entry)) is not None:
            # They are on their way, or find no room; or they have gone, and nobody has them.
            move.blocks = min(blocks, max(there, move.written))
        return left if move.planned == move.written else 0

    def _end(self, entry: Request, move: Move) -> None:
        """Ends a request, whatever of it is written."""
        store, blocks = self._lacks_store(), move.blocks or 0
        written = min(move.written, blocks)
        if store is None and written < blocks:
            keys = entry.keys.raw[written * _KEY : min(written + _CHUNK, blocks) * _KEY]
            written += 0 if self._cache.closed else self._cache.written(keys, "remote")
        reason = "moved"
        if entry.epoch and store is not None:
            reason = f"moved: {store}"
            _log.warning("requests move with their tokens alone: %s", store)
        elif move.blocks is None:
            reason = f"moved: nothing was written in {move.patience:g} s"
        elif written < blocks:
            lack = f"{blocks - written} of its {blocks} full blocks are in no store"
            reason = f"moved: {lack} after {move.patience:g} s"
        self._lifecycle.end(entry, RequestState.MOVED, reason)
        self._counters.moved_blocks += written
        self._counters.unmoved_blocks += blocks - written
        self._drop(entry, move)

    def _drop(self, entry: Request, move: Move) -> None:
        """Forgets a request that has ended."""
        if not self._cache.closed:
            self._lifecycle.let_go(entry, move)
        del self._moving[entry]
