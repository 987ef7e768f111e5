"""Real bytes under a replay: cranes move them, and blocks are compared with their keys."""

import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from blockyard._core import Unavailable
from blockyard.crane.crane import Crane
from blockyard.crane.devices import NUMPY, Device, DeviceName, device, fetched
from blockyard.shared.layout import Hello, KVLayout
from blockyard.shared.plan import Cause, Outcome, Plan
from blockyard.shared.processes import ignore_sigint
from blockyard.yard.config import Config

__all__ = ["LocalMemory", "ProcessMemory", "RankMemory", "UnbackedMemory", "scaled"]

_PATIENCE: Final = 60.0
"""Seconds after which a copy of a few KiB is called stuck."""
_BLOCK_BYTES: Final = 4096

Slots = NDArray[np.int32]
Keys = NDArray[np.uint64]


class RankMemory(Protocol):
    """The memory of all ranks, as a replay uses it."""

    def hello(self) -> list[Hello]:
        """Returns the handshake of each rank's crane."""

    def submit(self, plans: Sequence[Plan]) -> None:
        """Starts copies."""

    def land(self, plans: Sequence[Plan]) -> list[Outcome]:
        """Waits for these plans, which are due by modelled time, and returns their outcomes."""

    def write(self, slots: Slots, keys: Keys) -> None:
        """Fills blocks that the engine has computed; both (blocks,), keys folded to 64 bits."""

    def wrong(self, slots: Slots, keys: Keys) -> int:
        """Returns how many of these device slots lack their key's bytes on some rank."""

    def close(self) -> None:
        """Ends the processes and frees the memory."""


class UnbackedMemory:
    """Memory without bytes: every copy is good on every rank, but what a store has lost.

    Args:
        config: Its tiers and ranks.
        loss: The share of the blocks loaded from a store that are lost.
        seed: Draws which.
    """

    def __init__(self, config: Config, *, loss: float = 0.0, seed: int = 0) -> None:
        self._config = config
        self._loss = loss
        self._draw = np.random.Generator(np.random.PCG64(seed)).random

    def hello(self) -> list[Hello]:
        """Returns a handshake for each rank of the configuration."""
        config = self._config
        hello = Hello(
            0,
            config.fingerprint,
            config.device_blocks,
            config.host_blocks,
            disk=config.disk_blocks,
            remote=config.remote_blocks,
            group=config.group,
        )
        return [hello._replace(rank=rank) for rank in range(config.ranks)]

    def submit(self, plans: Sequence[Plan]) -> None:
        """Does nothing."""

    def land(self, plans: Sequence[Plan]) -> list[Outcome]:
        """Returns an outcome for each plan and rank."""
        return [outcome for plan in plans for outcome in self._landed(plan)]

    def _landed(self, plan: Plan) -> list[Outcome]:
        good, ranks = len(plan), range(self._config.ranks)
        if plan.source_tier == "remote":
            gone = np.flatnonzero(self._draw(good) < self._loss)
            good = int(gone[0]) if len(gone) else good
        cause = Cause.CORRUPT if good < len(plan) else None
        return [Outcome.of(plan, rank, good, cause) for rank in ranks]

    def write(self, slots: Slots, keys: Keys) -> None:
        """Does nothing."""

    def wrong(self, slots: Slots, keys: Keys) -> int:
        """Returns 0."""
        del slots, keys
        return 0

    def close(self) -> None:
        """Does nothing."""


