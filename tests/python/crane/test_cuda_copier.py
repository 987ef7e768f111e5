"""The copier for GPUs, on a simulated one: order, failures, and what it costs."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockyard as by
import copying
from blockyard import Cause, KVLayout, Misuse, Unavailable
from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.copy_method import Addressing
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.crane import Crane
from blockyard.crane.gpu import GpuError
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.log import Limited
from blockyard.testing import ScriptedCopier, hang
from blockyard.testing.simulated_gpu import SimulatedGpu
from copying import LAYERED, METHODS, opened, work
from cranes import LAYOUTS, SHARED, after, filled, outcomes, plan, same, slots
from timed import Link, TimedGpu
from yard import there

BOTH = LAYOUTS["fp8 with scales, layer-first"]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    copying.closed()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """What is logged, none of it left out because another test has said it, too."""
    monkeypatch.setattr("blockyard.crane.copiers.cuda_copier._log", Limited("blockyard"))
    return caplog


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_in_whatever_order_streams_work_bytes_are_those_of_the_order_of_calls(first: int) -> None:
    for seed in range(first, first + 20):
        work(seed)


def _without_compute(copier: CudaCopier, gpu: SimulatedGpu) -> None:
    wait, events = gpu.wait, {stream._computed for stream in copier._streams}
    vars(gpu)["wait"] = lambda stream, event: event in events or wait(stream, event)


def _without_the_other_stream(copier: CudaCopier, _gpu: SimulatedGpu) -> None:
    for stream in copier._streams:
        stream.other = None


def _without_sources(copier: CudaCopier, _gpu: SimulatedGpu) -> None:
    for stream in copier._streams:

        def touch(pair: Any, number: int, _sources: Any, to: Any, stream: Any = stream) -> None:
            stream._touched[pair[1]].touch(to, number)

        vars(stream)["touch"] = touch


def _without_join(copier: CudaCopier, _gpu: SimulatedGpu) -> None:
    vars(copier)["join"] = lambda: True


def _with_one_table(copier: CudaCopier, _gpu: SimulatedGpu) -> None:
    for stream in copier._streams:
        vars(stream)["_place"] = lambda _words: 0


def _without_those_to_come(copier: CudaCopier, _gpu: SimulatedGpu) -> None:
    for stream in copier._streams:
        vars(stream)["coming"] = lambda *_: False


def _without_an_order_of_the_ring(copier: CudaCopier, gpu: SimulatedGpu) -> None:
    wait, events = gpu.wait, {event for stream in copier._streams for event in stream.freed}
    vars(gpu)["wait"] = lambda stream, event: event in events or wait(stream, event)


@pytest.mark.parametrize(
    "harm",
    [
        _without_compute,
        _without_the_other_stream,
        _without_sources,
        _without_join,
        _with_one_table,
        _without_those_to_come,
        _without_an_order_of_the_ring,
    ],
)
def test_whatever_order_is_left_out_some_seed_shows(harm: Any) -> None:
    def broken(seed: int) -> bool:
        try:
            work(seed, harm)
        except AssertionError:
            copying.unplugged()
            return True
        return False

    assert any(broken(seed) for seed in range(200))


@pytest.mark.parametrize("layout", ["page-first", "layer-first"])
def test_a_flight_costs_a_few_calls_and_no_memory_however_many_blocks_it_has(layout: str) -> None:
    gpu, device, host, copier = opened(LAYOUTS[layout], device=4000, host=4000, eager=0)
    costs = []
    for blocks in (10, 1000, 4000):
        before = gpu.calls.copy()
        order = np.random.default_rng(1).permutation(4000)[:blocks].astype(np.uint32)
        for source, to in ((device, host), (host, device)):
            receipt = there(copier.start(source, to, order, order[::-1]))
            while receipt.poll() is None:
                gpu.run()
        costs.append(gpu.calls - before)
        assert not gpu.blocked
    assert all(cost["allocate"] == 0 for cost in costs)
    # Capturing, two records, a wait or two, a table, and the copy itself: each way; and it is asked
    # whether it has ended. Batches double from 16 copies on. A flight of more than a thousand
    # blocks has parts.
    assert all(cost.total() <= 36 for cost in costs[:2])
    assert costs[2].total() <= 8 * 26
    copier.close()


@pytest.mark.parametrize("layout", ["page-first", "layer-first"])
def test_the_link_is_busy_before_all_of_a_flight_is_queued(layout: str) -> None:
    """A driver starts a batch when the call returns, and takes its time for each copy of it."""
    link = Link(rate=1.4e9, copy=12e-6, run=0.65e-6)
    gpu = TimedGpu(link)
    blocks = KVLayout.llama(2, 1, 128, order=layout)  # type: ignore[arg-type]
    device, host = DeviceTier(blocks, 256, gpu=gpu), PinnedTier(blocks, 256, gpu=gpu)
    limits = CopyTuning(kernel_below=0, whole_below=0, ring_bytes=128 * blocks.block_bytes)
    copier = CudaCopier(device, host, copy_tuning=limits)
    order = np.random.default_rng(1).permutation(256).astype(np.uint32)
    begun = gpu.clock()
    receipt = there(copier.start(device, host, order, order[::-1]))
    while receipt.poll() is None:
        pass
    assert gpu.clock() - begun < 256 * blocks.block_bytes / link.rate * 1.05
    copier.close()


def test_a_ring_is_filled_as_often_as_the_blocks_need_and_no_more() -> None:
    ring = 10 * LAYERED.block_bytes
    limits = CopyTuning(kernel_below=0, piece_bytes=10**9, ring_bytes=ring, ring_parts=1)
    halves = replace(limits, ring_parts=2)
    # What fits into a part takes no other stream.
    for limits_, blocks, fillings, events in (
        (limits, 10, 1, 0),
        (limits, 42, 5, 0),
        (halves, 5, 1, 0),
        (halves, 6, 2, 2 + 1),
        (halves, 42, 9, 9 + 7 + 1),
    ):
        gpu, device, host, copier = opened(device=100, host=100, copy_tuning=limits_, eager=0)
        before = gpu.calls.copy()
        order = slots(*range(blocks))
        copier.start(device, host, order, order)
        cost = gpu.calls - before
        assert cost["move"] == cost["copy"] + cost["copy_run"] == fillings
        assert cost["record"] == 2 + events


def test_while_one_half_of_a_ring_is_emptied_the_other_is_filled() -> None:
    """The kernel that gathers and the engine that copies work side by side, and meet no byte."""
    ring = 8 * LAYERED.block_bytes
    limits = CopyTuning(kernel_below=0, piece_bytes=10**9, ring_bytes=ring, ring_parts=2)
    gpu, device, host, copier = opened(device=60, host=60, copy_tuning=limits, eager=0)
    stream = copier._by_pair["device", "host"]
    bytes_, mine = filled(device, 1), filled(host, 2)
    order = slots(*range(40))
    receipt = there(copier.start(device, host, order, order[::-1]))
    overlapped = 0
    while gpu._streams[stream.handle]:
        assert gpu.run(1)
        filling, emptying = gpu._streams[stream.side], gpu._engines["down"]
        overlapped += bool(filling and emptying)
    assert overlapped
    assert receipt.poll() == Landed(40)
    assert same(host, after(mine, bytes_, range(40), range(39, -1, -1)))


@pytest.mark.parametrize("way", ["down", "up"])
def test_what_a_failed_copy_left_on_the_ring_is_over_before_the_next_one_uses_it(way: str) -> None:
    """The part that fills a ring on a stream of its own, for a flight that the driver refused."""
    ring = 8 * LAYERED.block_bytes
    limits = CopyTuning(kernel_below=0, piece_bytes=10**9, ring_bytes=ring, ring_parts=2)
    for seed in range(4):
        for call, after_ in itertools.product(("record", "wait"), range(3, 9)):
            gpu, device, host, copier = opened(
                device=60, host=60, copy_tuning=limits, eager=0, seed=seed
            )
            bytes_, mine = filled(device, 1), filled(host, 2)
            ends: list[Any] = [device, host] if way == "down" else [host, device]
            many, few = slots(*range(20)), slots(30, 32, 31)
            gpu.fail(call, after=after_)
            failed = copier.start(ends[0], ends[1], many, many)
            good = copier.start(ends[0], ends[1], few, few[::-1])
            gpu.run()
            assert failed is not None
            assert good is not None
            assert (failed.poll(), good.poll()) == (Landed(0, Cause.FAILED), Landed(3))
            from_, to = (bytes_, mine) if way == "down" else (mine, bytes_)
            held = ends[1].planes[0]
            assert all(
                np.array_equal(held[there], from_[0][here])
                for here, there in zip((30, 32, 31), (31, 32, 30), strict=True)
            ), (seed, call, after_)
            assert np.array_equal(held[33:], to[0][33:])
            copying.closed()


def test_without_the_call_for_many_runs_kernels_and_rows_do_its_work() -> None:
    gpu, device, host, copier = opened(LAYOUTS["page-first"], batches=False)
    bytes_ = filled(device, 1)
    mine = filled(host, 2)
    receipt = copier.start(device, host, slots(3, 1, 5), slots(8, 0, 2))
    copier.reset()
    assert receipt is not None
    assert receipt.poll() == Landed(3)
    assert same(host, after(mine, bytes_, [3, 1, 5], [8, 0, 2]))
    assert not gpu.calls["copy"]


def test_polling_asks_the_driver_once_a_stream_however_much_is_in_flight() -> None:
    gpu, device, host, copier = opened(depth=64, eager=0)
    receipts = [copier.start(device, host, slots(1), slots(1)) for _ in range(50)]
    before = gpu.calls.copy()
    assert [receipt.poll() for receipt in receipts if receipt] == [None] * 50
    assert (gpu.calls - before)["ended"] == 1


@pytest.mark.law("INV-6")
def test_a_call_that_the_driver_refuses_fails_that_flight_alone(
    said: pytest.LogCaptureFixture,
) -> None:
    gpu, device, host, copier = opened(copy_tuning=METHODS[1])
    first = copier.start(device, host, slots(1), slots(1))
    gpu.fail("copy", "CUDA_ERROR_INVALID_VALUE")
    second = copier.start(device, host, slots(2), slots(2))
    third = copier.start(device, host, slots(3), slots(3))
    copier.reset()
    ends = [receipt.poll() for receipt in (first, second, third) if receipt]
    assert ends == [Landed(1), Landed(0, Cause.FAILED), Landed(1)]
    assert "CUDA_ERROR_INVALID_VALUE" in said.text


def test_a_lost_device_takes_all_that_is_in_flight_with_it(
    said: pytest.LogCaptureFixture,
) -> None:
    gpu, device, host, copier = opened(eager=0)
    receipts = [
        copier.start(device, host, slots(1), slots(1)),
        copier.start(host, device, slots(2), slots(2)),
    ]
    gpu.fail("ended", "CUDA_ERROR_ILLEGAL_ADDRESS", lost=True)
    assert [receipt.poll() for receipt in receipts if receipt] == [Landed(0, Cause.LOST)] * 2
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said.text
    with pytest.raises(Unavailable, match="the device is lost"):
        copier.start(device, host, slots(1), slots(1))
    copier.close()
    host.close()


@pytest.mark.law("INV-6")
@pytest.mark.parametrize(
    "call", ["enter", "capturing", "record", "wait", "copy", "copy_run", "move"]
)
def test_whichever_call_finds_the_device_lost_no_flight_is_left_without_an_end(call: str) -> None:
    # A ring of two blocks: batches, and a copy of one block at the end.
    limits = replace(METHODS[2], ring_bytes=2 * LAYERED.block_bytes)
    gpu, device, host, copier = opened(device=100, host=100, eager=0, copy_tuning=limits)
    first = copier.start(device, host, slots(1), slots(1))
    gpu.fail(call, "CUDA_ERROR_LAUNCH_FAILED", lost=True)
    many = slots(*range(81))
    try:
        second = copier.start(device, host, many, many[::-1])
    except Unavailable:
        second = None
    assert first is not None
    assert first.poll() == Landed(0, Cause.LOST)
    assert second is None or second.poll() == Landed(0, Cause.LOST)


def test_a_flight_that_finds_the_device_lost_while_it_looks_for_room_is_lost_too() -> None:
    gpu, device, host, copier = opened(depth=500, eager=0)
    while copier.start(device, host, slots(1), slots(1)) is not None:
        pass
    gpu.fail("ended", "CUDA_ERROR_LAUNCH_FAILED", lost=True)
    second = there(copier.start(device, host, slots(2), slots(2)))
    assert second.poll() == Landed(0, Cause.LOST)


def test_a_reset_waits_for_copies_whose_end_was_taken_for_lost() -> None:
    gpu, device, host, copier = opened(eager=0)
    bytes_ = filled(device, 1)
    gpu.fail("record", "CUDA_ERROR_INVALID_HANDLE", after=1)
    receipt = there(copier.start(device, host, slots(1), slots(1)))
    assert receipt.poll() == Landed(0, Cause.LOST)
    copier.reset()
    assert np.array_equal(host.planes[0][1], bytes_[0][1])


def test_a_copy_of_which_no_end_could_be_asked_for_is_lost_and_never_said_to_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, device, host, copier = opened(eager=0)
    record, seen = gpu.record, []

    def second(event: int, stream: int) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise MemoryError("no room for an argument")
        record(event, stream)

    monkeypatch.setattr(gpu, "record", second)
    receipt = there(copier.start(device, host, slots(1), slots(1)))
    assert receipt.poll() == Landed(0, Cause.LOST)


def test_a_slot_that_is_not_there_fails_the_copy_before_anything_is_queued() -> None:
    gpu, device, host, copier = opened()
    mine = filled(host, 2)
    receipt = copier.start(device, host, slots(1, 50), slots(1, 2))
    copier.reset()
    assert receipt is not None
    assert receipt.poll() == Landed(0, Cause.FAILED)
    assert same(host, mine)
    assert not gpu.calls["move"]


@pytest.mark.law("INV-6")
def test_what_a_lost_device_had_in_flight_is_quarantined_until_the_reset() -> None:
    gpu = SimulatedGpu(eager=0)
    layout = LAYOUTS["page-first"]
    device, host = DeviceTier(layout, 8, gpu=gpu), PinnedTier(layout, 8, gpu=gpu)
    cache = by.local(layout, memory=(device, host))
    lease = cache.begin(range(16))
    cache.seal([lease], [16])
    cache.finish(lease)
    cache.demote(4)
    cache.step()
    assert cache.stats()["host_quarantined"] == 0
    gpu.fail("ended", "CUDA_ERROR_ECC_UNCORRECTABLE", lost=True)
    cache.step()
    numbers = cache.stats()
    assert numbers["host_quarantined"] > 0
    assert numbers["flights_unknown"] == 1
    cache.audit()
    # A deadline that passes later says nothing new.
    cache.step()
    assert cache.stats()["flights_unknown"] == 1
    cache.reset(memory="lost")
    assert cache.stats()["host_quarantined"] == 0
    cache.audit()


def test_a_crane_reports_a_flight_as_lost_when_any_copy_of_it_was() -> None:
    gpu, device, host, copier = opened(eager=0)
    crane = Crane(LAYERED, device=device, host=host, copier=copier)
    crane.submit(plan(1, "down", [1, 2], [3, 4]))
    gpu.fail("ended", "CUDA_ERROR_LAUNCH_FAILED", lost=True)
    (outcome,) = crane.poll()
    assert (outcome.good, outcome.cause) == (0, Cause.LOST)
    # What is submitted then was never begun: it has failed, and nothing writes.
    crane.submit(plan(2, "down", [1], [3]))
    (outcome,) = crane.poll()
    assert (outcome.good, outcome.cause) == (0, Cause.FAILED)


@pytest.mark.law("INV-6")
def test_a_copy_that_fails_half_queued_has_ended_only_with_what_was_queued(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, device, host, copier = opened(BOTH, eager=0, copy_tuning=METHODS[1])
    runs, seen = Addressing.runs, []

    def second(*arguments: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise MemoryError("no room for a table")
        return runs(*arguments)

    monkeypatch.setattr(Addressing, "runs", second)
    receipt = there(copier.start(device, host, slots(1), slots(1)))
    assert receipt.poll() is None
    gpu.run()
    assert receipt.poll() == Landed(0, Cause.FAILED)
    assert "no room for a table" in said.text


def test_a_stream_that_is_none_refuses_the_copy_and_no_other() -> None:
    gpu, device, host, copier = opened()
    gpu.fail("capturing", "CUDA_ERROR_INVALID_HANDLE")
    with pytest.raises(Unavailable, match="refused: capturing: CUDA_ERROR_INVALID_HANDLE"):
        copier.start(device, host, slots(1), slots(1))
    receipt = copier.start(device, host, slots(1), slots(1))
    copier.reset()
    assert receipt is not None
    assert receipt.poll() == Landed(1)


def test_whatever_fails_while_it_is_made_nothing_is_left() -> None:
    gpu = SimulatedGpu()
    device, host = DeviceTier(BOTH, 12, gpu=gpu), PinnedTier(BOTH, 9, gpu=gpu)
    held, before = gpu.held, gpu.calls.copy()
    copier = CudaCopier(device, host, depth=3, layers=2)
    made = gpu.calls - before
    copier.close()
    assert made["allocate"] > 20
    for call in ("allocate", "copy_run"):
        assert made[call]
        for after_ in range(made[call]):
            gpu.fail(call, after=after_)
            with pytest.raises(Unavailable):
                CudaCopier(device, host, depth=3, layers=2)
            gpu._failing.clear()
            gpu.run()
            assert gpu.held == held, (call, after_)
    device.close()
    host.close()


def test_receipts_that_are_never_polled_do_not_fill_a_stream() -> None:
    _gpu, device, host, copier = opened(depth=1)
    for _ in range(5):
        while copier.start(device, host, slots(1), slots(1)) is None:
            pass


def test_a_receipt_says_its_end_though_the_first_is_never_asked() -> None:
    gpu, device, host, copier = opened()
    receipts = [copier.start(device, host, slots(slot), slots(slot)) for slot in range(3)]
    gpu.run()
    last = there(receipts[-1])
    assert next(filter(None, (last.poll() for _ in range(3)))) == Landed(1)


def test_no_more_is_queued_than_a_driver_takes_without_waiting() -> None:
    gpu, device, host, copier = opened(depth=500, eager=0)
    before = gpu.calls.total()
    taken = 0
    while copier.start(device, host, slots(1), slots(1)) is not None:
        taken += 1
    assert 50 < taken < 100
    assert gpu.calls.total() - before < 1000
    gpu.run()
    assert copier.start(device, host, slots(1), slots(1)) is not None


@pytest.mark.law("INV-6")
def test_a_crane_joins_what_the_copier_took_and_says_when_some_is_held_back() -> None:
    gpu, device, host, copier = opened(depth=1, eager=0)
    crane = Crane(LAYERED, device=device, host=host, copier=copier)
    assert crane.join()
    crane.submit([plan(1, "up", [1], [2]), plan(2, "up", [3], [4])])
    assert not crane.join()
    gpu.run()
    assert crane.join()
    crane.submit([plan(3, "down", [1], [2]), plan(4, "down", [3], [4])])
    assert crane.join()
    with gpu.capture():
        crane.submit(plan(5, "up", [1], [2]))
        with pytest.raises(Misuse, match="captured"):
            crane.join()
    crane.close()


def test_a_crane_of_threads_joins_nothing_that_is_under_way() -> None:
    device, host = MemoryTier(LAYERED, 4, name="device"), MemoryTier(LAYERED, 4)
    copier = ScriptedCopier(ThreadCopier(workers=0), [hang()])
    with Crane(LAYERED, device=device, host=host, copier=copier) as crane:
        assert crane.join()
        crane.submit(plan(1, "up", [1], [2]))
        assert not crane.join()
        copier.release()
        outcomes(crane)
        assert crane.join()


@pytest.mark.law("INV-6")
def test_parts_are_of_the_layouts_pieces_however_they_lie_side_by_side() -> None:
    gpu = SimulatedGpu(eager=0)
    layout = KVLayout.llama(4, 1, 8, block_size=2, order="layer-first")
    # K of all layers in one tensor and V in another: each is one piece as long as four.
    memory = np.zeros((2, 6, 4, 32), np.uint8)
    device = DeviceTier.adopt(layout, list(memory), axis=0, gpu=_within(gpu, memory))
    host = PinnedTier(layout, 6, gpu=gpu)
    filled(host, 1)
    copier = CudaCopier(device, host, layers=4)
    copier.start(host, device, slots(3), slots(2))
    seen = []
    for layer in range(4):
        copier.join(layer=layer)
        gpu.compute(lambda: seen.append(memory[:, 2].reshape(8, 32).copy()))
    gpu.run()
    for layer, bytes_ in enumerate(seen):
        mine = slice(0, 2 * layer + 2)
        assert np.array_equal(bytes_[mine], host.planes[0][3, mine])
    copier.close()
    host.close()
    with pytest.raises(Misuse, match="layers = 3: plane 'kv' has 8 pieces"):
        CudaCopier(device, None, layers=3)


def test_memory_of_another_gpu_is_not_adopted() -> None:
    mine, other = SimulatedGpu(), SimulatedGpu()
    layout = KVLayout.llama(4, 1, 8, block_size=2)
    with other:
        memory = other.allocate(6 * layout.block_bytes)
        tensor = other.view(memory, (6, layout.block_bytes), (layout.block_bytes, 1))
    with pytest.raises(Misuse, match=r"plane 'kv': 0x.* is no memory of GPU None; give"):
        DeviceTier.adopt(layout, tensor, axis=0, gpu=mine)
    DeviceTier.adopt(layout, tensor, axis=0, gpu=other).close()
    longer = np.ndarray((7, layout.block_bytes), np.uint8, np.zeros(10**5, np.uint8))
    with pytest.raises(Misuse, match="no memory of GPU"):
        DeviceTier.adopt(layout, longer, axis=0, gpu=other)


def _within(gpu: SimulatedGpu, memory: Any) -> SimulatedGpu:
    """The GPU, to which this memory belongs."""
    with gpu:
        gpu.register(memory.ctypes.data, memory.nbytes)
    return gpu


def test_a_crane_on_a_gpu_picks_the_copier_for_it() -> None:
    gpu = SimulatedGpu()
    device = DeviceTier(LAYERED, 4, gpu=gpu)
    with Crane(LAYERED, device=device, host=PinnedTier(LAYERED, 4, gpu=gpu)) as crane:
        assert isinstance(crane.copiers["device", "host"], CudaCopier)
    assert not gpu.held
    with pytest.raises(Misuse, match="give it a PinnedTier"):
        Crane(LAYERED, device=DeviceTier(LAYERED, 4, gpu=gpu), host=MemoryTier(LAYERED, 4))
    with pytest.raises(Misuse, match="give it a MemoryTier"):
        Crane(
            LAYERED,
            device=MemoryTier(LAYERED, 4, name="device"),
            host=PinnedTier(LAYERED, 4, gpu=gpu),
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiers_of_one_slot_are_copied_too(layout: str) -> None:
    for sizes, limits in itertools.product([(1, 1), (1, 5), (5, 1)], METHODS):
        _gpu, device, host, copier = opened(
            LAYOUTS[layout], device=sizes[0], host=sizes[1], copy_tuning=limits
        )
        bytes_, mine = filled(device, 1), filled(host, 2)
        copier.start(device, host, slots(0), slots(0))
        copier.reset()
        assert same(host, after(mine, bytes_, [0], [0]))
        mine[0][0] = host.planes[0][0] = 99
        copier.start(host, device, slots(0), slots(0))
        copier.reset()
        assert same(device, after(bytes_, mine, [0], [0]))


def test_bad_input_is_named() -> None:
    gpu, device, host, copier = opened()
    with pytest.raises(Misuse, match="two GPUs"):
        CudaCopier(device, PinnedTier(LAYERED, 4, gpu=SimulatedGpu()))
    with pytest.raises(Misuse, match="depth = 0"):
        CudaCopier(device, host, depth=0)
    with pytest.raises(Misuse, match="layers = 0"):
        CudaCopier(device, host, layers=0)
    with pytest.raises(Misuse, match="layer = 1: KV comes in parts 0 to 0"):
        copier.join(layer=1)
    with pytest.raises(by.Unsupported, match="from host to host"):
        copier.start(host, host, slots(1), slots(2))
    for stream in ("7", -1, True, None):
        with pytest.raises(Misuse, match="stream = "):
            device.stream = stream
    for tier in (DeviceTier, PinnedTier):
        with pytest.raises(Misuse, match="blocks = 0"):
            tier(LAYERED, 0, gpu=gpu)


def test_a_stream_is_an_address_or_what_has_one() -> None:
    _gpu, device, _host, _copier = opened()

    class Torch:
        cuda_stream = 12

    class CuPy:
        ptr = 13

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 13

    class Core:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 14

    class Numba:
        __cuda_stream__ = 0, 15

    for stream, address in ((11, 11), (Torch(), 12), (CuPy(), 13), (Core(), 14), (Numba(), 15)):
        device.stream = stream
        assert device.stream == address
    CuPy.ptr = 2
    for stream in (2, CuPy()):
        with pytest.raises(Misuse, match="the per-thread default stream"):
            device.stream = stream
    assert device.stream == 15


def test_what_does_not_fit_is_said_and_nothing_is_left() -> None:
    gpu = SimulatedGpu(memory=BOTH.block_bytes * 85, pins=LAYERED.block_bytes * 50)
    with pytest.raises(Unavailable, match="device memory"):
        DeviceTier(BOTH, 90, gpu=gpu)
    assert not gpu.held
    with pytest.raises(Unavailable, match="CUDA_ERROR_OUT_OF_MEMORY"):
        PinnedTier(LAYERED, 51, gpu=gpu)
    with pytest.raises(Unavailable, match="ask for fewer"):
        PinnedTier(LAYERED, 2**60, gpu=gpu)
    assert not gpu.held
    device, host = DeviceTier(LAYERED, 10, gpu=gpu), PinnedTier(LAYERED, 5, gpu=gpu)
    held = gpu.held
    with pytest.raises(Unavailable):
        CudaCopier(device, host)
    assert gpu.held == held


def test_ranks_write_replicated_planes_in_turn_and_read_them_all(tmp_path: Path) -> None:
    cranes: list[Crane] = []
    hosts: list[PinnedTier] = []
    devices: list[DeviceTier] = []
    for rank in range(2):
        gpu = SimulatedGpu(rank)
        device = DeviceTier(SHARED, 8, gpu=gpu)
        host = PinnedTier(SHARED, 8, gpu=gpu, shared=tmp_path / "kv")
        filled(device, rank)
        device.planes[1][...] = (devices or [device])[0].planes[1]
        cranes.append(Crane(SHARED, rank=rank, device=device, host=host))
        hosts.append(host)
        devices.append(device)
    down = plan(1, "down", [1, 2, 3], [4, 5, 6])
    for crane in cranes:
        crane.submit(down)
    assert all(outcomes(crane)[0].good == 3 for crane in cranes)
    for device, host in zip(devices, hosts, strict=True):
        for plane, below in zip(device.planes, host.planes, strict=True):
            assert np.array_equal(plane[[1, 2, 3]], below[[4, 5, 6]])
    up = plan(2, "up", [4, 5, 6], [7, 0, 5])
    for crane in cranes:
        crane.submit(up)
    assert all(outcomes(crane)[0].good == 3 for crane in cranes)
    for device in devices:
        for plane in device.planes:
            assert np.array_equal(plane[[7, 0, 5]], plane[[1, 2, 3]])


def test_an_error_of_the_driver_names_the_call_and_the_word() -> None:
    error = GpuError("CUDA_ERROR_UNKNOWN", "cuEventQuery", lost=True)
    assert (str(error), error.name, error.lost) == (
        "cuEventQuery: CUDA_ERROR_UNKNOWN",
        "CUDA_ERROR_UNKNOWN",
        True,
    )
