"""Host memory of an engine as a tier: copies of blocks reach the engine's own arrays."""

import gc
import mmap
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import blockyard as by
from blockyard._core import Misuse
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pieces import Bytes, Pieces, aligned
from blockyard.shared.layout import KVLayout, Order, Plane
from lent import Array, Capsules, Cuda, OfDevice
from yard import begin, text

LAYERS, SIZE, HEADS, DIM = 3, 4, 2, 8
PREFIXES, LENGTH = 6, 8 * SIZE
FAR_MORE = 2 * 8 * PREFIXES
BLOCKS = 2 * 8 + 5


def llama(order: Order = "layer-first", **other: Any) -> KVLayout:
    return KVLayout.llama(LAYERS, HEADS, DIM, block_size=SIZE, order=order, **other)


def lists(count: int, *shape: int, dtype: Any = np.float16) -> list[Array]:
    """Arrays that lie at uneven distances, so that no one view has all of them."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    starts = [(nbytes + 64 * number) * number for number in range(count)]
    memory = np.zeros(starts[-1] + nbytes, np.uint8)
    return [memory[start : start + nbytes].view(dtype).reshape(shape) for start in starts]


class Form(NamedTuple):
    layout: KVLayout
    arrays: dict[str, list[Array]]
    """By plane, each with blocks on the axis of that plane."""
    axes: dict[str, int]
    whole: bool
    """Whether each plane is one array."""


def kv(layout: KVLayout, arrays: list[Array], axis: int, *, whole: bool = False) -> Form:
    (plane,) = layout.planes
    return Form(layout, {plane.name: arrays}, {plane.name: axis}, whole)


FORMS: dict[str, Callable[[int], Form]] = {
    "page-first, in one array": lambda blocks: kv(
        llama("page-first"), lists(1, blocks, LAYERS, 2, SIZE, HEADS, DIM), 0, whole=True
    ),
    "layer-first, in one array": lambda blocks: kv(
        llama(), lists(1, LAYERS, 2, blocks, SIZE, HEADS, DIM), 2, whole=True
    ),
    "layer-first, an array per layer": lambda blocks: kv(
        llama(), lists(LAYERS, 2, blocks, SIZE, HEADS, DIM), 1
    ),
    "layer-first, an array per K and per V": lambda blocks: kv(
        llama(), lists(2 * LAYERS, blocks, SIZE, HEADS, DIM), 0
    ),
    "a latent per layer": lambda blocks: kv(
        KVLayout.mla(LAYERS, 12, 5, block_size=SIZE, order="layer-first"),
        lists(LAYERS, blocks, SIZE, 17),
        0,
    ),
    "values and scales": lambda blocks: Form(
        llama(dtype="int8", scale_dtype="float32"),
        {
            "kv": lists(LAYERS, 2, blocks, SIZE, HEADS, DIM, dtype=np.int8),
            "scales": lists(LAYERS, blocks, 2, SIZE, HEADS, dtype=np.float32),
        },
        {"kv": 1, "scales": 0},
        whole=False,
    ),
}


def buffer(array: Any) -> object:
    return memoryview(array)


SPEAK: dict[str, Callable[[Array], Any]] = {
    "NumPy": lambda array: array,
    "buffers": buffer,
    "DLPack of the CPU": lambda array: Capsules(array, kind=1),
    "DLPack of pinned memory": lambda array: Capsules(array, version=(1, 0), kind=3),
    "uint8 views with shapes": lambda array: (
        Capsules(array.view(np.uint8), kind=1),
        array.shape,
    ),
}


def adopted(form: Form, blocks: int, name: str = "device", speech: str = "NumPy") -> MemoryTier:
    given = {plane: [SPEAK[speech](one) for one in own] for plane, own in form.arrays.items()}
    return MemoryTier.adopt(form.layout, given, blocks=blocks, axis=form.axes, name=name)


def block_of(form: Form, slot: int) -> bytes:
    """All bytes of a block, read from the engine's arrays alone."""
    return b"".join(
        np.take(array, slot, form.axes[plane]).tobytes()
        for plane, own in form.arrays.items()
        for array in own
    )


def fill(form: Form, slot: int, seed: int) -> bytes:
    """Writes noise as an engine does, into its arrays; returns the bytes of the block."""
    noise = np.random.default_rng(seed)
    for plane, own in form.arrays.items():
        for array in own:
            block = array.view(np.uint8)[(slice(None),) * form.axes[plane] + (slot,)]
            block[...] = noise.integers(0, 256, block.shape, np.uint8)
    return block_of(form, slot)


def settle(cache: Any) -> None:
    cache.step()
    while cache.crane.in_flight:  # the watchdog ends it, if ever
        time.sleep(1e-4)
        cache.step()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("speech", SPEAK)
