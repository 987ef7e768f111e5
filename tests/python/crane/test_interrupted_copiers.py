"""Each copier, interrupted at every line of it and behind every call of C that it makes, in turn.

Whatever an interrupt leaves: no copy counts as ended while its bytes still move, none loses its
end, and after a `reset` all is as if nothing had been. INV-6
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
import slow_copier
from blockyard._typing import override
from blockyard.crane.copiers import Landed, Turning
from blockyard.crane.copiers.bounce import BounceCopier
from blockyard.crane.copiers.checked import checked
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.copiers.disk import DiskCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.disk import DiskTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.plan import Cause
from blockyard.testing.gpu import SimulatedGpu
from interrupted import Places, alarm
from slow_copier import Slow

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=1, head_dim=8, block_size=4)
BLOCKS = 12
IDENTITY = {"model": "m", "weights": "w"}
LOST = Landed(0, Cause.LOST)


class Rig:
    """A copier between a device and a tier below, of which slots 8 to 11 have known bytes."""

    def __init__(
        self, copier: Any, device: Any, below: Any, gpu: SimulatedGpu | None = None
    ) -> None:
        self.copier, self.device, self.below, self.gpu = copier, device, below, gpu
        self.keyed = isinstance(below, DiskTier)
        self.marks = 0
        self.known = self.put(8, 9, 10, 11)
        self.landed([self.down(8, 9, 10, 11)])

    def settle(self) -> None:
        """Lets all bytes move that still can."""
        if self.gpu is not None:
            self.gpu.run()
        if self.keyed:
            while self.below.stats()["disk_in_flight"]:
                time.sleep(1e-5)
                self.run()
        copier = getattr(self.copier, "copier", self.copier)
        if isinstance(copier, Slow):
            copier.settle()
        if isinstance(copier, ThreadCopier):
            while copier._workers and any(copy._moving for copy in copier._in_flight):
                time.sleep(1e-5)

    def run(self) -> None:
        if self.gpu is not None:
            self.gpu.run()

    def put(self, *slots: int) -> list[bytes]:
        """Writes a new mark into each of these slots of the device, and returns what they hold."""
        for slot in slots:
            self.marks += 1
            for plane in self.device.planes:
                plane[slot] = self.marks % 251 + 1
        return self.held(*slots)

    def held(self, *slots: int) -> list[bytes]:
        return [b"".join(plane[slot].tobytes() for plane in self.device.planes) for slot in slots]

    def down(self, *slots: int) -> Any:
        return self._copy(self.device, self.below, slots, slots)

    def up(self, *slots: int, to: Any) -> Any:
        return self._copy(self.below, self.device, slots, to)

    def _copy(self, source: Any, destination: Any, sources: Any, destinations: Any) -> Any:
        ends = [np.array(slots, np.uint32) for slots in (sources, destinations)]
        if not self.keyed:
            return self.copier.start(source, destination, *ends)
        keys = np.zeros((len(sources), 32), np.uint8)
        keys[:, 0] = (sources if source is self.below else destinations) + np.uint32(1)
        parents = None if source is self.below else keys * 0
        return self.copier.start_keyed(source, destination, *ends, keys=keys, parents=parents)

    def turn(self) -> Any:
        return self.copier.turn() if isinstance(self.copier, Turning) else nullcontext()

    def landed(self, receipts: list[Any]) -> list[Landed]:
        """Polls until all have landed."""
        ends: list[Landed | None] = [None] * len(receipts)
        until = time.monotonic() + 20
        while None in ends:
            assert time.monotonic() < until, "a copy never ends"
            with self.turn():
                ends = [receipt.poll() for receipt in receipts]
            if self.keyed:
                time.sleep(1e-4)
        return ends  # type: ignore[return-value]

    def close(self) -> None:
        self.copier.close()
        self.device.close()
        self.below.close()


class Play:
    """Two copies down and one up, from their start until they have landed."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.receipts: dict[tuple[int, ...], Any] = {}
        self.wrote = rig.put(0, 1, 2, 3)
        rig.put(4, 5, 6, 7)
        self.asked: list[tuple[int, ...]] = []

    def run(self) -> None:
        rig = self.rig
        self.start()
        for verb in ("go_on", "join", "fence"):
            if verb != "go_on" or not isinstance(rig.copier, CudaCopier):
                getattr(rig.copier, verb, lambda: None)()
        rig.landed(list(self.receipts.values()))

    def start(self) -> None:
        rig = self.rig
        starts: dict[tuple[int, ...], Callable[[], Any]] = {
            (0, 1, 2): lambda: rig.down(0, 1, 2),
            (4, 5): lambda: rig.up(9, 8, to=(4, 5)),
            (3,): lambda: rig.down(3),
        }
        for slots, start in starts.items():
            self.asked.append(slots)
            while (receipt := start()) is None:
                rig.landed(list(self.receipts.values()))
            self.receipts[slots] = receipt

    def check(self) -> None:
        """Ends what has been given a receipt, and lets others have its slots at once."""
        rig = self.rig
        good: list[int] = []
        others: dict[int, bytes] = {}
        for slots, receipt in self.receipts.items():
            (landed,) = rig.landed([receipt])
            assert landed.cause in {None, Cause.FAILED, Cause.LOST}, landed
            if landed.cause is Cause.LOST:
                continue
            if landed.cause is None and slots == (4, 5):
                assert rig.held(*slots) == [rig.known[1], rig.known[0]]
            elif landed.cause is None:
                good += slots
            others |= dict(zip(slots, rig.put(*slots), strict=True))
        rig.settle()
        assert rig.held(*others) == list(others.values()), "written after its end"
        if good:
            self.same(good, [self.wrote[slot] for slot in good])

    def same(self, slots: list[int], wanted: list[bytes]) -> None:
        rig = self.rig
        to = range(8, 8 + len(slots))
        while (receipt := rig.up(*slots, to=to)) is None:
            rig.run()
        assert rig.landed([receipt]) == [(len(slots), None)]
        assert rig.held(*to) == wanted, "a copy has ended well, and its bytes are others"

    def reset(self, *, works: bool = True) -> None:
        """Checks that nothing moves after a reset, and that all works."""
        rig = self.rig
        rig.copier.reset()
        others = rig.put(*range(BLOCKS))
        rig.settle()
        assert rig.held(*range(BLOCKS)) == others, "written after a reset"
        assert all(rig.landed([one]) for one in self.receipts.values())
        if not works:
            return
        assert rig.landed([rig.down(0, 1, 2, 3)]) == [(4, None)]
        rig.put(0, 1, 2, 3)
        self.same([0, 1, 2, 3], others[:4])


