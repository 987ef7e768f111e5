"""What the scheduler's half has from the engine before, and leaves for the next one."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np

from blockyard._core import Misuse, Unsupported
from blockyard.connectors.group_restart import restore_groups
from blockyard.connectors.vllm.compatibility import Facts
from blockyard.connectors.vllm.identity import fingerprint_of
from blockyard.connectors.vllm.messages import Ready
from blockyard.connectors.vllm.replicas import others_on_disk
from blockyard.connectors.vllm.restart_notes import RestartNotes, clear_all
from blockyard.connectors.vllm.stopping import Stopping
from blockyard.shared.groups import Full, Groups
from blockyard.shared.log import Limited
from blockyard.shared.restored import Restored
from blockyard.yard.cache import KVCache
from blockyard.yard.flush import Flushes

__all__ = ["Restart"]

_log = Limited(__name__, 0)


class Restart:
    """The handshake with the workers, the notes beside the disks, and the writes at the end.

    Args:
        known: What vLLM has.
        caches: The bookkeeping of each group of layers.
        most: Seconds that the writes at the end may take.
        clock: Returns the clock that they are counted by.
        stopping: Signals the end of vLLM; None without a signal.
    """

    def __init__(
        self,
        known: Facts,
        caches: Sequence[KVCache],
        most: float,
        clock: Callable[[], Callable[[], float]],
        stopping: Stopping | None = None,
    ) -> None:
        self._groups = known.groups or Groups((Full(known.layout),))
        self._caches, self._most, self._clock = tuple(caches), most, clock
        self._replica, self._stopping = known.replica, stopping
        self._notes = [RestartNotes() for _ in self._caches]
        self.run = self.cleared = 0
        """The owner number on the disks of all groups, 0 for none, and the number of clears."""
        self.restored = 0
        """Blocks that all disks had from before, of all groups."""
        self._last_flush: Flushes | None = None
        self._is_noted = False

    def ready(self, workers: Iterable[Ready]) -> None:
        """Notes that all workers are ready, and unlinks their shared memory.

        So no file outlives the engine, however it ends.

        Raises:
            Misuse: A worker has another configuration than this half.
            Unsupported: Workers that share host memory do not map the same.
        """
        own = tuple(fingerprint_of(cache.config) for cache in self._caches)
        workers = sorted(workers, key=lambda worker: worker.rank)
        files = {tuple(worker.shared.values()) for worker in workers}
        if len(files) > 1:
            raise Unsupported(
                f"the ranks share their KV (MLA), but opened {len(files)} different files: run all "
                "ranks on one machine with one /dev/shm"
            )
        for worker in workers:
            for group, (said, ours) in enumerate(zip_longest(worker.fingerprints, own)):
                if said == ours:
                    continue
                of = f" of group {group}" if len(own) > 1 else ""
                raise Misuse(
                    f"rank {worker.rank} has fingerprint {str(said)[:12]}{of}, and the "
                    f"scheduler's half {str(ours)[:12]}: model, block size and options must be the "
                    "same in all processes of the engine"
                )
            for file in worker.shared:
                Path(file).unlink(missing_ok=True)
        offers = [worker.restored for worker in workers if worker.restored]
        if not offers or self.run:
            return
        if len(offers) < len(workers):
            raise Misuse(
                "some workers have a disk and others have none: start all with the same options"
            )
        # One number for all groups: an order counts where it is that of the engine before.
        self.run = max(one.run for rank in offers for one in rank)
        folders = workers[0].folders
        self._notes = [RestartNotes(*own_folders) for own_folders in folders]
        # A process may end as it notes a clear: what one group has of it holds for all.
        cleared = max(notes.cleared() for notes in self._notes)
        ranks = [dict(enumerate(rank)) for rank in offers]
        found = restore_groups(self._caches, self._groups, ranks, partial(self._settle, cleared))
        self.restored = sum(found.blocks.values())
        _log.info("Blockyard has found %d blocks on the disk", self.restored)
        if self._replica.number % self._replica.here == 0:
            # The first on each machine, which has disks of its own.
            for said in (line for one in folders for line in others_on_disk(one)):
                _log.warning("%s", said)

    def _settle(self, cleared: int, group: int, found: Restored) -> Restored:
        """Returns what a group has since a clear, in the order that the engine before has noted."""
        found = found.take(found.stamps >> np.uint64(32) > cleared)
        order = self._notes[group].take_order(self.run - 1)
        return found if order is None else found.ordered(order)

    def clear(self) -> bool:
        """Notes that the lower tiers are cleared; returns whether the note is durable."""
        self.cleared += 1
        # The workers hear of it with the next step, which may never come.
        return clear_all(self._notes, self.run)

    @property
    def is_ending(self) -> bool:
        """Whether vLLM is to end."""
        return self._stopping is not None and self._stopping.left() is not None

    def writes_on(self) -> bool:
        """Whether vLLM, which is to end and has nothing to compute, must step for the disk's sake.

        Its workers, wherever they are, copy in its steps what the disk has not; in `step` each. The
        order of the disk is noted behind it, as the process may be ended before `close`.
        """
        left = None if self._stopping is None else self._stopping.left()
        if left is None or not self.run:
            return False
        if self.flush(left).plan():
            return True
        if not self._is_noted:
            self._is_noted = True
            self._keep_order()
        return False

    def flush(self, left: float) -> Flushes:
        """Returns the one flush of its end, which begins at the first call."""
        if self._last_flush is None:
            bound = min(left, self._most)
            self._last_flush = Flushes(
                [
                    cache.flushing(until=bound, final=True, clock=self._clock())
                    for cache in self._caches
                ]
            )
        return self._last_flush

    def close(self) -> None:
        """Notes what should go first from the disk, for the next engine. The workers have ended."""
        self._caches[0].stop_recording()
        if self.run:
            left = sum(len(cache.unwritten("disk")) for cache in self._caches)
            if left:
                _log.warning(
                    "%d blocks are not on the disk, and will not be found by the next engine", left
                )
            self._keep_order()

    def _keep_order(self) -> None:
        for notes, cache in zip(self._notes, self._caches, strict=True):
            notes.keep_order(self.run, cache.eviction_order("disk", alone=True))