@pytest.mark.parametrize("name", FORMS)
def test_blocks_leave_the_engines_arrays_and_come_back_byte_for_byte(
    name: str, speech: str, workers: int
) -> None:
    form = FORMS[name](BLOCKS)
    device = adopted(form, BLOCKS, speech=speech)
    assert all(isinstance(plane, Pieces) != form.whole for plane in device.planes)
    host = MemoryTier(form.layout, FAR_MORE)
    copier = ThreadCopier(workers=workers)
    with by.local(form.layout, memory=(device, host), copier=copier, ahead=8) as cache:
        wanted = {}
        for prefix in range(PREFIXES):
            lease = begin(cache, text(prefix, LENGTH + 1))
            slots = cache.block_tables(lease)[0][:8].tolist()
            wanted[prefix] = [fill(form, slot, 1000 * prefix + at) for at, slot in enumerate(slots)]
            cache.seal(lease, LENGTH)
            cache.finish(lease)
            settle(cache)
        moved = cache.stats()["crane_blocks"]
        assert moved > 8 * (PREFIXES - 2)
        for prefix in range(PREFIXES):
            lease = begin(cache, text(prefix, LENGTH + 1))
            while lease.state == "loading":
                settle(cache)
            assert lease.cached == LENGTH
            slots = cache.block_tables(lease)[0][:8].tolist()
            assert [block_of(form, slot) for slot in slots] == wanted[prefix]
            cache.finish(lease)
            settle(cache)
        assert cache.stats()["crane_blocks"] > moved
        assert cache.stats()["crane_failed"] == 0
        assert cache.audit() is None


@pytest.mark.parametrize("above", FORMS)
def test_both_tiers_may_be_adopted_and_cut_in_different_places(above: str) -> None:
    form = FORMS[above](7)
    below = FORMS[above](9)
    if above == "layer-first, an array per layer":
        below = FORMS["layer-first, an array per K and per V"](9)
    device, host = adopted(form, 7), adopted(below, 9, "host")
    for slot in range(7):
        fill(form, slot, slot)
    copier = ThreadCopier(workers=0)
    sources, destinations = (np.array(slots, np.uint32) for slots in ([5, 1, 2], [0, 8, 4]))
    untouched = block_of(below, 1)
    receipt = copier.start(device, host, sources, destinations)
    assert receipt is not None
    assert receipt.poll() == (3, None)
    for source, destination in zip(sources, destinations, strict=True):
        assert block_of(below, destination) == block_of(form, source)
    assert block_of(below, 1) == untouched
    copier.close()


def scattered(*pieces: int, blocks: int = 5, piece_bytes: int = 3) -> tuple[Pieces, list[Bytes]]:
    arrays = [np.zeros((blocks, count, piece_bytes), np.uint8) for count in pieces]
    return Pieces(arrays), arrays


def test_pieces_are_read_and_written_by_slots_as_one_array_is() -> None:
    plane, arrays = scattered(2, 1, 3)
    whole = np.random.default_rng(1).integers(0, 256, (5, 6, 3), np.uint8)
    assert plane.shape == whole.shape
    plane[...] = whole
    assert np.array_equal(np.concatenate(arrays, 1), whole)
    mask = np.array([True, False, True, False, False])
    for slots in (3, -1, slice(1, 4), [4, 0], np.array([2, 2], np.uint32), mask, ..., slice(0)):
        assert np.array_equal(plane[slots], whole[slots])
        plane[slots] = ~plane[slots]
        whole[slots] = ~whole[slots]
        assert np.array_equal(np.array(plane), whole)
    for value in (7, np.arange(3, dtype=np.uint8), np.arange(18, dtype=np.uint8).reshape(1, 6, 3)):
        plane[1:3] = value
        whole[1:3] = value
        assert np.array_equal(plane[...], whole)
    for key in ((0, 1), (slice(None), 0)):
        with pytest.raises(IndexError, match="index them by slots alone"):
            plane[key]
    with pytest.raises(ValueError, match="could not be broadcast"):
        plane[0] = np.zeros((5, 3), np.uint8)
    with pytest.raises(ValueError, match="cannot be one without a copy"):
        np.array(plane, copy=False)


def test_aligned_arrays_have_the_same_pieces_and_are_views() -> None:
    one, two = scattered(2, 1, 3)[0], scattered(1, 1, 4)[0]
    plain = np.zeros((5, 6, 3), np.uint8)
    for source, destination, lengths in (
        (one, two, [1, 1, 1, 3]),
        (one, plain, [2, 1, 3]),
        (plain, two, [1, 1, 4]),
        (one, one, [2, 1, 3]),
    ):
        pairs = list(aligned(source, destination))
        assert [from_.shape[1] for from_, _ in pairs] == lengths
        assert [to.shape[1] for _, to in pairs] == lengths
        for number, (_, to) in enumerate(pairs):
            to[...] = number + 1
        marks = np.repeat(np.arange(len(lengths)) + 1, lengths)
        assert np.array_equal(np.array(destination)[3, :, 1], marks)
    ((from_, to),) = aligned(plain, plain)
    assert from_ is to is plain


