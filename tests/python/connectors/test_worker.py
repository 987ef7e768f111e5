"""The worker's half for an engine that owns its blocks: its copies, and their fence."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from blockyard.connectors.connector import Connector
from blockyard.connectors.orders import Orders
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers import Copier, Receipt, Slots
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers import Tier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.testing import Script, ScriptedCopier, delay, deliver, fail, hang
from blockyard.testing.gpu import SimulatedGpu

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE, BLOCKS = 4, 12
LAYOUT = by.KVLayout.llama(2, 2, 8, block_size=SIZE, dtype="float32")


class Noted(ThreadCopier):
    """A copier that notes which way each copy goes."""

    def __init__(self) -> None:
        super().__init__(workers=0)
        self.ways: list[str] = []

    @override
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        self.ways.append(f"{source.name} to {destination.name}")
        return super().start(source, destination, sources, destinations)


class Desk:
    """An engine's tensor, both halves, and what the engine does with its blocks."""

    def __init__(self, copier: Copier | None = None, **config: Any) -> None:
        self.config = by.Config(layout=LAYOUT, engine=BLOCKS, **({"host": 32} | config))
        self.kv = np.zeros((BLOCKS, LAYOUT.block_bytes // 4), np.float32)
        copier = ThreadCopier(workers=0) if copier is None else copier
        self.worker = Worker.adopt(self.config, self.kv, axis=0, copier=copier)
        self.cache = by.KVCache(by.agree(self.config, [self.worker.crane.hello()]))
        self.ask = Connector(self.cache)

    def keys(self, tokens: int, first: int = 0) -> by.Keys:
        return self.cache.keys(range(first, first + tokens))

    def turn(self, *written: int) -> Orders:
        """A step: orders go out, and these ids are written at once."""
        orders = self.ask.step(written)
        self.worker.begin(orders)
        self.kv[list(written)] = -1
        return orders

    def report(self) -> None:
        self.ask.commit(self.worker.outcomes())
        assert self.cache.audit() is None


def scripted(*actions: Any) -> ScriptedCopier:
    return ScriptedCopier(ThreadCopier(workers=0), Script(actions))


def test_bytes_of_a_preempted_request_come_back_to_other_ids() -> None:
    desk = Desk(scripted(delay(3), delay(3)))
    desk.kv[:] = np.arange(BLOCKS)[:, None]
    keys = desk.keys(14)
    assert desk.ask.preempted("one", keys, [3, 5, 2, 7], 14)
    desk.turn(3, 7)
    desk.report()
    assert desk.ask.matched("one", keys) == 14
    desk.ask.allocated("one", [8, 9, 10, 11])
    while not (named := desk.ask.arrived()):
        desk.turn()
        desk.report()
    assert named == {"one": 14}
    assert desk.kv[8:12, 0].tolist() == [3, 5, 2, 7]
    assert desk.kv[[3, 7], 0].tolist() == [-1, -1]
    desk.worker.close()


def test_copies_down_are_submitted_before_those_up() -> None:
    copier = Noted()
    desk = Desk(copier)
    old, new = desk.keys(8), desk.keys(8, 100)
    assert desk.ask.preempted("old", old, [0, 1], 8)
    desk.turn()
    desk.report()
    assert desk.ask.matched("old", old) == 8
    desk.ask.allocated("old", [4, 5])
    assert desk.ask.preempted("new", new, [2, 3], 8)
    desk.turn()
    assert copier.ways == ["device to host", "device to host", "host to device"]
    desk.worker.close()


def test_only_copies_of_what_is_written_are_waited_for() -> None:
    desk = Desk(scripted(delay(5), delay(50)))
    desk.kv[:] = np.arange(BLOCKS)[:, None]
    for at, name in enumerate(("first", "second")):
        ids = [2 * at, 2 * at + 1]
        assert desk.ask.preempted(name, desk.keys(8, 100 * at), ids, 8)
    desk.turn(1)
    (first,) = desk.worker.outcomes()
    assert (first.good, desk.worker.crane.in_flight) == (2, 1), "the other copy is under way"
    desk.ask.commit([first])
    desk.turn(8)
    assert desk.worker.crane.in_flight == 1
    desk.turn(2)
    assert desk.worker.outcomes()[0].good == 2
    host: Any = desk.worker.crane._tiers["host"]
    assert sorted({int(one) for one in host.planes[0].view(np.float32)[:4, 0, 0]}) == [0, 1, 2, 3]
    desk.worker.close()


def test_what_was_written_before_the_orders_came_is_not_believed() -> None:
    desk = Desk(scripted(delay(9), delay(9), delay(9), delay(9)))
    for name, ids in (("air", [0, 1, 2]), ("whole", [6, 7])):
        assert desk.ask.preempted(name, desk.keys(4 * len(ids), 100 * ids[0]), ids, 4 * len(ids))
    desk.turn()
    for name, ids in (("now", [3, 4, 5]), ("first", [8, 9])):
        assert desk.ask.preempted(name, desk.keys(4 * len(ids), 100 * ids[0]), ids, 4 * len(ids))
    desk.kv[[2, 4, 8]] = -1
    orders = desk.ask.step([2, 4, 8], spoiled=[4, 2, 8])
    desk.worker.begin(orders)
    found: dict[int, tuple[int, by.Cause | None]] = {}
    while len(found) < 4:
        found |= {one.flight: (one.good, one.cause) for one in desk.worker.outcomes()}
    failed = by.Cause.FAILED
    assert list(found.values()) == [(2, failed), (2, None), (1, failed), (0, failed)]
    assert desk.worker._cut == {}
    desk.worker.close()


def test_a_load_into_what_is_written_is_waited_for_too() -> None:
    desk = Desk(scripted(deliver(), delay(9)))
    keys = desk.keys(8)
    assert desk.ask.preempted("one", keys, [0, 1], 8)
    desk.turn()
    desk.report()
    assert desk.ask.matched("one", keys) == 8
    desk.ask.allocated("one", [4, 5])
    orders = desk.turn(5)
    assert orders.fence == orders.up[0].flight
    assert len(desk.worker.outcomes()) == 1
    assert (desk.kv[5] == -1).all(), "the engine wrote last"
    desk.worker.close()


def test_a_copy_that_never_ends_is_an_error_in_time_and_no_order_is_lost() -> None:
    desk = Desk(scripted(deliver(), hang(), delay(1)))
    old = desk.keys(8, 100)
    assert desk.ask.preempted("old", old, [6, 7], 8)
    desk.turn()
    desk.report()
    assert desk.ask.preempted("one", desk.keys(8), [0, 1], 8)
    assert desk.ask.matched("old", old) == 8
    desk.ask.allocated("old", [4, 5])
    desk.worker.patience = 0.05
    began = time.monotonic()
    with pytest.raises(by.Unavailable, match=r"flight \d+ has not ended for 0.05 s.*reset"):
        desk.turn(1)
    assert time.monotonic() - began < 5
    assert (desk.kv[1] != -1).all()
    for _ in range(3):
        desk.report()
    assert desk.ask.arrived() == {"old": 8}, "what it waited for held up nothing else"
    desk.worker.reset()
    desk.report()
    assert desk.ask.step([1]).fence is None
    desk.turn(1)
    desk.worker.close()


def test_after_a_reset_its_copies_are_reported_as_dead() -> None:
    desk = Desk(scripted(hang()))
    assert desk.ask.preempted("one", desk.keys(8), [0, 1], 8)
    (plan,) = desk.turn().down
    desk.worker.reset()
    assert desk.worker.outcomes() == [by.Outcome(plan.flight, 0, 0, by.Cause.DEAD, plan.yard)]
    assert desk.worker.outcomes() == []
    desk.worker.close()


def test_of_several_ranks_the_least_is_believed() -> None:
    layout = by.KVLayout.llama(2, 2, 8, block_size=SIZE, dtype="float32", ranks=2)
    config = by.Config(layout=layout, engine=BLOCKS, host=32)
    tensors = [np.zeros((BLOCKS, layout.block_bytes // 4), np.float32) for _ in range(2)]
    copiers: list[Copier] = [ThreadCopier(workers=0), scripted(fail(1))]
    workers = [
        Worker.adopt(config, tensor, rank=rank, axis=0, copier=copier)
        for rank, (tensor, copier) in enumerate(zip(tensors, copiers, strict=True))
    ]
    cache = by.KVCache(by.agree(config, [worker.crane.hello() for worker in workers]))
    ask = Connector(cache)
    keys = cache.keys(range(12))
    assert ask.preempted("one", keys, [0, 1, 2], 12)
    orders = ask.step([0])
    for worker in workers:
        worker.begin(orders)
    for worker in workers:
        ask.commit(worker.outcomes())
    assert ask.matched("one", keys) == SIZE
    for worker in workers:
        worker.close()


def landed(worker: Worker, ask: Connector) -> None:
    """Waits until the disk has ended all copies."""
    ask.commit(worker.outcomes())
    while worker.crane.in_flight:
        time.sleep(1e-3)
        ask.commit(worker.outcomes())


def test_a_disk_and_an_engine_with_a_tensor_per_layer(tmp_path: Path) -> None:
    layout = by.KVLayout.llama(3, 2, 8, block_size=SIZE, dtype="float32", order="layer-first")
    given: dict[str, Any] = {"layout": layout, "engine": BLOCKS, "disk": 16}
    config = by.Config(**given, keyed=("disk",), namespace={"model": "a", "weights": "b"})
    tensors = [np.zeros((2, BLOCKS, SIZE, 2, 8), np.float32) for _ in range(3)]
    for number, tensor in enumerate(tensors):
        tensor[:] = 100 * number + np.arange(BLOCKS)[:, None, None, None]
    with pytest.raises(by.Misuse, match="disk = 16 blocks, and no disk_path"):
        Worker.adopt(config, tensors, axis=1)
    with pytest.raises(by.Misuse, match=r'disk = 16, keyed = \(\): give Config.*keyed=\("disk",\)'):
        Worker.adopt(by.Config(**given), tensors, axis=1, disk_path=tmp_path)
    with Worker.adopt(config, tensors, axis=1, disk_path=tmp_path) as worker:
        ask = Connector(by.KVCache(by.agree(config, [worker.crane.hello()])))
        keys = ask.cache.keys(range(8))
        assert ask.preempted("one", keys, [1, 2], 8)
        worker.begin(ask.step())
        landed(worker, ask)
        assert ask.matched("one", keys) == 8
        ask.allocated("one", [7, 8])
        worker.begin(ask.step())
        landed(worker, ask)
        assert ask.arrived() == {"one": 8}
    for number, tensor in enumerate(tensors):
        assert (tensor[:, [7, 8]] == tensor[:, [1, 2]]).all()
        assert (tensor[:, 7] == 100 * number + 1).all()


class OnGpu:
    """A worker whose device is a simulated GPU, on which nothing moves by itself."""

    def __init__(self, seed: int = 0) -> None:
        self.gpu = SimulatedGpu(seed, eager=0)
        self.device = DeviceTier(LAYOUT, BLOCKS, gpu=self.gpu)
        host = PinnedTier(LAYOUT, 32, gpu=self.gpu)
        self.host = host
        self.copier = CudaCopier(self.device, host)
        self.crane = by.Crane(LAYOUT, device=self.device, host=host, copier=self.copier)
        self.worker = Worker(self.crane, patience=1)
        self.ask = Connector(by.KVCache(LAYOUT, engine=BLOCKS, host=32))
        self.plane: NDArray[np.uint8] = self.device.planes[0]

    def write(self, ids: list[int], value: int) -> None:
        """A kernel on the engine's stream."""
        self.gpu.compute(lambda: self.plane.__setitem__(ids, value))

    def turn(self, *written: int, value: int = 0) -> Orders:
        orders = self.ask.step(written)
        self.worker.begin(orders)
        self.write(list(written), value)
        return orders


@pytest.fixture
def on_gpu() -> Iterator[OnGpu]:
    made = OnGpu()
    yield made
    made.gpu.run()
    made.worker.close()


@pytest.mark.parametrize("seed", range(6))
def test_on_a_gpu_the_stream_waits_and_this_thread_does_not(seed: int) -> None:
    made = OnGpu(seed)
    made.write(list(range(BLOCKS)), 7)
    keys = made.ask.cache.keys(range(12))
    assert made.ask.preempted("one", keys, [0, 1, 2], 12)
    orders = made.turn(1, value=9)
    assert orders.fence == orders.down[0].flight
    assert not (made.plane == 7).any(), "nothing has moved: nobody has waited"
    made.gpu.run()
    assert (made.plane[1] == 9).all()
    assert (made.plane[[0, 2]] == 7).all()
    (plan,) = orders.down
    assert (made.host.planes[0][plan.destinations] == 7).all(), "the copy came before the write"
    made.ask.commit(made.worker.outcomes())
    assert made.ask.matched("one", keys) == 12
    made.ask.allocated("one", [8, 9, 10])
    orders = made.turn(10, value=3)
    assert orders.fence == orders.up[0].flight
    made.gpu.run()
    assert (made.plane[[8, 9]] == 7).all()
    assert (made.plane[10] == 3).all(), "the write came after the load"
    made.worker.close()


def test_on_a_gpu_this_thread_waits_where_somebody_else_writes_blocks(
    on_gpu: OnGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu.write(list(range(BLOCKS)), 7)
    assert on_gpu.ask.preempted("one", on_gpu.ask.cache.keys(range(12)), [0, 1, 2], 12)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        on_gpu.gpu.run()

    monkeypatch.setattr(time, "sleep", sleep)
    orders = on_gpu.ask.step([1, 5], lent=[1])
    assert orders.lent.tolist() == [1]
    on_gpu.worker.begin(orders)
    # No stream holds up who writes now.
    on_gpu.plane[1] = 9
    assert slept
    (plan,) = orders.down
    assert (on_gpu.host.planes[0][plan.destinations] == 7).all()
    # What nothing copies from is waited for by nobody.
    slept.clear()
    on_gpu.worker.begin(on_gpu.ask.step([6], lent=[6]))
    assert not slept


@pytest.mark.parametrize("seed", range(6))
def test_on_a_gpu_the_stream_may_be_another_one_in_every_step(seed: int) -> None:
    made = OnGpu(seed)
    keys = made.ask.cache.keys(range(12))
    for number, ids in ((1, [0, 1, 2]), (2, [3, 4, 5])):
        with made.gpu:
            stream = made.gpu.stream()
        for value in (number, 7 * number):
            made.gpu.compute(partial(made.plane.__setitem__, ids, value), stream)
        assert made.ask.preempted(number, keys, ids, 12)
        orders = made.ask.step(ids)
        made.worker.begin(orders, stream)
        made.gpu.compute(partial(made.plane.__setitem__, ids, 99), stream)
        made.gpu.run()
        (plan,) = orders.down
        assert (made.host.planes[0][plan.destinations] == 7 * number).all()
        made.ask.commit(made.worker.outcomes())
        made.ask.finished(number)
        made.ask.clear()
    made.worker.close()


def test_on_a_gpu_only_a_fence_makes_the_stream_wait(on_gpu: OnGpu) -> None:
    assert on_gpu.ask.preempted("one", on_gpu.ask.cache.keys(range(8)), [0, 1], 8)
    before = on_gpu.gpu.calls["wait"]
    on_gpu.turn(5)
    copying = on_gpu.gpu.calls["wait"] - before
    assert on_gpu.ask.preempted("two", on_gpu.ask.cache.keys(range(50, 58)), [2, 3], 8)
    on_gpu.turn(3)
    assert on_gpu.gpu.calls["wait"] - before == 2 * copying + 1


def test_where_a_copy_is_not_queued_yet_this_thread_waits(on_gpu: OnGpu) -> None:
    assert on_gpu.ask.preempted("one", on_gpu.ask.cache.keys(range(8)), [0, 1], 8)
    orders = on_gpu.ask.step([1])
    on_gpu.worker.patience = 0.05
    with on_gpu.gpu.capture(), pytest.raises(by.Misuse, match="while a graph is captured"):
        on_gpu.worker.begin(orders)
    on_gpu.gpu.run()
    assert on_gpu.worker.outcomes() == []
    assert on_gpu.crane.fence()


def test_bad_input_is_named() -> None:
    tensor = np.zeros((BLOCKS, LAYOUT.block_bytes // 4), np.float32)
    with pytest.raises(by.Misuse, match="layout = None"):
        Worker.adopt(by.Config(engine=BLOCKS, host=4), tensor, axis=0)
    with pytest.raises(by.Misuse, match="not axis 0 of shape"):
        Worker.adopt(by.Config(layout=LAYOUT, engine=BLOCKS + 1, host=4), tensor, axis=0)
    with pytest.raises(by.Misuse, match="patience = 0"):
        Worker(by.Crane(LAYOUT, device=MemoryTier(LAYOUT, 4, name="device")), patience=0)
    desk = Desk()
    assert desk.ask.preempted("one", desk.keys(8), [0, 1], 8)
    orders = desk.turn()
    with pytest.raises(by.Misuse, match="it is in flight already"):
        desk.worker.begin(orders)
    desk.worker.close()


def test_what_another_yard_has_left_here_lifts_no_fence_of_the_flight_of_that_number() -> None:
    desk = Desk(scripted(hang(), delay(3)))
    assert desk.ask.preempted("old", desk.keys(8), [0, 1], 8)
    (old,) = desk.turn().down
    # The scheduler starts again beside this worker.
    desk.cache = by.KVCache(by.agree(desk.config, [desk.worker.crane.hello()]))
    desk.ask = Connector(desk.cache)
    desk.kv[:] = np.arange(BLOCKS)[:, None]
    keys = desk.keys(8, 100)
    assert desk.ask.preempted("new", keys, [3, 5], 8)
    (new,) = desk.turn(3, 5).down
    assert (old.flight, old.yard != new.yard) == (new.flight, True)
    desk.report()
    assert desk.cache.stats()["outcomes_ignored"] == 1
    assert desk.ask.matched("new", keys) == 8
    desk.ask.allocated("new", [8, 9])
    while not desk.ask.arrived():
        desk.turn()
        desk.report()
    assert desk.kv[8:10, 0].tolist() == [3, 5]
    desk.worker.close()


def test_what_was_spoiled_is_not_good_when_its_outcome_is_asked_for_again() -> None:
    desk = Desk(scripted(delay(2)))
    assert desk.ask.preempted("one", desk.keys(16), [0, 1, 2, 3], 16)
    desk.turn()
    desk.worker.begin(desk.ask.step((2,), spoiled=(2,)))
    while not (said := desk.worker.outcomes()):
        pass
    assert [(one.good, one.cause) for one in said] == [(2, by.Cause.FAILED)]
    assert desk.worker.reconcile(desk.cache.unreported(0)) == said
    desk.ask.commit(said)
    assert desk.cache.unreported(0).flights == []
    desk.worker.close()


class CutOff(ThreadCopier):
    """Is interrupted when it has a copy up, which it makes only when it is reset."""

    def __init__(self) -> None:
        super().__init__(workers=0)
        self.late: list[tuple[Tier, Tier, Slots, Slots]] = []

    @override
    def start(
        self, source: Tier, destination: Tier, sources: Slots, destinations: Slots
    ) -> Receipt | None:
        if destination.name == "device":
            self.late.append((source, destination, sources, destinations))
            raise KeyboardInterrupt
        return super().start(source, destination, sources, destinations)

    @override
    def reset(self) -> None:
        super().reset()
        while self.late:
            super().start(*self.late.pop())


def test_what_a_copy_that_was_cut_off_may_write_is_not_written_before_a_reset() -> None:
    desk = Desk(CutOff())
    keys = desk.keys(8)
    assert desk.ask.preempted("one", keys, [0, 1], 8)
    desk.turn()
    desk.report()
    assert desk.ask.matched("one", keys) == 8
    desk.ask.allocated("one", [4, 5])
    desk.worker.patience = 0.01
    orders = desk.ask.step()
    with pytest.raises(KeyboardInterrupt):
        desk.worker.begin(orders)
    desk.ask.commit(desk.worker.outcomes())
    with pytest.raises(by.Unavailable, match="reset this rank"):
        desk.turn(4)
    desk.worker.reset()
    desk.worker.begin(orders._replace(up=(), fence=orders.up[0].flight, written=np.array([4])))
    assert not desk.worker._ids
    desk.worker.close()


def test_a_refused_order_is_not_waited_for() -> None:
    desk = Desk()
    assert desk.ask.preempted("one", desk.keys(8), [0, 1], 8)
    orders = desk.ask.step()
    desk.worker.begin(orders)
    desk.report()
    with pytest.raises(by.Misuse, match="submit it once"):
        desk.worker.begin(orders)
    assert not desk.worker._ids
    desk.worker.close()
