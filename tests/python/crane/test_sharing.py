"""Cranes of several groups of layers share threads, streams and rings."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard.crane.copiers import Copier, Pair
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.checked import Checksums, ChecksumThreads, checked
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.copiers.select import select_copiers
from blockyard.crane.copiers.sharing import SharedCopying
from blockyard.crane.copiers.threads import CopyThreads, ThreadCopier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.testing.simulated_gpu import SimulatedGpu
from cranes import held, landed, pair, same, slots, until

NAMES = {"model": "m", "weights": "w"}
BLOCKS = 7
LAYOUTS = [
    by.KVLayout.llama(3, 2, 8, block_size=4, order="layer-first"),
    by.KVLayout.llama(5, 2, 8, block_size=4),
    by.KVLayout.mla(3, 12, 4, block_size=4, order="layer-first"),
    by.KVLayout.state(3, 9, 4000, ssm_dtype="float32", block_size=4, order="layer-first"),
    by.KVLayout.state(2, 9, block_size=4),
    by.KVLayout.llama(3, 2, 8, block_size=4, order="layer-first"),
]
RINGS = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=10**9, ring_bytes=3000, ring_parts=3)


class Groups:
    """The tiers and copiers of some groups of layers, whose blocks are full of noise."""

    def __init__(
        self, count: int, path: Path, *, gpu: SimulatedGpu | None = None, host: bool = True
    ) -> None:
        self.opened = ExitStack()
        self.tiers: list[dict[str, Any]] = []
        self.copiers: list[dict[Pair, Copier]] = []
        layouts = LAYOUTS[:count]
        self.sharing = SharedCopying(layouts, copy_tuning=RINGS) if count > 1 else None
        for group, layout in enumerate(layouts):
            tiers: dict[str, Any] = {}
            if gpu is None:
                tiers["device"] = MemoryTier(layout, BLOCKS, name="device")
                tiers["host"] = MemoryTier(layout, BLOCKS)
            else:
                tiers["device"] = DeviceTier(layout, BLOCKS, gpu=gpu)
                if host:
                    tiers["host"] = PinnedTier(layout, BLOCKS, gpu=gpu)
            identity = NAMES | ({"group of layers": str(group)} if group else {})
            threads = self.sharing.disk_threads(path) if self.sharing else 4
            tiers["disk"] = DiskTier(
                layout, path, blocks=BLOCKS, identity=identity, threads=threads, group=group
            )
            for tier in tiers.values():
                self.opened.callback(tier.close)
            self.tiers.append(tiers)
            made = select_copiers(tiers, None, RINGS, self.sharing)
            sums = self.sharing.checksums if self.sharing else None
            self.copiers.append(checked(made, threads=sums))
        self.noise = np.random.default_rng(count)
        for tiers in self.tiers:
            self.fill(tiers["device"])

    def fill(self, tier: Any) -> None:
        for plane in tier.planes:
            plane[...] = self.noise.integers(0, 256, plane.shape, np.uint8)

    def close(self) -> None:
        for copiers in self.copiers:
            for copier in {id(one): one for one in copiers.values()}.values():
                copier.close()
        self.opened.close()

    def round(self, chance: random.Random) -> None:
        """Takes all blocks of all groups on a way through the tiers and back, all at once."""
        order = chance.sample(range(BLOCKS), BLOCKS)
        ways = [
            ["device", *chance.sample([t for t in self.tiers[0] if t != "device"], k), "device"]
            for k in (1, len(self.tiers[0]) - 1)
        ]
        for way in ways:
            want = [held(tiers["device"]) for tiers in self.tiers]
            for step in pairwise(way):
                if step[1] == "device":
                    for tiers in self.tiers:
                        self.fill(tiers["device"])
                groups = chance.sample(range(len(self.tiers)), len(self.tiers))
                receipts = [self.start(group, step, slots(*order)) for group in groups]
                assert all(landed(one).good == BLOCKS for one in receipts)
            for tiers, bytes_ in zip(self.tiers, want, strict=True):
                assert same(tiers["device"], bytes_)

    def start(self, group: int, step: Pair, which: Any) -> Any:
        """Starts a copy from the same slots to the same slots."""
        copier: Any = self.copiers[group][step]
        source, to = (self.tiers[group][name] for name in step)
        if "disk" not in step:
            return copier.start(source, to, which, which)
        named = np.zeros((len(which), 32), np.uint8)
        named[:, 0] = which + 1
        none = np.zeros_like(named)
        parents = none if step[1] == "disk" else None
        return copier.start_keyed(source, to, which, which, keys=named, parents=parents)


def tasks() -> int:
    """Threads of this process, the disk's too."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def ended(before: int) -> None:
    """Waits until no more threads are left."""
    until(lambda: tasks() <= before, "the end of the threads")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = tasks()
    yield
    ended(before)


