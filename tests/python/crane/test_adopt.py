"""Adopting: where the blocks lie in memory that the engine allocated."""

import ctypes
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockyard._core import Misuse
from blockyard.crane.tiers.adopt import Adopted, describe, places
from blockyard.shared.layout import KVLayout, Order, Plane
from lent import HELD, Array, Capsules, Cuda, OfDevice
from yard import profile

LAYERS, BLOCKS, SIZE, HEADS, DIM = 3, 5, 4, 2, 8
PER_TOKEN = HEADS * DIM


def llama(order: Order = "layer-first", **other: Any) -> KVLayout:
    return KVLayout.llama(LAYERS, HEADS, DIM, block_size=SIZE, order=order, **other)


def zeros(*shape: int, dtype: Any = np.float16) -> Array:
    return np.zeros(shape, dtype)


def per_layer(make: Callable[[], Array]) -> list[Array]:
    return [make() for _ in range(LAYERS)]


class Form(NamedTuple):
    layout: KVLayout
    tensors: Any
    """As `places` takes them."""
    blocks_axis: dict[str, int]
    """Of each plane, for the test to look."""
    keywords: dict[str, Any]


def form(layout: KVLayout, tensors: Any, axis: int | dict[str, int], keywords: Any = None) -> Form:
    axes = axis if isinstance(axis, dict) else {plane.name: axis for plane in layout.planes}
    return Form(layout, tensors, axes, {"blocks": BLOCKS} if keywords is None else keywords)


def sglang(tokens: int = SIZE * BLOCKS) -> list[Array]:
    return [zeros(tokens, HEADS, DIM) for _ in range(2 * LAYERS)]


def padded() -> Array:
    """Every block of the memory is followed by what is not of the tensor."""
    return zeros(BLOCKS, SIZE * PER_TOKEN + 24)[:, : SIZE * PER_TOKEN]