@pytest.mark.parametrize("speech", SPEAK)
@pytest.mark.parametrize("name", ["page-first, in one array", "layer-first, an array per layer"])
def test_the_arrays_live_as_long_as_the_tier_or_a_view_of_it(name: str, speech: str) -> None:
    form = FORMS[name](5)
    gone = [weakref.ref(array.base) for own in form.arrays.values() for array in own]
    tier = adopted(form, 5, speech=speech)
    assert tier.nbytes == 5 * form.layout.block_bytes
    del form
    gc.collect()
    assert all(one() is not None for one in gone)
    (plane,) = tier.planes
    plane[...] = 9
    tier.close()
    assert tier.planes == ()
    del tier
    gc.collect()
    assert all(one() is not None for one in gone)
    assert np.all(np.array(plane) == 9)
    del plane
    gc.collect()
    assert all(one() is None for one in gone)


def test_a_buffer_of_bytes_is_one_tensor_and_no_sequence() -> None:
    layout = KVLayout((Plane("kv", 1, 16),), dtype="int8")
    memory = mmap.mmap(-1, 5 * 16)
    for buffer in (bytearray(5 * 16), memory):
        rows = memoryview(buffer).cast("B", (5, 16))
        tier = MemoryTier.adopt(layout, rows, blocks=5)
        tier.planes[0][3] = 7
        assert bytes(buffer[48:64]) == b"\7" * 16
        assert not any(buffer[:48])
        with pytest.raises(Misuse, match=r"tensor 0 .*axis 0 of shape \(80,\).*view\(5, 16\)"):
            MemoryTier.adopt(layout, buffer, blocks=5)


class Device(Capsules):
    """As CuPy's arrays are: memory of a GPU that speaks both protocols."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return Cuda(self.array).__cuda_array_interface__


def frozen() -> Array:
    array = np.zeros((5, 16), np.int8)
    array.flags.writeable = False
    return array


FLAT = KVLayout((Plane("kv", 1, 16),), dtype="int8")
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "memory of a GPU": (
        lambda: MemoryTier.adopt(FLAT, Device(np.zeros((5, 16), np.int8)), blocks=5),
        (
            "tensor 0 of plane 'kv': it is in the memory of a CUDA device: give a tensor in host "
            "memory, or adopt it by a DeviceTier"
        ),
    ),
    "managed memory": (
        lambda: MemoryTier.adopt(FLAT, Capsules(np.zeros((5, 16), np.int8), kind=13), blocks=5),
        "it is in managed memory of a CUDA device: give a tensor in host memory",
    ),
    "a GPU's without DLPack": (
        lambda: MemoryTier.adopt(FLAT, Cuda(np.zeros((5, 16), np.int8)), blocks=5),
        "this Cuda does not expose its memory",
    ),
    "another maker's": (
        lambda: MemoryTier.adopt(FLAT, OfDevice(np.zeros((5, 16), np.int8), 8, 0), blocks=5),
        "memory of DLPack's device type 8: give a tensor in host memory$",
    ),
    "read only": (
        lambda: MemoryTier.adopt(FLAT, frozen(), blocks=5),
        "it is read-only, and blocks are loaded into it",
    ),
    "a read-only buffer": (
        lambda: MemoryTier.adopt(FLAT, memoryview(bytes(80)).cast("B", (5, 16)), blocks=5),
        "it is read-only",
    ),
    "read only, by DLPack": (
        lambda: MemoryTier.adopt(
            FLAT, Capsules(np.zeros((5, 16), np.int8), version=(1, 0), kind=1, flags=1), blocks=5
        ),
        "it is read-only",
    ),
    "another dtype": (
        lambda: MemoryTier.adopt(FLAT, np.zeros((5, 16), np.float16), blocks=5),
        "1 pieces of 32 bytes .* 1 of 16 in the layout: 32 bytes, not 16; are dtype",
    ),
    "another shape": (
        lambda: MemoryTier.adopt(FLAT, np.zeros((4, 16), np.int8), blocks=5),
        r"no axis of shape \(4, 16\) has the length blocks = 5",
    ),
    "flipped": (
        lambda: MemoryTier.adopt(FLAT, np.zeros((5, 16), np.int8)[::-1], blocks=5),
        "a stride of -16 bytes",
    ),
    "a name of no tier": (
        lambda: MemoryTier.adopt(FLAT, np.zeros((5, 16), np.int8), blocks=5, name="cpu"),
        r"name = 'cpu': did you mean .*\? It is one of device, host, disk",
    ),
    "a host that ranks share": (
        lambda: MemoryTier.adopt(
            KVLayout.mla(1, 12, 4, ranks=2, name="m"), np.zeros((5, 16, 16)), blocks=5, name="host"
        ),
        "plane 'latent' is the same on 2 ranks, which share it on the host: make MemoryTier",
    ),
    "no tensor": (
        lambda: MemoryTier.adopt(FLAT, 3, blocks=5),
        "this int does not expose its memory .*a bytes-like object is required",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_and_what_to_do(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(Misuse, match=message):
        make()
