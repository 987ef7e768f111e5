"""The connector beside the model: one rank's copies."""

import contextlib
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard._core import Misuse, Unavailable
from blockyard.connectors.vllm.compatibility import Facts
from blockyard.connectors.vllm.handing_over import Lent
from blockyard.connectors.vllm.identity import fingerprint_of
from blockyard.connectors.vllm.messages import Ready, Reports, StepOrders, TakenEvent
from blockyard.connectors.vllm.metrics import Figures, Teller, rank_stats
from blockyard.connectors.vllm.settings import Settings
from blockyard.connectors.vllm.vllm_api import INTERFACE
from blockyard.connectors.worker import Worker
from blockyard.crane.tiers.peers import TakenOffer
from blockyard.shared.layout import KVLayout
from blockyard.shared.plan import Cause
from blockyard.stores.identity import fields_of
from blockyard.yard.config import Config

if TYPE_CHECKING:
    from blockyard.crane.copiers import Copier
    from blockyard.shared.restored import Restored

__all__ = ["WorkerHalf"]

_OF_PEERS = ("peers", "secret_file", "carrier")


class WorkerHalf:
    """Carries the orders of each step out, over the tensors of vLLM.

    Args:
        known: What vLLM has.
        settings: What it does.
        configs: Sizes and policies of each group of layers, as the scheduler's half has them.
    """

    def __init__(self, known: Facts, settings: Settings, configs: Sequence[Config]) -> None:
        self._known = known
        self._configs = tuple(configs)
        self._settings = settings
        self._shared = _file_of(known)
        self.copier: Copier | None = None
        """How it copies, for tests; set before `register`."""
        self.stream: Callable[[], object] = lambda: None
        """Returns the stream on which vLLM computes now: it makes one of its own, at some time."""
        self.worker: Worker | None = None
        self._files: dict[str, tuple[int, int]] = {}
        self._restored: tuple[Restored, ...] | None = None
        self._yard: int | None = None
        self._greets = False
        self._run = self._cleared = 0
        self._begun = self._loaded = 0
        """The last steps whose copies down, and up, have begun."""
        self._arrived: set[str] = set()
        self._failed: set[str] = set()
        self._missing: set[int] = set()
        self._tells = False
        self._teller: Teller | None = None
        self._lent: Lent | None = None

    def register(self, caches: Mapping[str, Any]) -> None:
        """Takes vLLM's tensors, one for each layer.

        Raises:
            Misuse: A layer is missing, or a tensor differs from the scheduler half's layout.
        """
        if self.worker is not None:
            raise Misuse(
                "vLLM has registered its KV caches twice: host and disk have blocks of the first"
            )
        layers = self._known.layers
        absent = [name for names in layers for name in names if name not in caches]
        if absent:
            raise Misuse(f"vLLM has registered no KV cache of layers {absent}")
        tensors = [
            self._tensors(config, caches, names)
            for config, names in zip(self._configs, layers, strict=True)
        ]
        on_gpu = bool(caches[layers[0][0]].is_cuda)
        if on_gpu:
            self.stream = _current_stream
        how: dict[str, Any] = {
            "rank": self._known.rank,
            "axis": 0,
            "gpu": "cuda" if on_gpu else None,
            "copier": self.copier,
            "shared": self._shared,
            # What tests give says itself what it checks.
            "checksums": self._settings.checksums and self.copier is None,
            "disk_path": self._settings.disk_path,
            "replica": self._known.replica.name,
            # They are hashes of vLLM's, whichever encoding `KVCache.keys` has.
            "keys": _keys_of(self._configs[0]),
            "stores": self._settings.stores(),
        }
        if len(tensors) == 1:
            how |= {name: getattr(self._settings, name) for name in _OF_PEERS}
            self.worker = Worker.adopt(self._configs[0], tensors[0], **how)
        else:
            try:
                self.worker = Worker.adopt_groups(self._configs, tensors, **how)
            except Unavailable as error:
                if "size of before" not in str(error):
                    raise
                raise Unavailable(
                    f"{error}; the part of each group follows from disk, split, typical and "
                    "--max-model-len: give these as they were before"
                ) from None
        has = {
            "disk": self._settings.disk_path is not None,
            "remote": self._settings.remote is not None,
            "peers": bool(self._settings.peers),
        }
        if any(has.values()):
            self._teller = Teller((rank_stats(self._known.rank, **has), self._rank_stats))
        for config in self._configs:
            if self._shared is not None and config.host_blocks and _is_shared(config.layout):
                name = f"{self._shared}.{config.group}" if config.group else self._shared
                seen = Path(name).stat()
                self._files[name] = seen.st_dev, seen.st_ino

    @staticmethod
    def _tensors(config: Config, caches: Mapping[str, Any], names: Sequence[str]) -> Any:
        """Returns the tensors of a group's layers as bytes, by plane where there are several."""
        assert config.layout is not None  # noqa: S101 - `Settings.read` has given it
        grouped, left = INTERFACE.get("group_kernel_blocks"), iter(names)
        planes = {
            plane.name: [
                _as_bytes(grouped(caches[name], config.device_blocks), plane.piece_bytes)
                for name in islice(left, plane.pieces)
            ]
            for plane in config.layout.planes
        }
        return planes if len(planes) > 1 else next(iter(planes.values()))

    def _rank_stats(self) -> dict[str, int]:
        """The numbers of this rank's disk and stores, of all groups of layers together."""
        total: Counter[str] = Counter()
        for crane in self._there().cranes.values():
            total.update(crane.persistent.stats())
            if crane.remote is not None:
                total.update(crane.remote.stats())
        return dict(total)

    @property
    def is_inside(self) -> bool:
        """Whether another connector has this one in it: vLLM carries what only one of them says."""
        return self._known.beside is not None

    def ready(self) -> Ready:
        """Reports that its memory is ready."""
        own = tuple(map(fingerprint_of, self._configs))
        cranes = () if self.worker is None else self.worker.cranes.values()
        places = tuple(crane.remote.place.identity for crane in cranes if crane.remote is not None)
        said = {"places": places if self._settings.remote is not None else (), **self._handing()}
        if self.worker is None or self._settings.disk_path is None:
            return Ready(self._known.rank, own, self._files, **said)
        disks = [crane.persistent for crane in self.worker.cranes.values()]
        if self._restored is None:
            found = [disk.restored() for disk in disks]
            self._restored = tuple(one for one in found if one is not None)
        folders = tuple(disk.folders for disk in disks)
        return Ready(self._known.rank, own, self._files, self._restored, folders, **said)

    def _handing(self) -> dict[str, Any]:
        """Returns what the scheduler's half needs to hand KV over."""
        settings, config = self._settings, self._configs[0]
        if config.layout is None or not settings.hands_over:
            return {}
        if settings.listen is not None and self._lent is None:
            self._lent = Lent(self._there().crane.host)
        identity = config.identity | {"keys": _keys_of(config)}
        return {
            "fields": tuple(fields_of(identity, config.layout).items()),
            "lent": 0 if self._lent is None else self._lent.number,
        }

    def begin(self, step: StepOrders) -> None:
        """Begins a step's copies down, before anything is written in it; each step once."""
        if step.yard != self._yard:
            # Another scheduler: what the one before has said of its requests is over.
            self._yard, self._cleared, self._begun, self._loaded = step.yard, 0, 0, 0
            self._arrived, self._failed, self._missing = set(), set(), set()
            self._greets = self.is_inside
        if step.number == self._begun:
            return
        self._begun = step.number
        self._tells = self._tells or step.tells
        self._arrived |= step.arrived
        self._failed |= step.failed
        self._missing |= step.missing
        if step.run > self._run:
            for crane in self._there().cranes.values():
                crane.persistent.count_as(step.run)
            self._run = step.run
        if step.cleared > self._cleared:
            # Nobody says whether the weights are what the folder's name says from here on.
            self._cleared = step.cleared
            self._there().clear(forget=True)
        for event in step.offers:
            self._hear(event)
        self._there().begin(step.orders._replace(up=()), self.stream())

    def load(self, step: StepOrders) -> None:
        """Begins a step's copies up, when vLLM has zeroed their blocks if it does; each step once.

        Where `begin` was not called, the copies down are first.
        """
        self.begin(step)
        if step.number != self._loaded:
            self._loaded = step.number
            self._there().begin(step.orders.loads(), self.stream())

    def _hear(self, event: TakenEvent) -> None:
        """Hears of an offer, whose blocks the next copies read; or that no more of it is read."""
        remote = self._there().crane.remote
        if remote is None:
            return
        if isinstance(event, TakenOffer):
            remote.peers.tell(event)
        else:
            remote.peers.end(*event)

    def suspend(self) -> None:
        """Ends all copies, and begins none until `resume`; as often as one likes."""
        if self.worker is not None:
            self.worker.suspend()

    def resume(self) -> None:
        """Begins copies again."""
        if self.worker is not None:
            self.worker.resume()

    def _there(self) -> Worker:
        if self.worker is None:
            raise Misuse("vLLM has registered no KV caches, so no copy can start")
        return self.worker

    def carry(self, step: StepOrders) -> Reports | None:
        """Begins a step's copies, and returns what has ended; for a step without a model's."""
        self.load(step)
        return self.reports()

    @property
    def yard(self) -> int | None:
        """The number of the yard that orders here; None before its first step, and at its end."""
        return None if self.worker is None else self._yard

    def arrived(self) -> tuple[set[str], set[str]]:
        """Requests whose loads have ended since the last call, and those of them that failed."""
        arrived, self._arrived = self._arrived, set()
        failed, self._failed = self._failed, set()
        return arrived | failed, failed

    def missing(self) -> set[int]:
        """Blocks that did not come, of those that were named last."""
        missing, self._missing = self._missing, set()
        return missing

    def reports(self) -> Reports | None:
        """What has ended since the last call."""
        outcomes = [] if self.worker is None else self.worker.outcomes()
        if self._greets:
            self._greets = False
            return Reports(outcomes, ready=(self.ready(),))
        if not outcomes:
            return None
        if any(outcome.cause is Cause.FAILED for outcome in outcomes):
            return Reports(outcomes, self._there().dead())
        return Reports(outcomes)

    def numbers(self) -> Figures | None:
        """Reports the numbers of this rank's disk, if a step has asked for them."""
        tells, self._tells = self._tells, False
        if not tells or self._teller is None:
            return None
        return self._teller.report()

    def close(self) -> None:
        """Ends all copies, and drops vLLM's tensors."""
        worker, self.worker = self.worker, None
        if self._lent is not None:
            self._lent.close()
        if worker is not None:
            worker.close()


