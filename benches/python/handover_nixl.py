"""The rows of `handover.py` about the carrier `nixl`: NIXL through it, beside NIXL alone.

Both read the same blocks of this process's memory, from a process of their own, into memory that it
shares with this one. Alone it reads bytes, in parts that are all posted at once; through
the carrier it reads the generations of the slots behind the bytes of each part, and these are
compared. A third row is the whole way: sums compared, and blocks copied into their slots.
"""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from blockyard._typing import override
from blockyard.crane.tiers import nixl_process
from blockyard.crane.tiers.nixl_peer import TOGETHER, NixlPeer, Staging, _Process
from blockyard.crane.tiers.nixl_process import Reading
from blockyard.crane.tiers.nixl_source import GENERATION_ROOM, Described, NixlSource
from blockyard.tools.disk.bench import Figure as Timing
from blockyard.tools.disk.bench import timed
from handed import Handed, places
from report import Figure

SIZES = {"2 MiB": 32, "128 KiB": 2}
ROADS = {"tcp": ("tcp", 0.90), "shared memory": ("tcp,sm,self", 0.80)}


def alone(link: Connection, memory: mmap.mmap, module: str) -> None:
    """What a process does: it reads parts with NIXL, each time that it is told."""
    made = nixl_process.agent(module, f"alone {os.getpid()}")
    base = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    made.register_memory([(base, len(memory), 0, "")], "DRAM")
    metadata, parts = link.recv()
    peer = made.add_remote_agent(metadata)
    peer = peer.decode() if isinstance(peer, bytes) else peer
    for part in parts:
        part[0, :, 0] += np.uint64(base)
    ends = [[made.get_xfer_descs(rows, "DRAM") for rows in part] for part in parts]
    while True:
        link.recv()
        handles = [made.initialize_xfer("READ", *one, peer) for one in ends]
        flying = [handle for handle in handles if made.transfer(handle) != "DONE"]
        while flying:
            flying = [handle for handle in flying if made.check_xfer_state(handle) != "DONE"]
            if flying:
                time.sleep(nixl_process._PAUSE)
        for handle in handles:
            made.release_xfer_handle(handle)
        link.send("done")


class Three(Handed):
    """A prefill side, NIXL alone, the process of the carrier alone, and a peer."""

    def __init__(self, layers: int, nbytes: int) -> None:
        super().__init__(layers, nbytes)
        generations = self.cache.slot_generations()
        self._sender = NixlSource(places(self.source), self.blocks + 1, generations)
        self._where = Described.of(self._sender.memory, self.block_bytes)
        assert self._where is not None
        self.opens(NixlPeer, self._sender.memory, staging=self.blocks * self.block_bytes)
        self._open_carrier()
        self._open_alone()

    def _stages(self, part: slice) -> tuple[Any, Any, Any]:
        assert self._where is not None
        bytes_ = self._where.bytes_of(self.slots[part], part.start * self.block_bytes)
        begin = self._staging.generations + part.start * GENERATION_ROOM
        words, index = self._where.generations_of(self.slots[part], begin)
        return bytes_, words, index

    def _open_alone(self) -> None:
        self._plain = Staging(self.blocks, self.block_bytes)
        self._link, its = Pipe()
        handed = its.fileno(), self._plain.file
        self._child = subprocess.Popen(
            [sys.executable, __file__, *map(str, handed)], pass_fds=handed
        )
        its.close()
        assert self._where is not None
        self._link.send((self._where.agent, [self._stages(part)[0] for part in self.parts]))

    def _open_carrier(self) -> None:
        self._staging = Staging(self.blocks, self.block_bytes)
        self._reader = _Process(self._staging)
        assert self._where is not None
        self._reader.link.send(("open", self._where.agent))

    def alone(self) -> None:
        self._link.send("read")
        self._link.recv()

    def carried(self) -> None:
        """Bytes into staging, and generations, which are compared."""
        size, indexes = max(TOGETHER // self.block_bytes, 1), dict[int, tuple[slice, Any]]()
        for at in range(0, self.blocks, size):
            part = slice(at, at + size)
            bytes_, words, index = self._stages(part)
            indexes[at] = part, index
            self._reader.link.send(("read", Reading(at, bytes_, words)))
        while indexes:
            word, ended = self._reader.link.recv()
            assert word == "ended", ended
            for part, index in map(indexes.pop, ended):
                found = self._staging.words(part.start, index)
                assert (found == self.held.generations[part]).all()

    @override
    def close(self) -> None:
        super().close()
        self._reader.end()
        self._child.kill()
        self._child.wait()


def figures(mib: int, rounds: int) -> Iterator[Figure]:
    nbytes = mib << 20
    os.environ["UCX_NET_DEVICES"] = "lo"
    for road, (transports, goal) in ROADS.items():
        os.environ["UCX_TLS"] = transports
        for size, layers in SIZES.items():
            with closing(Three(layers, nbytes)) as three:
                works = {
                    "alone": three.alone,
                    "carried": three.carried,
                    "landed": three.handed_over,
                }
                found = {name: Timing([], []) for name in works}
                for count in range(rounds + 1):
                    for name in works if count % 2 else reversed(works):
                        seconds, cpu = timed(works[name])
                        if count:
                            found[name].seconds.append(seconds)
                            found[name].cpu.append(cpu)
                    three.check()
            for name, least in (("carried", goal), ("landed", None)):
                both = found[name], found["alone"]
                rates = " and ".join(f"{one.rate(nbytes) / 1e9:.2f}" for one in reversed(both))
                what = (
                    "into staging, generations compared" if least else "into slots, sums compared"
                )
                about = f"{rates} GB/s: NIXL alone, and ours"
                part = both[0].part_of(both[1])
                yield Figure(
                    f"nixl, {what} / NIXL alone, {road}, {size}", part, least=least, about=about
                )


if __name__ == "__main__":
    ours, file = map(int, sys.argv[1:])
    try:
        alone(Connection(ours), mmap.mmap(file, 0), nixl_process.wheel() or "")
    except (EOFError, ConnectionResetError):
        pass
    finally:
        os._exit(0)