FORMS: dict[str, Callable[[], Form]] = {
    "K and V before blocks, a tensor per layer": lambda: form(
        llama(), per_layer(lambda: zeros(2, BLOCKS, SIZE, HEADS, DIM)), 1
    ),
    "blocks before K and V, a tensor per layer": lambda: form(
        llama(), per_layer(lambda: zeros(BLOCKS, 2, SIZE, HEADS, DIM)), 0
    ),
    "heads before tokens in memory, seen as if behind": lambda: form(
        llama(),
        per_layer(lambda: zeros(2, BLOCKS, HEADS, SIZE, DIM).transpose(0, 1, 3, 2, 4)),
        1,
    ),
    "heads before tokens, blocks first": lambda: form(
        llama(), per_layer(lambda: zeros(BLOCKS, 2, HEADS, SIZE, DIM)), 0
    ),
    "blocks first in memory, seen as if behind K and V": lambda: form(
        llama(), per_layer(lambda: zeros(BLOCKS, 2, SIZE, HEADS, DIM).swapaxes(0, 1)), 1
    ),
    "tokens in pages, a tensor per K and per V": lambda: form(
        llama(), [tensor.reshape(BLOCKS, SIZE, HEADS, DIM) for tensor in sglang()], 0
    ),
    "one tensor for all layers": lambda: form(
        llama(), zeros(LAYERS, 2, BLOCKS, SIZE, HEADS, DIM), 2
    ),
    "one tensor for all layers, page-first": lambda: form(
        llama("page-first"), zeros(BLOCKS, LAYERS, 2, SIZE, HEADS, DIM), 0
    ),
    "one tensor for all layers, page-first, cut into layers": lambda: form(
        llama(), zeros(BLOCKS, LAYERS, 2, SIZE, HEADS, DIM), 0, {"axis": 0}
    ),
    "a latent per layer": lambda: form(
        KVLayout.mla(LAYERS, 12, 5, block_size=SIZE, order="layer-first"),
        per_layer(lambda: zeros(BLOCKS, SIZE, 17)),
        0,
    ),
    "values of one byte and scales": lambda: form(
        llama(dtype="float8_e4m3", scale_dtype="float32"),
        {
            "kv": per_layer(lambda: zeros(2, BLOCKS, SIZE, HEADS, DIM, dtype=np.int8)),
            "scales": per_layer(lambda: zeros(BLOCKS, 2, SIZE, HEADS, dtype=np.float32)),
        },
        {"kv": 1, "scales": 0},
    ),
    "scales behind the values of their block": lambda: form(
        KVLayout(
            (Plane("values", 1, SIZE * DIM), Plane("scales", 1, SIZE * 4)), dtype="float8_e4m3"
        ),
        {
            "values": (page := zeros(BLOCKS, SIZE * (DIM + 4), dtype=np.uint8))[:, : SIZE * DIM],
            "scales": page[:, SIZE * DIM :].view(np.float32),
        },
        0,
    ),
    "padding between blocks": lambda: form(
        KVLayout((Plane("kv", 1, 2 * SIZE * PER_TOKEN),), dtype="float16"), padded(), 0
    ),
    "a length of blocks that others have too": lambda: form(
        KVLayout((Plane("kv", BLOCKS, BLOCKS),), dtype="int8"),
        zeros(BLOCKS, BLOCKS, BLOCKS, dtype=np.int8),
        1,
        {"axis": -2, "blocks": BLOCKS},
    ),
    "one block": lambda: form(
        llama(), per_layer(lambda: zeros(2, 1, SIZE, HEADS, DIM)), 1, {"axis": 1}
    ),
    "an axis for each plane": lambda: form(
        KVLayout((Plane("a", 2, 6), Plane("b", 3, 2)), dtype="int8"),
        {"a": zeros(2, 3, 6, dtype=np.int8), "b": zeros(3, 3, 2, dtype=np.int8)},
        {"a": 1, "b": 0},
        {"axis": {"b": 0}, "blocks": 3},
    ),
}
SPEAK: dict[str, Callable[[Array], Any]] = {
    "NumPy": lambda array: array,
    "CUDA array interface, version 2": lambda array: Cuda(array, version=2),
    "CUDA array interface, version 3": Cuda,
    "DLPack without a version": Capsules,
    "DLPack 1.0": lambda array: Capsules(array, version=(1, 0)),
    "DLPack with an offset": lambda array: Capsules(array, version=(1, 3), offset=64),
    "DLPack of the host": lambda array: Capsules(array, version=(1, 0), kind=1),
    "managed memory": lambda array: Capsules(array, kind=13),
}


def spoken(tensors: Any, speak: Callable[[Array], Any]) -> Any:
    if isinstance(tensors, dict):
        return {name: spoken(own, speak) for name, own in tensors.items()}
    return [speak(own) for own in tensors] if isinstance(tensors, list) else speak(tensors)


def arrays(tensors: Any) -> list[Array]:
    return list(tensors) if isinstance(tensors, list) else [tensors]


def raw(array: Array) -> NDArray[np.uint8]:
    """All of the memory that an array is a view of."""
    while array.base is not None:
        array = array.base
    return array.reshape(-1).view(np.uint8)


def stamp(layout: KVLayout, adopted: Adopted, slot: int, value: int) -> None:
    """Writes to every byte of a slot, through addresses alone."""
    for plane, where in zip(layout.planes, adopted.places, strict=True):
        for piece in where.pieces:
            ctypes.memset(int(piece) + slot * where.stride, value, plane.piece_bytes)


def stamped(array: Array, axis: int, slot: int) -> bool:
    """Whether every byte of a block of the tensor is `slot + 1`."""
    block: NDArray[np.uint8] = np.ascontiguousarray(np.take(array, slot, axis)).view(np.uint8)
    return bool(np.all(block == slot + 1))