def memory() -> tuple[MemoryTier, MemoryTier]:
    return MemoryTier(LAYOUT, BLOCKS, name="device"), MemoryTier(LAYOUT, BLOCKS)


def of_threads(_: Path, workers: int) -> Rig:
    return Rig(ThreadCopier(workers=workers), *memory())


def of_checks(_: Path, inner: Any, workers: int) -> Rig:
    pair = "device", "host"
    return Rig(checked({pair: inner()}, workers=workers)[pair], *memory())


def of_disk(path: Path) -> Rig:
    disk = DiskTier(LAYOUT, path, blocks=BLOCKS, identity=IDENTITY, threads=1)
    return Rig(DiskCopier(disk), memory()[0], disk)


def of_bounce(path: Path) -> Rig:
    gpu = SimulatedGpu(1)
    disk = DiskTier(LAYOUT, path, blocks=BLOCKS, identity=IDENTITY, threads=1)
    device = DeviceTier(LAYOUT, BLOCKS, gpu=gpu)
    return Rig(BounceCopier(device, disk, DiskCopier(disk)), device, disk, gpu)


def of_gpu(_: Path, *, checks: bool = False, layers: int = 1, **limits: int) -> Rig:
    gpu = SimulatedGpu(1)
    tiers = DeviceTier(LAYOUT, BLOCKS, gpu=gpu), PinnedTier(LAYOUT, BLOCKS, gpu=gpu)
    copier: Any = CudaCopier(*tiers, copy_tuning=CopyTuning(**limits), depth=4, layers=layers)
    if checks:
        copier = checked({("device", "host"): copier}, workers=0)["device", "host"]
    return Rig(copier, *tiers, gpu)


