"""What the scheduler's half has from the engine before, and leaves for the next one."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from blockyard._core import Misuse, Unsupported
from blockyard.connectors.vllm.identity import fingerprint_of
from blockyard.connectors.vllm.messages import Ready
from blockyard.connectors.vllm.notes import Notes
from blockyard.connectors.vllm.replicas import ALONE, Replica, others_on_disk
from blockyard.connectors.vllm.stopping import Stopping
from blockyard.shared.log import Limited
from blockyard.shared.restored import Restored
from blockyard.yard.cache import KVCache
from blockyard.yard.flush import Flush

__all__ = ["Restart"]

_log = Limited(__name__, 0)


class Restart:
    """The handshake with the workers, the notes beside the disks, and the writes at the end.

    Args:
        cache: The bookkeeping.
        most: Seconds that the writes at the end may take.
        clock: Returns the clock that they are counted by.
        replica: Which of the data parallel replicas it is for.
        stopping: Tells when vLLM is to end; None where nothing does.
    """

    def __init__(
        self,
        cache: KVCache,
        most: float,
        clock: Callable[[], Callable[[], float]],
        replica: Replica = ALONE,
        stopping: Stopping | None = None,
    ) -> None:
        self._cache, self._most, self._clock = cache, most, clock
        self._replica, self._stopping = replica, stopping
        self._notes = Notes()
        self.run = self.cleared = 0
        """As which owner the disks count, 0 for none; and how often what is below was cleared."""
        self.restored = 0
        """Blocks that all disks had from before."""
        self._last_flush: Flush | None = None
        self._is_noted = False

    def ready(self, workers: Iterable[Ready]) -> None:
        """Hears that all workers have their memory, and drops the name of what they share.

        So no file outlives the engine, however it ends.

        Raises:
            Misuse: A worker has another configuration than this half.
            Unsupported: Workers that share host memory do not map the same.
        """
        own = fingerprint_of(self._cache.config)
        workers = list(workers)
        files = {worker.file for worker in workers}
        if len(files) > 1:
            raise Unsupported(
                f"the ranks have the same KV, and {len(files)} files for it: they must be on one "
                "machine, and see one /dev/shm"
            )
        for worker in workers:
            if worker.fingerprint != own:
                raise Misuse(
                    f"rank {worker.rank} has fingerprint {worker.fingerprint[:12]}, and the "
                    f"scheduler's half {own[:12]}: model, block size and options must be the same "
                    "in all processes of the engine"
                )
            if worker.shared:
                Path(worker.shared).unlink(missing_ok=True)
        workers.sort(key=lambda worker: worker.rank)
        offers = [worker.restored for worker in workers if worker.restored is not None]
        if not offers or self.run:
            return
        if len(offers) < len(workers):
            raise Misuse(
                "some workers have a disk, and others have none: give all the same options"
            )
        found = Restored.agreed(offers)
        self.run = found.run
        self._notes = Notes(*workers[0].folders)
        found = found.take(found.stamps >> np.uint64(32) > self._notes.cleared())
        order = self._notes.take_order(found.run - 1)
        if order is not None:
            found = found.ordered(order)
        self._cache.restore("disk", found.slots, found.keys, found.parents)
        self.restored = len(found)
        _log.info("Blockyard has found %d blocks on the disk again", len(found))
        if self._replica.number % self._replica.here == 0:
            # The first on each machine, which has disks of its own.
            for said in others_on_disk(workers[0].folders):
                _log.warning("%s", said)

    def clear(self) -> bool:
        """Notes that what is below counts no more; returns whether the note is on the disks."""
        self.cleared += 1
        # The workers hear of it with the next step, which may never come.
        return self._notes.clear(self.run)

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

    def flush(self, left: float) -> Flush:
        """Returns the one flush of its end, which begins at the first call."""
        if self._last_flush is None:
            bound = min(left, self._most)
            self._last_flush = self._cache.flushing(until=bound, final=True, clock=self._clock())
        return self._last_flush

    def close(self) -> None:
        """Notes what should go first from the disk, for the next engine. The workers have ended."""
        self._cache.stop_recording()
        if self.run:
            left = len(self._cache.unwritten("disk"))
            if left:
                _log.warning(
                    "%d blocks are not on the disk: the next engine does not find them", left
                )
            self._keep_order()

    def _keep_order(self) -> None:
        self._notes.keep_order(self.run, self._cache.eviction_order("disk", alone=True))