@pytest.mark.parametrize("speech", SPEAK)
@pytest.mark.parametrize("name", FORMS)
def test_what_is_written_to_the_places_of_a_slot_is_in_its_block_of_the_tensors_and_nowhere_else(
    name: str, speech: str
) -> None:
    layout, tensors, axes, keywords = FORMS[name]()
    host = speech in {"NumPy", "DLPack of the host"}
    adopted = places(layout, spoken(tensors, SPEAK[speech]), host=host, **keywords)
    by_plane = tensors if isinstance(tensors, dict) else {layout.planes[0].name: tensors}
    assert [where.pieces.shape for where in adopted.places] == [
        (plane.pieces,) for plane in layout.planes
    ]
    assert all(where.pieces.dtype == np.uint64 for where in adopted.places)
    assert all(type(where.stride) is int for where in adopted.places)
    for slot in range(adopted.blocks):
        stamp(layout, adopted, slot, slot + 1)
    memories = {}
    for plane, own in by_plane.items():
        for array in arrays(own):
            assert array.shape[axes[plane]] == adopted.blocks
            assert all(stamped(array, axes[plane], slot) for slot in range(adopted.blocks))
            memories[raw(array).ctypes.data] = raw(array)
    touched = sum(int(np.count_nonzero(memory)) for memory in memories.values())
    assert touched == adopted.blocks * layout.block_bytes


def read(adopted: Adopted, plane: int, slot: int, nbytes: int) -> bytes:
    where = adopted.places[plane]
    return b"".join(ctypes.string_at(int(at) + slot * where.stride, nbytes) for at in where.pieces)


def noise(*shape: int) -> Array:
    values = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 2), np.uint8)
    return values.view(np.float16)[..., 0]


@pytest.mark.parametrize("slot", [0, BLOCKS - 1])
def test_pieces_follow_one_another_as_tensors_do_and_then_as_their_axes_do(slot: int) -> None:
    layout = llama()
    size = layout.planes[0].piece_bytes
    before = [noise(2, BLOCKS, SIZE, HEADS, DIM) for _ in range(LAYERS)]
    behind = [array.swapaxes(0, 1).copy() for array in before]
    whole = np.stack(before)
    wanted = b"".join(array[kind, slot].tobytes() for array in before for kind in range(2))
    for tensors in (before, behind, whole, whole.transpose(2, 0, 1, 3, 4, 5).copy()):
        adopted = places(layout, tensors, blocks=BLOCKS, host=True)
        assert read(adopted, 0, slot, size) == wanted