RIGS: dict[str, Callable[[Path], Rig]] = {
    "at once": lambda path: of_threads(path, 0),
    "threads": lambda path: of_threads(path, 1),
    "checked": lambda path: of_checks(path, Slow, 0),
    "checked by threads": lambda path: of_checks(path, Slow, 1),
    "disk": of_disk,
    "bounce": of_bounce,
    "gpu": of_gpu,
    "gpu, by ring": lambda path: of_gpu(path, kernel_below=0, whole_below=0, piece_bytes=1 << 20),
    "gpu, in parts": lambda path: of_gpu(path, queued_runs=2, kernel_below=0, piece_bytes=0),
    "gpu, in layers": lambda path: of_gpu(path, layers=2),
    "gpu, checked": lambda path: of_gpu(path, checks=True),
}
PLACES = "crane", "shared", slow_copier.__file__


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, "interrupt") for name in RIGS]
    + [(name, "timeout") for name in ("at once", "checked", "disk", "bounce", "gpu, in parts")],
)
def test_a_copier_that_is_interrupted_anywhere_loses_no_end_and_no_byte(
    tmp_path: Path, name: str, how: str
) -> None:
    rig, places = RIGS[name](tmp_path), Places(*PLACES)
    with alarm() as ring:
        raises = None if how == "interrupt" else ring
        places.during(Play(rig).run, None)
        tried = 0
        for place in places.each():
            tried += 1
            play = Play(rig)
            try:
                places.during(play.run, place, raises)
                if tried % 2:
                    play.check()
                play.reset(works=tried % 4 == 0)
            except BaseException as error:
                error.add_note(f"interrupted at {place}")
                raise
        assert tried > 50
        Play(rig).reset()
    rig.close()


OF_EACH_KIND = "at once", "threads", "checked by threads", "disk", "bounce", "gpu, in parts"


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_reset_that_is_interrupted_is_called_again(tmp_path: Path, name: str) -> None:
    rig, places = RIGS[name](tmp_path), Places("crane", slow_copier.__file__)
    places.during(rig.copier.reset, None)
    tried = 0
    for place in places.each():
        tried += 1
        play = Play(rig)
        play.start()
        try:
            places.during(rig.copier.reset, place)
            if tried % 2:
                play.check()
            play.reset()
        except BaseException as error:
            error.add_note(f"interrupted at {place}")
            raise
    assert tried > 5
    rig.close()


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_close_that_is_interrupted_is_called_again(tmp_path: Path, name: str) -> None:
    places = Places("crane/copiers", "crane/tiers/pinned.py")
    places.during(RIGS[name](tmp_path / "0").copier.close, None)
    for number, place in enumerate(places.each(), 1):
        if place.called:
            continue
        rig = RIGS[name](tmp_path / str(number))
        play = Play(rig)
        play.start()
        try:
            places.during(rig.copier.close, place)
            rig.copier.close()
            assert all(rig.landed([one]) for one in play.receipts.values())
            others = rig.put(*range(BLOCKS))
            rig.settle()
            assert rig.held(*range(BLOCKS)) == others, "written after the close"
            rig.close()
            assert rig.gpu is None or not rig.gpu.held, "something is not given back"
        except BaseException as error:
            error.add_note(f"interrupted at {place}")
            raise


class Broken(Slow):
    """Its first copy is broken into when it has it already."""

    def __init__(self, how: Callable[[], object]) -> None:
        super().__init__()
        self.how: Callable[[], object] | None = how

    @override
    def start(self, *what: Any, **_: Any) -> Any:
        taken = super().start(*what)
        if self.how is not None:
            how, self.how = self.how, None
            how()
        return taken


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_of_a_checked_copy_whose_start_was_broken_into_the_end_is_unknown(how: str) -> None:
    with alarm() as ring:
        inner = Broken(interrupt if how == "interrupt" else ring)
        copier: Any = checked({("host", "device"): inner}, workers=0)["host", "device"]
        compared: Future[int] = Future()
        vars(copier.sums)["begin"] = lambda *_, **__: compared
        device, host = memory()
        two = np.arange(2, dtype=np.uint32)
        first = copier.start(host, device, two, two)
        compared.set_result(2)
        with pytest.raises((KeyboardInterrupt, TimeoutError)):
            first.poll()
        second = copier.start(host, device, two + 4, two + 4)
        until = time.monotonic() + 20
        while second.poll() is None:
            assert time.monotonic() < until
        assert first.poll() == LOST
        assert len(inner.under_way) == 2, "it was started once"
        copier.close()