def _keys_of(config: Config) -> str:
    return f"sha256, blocks of {config.block_size} tokens"


def _is_shared(layout: KVLayout | None) -> bool:
    """Whether all ranks map one file of host memory, as they have some bytes alike."""
    return (
        layout is not None and layout.ranks > 1 and any(plane.replicated for plane in layout.planes)
    )


def _file_of(known: Facts) -> str | None:
    """Returns the file of the memory that all ranks share, whose name each of them finds alone.

    vLLM starts all of an engine's workers from one process. An engine of the same name beside it
    has another, or is in a container with numbers of its own. What an engine has left there that
    died as it started is removed.
    """
    groups = known.groups or (known,)
    if not any(_is_shared(group.layout) for group in groups):
        return None
    memory = Path("/dev/shm")  # noqa: S108 - the file is made for its owner alone
    folder = memory if memory.is_dir() else Path(tempfile.gettempdir())
    try:
        numbers = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        numbers = ""
    said = f"{known.engine} {numbers}".encode()
    engine = f"blockyard-{hashlib.sha256(numbers.encode()).hexdigest()[:8]}"
    for left in folder.glob(f"{engine}-*"):
        process = left.name.split("-")[2]
        if process.isdecimal() and not Path(f"/proc/{process}").exists():
            with contextlib.suppress(OSError):
                left.unlink()
    return str(folder / f"{engine}-{os.getppid()}-{hashlib.sha256(said).hexdigest()[:16]}")


def _current_stream() -> object:
    import torch  # noqa: PLC0415 - with the model

    return torch.cuda.current_stream()


def _as_bytes(tensor: Any, page: int) -> Any:
    """Returns a layer's blocks as bytes: with what vLLM has padded them by, where a page has it."""
    import torch  # noqa: PLC0415 - with the model

    blocks = tensor.view(torch.uint8)
    if blocks[0].numel() >= page:
        return blocks
    return blocks.as_strided((len(blocks), page), (blocks.stride(0), 1))