class LocalMemory:
    """One rank's memory in this process.

    Half of the plans, drawn by seed, are carried out when they are submitted, and half only when
    they land: so a slot that is read too early, or reused too early, shows wrong bytes.

    Args:
        config: Its layout is `scaled`: a few KiB stand for a block.
        rank: Number of the rank; the bytes of a key differ from rank to rank.
        shared: File of the host memory that all ranks share, if the layout has such planes.
        seed: Draws which plans are late; each rank draws others.
        on: The device that has the memory.
    """

    def __init__(
        self,
        config: Config,
        rank: int = 0,
        shared: Path | None = None,
        *,
        seed: int = 0,
        on: Device = NUMPY,
    ) -> None:
        layout = config.layout
        if layout is None:
            raise Unavailable("layout = None: bytes need a layout; give one")
        self._rank = rank
        self._xp = on.xp
        sizes = config.device_blocks, config.host_blocks, config.disk_blocks
        self._device, host, disk = on.tiers(layout, *sizes, shared=shared)
        self._crane = Crane(
            layout,
            rank=rank,
            device=self._device,
            host=host,
            disk=disk,
            copy_tuning=config.copying,
            fingerprint=config.fingerprint,
            group=config.group,
        )
        self._early: dict[int, Outcome] = {}
        self._late: set[int] = set()
        self._draw = np.random.Generator(np.random.PCG64([seed, rank])).random

    def hello(self) -> list[Hello]:
        """Returns the handshake of its crane."""
        return [self._crane.hello()]

    def submit(self, plans: Sequence[Plan]) -> None:
        """Starts copies, or defers them until they land."""
        late = {plan.flight for plan in plans if self._draw() < 0.5}  # noqa: PLR2004 - half
        self._late |= late
        self._crane.submit(plan for plan in plans if plan.flight not in late)

    def land(self, plans: Sequence[Plan]) -> list[Outcome]:
        """Waits for these plans; outcomes of others are kept for later."""
        late = [plan for plan in plans if plan.flight in self._late]
        self._late.difference_update(plan.flight for plan in late)
        self._crane.submit(late)
        stuck = time.monotonic() + _PATIENCE
        while True:
            self._early |= {outcome.flight: outcome for outcome in self._crane.poll()}
            if all(plan.flight in self._early for plan in plans):
                return [self._early.pop(plan.flight) for plan in plans]
            if time.monotonic() > stuck:
                raise Unavailable(f"rank {self._rank}: no copy ended in {_PATIENCE:.0f} s")
            time.sleep(50e-6)

    def write(self, slots: Slots, keys: Keys) -> None:
        """Fills whole blocks with the bytes of their keys."""
        places = self._xp.asarray(slots)
        for plane, expected in self._expected(keys):
            plane[places] = self._xp.asarray(expected)

    def wrong(self, slots: Slots, keys: Keys) -> int:
        """Compares whole blocks, as this process reads them."""
        places, bad = self._xp.asarray(slots), np.zeros(len(slots), np.bool_)
        for plane, expected in self._expected(keys):
            bad |= (fetched(plane[places]) != expected).any(axis=(1, 2))
        return int(bad.sum())

    def _expected(self, keys: Keys) -> Iterable[tuple[Any, NDArray[np.uint8]]]:
        """Yields each device plane, and the blocks' bytes in it: (blocks, pieces, bytes)."""
        for number, plane in enumerate(self._device.planes):
            _, pieces, width = plane.shape
            words = -(-pieces * width // 8)
            seed = np.uint64((self._rank << 8 | number) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
            steps = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (keys ^ seed)[:, None] * np.uint64(0x94D049BB133111EB) + steps
            mixed ^= mixed >> np.uint64(29)
            flat = mixed.view(np.uint8)[:, : pieces * width]
            yield plane, flat.reshape(len(keys), pieces, width)

    def close(self) -> None:
        """Ends the copiers and frees the memory."""
        self._crane.close()


class ProcessMemory:
    """A process for each rank, with its crane; plans and outcomes travel pickled."""

    def __init__(self, config: Config, *, seed: int = 0, on: DeviceName = "memory") -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="blockyard-", ignore_cleanup_errors=True)
        shared = Path(self._folder.name) / "host"
        self._ranks: list[tuple[Any, Connection]] = []
        for rank in range(config.ranks):
            here, there = context.Pipe()
            what = there, Own(config.to_mapping(), rank, shared, seed, on)
            process = context.Process(target=_serve, args=what, daemon=True)
            with ignore_sigint():
                process.start()
            there.close()
            self._ranks.append((process, here))

    def hello(self) -> list[Hello]:
        """Returns the handshakes of the ranks' cranes."""
        return [hello for hellos in self._ask("hello") for hello in hellos]

    def submit(self, plans: Sequence[Plan]) -> None:
        """Sends plans to every rank."""
        if plans:
            self._tell("submit", plans)

    def land(self, plans: Sequence[Plan]) -> list[Outcome]:
        """Returns every rank's outcomes."""
        return [outcome for outcomes in self._ask("land", plans) for outcome in outcomes]

    def write(self, slots: Slots, keys: Keys) -> None:
        """Fills the blocks on every rank."""
        self._tell("write", slots, keys)

    def wrong(self, slots: Slots, keys: Keys) -> int:
        """Returns the highest count of any rank."""
        return max(int(count) for count in self._ask("wrong", slots, keys))

    def close(self) -> None:
        """Ends the processes."""
        for process, pipe in self._ranks:
            pipe.close()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def _tell(self, verb: str, *what: Any) -> None:  # noqa: ANN401 - whatever the verb takes
        for rank, (_process, pipe) in enumerate(self._ranks):
            try:
                pipe.send((verb, what))
            except OSError:
                raise Unavailable(f"the process of rank {rank} is gone") from None

    def _ask(self, verb: str, *what: Any) -> list[Any]:  # noqa: ANN401 - likewise
        self._tell(verb, *what)
        answers = []
        for rank, (_process, pipe) in enumerate(self._ranks):
            try:
                answer = pipe.recv()
            except (EOFError, OSError):
                raise Unavailable(f"the process of rank {rank} is gone") from None
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers


class Own(NamedTuple):
    """What `LocalMemory` takes, of one rank, as a process is given it."""

    config: dict[str, Any]
    rank: int
    shared: Path | None
    seed: int
    on: DeviceName


def _serve(pipe: Connection, own: Own) -> None:
    """Runs one rank's process: it obeys verbs of `LocalMemory` until the pipe closes."""
    memory: LocalMemory | None = None
    fault: Exception | None = None
    answers = {"hello", "land", "wrong"}
    try:
        config, on = Config.of(own.config), device(own.on)
        memory = LocalMemory(config, own.rank, own.shared, seed=own.seed, on=on)
    except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
        fault = error
    while True:
        try:
            verb, what = pipe.recv()
        except (EOFError, OSError):
            break
        answer = None
        if fault is None:
            try:
                answer = getattr(memory, verb)(*what)
            except Exception as error:  # noqa: BLE001 - likewise
                fault = error
        if verb in answers:
            with suppress(OSError):  # the parent may be gone, and then this process ends, too
                pipe.send(fault if fault is not None else answer)
    if memory is not None:
        memory.close()


def scaled(block_size: int, ranks: int) -> KVLayout:
    """Returns a layout of a few KiB per block and rank, layer-first as in most engines."""
    width = max(1, _BLOCK_BYTES // (8 * block_size))
    return KVLayout.llama(
        layers=2,
        kv_heads=ranks,
        head_dim=width,
        dtype="bfloat16",
        block_size=block_size,
        ranks=ranks,
        order="layer-first",
    )