def test_six_groups_have_the_threads_of_one(tmp_path: Path) -> None:
    found = []
    for count in (1, 6):
        before, chance = tasks(), random.Random(count)
        groups = Groups(count, tmp_path / str(count))
        for _ in range(3):
            groups.round(chance)
        names = [one.name for one in threading.enumerate()]
        checksums = sum("blockyard-checksum" in name for name in names)
        # Those begin one by one, as there is work for them.
        assert checksums <= 2
        found.append((tasks() - before - checksums, names.count("blockyard-copier")))
        groups.close()
        ended(before)
    one, six = found
    assert one == (13, 4), "two for each lane, and nine of the disk"
    assert six == one


@pytest.mark.parametrize("host", [True, False])
def test_six_groups_on_a_gpu_have_the_streams_and_rings_of_one(tmp_path: Path, host: bool) -> None:
    found = []
    for count in (1, 6):
        gpu = SimulatedGpu(count)
        groups = Groups(count, tmp_path / str(count), gpu=gpu, host=host)
        for seed in range(3):
            groups.round(random.Random(seed))
        on = [stream._on for one in _cuda(groups) for stream in one._streams]
        rings = {id(ring): ring.nbytes for one in on for ring in one._ring}
        found.append((len(gpu._streams), len({id(one) for one in on}), len(rings)))
        assert gpu.blocked == 0
        largest = max(plane.block_bytes for layout in LAYOUTS[:count] for plane in layout.planes)
        assert min(rings.values()) >= largest
        groups.close()
        assert gpu.held == 0
    one, six = found
    assert one[2] > 0
    assert six <= one


def _cuda(groups: Groups) -> list[CudaCopier]:
    made: dict[int, CudaCopier] = {}
    for copiers in groups.copiers:
        for copier in copiers.values():
            inner: Any = copier.copier  # type: ignore[attr-defined]
            inner = inner._near if isinstance(inner, BounceCopier) else inner
            if isinstance(inner, CudaCopier):
                made[id(inner)] = inner
    return list(made.values())


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_group_that_is_reset_or_closed_ends_no_copy_of_another(
    tmp_path: Path, on_gpu: bool
) -> None:
    groups = Groups(3, tmp_path, gpu=SimulatedGpu(4) if on_gpu else None)
    steps: list[Pair] = [("device", "host"), ("host", "device"), ("host", "disk"), ("disk", "host")]
    some = slots(0, 3, 5)
    for verb in ("reset", "close"):
        for step in steps:
            other = groups.start(1, step, some)
            if on_gpu and verb == "close":
                # A driver frees nothing before its streams have ended.
                assert landed(other).good == 3
            for copier in {id(one): one for one in groups.copiers[0].values()}.values():
                getattr(copier, verb)()
            assert landed(other).good == 3, (verb, step)
            assert landed(groups.start(2, step, some)).good == 3
    for copier in {id(one): one for one in groups.copiers[1].values()}.values():
        copier.close()
    assert landed(groups.start(2, steps[0], some)).good == 3
    groups.close()


def test_threads_are_there_again_for_a_copier_that_comes_later() -> None:
    threads, tiers = CopyThreads(1), pair(LAYOUTS[0])
    for _ in range(3):
        one, other = (ThreadCopier(threads=threads) for _ in range(2))
        for copier in (one, other):
            assert landed(copier.start(*tiers, slots(1, 2), slots(3, 4))).good == 2
        one.close()
        assert landed(other.start(*tiers, slots(1, 2), slots(3, 4))).good == 2
        other.close()
        with pytest.raises(by.Misuse, match="the copier is closed"):
            one.start(*tiers, slots(1), slots(1))
    shared = ChecksumThreads(1)
    for _ in range(2):
        sums, more = (Checksums(threads=shared) for _ in range(2))
        sums.close()
        assert more.note(tiers[1], slots(1)).result(30) == 1
        more.close()


def test_a_copier_that_is_dropped_leaves_the_threads_to_the_others() -> None:
    threads, tiers = CopyThreads(1), pair(LAYOUTS[0])
    one, other = (ThreadCopier(threads=threads) for _ in range(2))
    one.drop()
    assert landed(other.start(*tiers, slots(1, 2), slots(3, 4))).good == 2
    other.close()


def test_threads_of_another_number_of_paths_are_refused(tmp_path: Path) -> None:
    sharing = SharedCopying(LAYOUTS)
    threads = sharing.disk_threads([tmp_path / "a", tmp_path / "b"])
    assert sharing.disk_threads(tmp_path / "b") == threads[1:]
    for wrong in (threads, [4], "4", 0):
        with pytest.raises(by.Misuse, match="threads = "):
            DiskTier(LAYOUTS[0], tmp_path, blocks=1, identity=NAMES, threads=wrong)  # type: ignore[arg-type]
    with pytest.raises(by.Misuse, match="group = 65536"):
        DiskTier(LAYOUTS[0], tmp_path, blocks=1, identity=NAMES, group=1 << 16)
