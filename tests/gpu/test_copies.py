"""What every tier and copier must do: bytes, order, failures."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard import KVLayout, Misuse, Unsupported
from blockyard.crane.copiers import Landed
from blockyard.crane.copiers.cuda import CudaCopier
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.layout import Plane
from cranes import LAYOUTS
from rigs import KERNEL, METHODS, Pair, Rig, landed, slots

DOWN, UP, ACROSS = ("device", "host"), ("host", "device"), ("device", "device")
LAYERED = LAYOUTS["layer-first"]
BOTH = LAYOUTS["fp8 with scales, layer-first"]


@pytest.mark.law("4.4-28")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_come_exactly_and_nothing_else_changes(rig: Rig, layout: str, method: str) -> None:
    pair = rig.pair(LAYOUTS[layout], 12, 9, copy_tuning=METHODS[method])
    for way, sources, destinations in (
        (DOWN, [3, 4, 11, 0], [8, 2, 3, 5]),
        (UP, [8, 0], [1, 10]),
        (ACROSS, [1, 2, 3], [9, 7, 8]),
        (DOWN, [2, 3, 4, 5], [1, 2, 3, 4]),
        (UP, [5, 6, 7], [0, 1, 2]),
        (DOWN, [6], [6]),
        (UP, [], []),
        (DOWN, list(range(9)), list(range(9))),
        (UP, [8, 7, 6, 5, 4, 3, 2, 1, 0], list(range(9))),
    ):
        pair.copy(way, sources, destinations)
        pair.check()


@pytest.mark.parametrize("bytes_", [16, 24, 20, 7, 1, 2048, 65537])
def test_every_width_of_a_piece_is_copied_whole(gpu: Rig, bytes_: int) -> None:
    layout = KVLayout((Plane("some", 3, bytes_), Plane("one", 1, bytes_)), dtype="uint8")
    pair = gpu.pair(layout, 6, 6, copy_tuning=KERNEL)
    pair.copy(DOWN, [5, 0, 2], [1, 4, 0])
    pair.copy(UP, [1, 4], [3, 5])
    pair.check()


@pytest.mark.law("4.4-28")
@pytest.mark.parametrize("method", METHODS)
def test_thousands_of_scattered_blocks_come_exactly(rig: Rig, method: str) -> None:
    layout = KVLayout.llama(2, 1, 4, block_size=2, order="layer-first")
    pair = rig.pair(layout, 5000, 4000, copy_tuning=METHODS[method])
    chance = np.random.default_rng(7)
    for way, blocks in ((DOWN, 4000), (UP, 3000), (DOWN, 2500)):
        sizes = {"device": 5000, "host": 4000}
        sources, destinations = (chance.permutation(sizes[name])[:blocks] for name in way)
        pair.copy(way, sources.tolist(), destinations.tolist())
    pair.check()


@pytest.mark.law("4.4-28")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", ["page-first", "fp8 with scales, layer-first"])
def test_copies_that_meet_in_a_slot_come_in_the_order_of_their_start(
    gpu: Rig, layout: str, method: str
) -> None:
    pair = gpu.pair(LAYOUTS[layout], 4, 4, copy_tuning=METHODS[method])
    ways = itertools.cycle([(DOWN, [0, 1], [2, 3]), (UP, [2, 3], [1, 0]), (UP, [3, 1], [2, 3])])
    receipts = [pair.start(*next(ways)) for _ in range(24)]
    assert [landed(receipt).good for receipt in receipts] == [2] * 24
    pair.check()


@pytest.mark.law("4.4-28")
def test_a_copy_is_seen_under_way_until_it_has_ended(gpu: Rig) -> None:
    pair = gpu.pair(KVLayout.preset("llama-3-8b"), 16, 16)
    gpu.hold()
    receipt = pair.start(DOWN, range(16), range(16))
    assert receipt is not None
    assert receipt.poll() is None
    gpu.release()
    assert landed(receipt) == Landed(16)
    pair.check()


def given(gpu: Rig, pair: Pair, work: Callable[[int], object]) -> None:
    """The engine has done this before, so that nothing of it is loaded when it does it again."""
    for value in (75, 76):
        gpu.compute(functools.partial(work, value))
    gpu.settle()
    pair.wanted["device"] = gpu.held(pair.device)


@pytest.mark.law("INV-6")
@pytest.mark.parametrize("method", METHODS)
def test_what_the_engine_still_writes_is_copied_down_when_it_is_there(
    gpu: Rig, method: str
) -> None:
    pair = gpu.pair(BOTH, copy_tuning=METHODS[method])

    def write(value: int) -> None:
        for plane in pair.device.planes:
            plane[3] = value

    given(gpu, pair, write)
    gpu.hold()
    gpu.compute(functools.partial(write, 77))
    for plane in pair.wanted["device"]:
        plane[3] = 77
    receipt = pair.start(DOWN, [2, 3], [0, 1])
    assert receipt is not None
    assert receipt.poll() is None
    gpu.release()
    landed(receipt)
    pair.check()


@pytest.mark.law("INV-6")
def test_what_the_engine_still_reads_is_not_overwritten_by_what_comes_up(gpu: Rig) -> None:
    pair = gpu.pair(BOTH)

    def read(slot: int) -> None:
        for plane in pair.device.planes:
            plane[slot % 5 + 5] = plane[3]

    given(gpu, pair, read)
    gpu.hold()
    gpu.compute(functools.partial(read, 77))
    pair.moved(ACROSS, [3], [7])
    receipt = pair.start(UP, [0], [3])
    gpu.release()
    landed(receipt)
    pair.check()


@pytest.mark.parametrize("layers", [1, 3])
def test_after_join_the_engine_reads_what_comes_up(gpu: Rig, layers: int) -> None:
    pair = gpu.pair(LAYERED, layers=layers)
    copier: Any = pair.copier
    receipts = [pair.start(UP, [1, 2, 3], [7, 8, 9]), pair.start(UP, [4], [1])]
    copier.join()
    gpu.compute(lambda: [plane.__setitem__(0, plane[1]) for plane in pair.device.planes])
    pair.moved(ACROSS, [1], [0])
    for receipt in receipts:
        landed(receipt)
    gpu.settle()
    pair.check()


@pytest.mark.law("4.4-28")
def test_after_join_of_a_layer_the_engine_reads_that_layer(gpu: Rig) -> None:
    pair = gpu.pair(LAYERED, layers=3)
    copier: Any = pair.copier
    receipt = pair.start(UP, [1, 2, 3], [7, 8, 9])
    for layer in range(3):
        copier.join(layer=layer)
        mine = slice(2 * layer, 2 * layer + 2)
        (plane,) = pair.device.planes
        gpu.compute(
            lambda plane=plane, mine=mine: plane.__setitem__((0, mine), plane[8, mine])  # type: ignore[misc]
        )
    pair.moved(ACROSS, [8], [0])
    landed(receipt)
    gpu.settle()
    pair.check()


@pytest.mark.law("INV-6")
def test_while_a_graph_is_captured_copies_go_on_and_none_begins(gpu: Rig) -> None:
    pair = gpu.pair(LAYERED)
    copier: Any = pair.copier

    def step(slot: int = 1) -> None:
        for plane in pair.device.planes:
            plane[0] = plane[slot]

    given(gpu, pair, lambda _value: step())
    first = pair.start(DOWN, [0], [0])
    second = pair.start(UP, [1], [2])
    with gpu.capture(step) as launch:
        assert pair.start(UP, [1], [1]) is None
        with pytest.raises(Misuse, match="join while a graph is captured"):
            copier.join()
        assert landed(first) == landed(second) == Landed(1)
        assert pair.start(UP, [1], [1]) is None
    # A graph does not know what comes up while it is made: its launch waits for that all the same.
    third = pair.start(UP, [5], [1])
    copier.join()
    launch()
    pair.moved(ACROSS, [1], [0])
    landed(third)
    gpu.settle()
    pair.check()


def test_a_full_queue_takes_nothing_until_something_has_ended(gpu: Rig) -> None:
    pair = gpu.pair(LAYERED, depth=2)
    gpu.hold()
    receipts = [pair.start(DOWN, [slot], [slot]) for slot in range(3)]
    assert receipts[2] is None
    assert pair.start(UP, [8], [8]) is not None
    gpu.release()
    landed(receipts[0])
    landed(receipts[1])
    pair.copy(DOWN, [2], [2])
    gpu.settle()
    pair.check()


@pytest.mark.law("INV-6")
def test_tables_of_slots_are_used_again_only_when_they_were_read(gpu: Rig) -> None:
    pair = gpu.pair(LAYERED, 80, 80, copy_tuning=KERNEL)
    chance = np.random.default_rng(3)
    waiting: list[Any] = []
    for _ in range(30):
        blocks = int(chance.integers(1, 81))
        sources, destinations = (chance.permutation(80)[:blocks].tolist() for _ in range(2))
        way = DOWN if chance.random() < 0.5 else UP
        receipt = pair.start(way, sources, destinations)
        while receipt is None:
            landed(waiting.pop(0))
            receipt = pair.start(way, sources, destinations)
        waiting.append(receipt)
    for receipt in waiting:
        landed(receipt)
    pair.check()


def test_close_waits_for_what_is_in_flight_and_says_how_it_ended(gpu: Rig) -> None:
    pair = gpu.pair(LAYERED)
    receipts = [pair.start(DOWN, [1, 2], [3, 4]), pair.start(UP, [0], [5])]
    pair.copier.close()
    assert [receipt.poll() for receipt in receipts if receipt] == [Landed(2), Landed(1)]
    pair.check()
    with pytest.raises(Misuse, match="closed"):
        pair.start(DOWN, [0], [0])


def test_reset_waits_for_what_is_in_flight_and_goes_on_after_it(gpu: Rig) -> None:
    pair = gpu.pair(LAYERED)
    pair.start(DOWN, [1, 2], [3, 4])
    pair.copier.reset()
    pair.check()
    pair.copy(UP, [3], [3])
    pair.check()


def test_a_tier_of_the_engines_tensors_is_copied_as_its_own(gpu: Rig) -> None:
    maker = gpu.gpu
    assert maker is not None
    with maker:
        memory = [maker.allocate(2 * 10 * 128) for _ in range(3)]
        tensors = [maker.view(one, (2, 10, 128), (1280, 128, 1)) for one in memory]
    device = DeviceTier.adopt(LAYERED, tensors, blocks=10, gpu=maker)
    host = PinnedTier(LAYERED, 10, gpu=maker)
    chance = np.random.default_rng(0)
    for tensor in tensors:
        fresh = chance.integers(0, 256, (2, 10, 128), np.uint8)
        write = getattr(tensor, "set", functools.partial(np.copyto, tensor))
        gpu.compute(functools.partial(write, fresh))
    gpu.settle()
    copier = CudaCopier(device, host)
    landed(copier.start(device, host, slots(3, 9), slots(1, 0)))
    (plane,) = host.planes
    for layer, tensor in enumerate(tensors):
        bytes_ = tensor.get() if hasattr(tensor, "get") else tensor
        for slot, block in ((1, 3), (0, 9)):
            assert np.array_equal(plane[slot, 2 * layer : 2 * layer + 2], bytes_[:, block])
    with pytest.raises(Unsupported, match="adopted"):
        _ = device.planes
    copier.close()
    host.close()
    device.close()
    del tensors
    for one in memory:
        one.free()


@pytest.mark.law("INV-6")
def test_a_copy_past_its_deadline_is_quarantined_and_comes_back_when_it_has_ended(
    gpu: Rig,
) -> None:
    layout = KVLayout.llama(2, 2, 8, block_size=4, order="layer-first")
    pair = gpu.pair(layout, 8, 8)
    cache = by.local(layout, memory=(pair.device, pair.host), copier=pair.copier, deadline=2)
    gpu.hold()
    lease = cache.begin(range(16))
    cache.seal(lease, 16)
    cache.finish(lease)
    cache.demote(4)
    for _ in range(4):
        cache.step()
    assert cache.stats()["flights_unknown"] == 1
    assert cache.stats()["host_quarantined"] == 4
    cache.audit()
    gpu.release()
    gpu.settle()
    cache.step()
    assert cache.stats()["host_quarantined"] == 0
    cache.audit()


def test_copies_of_blocks_in_one_piece_come_beside_a_gpu_that_has_no_room_for_kernels(
    gpu: Rig,
) -> None:
    pair = gpu.pair(KVLayout.preset("llama-3-8b"), 8, 8)
    assert gpu.gpu is not None
    with gpu.gpu:
        stream = gpu.gpu.stream()
        gpu.gpu.occupy(2_000_000, stream)
    pair.copy(DOWN, [1, 5, 3], [2, 7, 4])
    pair.copy(UP, [2], [6])
    with gpu.gpu:
        gpu.gpu.synchronize(stream)
        gpu.gpu.discard(stream, [])
    pair.check()
