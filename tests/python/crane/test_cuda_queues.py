"""The copier for GPUs, and what a GPU makes it wait for: engines, queues, compute."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import copying
from blockyard import Cause, KVLayout, Misuse, Unavailable
from blockyard.crane.copiers import Landed, Receipt
from blockyard.crane.copiers.cuda_copier import CudaCopier
from blockyard.crane.crane import Crane
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.testing.simulated_gpu import SimulatedGpu
from copying import opened
from cranes import LAYOUTS, after, filled, plan, same, slots
from yard import there

PAGES, LAYERS = LAYOUTS["page-first"], LAYOUTS["layer-first"]
BATCHES = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=0, most_runs=1 << 30)
RING = CopyTuning(kernel_below=0, piece_bytes=1 << 40)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    copying.closed()


def scattered(blocks: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).permutation(blocks).astype(np.uint32)


def ended(gpu: SimulatedGpu, receipt: Receipt) -> Landed:
    """How a copy ends, when the GPU has run as often as it takes."""
    while (landed := receipt.poll()) is None:
        gpu.run()
    return landed


def longest(gpu: SimulatedGpu) -> list[int]:
    """Will have the runs of every batch."""
    copy, seen = gpu.copy, []

    def copied(to: Any, *what: Any) -> None:
        seen.append(len(to))
        copy(to, *what)

    vars(gpu)["copy"] = copied
    return seen


@pytest.mark.parametrize(
    ("layout", "limits"), [(PAGES, BATCHES), (LAYERS, BATCHES), (LAYERS, RING)]
)
def test_no_call_is_longer_than_a_thousand_runs_and_none_blocks(
    layout: KVLayout, limits: CopyTuning
) -> None:
    gpu, device, host, copier = opened(layout, device=4000, host=4000, copy_tuning=limits, eager=0)
    bytes_, mine, order = filled(device, 1), filled(host, 2), scattered(4000)
    lengths = longest(gpu)
    receipt = there(copier.start(device, host, order, order[::-1]))
    while (landed := receipt.poll()) is None:
        gpu.run(500)
    assert landed == Landed(4000)
    assert (max(lengths) <= 1024, gpu.blocked) == (True, 0)
    assert same(host, after(mine, bytes_, order.tolist(), order[::-1].tolist()))


def test_a_driver_whose_queue_is_full_blocks_its_caller() -> None:
    """What the simulated GPU shows: so it was with all runs in one call."""
    limits = replace(BATCHES, batch_runs=1 << 20, queued_runs=1 << 20)
    gpu, device, host, copier = opened(PAGES, device=4000, host=4000, copy_tuning=limits, eager=0)
    copier.start(device, host, scattered(4000), scattered(4000, 2))
    assert gpu.blocked > 0


@pytest.mark.parametrize("layout", [PAGES, LAYERS])
def test_a_switch_does_without_the_call_for_many(layout: KVLayout) -> None:
    limits = CopyTuning(kernel_below=0, whole_below=0, piece_bytes=0, batch_runs=0)
    gpu, device, host, copier = opened(layout, device=300, host=300, copy_tuning=limits)
    bytes_, mine, order = filled(device, 1), filled(host, 2), scattered(300)
    receipt = copier.start(device, host, order, order[::-1])
    copier.reset()
    assert receipt is not None
    assert receipt.poll() == Landed(300)
    assert same(host, after(mine, bytes_, order.tolist(), order[::-1].tolist()))
    assert gpu.calls["copy"] == gpu.calls["copy_blocks"] == 0


@pytest.mark.parametrize("limits", [RING, CopyTuning(kernel_below=1 << 40)])
def test_a_flight_down_does_not_wait_behind_all_that_comes_up(limits: CopyTuning) -> None:
    """Its tables of slots go by a kernel: the engine that brings blocks up has others to bring."""
    gpu, device, host, copier = opened(LAYERS, device=200, host=200, copy_tuning=limits, eager=0)
    above, below = DeviceTier(LAYERS, 1000, gpu=gpu), PinnedTier(LAYERS, 1000, gpu=gpu)
    other = CudaCopier(above, below, copy_tuning=replace(RING, rows_bytes=0))
    copying.OPENED.append((gpu, other, above, below))
    up = other.start(below, above, scattered(1000), scattered(1000, 2))
    down = copier.start(device, host, scattered(100), scattered(100, 2))
    assert up is not None
    assert down is not None
    while down.poll() is None:
        assert gpu.run(1)
    assert down.poll() == Landed(100)
    assert up.poll() is None
    gpu.run()


def test_a_block_in_one_piece_waits_for_no_matrix_product() -> None:
    """640 KiB, as of 16 tokens of a part of a large model: a copy engine carries it."""
    layout = KVLayout.llama(layers=40, kv_heads=1, head_dim=256, block_size=16)
    gpu, device, host, copier = opened(layout, device=4, host=4, eager=0)
    assert layout.block_bytes == 640 << 10
    with gpu:
        compute = gpu.stream()
    gpu.product(10_000, compute)
    gpu.run(1)
    down, up = (
        copier.start(device, host, slots(1), slots(2)),
        copier.start(host, device, slots(3), slots(0)),
    )
    assert down is not None
    assert up is not None
    while down.poll() is None or up.poll() is None:
        gpu.run(1)
    assert gpu._streams[compute]
    # A kernel finds no room before the product has ended.
    across = there(copier.start(device, device, slots(1), slots(2)))
    while gpu._streams[compute]:
        assert across.poll() is None
        gpu.run(1)
    gpu.run()
    assert across.poll() == Landed(1)
    with gpu:
        gpu.discard(compute, [])


def test_what_is_not_queued_yet_is_minded_by_those_that_go_the_other_way() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    bytes_, mine, order = filled(device, 1), filled(host, 2), scattered(3000)
    receipt = there(copier.start(device, host, order, order[::-1]))
    # The first of them is queued: what meets it comes up behind it. The last is not queued yet.
    first, last, landing = order[:1], order[-1:], order[-1:]
    assert copier.start(host, device, landing, first) is not None
    assert copier.start(host, device, landing, last) is None
    # Nor is anything taken that goes the same way.
    assert copier.start(device, host, slots(5), slots(5)) is None
    assert copier.join()
    ended(gpu, receipt)
    assert copier.start(host, device, landing, last) is not None
    gpu.run()
    assert same(host, after(mine, bytes_, order.tolist(), order[::-1].tolist()))
    for slot in (first, last):
        assert np.array_equal(device.planes[0][slot], host.planes[0][landing])


def test_an_engine_is_told_that_some_of_what_comes_up_is_not_queued_yet() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    crane = Crane(PAGES, device=device, host=host, copier=copier)
    crane.submit(plan(1, "up", scattered(3000).tolist(), scattered(3000, 2).tolist()))
    assert not crane.join()
    for _ in range(8):
        gpu.run()
        crane.poll()
    assert crane.join()


@pytest.mark.parametrize("way", ["reset", "close", "lost"])
def test_what_was_not_queued_yet_has_an_end_as_all_has(way: str) -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    bytes_ = filled(device, 1)
    order = scattered(3000)
    receipt = there(copier.start(device, host, order, order))
    assert receipt.poll() is None
    if way == "lost":
        gpu.lose("CUDA_ERROR_LAUNCH_FAILED")
        assert receipt.poll() == Landed(0, Cause.LOST)
        return
    getattr(copier, way)()
    assert receipt.poll() == Landed(1024, Cause.FAILED)
    if way == "reset":
        assert np.array_equal(host.planes[0][order[:1024]], bytes_[0][order[:1024]])


def test_a_part_that_the_driver_refuses_ends_the_good_prefix() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    # The first part of 512 blocks takes six calls, as batches grow, and each other one takes one.
    gpu.fail("copy", after=7)
    receipt = there(copier.start(device, host, scattered(3000), scattered(3000, 2)))
    assert ended(gpu, receipt) == Landed(1024, Cause.FAILED)


def test_what_is_not_queued_yet_waits_for_the_end_of_a_capture() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    receipt = there(copier.start(device, host, scattered(3000), scattered(3000, 2)))
    with gpu.capture():
        for _ in range(4):
            gpu.run()
            assert receipt.poll() is None
    assert ended(gpu, receipt) == Landed(3000)


def test_a_flight_of_more_calls_than_a_queue_holds_is_cut_too() -> None:
    """A ring of one block takes two calls for each, and is filled a thousand times."""
    limits = replace(RING, ring_bytes=1)
    gpu, device, host, copier = opened(LAYERS, device=1000, host=1000, copy_tuning=limits, eager=0)
    bytes_, mine, order = filled(device, 1), filled(host, 2), scattered(1000)
    before = gpu.calls.total()
    receipt = there(copier.start(device, host, order, order[::-1]))
    assert gpu.calls.total() - before < 600
    assert ended(gpu, receipt) == Landed(1000)
    assert same(host, after(mine, bytes_, order.tolist(), order[::-1].tolist()))


def test_a_step_of_a_crane_enters_the_device_once_and_asks_once_for_a_capture() -> None:
    gpu, device, host, copier = opened(PAGES, eager=0)
    crane = Crane(PAGES, device=device, host=host, copier=copier)
    before = gpu.calls.copy()
    crane.submit([plan(n, "down" if n % 2 else "up", [n], [n]) for n in range(6)])
    cost = gpu.calls - before
    assert (cost["enter"], cost["capturing"]) == (1, 1)
    before = gpu.calls.copy()
    assert crane.poll() == []
    assert (gpu.calls - before)["enter"] == 1
    gpu.run()
    assert len(crane.poll()) == 6
    before = gpu.calls.copy()
    assert crane.poll() == []
    assert gpu.calls == before
    # What a turn has asked is forgotten at its end.
    with gpu.capture():
        crane.submit(plan(9, "down", [1], [2]))
        with pytest.raises(Misuse, match="captured"):
            crane.join()
    assert crane.poll() == []
    gpu.run()
    (outcome,) = crane.poll()
    assert outcome.cause is None


@pytest.mark.parametrize("call", ["enter", "capturing", "record"])
def test_a_step_that_finds_the_device_lost_ends_all_as_lost(call: str) -> None:
    gpu, device, host, copier = opened(PAGES, eager=0)
    crane = Crane(PAGES, device=device, host=host, copier=copier)
    crane.submit(plan(1, "down", [1], [2]))
    gpu.fail(call, "CUDA_ERROR_LAUNCH_FAILED", lost=True)
    crane.submit(plan(2, "down", [3], [4]))
    first, second = sorted(crane.poll())
    # The second may not have begun.
    assert first.cause is Cause.LOST
    assert second.cause in {Cause.LOST, Cause.FAILED}
    assert crane.in_flight == 0


def test_a_block_that_is_read_twice_is_not_overwritten_before_the_last_part_has_read_it() -> None:
    limits = replace(BATCHES, queued_runs=4)
    gpu, device, host, copier = opened(PAGES, device=40, host=40, copy_tuning=limits, eager=0)
    bytes_, mine = filled(device, 1), filled(host, 2)
    sources = slots(3, 1, 2, 0, 5, 6, 3, 7)
    receipt = there(copier.start(device, host, sources, slots(*range(8))))
    # The last part, which is not queued yet, reads slot 3 once more.
    assert copier.start(host, device, slots(30), slots(3)) is None
    ended(gpu, receipt)
    assert same(host, after(mine, bytes_, sources.tolist(), range(8)))


def test_after_a_reset_with_parts_to_come_all_is_as_before() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    copier.start(device, host, scattered(3000), scattered(3000, 2))
    copier.reset()
    for slot in (7, 900, 2000):
        # Each way one, in flight beside one another, where dropped parts would have been.
        down = copier.start(device, host, slots(slot), slots(slot))
        receipts = [down, copier.start(host, device, scattered(3000, 2)[-1:], slots(slot + 1))]
        gpu.run()
        assert [receipt and receipt.poll() for receipt in receipts] == [Landed(1)] * 2


def test_a_device_that_is_lost_between_two_parts_leaves_no_receipt_without_an_end() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    first = copier.start(device, host, scattered(3000), scattered(3000, 2))
    gpu.fail("ended", "CUDA_ERROR_LAUNCH_FAILED", lost=True)
    second = copier.start(host, device, slots(1), slots(2))
    assert first is not None
    assert first.poll() == Landed(0, Cause.LOST)
    assert second is None or second.poll() == Landed(0, Cause.LOST)
    with pytest.raises(Unavailable, match="the device is lost"):
        copier.start(host, device, slots(1), slots(2))


def test_an_error_before_a_part_is_queued_fails_that_flight_and_no_other() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    first = copier.start(device, host, scattered(3000), scattered(3000, 2))
    other = copier.start(host, device, slots(7), slots(2500))
    assert first is not None
    gpu.run()
    gpu.fail("capturing", "CUDA_ERROR_INVALID_HANDLE")
    landed = None
    while landed is None:
        landed = first.poll()
        gpu.run()
    assert landed == Landed(1024, Cause.FAILED)
    assert other is None or other.poll() == Landed(1)
    again = copier.start(device, host, slots(1), slots(1))
    gpu.run()
    assert again is not None
    assert again.poll() == Landed(1)


def test_where_memory_is_out_for_a_part_that_flight_has_failed_and_no_poll_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES, eager=0)
    crane = Crane(PAGES, device=device, host=host, copier=copier)
    crane.submit(plan(1, "down", scattered(3000).tolist(), scattered(3000, 2).tolist()))

    def take(*_: Any) -> Any:
        raise MemoryError("no room for a flight")

    monkeypatch.setattr(copier._by_pair["device", "host"], "take", take)
    gpu.run()
    said = [*crane.poll(), *crane.poll()]
    assert [(one.good, one.cause) for one in said] == [(1024, Cause.FAILED)]
    assert crane.in_flight == 0


def test_a_receipt_that_is_never_polled_holds_up_no_other() -> None:
    gpu, device, host, copier = opened(PAGES, device=3000, host=3000, copy_tuning=BATCHES)
    order = scattered(3000)
    copier.start(device, host, order, order)
    taken = 0
    for _ in range(50):
        gpu.run()
        taken += copier.start(host, device, slots(7), order[-1:]) is not None
    assert taken


def test_scattered_blocks_in_one_piece_are_left_to_engines_whatever_a_ring_is_good_for() -> None:
    layout = KVLayout.llama(layers=40, kv_heads=1, head_dim=256, block_size=16)
    limits = CopyTuning(piece_bytes=1 << 20)
    gpu, device, host, copier = opened(layout, device=12, host=12, copy_tuning=limits, eager=0)
    copier.start(device, host, slots(1, 5, 9), slots(3, 2, 8))
    assert (gpu.calls["copy"], gpu.calls["move"]) == (1, 0)
    gpu.run()
