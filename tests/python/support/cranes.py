"""What tests of cranes share: layouts of every kind, plans, and memory full of known bytes."""

import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blockyard._typing import override
from blockyard.crane.copiers import Copier, Landed, Receipt
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers import Mapped
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.shared.layout import KVLayout, Plane
from blockyard.shared.plan import Outcome, Plan
from blockyard.testing import Action, ScriptedCopier

Direction = Literal["down", "up", "across"]
Bytes = list[NDArray[np.uint8]]

_WAYS = {"down": 0x01, "up": 0x10, "across": 0x00}

SMALL = KVLayout.llama(2, 2, 8, block_size=4)
LAYOUTS = {
    "page-first": SMALL,
    "layer-first": KVLayout.llama(3, 2, 8, block_size=4, order="layer-first"),
    "float32": KVLayout.llama(2, 1, 5, dtype="float32", block_size=3, order="layer-first"),
    "int8": KVLayout.llama(2, 1, 1, dtype="int8", block_size=1),
    "fp8 with scales": KVLayout.llama(
        2, 2, 8, dtype="float8_e4m3", scale_dtype="float32", block_size=4
    ),
    "fp8 with scales, layer-first": KVLayout.llama(
        2, 2, 8, dtype="float8_e5m2", scale_dtype="bfloat16", block_size=4, order="layer-first"
    ),
    "state": KVLayout.state(3, 9, 40, ssm_dtype="float32", block_size=4, order="layer-first"),
    "latent": KVLayout.mla(3, 12, 4, block_size=4),
    "latent, layer-first": KVLayout.mla(3, 12, 5, block_size=4, order="layer-first"),
    "odd": KVLayout((Plane("a", 3, 7), Plane("b", 1, 1), Plane("c", 1, 700_001)), dtype="uint8"),
}
SHARED = KVLayout(
    (Plane("own", 2, 24), Plane("same", 3, 40, replicated=True)), ranks=2, dtype="uint8"
)


def slots(*numbers: int) -> NDArray[np.uint32]:
    return np.array(numbers, np.uint32)


def plan(
    number: int, way: Direction, sources: Sequence[int], destinations: Sequence[int], yard: int = 0
) -> Plan:
    """Flight `number` of a yard that is not here."""
    blocks = len(sources)
    header = struct.pack("<2sBBIQQ", b"Y3", 0, _WAYS[way], blocks, 1 << 32 | number, yard)
    return Plan.from_bytes(header + struct.pack(f"<{2 * blocks}I", *sources, *destinations))


def filled(tier: Mapped, seed: int) -> Bytes:
    """Fills a tier with noise, and says what it holds."""
    noise = np.random.default_rng(seed)
    for plane in tier.planes:
        plane[...] = noise.integers(0, 256, plane.shape, np.uint8)
    return held(tier)


def held(tier: Mapped) -> Bytes:
    return [np.array(plane) for plane in tier.planes]


def pair(layout: KVLayout, device: int = 12, host: int = 9) -> tuple[MemoryTier, MemoryTier]:
    """Two tiers full of different bytes."""
    tiers = MemoryTier(layout, device, name="device"), MemoryTier(layout, host)
    for seed, tier in enumerate(tiers):
        filled(tier, seed)
    return tiers


def after(bytes_: Bytes, source: Bytes, sources: Sequence[int], to: Sequence[int]) -> Bytes:
    """What a tier must hold when the blocks were copied into it, and nothing else."""
    for mine, theirs in zip(bytes_, source, strict=True):
        for from_slot, slot in zip(sources, to, strict=True):
            mine[slot] = theirs[from_slot]
    return bytes_


def same(tier: Mapped, bytes_: Bytes) -> bool:
    return all(map(np.array_equal, tier.planes, bytes_))


def until(done: Callable[[], bool], what: str = "it") -> None:
    """Waits, for threads and processes."""
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.0005)


def landed(receipt: Receipt | None) -> Landed:
    assert receipt is not None
    until(lambda: receipt.poll() is not None)
    answer = receipt.poll()
    assert answer is not None
    return answer


def outcomes(crane: Crane) -> list[Outcome]:
    """Polls until nothing is in flight."""
    said: list[Outcome] = []

    def quiet() -> bool:
        said.extend(crane.poll())
        return not crane.in_flight

    until(quiet, "the end of the flights")
    return said


class Gate(np.ndarray[Any, Any]):
    """A plane that can be read only while `opened`, and not at all where `bad` is asked for."""

    opened: threading.Event
    reached: threading.Event
    entered: int
    bad: int | None = None

    @override
    def __getitem__(self, key: Any) -> Any:
        self.entered += 1
        self.reached.set()
        assert self.opened.wait(30)
        slots = range(key.start, key.stop) if isinstance(key, slice) else key
        if self.bad is not None and not isinstance(key, int) and self.bad in slots:
            raise OSError(f"slot {self.bad} is not to be read")
        return np.asarray(self)[key]


def gated(tier: MemoryTier, *, bad: int | None = None, opened: bool = False) -> Gate:
    """Puts a gate before the only plane of a tier."""
    (plane,) = tier.planes
    gate: Gate = plane.view(Gate)
    gate.opened, gate.reached, gate.bad = threading.Event(), threading.Event(), bad
    gate.entered = 0
    if opened:
        gate.opened.set()
    tier.planes = (gate,)
    return gate


def serve(
    pipe: Connection, layout: KVLayout, rank: int, shared: Path | None, script: list[Action]
) -> None:
    """A rank's process: a crane that takes plans from a pipe and sends outcomes back."""
    device = MemoryTier(layout, 12, name="device")
    host = MemoryTier(layout, 9, shared=shared)
    copier: Copier = ScriptedCopier(ThreadCopier(), script)
    with Crane(layout, rank=rank, device=device, host=host, copier=copier) as crane:
        pipe.send(crane.hello())
        while True:
            try:
                verb, what = pipe.recv()
            except EOFError:
                return
            if verb == "fill":
                filled(device, what)
                pipe.send(None)
            elif verb == "submit":
                crane.submit(what)
                pipe.send(outcomes(crane))
            elif verb == "launch":
                crane.submit(what)
                pipe.send(crane.poll())
            elif verb == "device":
                pipe.send(held(device))