@st.composite
def memories(draw: st.DrawFn) -> tuple[Array, int]:
    """A tensor with its axes in any order in memory, perhaps a part of a larger one."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    order = draw(st.permutations(range(len(shape))))
    more = [draw(st.sampled_from([0, 0, 1])) for _ in shape]
    dtype = draw(st.sampled_from([np.uint8, np.float16, np.float32]))
    lengths = [shape[axis] + more[axis] for axis in order]
    memory = np.zeros(lengths, dtype)[tuple(slice(shape[axis]) for axis in order)]
    return memory.transpose(np.argsort(order)), draw(st.integers(0, len(shape) - 1))


def together(array: Array, axis: int) -> list[int]:
    """Lengths of the stretches of memory that a block of an array has, found byte by byte."""
    first = array[(slice(None),) * axis + (slice(0, 1),)]
    grid = np.indices(first.shape).reshape(first.ndim, -1)
    items = np.array(array.strides) @ grid
    bytes_ = np.sort((items[:, None] + np.arange(array.itemsize)).ravel())
    cuts = np.flatnonzero(np.diff(bytes_) != 1)
    return np.diff(np.concatenate([[-1], cuts, [len(bytes_) - 1]])).tolist()  # type: ignore[no-any-return]


@given(memories(), st.sampled_from(sorted(SPEAK)), st.data())
@profile(300)
def test_whatever_the_order_of_axes_and_the_gaps_the_pieces_are_the_block(
    memory: tuple[Array, int], speech: str, data: st.DataObject
) -> None:
    array, axis = memory
    stretches = together(array, axis)
    size = stretches[0]
    assert set(stretches) == {size}
    piece = data.draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0]))
    plane = Plane("kv", len(stretches) * size // piece, piece)
    layout = KVLayout((plane,), dtype="uint8")
    host = speech in {"NumPy", "DLPack of the host"}
    tensor = SPEAK[speech](array)
    adopted = places(layout, tensor, axis=axis, host=host)
    for slot in range(adopted.blocks):
        stamp(layout, adopted, slot, slot + 1)
        assert stamped(array, axis, slot)
    assert np.count_nonzero(raw(array)) == array.nbytes
    if len(stretches) > 1:
        larger = KVLayout((Plane("kv", 1, plane.block_bytes),), dtype="uint8")
        with pytest.raises(Misuse, match="give a layout with pieces no larger"):
            places(larger, tensor, axis=axis, host=host)


def test_a_uint8_view_and_the_shape_stand_for_a_dtype_that_no_protocol_takes() -> None:
    layout = llama(dtype="bfloat16")
    shape = (2, BLOCKS, SIZE, HEADS, DIM)
    views = [zeros(2, BLOCKS, SIZE, HEADS, 2 * DIM, dtype=np.uint8) for _ in range(LAYERS)]
    wanted = places(layout, [view.view(np.float16) for view in views], blocks=BLOCKS, host=True)
    for speak in (lambda array: array, Cuda, Capsules):
        found = places(layout, [(speak(view), shape) for view in views], blocks=BLOCKS, host=True)
        assert found.places[0].stride == wanted.places[0].stride
        assert np.array_equal(found.places[0].pieces, wanted.places[0].pieces)
        assert found.tensors[0][:4] == wanted.tensors[0][:4]
    one = KVLayout.mla(1, 12, 4, block_size=SIZE)
    latent = zeros(BLOCKS, SIZE, 32, dtype=np.uint8)
    assert places(one, (latent, [BLOCKS, SIZE, 16]), blocks=BLOCKS, host=True).blocks == BLOCKS
    gaps = zeros(BLOCKS, 2, SIZE, 32, dtype=np.uint8)[:, 0]
    assert describe((gaps, (BLOCKS, SIZE, 16)), host=True)[2:4] == ((256, 32, 2), 2)


def test_the_memory_need_not_be_there_to_be_described() -> None:
    nowhere: dict[str, Any] = {
        "data": (0x7F00_DEAD_0000, False),
        "shape": (2, 3, 4),
        "strides": (96, 16, 4),
    }
    tensor = describe(Cuda(zeros(1), typestr="<f4", **nowhere))
    assert tensor[:5] == (0x7F00_DEAD_0000, (2, 3, 4), (96, 16, 4), 4, None)
    adopted = places(
        KVLayout((Plane("kv", 2, 16),), dtype="float32"),
        Cuda(zeros(1), typestr="<V4", **nowhere),
        blocks=3,
    )
    assert list(adopted.places[0].pieces) == [0x7F00_DEAD_0000, 0x7F00_DEAD_0060]
    assert adopted.places[0].stride == 16


def test_the_stride_of_an_axis_of_one_does_not_matter() -> None:
    for other in (0, -7, 3):
        array = bytes_(5, 16)
        tensor = Cuda(array, shape=(1, 5, 1, 16), strides=(other, 16, other, 1))
        where = places(flat(), tensor, blocks=5).places[0]
        assert (list(where.pieces), where.stride) == ([array.ctypes.data], 16)


def test_pieces_may_lie_among_the_slots_of_others_where_they_do_not_touch() -> None:
    memory = bytes_(3, 5, 24)
    layout = KVLayout((Plane("a", 3, 16), Plane("b", 3, 8)), dtype="int8")
    for layers in (memory, memory[::-1]):
        tensors = {
            "a": [layer[:, 8:] for layer in layers],
            "b": [layer[:, :8] for layer in layers],
        }
        assert places(layout, tensors, blocks=5, host=True).blocks == 5


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_holds_its_memory_until_the_tensor_is_gone(
    version: tuple[int, int] | None,
) -> None:
    array = zeros(2, 3)
    gone = weakref.ref(array)
    held = len(HELD)
    tensor = describe(Capsules(array, version=version))
    del array
    gc.collect()
    assert gone() is not None
    assert len(HELD) == held + 1
    del tensor
    gc.collect()
    assert gone() is None
    assert len(HELD) == held


@pytest.mark.parametrize("speak", [Cuda, lambda array: array])
def test_a_tensor_with_an_interface_is_held_itself(speak: Callable[[Array], Any]) -> None:
    array = zeros(2, 3)
    gone = weakref.ref(array)
    tensor = describe(speak(array), host=True)
    del array
    gc.collect()
    assert gone() is not None
    assert tensor.shape == (2, 3)
    del tensor
    gc.collect()
    assert gone() is None


def test_what_is_adopted_is_held() -> None:
    array = zeros(BLOCKS, 8)
    gone = weakref.ref(array)
    layout = KVLayout((Plane("kv", 1, 16),), dtype="float16")
    adopted = places(layout, Capsules(array), blocks=BLOCKS)
    del array
    gc.collect()
    assert gone() is not None
    del adopted
    gc.collect()
    assert gone() is None


def test_a_capsule_stays_unused_so_that_another_may_be_had() -> None:
    fake = Capsules(zeros(2, 3))
    assert describe(fake)[:5] == describe(fake)[:5]


def test_no_stream_is_made_to_wait() -> None:
    for kind, stream in ((2, -1), (13, -1), (1, None), (3, None)):
        old, new = (Capsules(zeros(2), version=version, kind=kind) for version in (None, (1, 0)))
        describe(old, host=True)
        describe(new, host=True)
        assert new.asked == [{"stream": stream, "max_version": (1, 2)}]
        assert old.asked == [*new.asked, {"stream": stream}]


def test_the_device_is_said_where_it_is_known() -> None:
    array = zeros(2, 3)
    assert describe(Cuda(array)).device is None
    assert describe(OfDevice(array, 2, 3)).device == 3
    assert describe(OfDevice(array, 13, 3)).device is None
    assert describe(Capsules(array, index=3)).device == 3
    assert describe(Capsules(array, kind=13, index=3)).device is None
    assert describe(Capsules(array, kind=3), host=True).device is None
    assert describe(array, host=True).device is None


def test_numpy_speaks_dlpack_as_the_fakes_do() -> None:
    class Only:
        def __init__(self, array: Array) -> None:
            self.__dlpack__ = array.__dlpack__
            self.__dlpack_device__ = array.__dlpack_device__

    for array in (zeros(2, 3), zeros(4, 6)[1::2, 1:4], zeros(2, 3, dtype=np.int8).T):
        found, wanted = (describe(tensor, host=True) for tensor in (Only(array), array))
        assert found[:5] == wanted[:5]
        assert found.address == array.ctypes.data
        assert found.strides == array.strides
    array = zeros(2)
    array.flags.writeable = False
    for tensor in (array, Only(array)):
        with pytest.raises(Misuse, match="it is read-only"):
            describe(tensor, host=True)


class Refusing:
    """A tensor of a dtype that no protocol takes."""

    shape = (2, 1024, 16, 8, 128)

    def __init__(self, error: Exception, kind: int = 2) -> None:
        self.error = error
        self.kind = kind

    @property
    def __cuda_array_interface__(self) -> object:
        raise self.error

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, 0)

    def __dlpack__(self, **_: object) -> object:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("no"),
        BufferError("float8 types are not supported by dlpack"),
        KeyError("torch.float8_e4m3fn"),
        NotImplementedError("no"),
        RuntimeError("requires grad"),
        TypeError("Got unsupported ScalarType BFloat16"),
    ],
)
def test_for_a_refused_dtype_the_error_has_the_uint8_view_and_the_shape(error: Exception) -> None:
    view = r"\(tensor\.view\(torch\.uint8\), \(2, 1024, 16, 8, 128\)\)"
    reason = f"{type(error).__name__}: .*{error.args[0]}"
    with pytest.raises(
        Misuse, match=f"{reason}.*; {reason}.*a uint8 view and the shape, as {view}"
    ):
        describe(Refusing(error))


def test_dlpack_answers_where_the_other_interface_refuses() -> None:
    class Half(Capsules):
        @property
        def __cuda_array_interface__(self) -> object:
            raise TypeError("no such dtype")

    array = zeros(2, 3)
    assert describe(Half(array, index=1)).device == 1
    assert describe(Half(array)).address == array.ctypes.data


def flat(pieces: int = 1, size: int = 16) -> KVLayout:
    return KVLayout((Plane("kv", pieces, size),), dtype="int8", block_size=SIZE)


def bytes_(*shape: int) -> Array:
    return zeros(*shape, dtype=np.int8)


def adopt(layout: KVLayout, tensors: Any, **keywords: Any) -> Callable[[], object]:
    return lambda: places(layout, tensors, host=True, **keywords)


TWO = KVLayout((Plane("a", 1, 16), Plane("b", 1, 4)), dtype="int8")
SHARED = bytes_(BLOCKS, 20)

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "neither blocks nor axis": (
        adopt(flat(), bytes_(5, 16)),
        r"tensor 0 of plane 'kv': which axis of shape \(5, 16\) counts blocks\? Give blocks= or",
    ),
    "no such length": (
        adopt(flat(), bytes_(5, 16), blocks=7),
        r"no axis of shape \(5, 16\) has the length blocks = 7",
    ),
    "another length": (
        adopt(flat(), bytes_(5, 16), blocks=7, axis=-2),
        r"not axis -2 of shape \(5, 16\) has the length blocks = 7",
    ),
    "two such axes": (
        adopt(flat(), bytes_(16, 16), blocks=16),
        r"axes \[0, 1\] of shape \(16, 16\) have the length 16: give axis=",
    ),
    "no such axis": (adopt(flat(), bytes_(5, 16), axis=2), r"axis = 2: shape \(5, 16\) has 2 axes"),
    "no such axis from behind": (
        adopt(flat(), bytes_(5, 16), axis=-3),
        "axis = -3: must be an integer >= -2",
    ),
    "an axis of no plane": (
        adopt(flat(), bytes_(5, 16), axis={"vk": 0}),
        r"axis = {'vk': 0}: the layout has planes \['kv'\]",
    ),
    "bad blocks": (adopt(flat(), bytes_(5, 16), blocks=0), "blocks = 0: must be an integer >= 1"),
    "tokens": (
        adopt(llama(), sglang(), blocks=BLOCKS),
        (
            r"tensor 0 of plane 'kv': axis 0 of shape \(20, 2, 8\) counts tokens, 4 in each of 5 "
            r"blocks: reshape it first, as tensor\.view\(5, 4, 2, 8\)"
        ),
    ),
    "tokens on the axis": (
        adopt(llama(), sglang(), blocks=BLOCKS, axis=0),
        r"counts tokens, 4 in each of 5 .*tensor\.view\(5, 4, 2, 8\)",
    ),
    "another number of blocks": (
        adopt(flat(2), [bytes_(5, 16), bytes_(6, 16)], axis=0),
        r"tensor 1 of plane 'kv': not axis 0 of shape \(6, 16\) has the length blocks = 5",
    ),
    "a piece too large": (
        adopt(llama("page-first"), zeros(LAYERS, 2, BLOCKS, SIZE, HEADS, DIM), blocks=BLOCKS),
        (
            "a block has 6 pieces of 128 bytes in the tensors of plane 'kv', and 1 of 768 in the "
            "layout: give a layout with pieces no larger, as order='layer-first'"
        ),
    ),
    "layers missing": (
        adopt(llama(), zeros(2, 2, BLOCKS, SIZE, HEADS, DIM), blocks=BLOCKS),
        "4 pieces of 128 bytes .* 6 of 128 in the layout: 512 bytes, not 768; are dtype, block",
    ),
    "not contiguous within a piece": (
        adopt(flat(), bytes_(5, 4, 6)[..., :4], blocks=5),
        (
            "4 pieces of 4 bytes .* 1 of 16 in the layout: give a layout with pieces no larger.*or "
            "tensors with larger ones"
        ),
    ),
    "another stride": (
        adopt(flat(2), [bytes_(5, 16), bytes_(5, 24)[:, :16]], blocks=5),
        (
            "tensor 1 of plane 'kv': its blocks are 24 bytes apart, those of tensor 0 16: a "
            "plane has one stride; give the layout a plane for each"
        ),
    ),
    "expanded": (
        adopt(flat(), np.lib.stride_tricks.as_strided(bytes_(5, 1), (5, 16), (1, 0)), blocks=5),
        (
            r"axis 1 of shape \(5, 16\) has a stride of 0 bytes, and items have 1: give "
            "memory that is neither expanded"
        ),
    ),
    "flipped": (
        adopt(flat(), bytes_(5, 16)[::-1], blocks=5),
        r"axis 0 of shape \(5, 16\) has a stride of -16 bytes.*flipped",
    ),
    "a misaligned address": (
        adopt(flat(), np.zeros(165, np.int8)[1:161].view("<f4").reshape(5, 8)[:, :4], blocks=5),
        r"address 0x[0-9a-f]+ is misaligned for items of 4 bytes",
    ),
    "a misaligned stride": (
        adopt(flat(), np.ndarray((5, 4), "<f4", bytearray(90), 0, (18, 4)), blocks=5),
        "a stride of 18 bytes, and items have 4.*misaligned",
    ),
    "overlapping blocks": (
        adopt(flat(), np.lib.stride_tricks.as_strided(bytes_(80), (5, 16), (8, 1)), blocks=5),
        "blocks of plane 'kv' overlap: they are 8 bytes apart, and a piece has 16; which axis",
    ),
    "overlapping pieces": (
        adopt(
            flat(2, 16),
            np.lib.stride_tricks.as_strided(bytes_(200), (2, 5, 16), (12, 40, 1)),
            blocks=5,
        ),
        (
            "piece 0 of plane 'kv' and piece 1 of plane 'kv' lie in the same memory, their "
            "blocks 40 and 40 bytes apart"
        ),
    ),
    "a piece that reaches into the next block": (
        adopt(
            flat(2, 16),
            np.lib.stride_tricks.as_strided(bytes_(200), (2, 5, 16), (25, 40, 1)),
            blocks=5,
        ),
        "piece 0 .* and piece 1 .* lie in the same memory",
    ),
    "a tensor twice": (
        adopt(flat(2, 20), [SHARED, SHARED], blocks=5),
        "piece 0 .* and piece 1 .* was a tensor given twice",
    ),
    "planes that overlap": (
        adopt(TWO, {"a": SHARED[:, :16], "b": SHARED[:, 15:19]}, blocks=5),
        "piece 0 of plane 'a' and piece 0 of plane 'b' lie in the same memory",
    ),
    "planes with two strides in one memory": (
        adopt(TWO, {"a": SHARED[:, :16], "b": SHARED.reshape(-1)[16:36].reshape(5, 4)}, blocks=5),
        "lie in the same memory, their blocks 20 and 4 bytes apart",
    ),
    "no mapping": (adopt(TWO, SHARED, blocks=5), r"planes \['a', 'b'\] have .*: give a mapping"),
    "a plane without tensors": (
        adopt(TWO, {"a": SHARED}, blocks=5),
        r"tensors for planes \['a'\]: the layout has \['a', 'b'\]",
    ),
    "an empty sequence": (adopt(flat(), [], blocks=5), "no tensors for plane 'kv'"),
    "empty": (adopt(flat(), bytes_(0, 16), axis=0), r"tensor 0 .*it is empty: shape \(0, 16\)"),
    "no axes": (adopt(flat(), bytes_(), axis=0), r"it is empty: shape \(\)"),
    "no axes, by DLPack": (adopt(flat(), Capsules(bytes_()), axis=0), r"it is empty: shape \(\)"),
    "no address": (
        adopt(flat(), Cuda(bytes_(5, 16), data=(0, False)), blocks=5),
        "it is empty: .*address 0x0",
    ),
    "two devices": (
        adopt(flat(2), [Capsules(bytes_(5, 16), index=at) for at in (1, 2)], blocks=5),
        "tensor 1 of plane 'kv': it is on device 2, not on 1: give all from one device",
    ),
    "another device": (
        adopt(flat(), Capsules(bytes_(5, 16), index=1), blocks=5, device=0),
        "it is on device 1, not on 0",
    ),
    "host memory": (lambda: describe(bytes_(5, 16)), "it is in host memory: give a tensor in"),
    "host memory of a refused dtype": (
        lambda: describe(Refusing(TypeError("no"), kind=1)),
        "it is in host memory",
    ),
    "pinned memory": (lambda: describe(Capsules(bytes_(5), kind=3)), "it is in host memory"),
    "another maker's": (
        lambda: describe(OfDevice(bytes_(5), 10, 0)),
        "memory of DLPack's device type 10: give a tensor in the memory of a CUDA device",
    ),
    "read only": (
        lambda: describe(Cuda(bytes_(5), data=(4096, True))),
        "it is read-only, and blocks are loaded into it",
    ),
    "read only, by DLPack": (
        lambda: describe(Capsules(bytes_(5), version=(1, 0), flags=1)),
        "it is read-only",
    ),
    "a copy": (
        lambda: describe(Capsules(bytes_(5), version=(1, 0), flags=2)),
        "DLPack returned a copy: give the tensor that the engine uses",
    ),
    "a version to come": (
        lambda: describe(Capsules(bytes_(5), version=(2, 1))),
        r"it uses DLPack 2\.1, not 1\.x",
    ),
    "half bytes": (
        lambda: describe(Capsules(bytes_(5), bits=4)),
        "its items have 4 bits: give a uint8 view and the shape in bytes",
    ),
    "a used capsule": (
        lambda: describe(Capsules(bytes_(5), name=b"used_dltensor")),
        "TypeError: __dlpack__ gave no unused capsule",
    ),
    "no tensor": (lambda: describe(3), r"this int does not expose its memory .*\.uint8\), shape\)"),
    "a view of another shape": (
        adopt(flat(), (bytes_(5, 16), (5, 3)), blocks=5),
        r"a view of shape \(5, 16\) .* is no uint8 view of shape \(5, 3\)",
    ),
    "a view with a step": (
        adopt(flat(), (bytes_(5, 32)[:, ::2], (5, 8)), blocks=5),
        r"with strides of \(32, 2\) bytes and items of 1 is no uint8 view of shape \(5, 8\)",
    ),
    "a view of larger items": (
        adopt(flat(), (zeros(5, 16), (5, 8)), blocks=5),
        "items of 2 is no uint8 view",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_and_what_to_do(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(Misuse, match=message):
        make()


def test_four_thousand_pieces_are_checked_in_no_time() -> None:
    layout = KVLayout((Plane("kv", 4096, 64),), dtype="int8")
    tensor = Cuda(bytes_(1), shape=(4096, 1 << 16, 64), data=(1 << 40, False))
    pieces, stride = places(layout, tensor, blocks=1 << 16).places[0]
    assert stride == 64
    assert math.prod(pieces.shape) == 4096
    assert int(pieces[-1]) == (1 << 40) + 4095 * (64 << 16)
