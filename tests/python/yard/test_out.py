"""Arrays that the caller gives for results: buffers, and tensors that speak DLPack alone."""

import gc
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockyard as by
from blockyard._typing import override
from lent import HELD, Array, Capsules

TOKENS = 100
BLOCKS = 7


@pytest.fixture
def cache() -> by.KVCache:
    return by.KVCache(device=64)


def zeros(*shape: int, dtype: Any = np.int32) -> Array:
    return np.full(shape, -1, dtype)


class Bare(Capsules):
    """A tensor of the CPU, from before there were versions unless told otherwise."""

    def __init__(self, array: Array, **other: Any) -> None:
        super().__init__(array, **{"kind": 1} | other)


KINDS: dict[str, Callable[[Array], Any]] = {
    "a buffer": lambda array: array,
    "DLPack without a version": Bare,
    "DLPack 1.0": lambda array: Bare(array, version=(1, 0)),
    "DLPack 1.7": lambda array: Bare(array, version=(1, 7)),
    "pinned": lambda array: Bare(array, version=(1, 0), kind=3),
    "with an offset": lambda array: Bare(array, offset=64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_written_into_an_array_of_any_kind(cache: by.KVCache, kind: str) -> None:
    batch = [cache.begin(range(TOKENS * row, TOKENS * (row + 1))) for row in range(3)]
    wanted = cache.block_tables(batch)
    memory = zeros(5, BLOCKS + 2)
    held = len(HELD)
    out = KINDS[kind](memory)
    assert cache.block_tables(batch, out) == 3 * (BLOCKS + 2)
    assert np.array_equal(memory[:3, :BLOCKS], wanted)
    assert not memory[:3, BLOCKS:].any()
    assert np.all(memory[3:] == -1)
    memory[:] = -1
    cache.grow(batch, [30, 0, 0])
    assert cache.block_tables(batch, out, cells="changed") == 2
    assert np.count_nonzero(memory != -1) == 2
    places = zeros(3 * TOKENS + 4, dtype=np.int64)
    counts = [TOKENS] * 3
    assert cache.slot_mapping(batch, [0] * 3, counts, KINDS[kind](places)) == 3 * TOKENS
    assert np.array_equal(places[: 3 * TOKENS], cache.slot_mapping(batch, [0] * 3, counts))
    assert not places[3 * TOKENS :].any()
    gc.collect()
    assert len(HELD) == held


@pytest.mark.parametrize("rows", [1, 200])
def test_a_large_batch_is_written_too_where_the_yard_is_busy(rows: int) -> None:
    cache = by.KVCache(device=rows * BLOCKS + 1)
    batch = [cache.begin(range(TOKENS * row, TOKENS * (row + 1))) for row in range(rows)]
    wanted = cache.block_tables(batch)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            cache.audit()

    other = threading.Thread(target=ask)
    other.start()
    try:
        for _ in range(20):
            memory = zeros(rows, BLOCKS)
            cache.block_tables(batch, Bare(memory))
            assert np.array_equal(memory, wanted)
    finally:
        stop.set()
        other.join()


@pytest.mark.parametrize("rows", [3, 1100], ids=["directly", "gathered first"])
@pytest.mark.parametrize("width", [BLOCKS, BLOCKS + 1, 600])
def test_every_cell_is_a_slot_or_padding_and_nothing_beyond_is_written(
    rows: int, width: int
) -> None:
    cache = by.KVCache(device=rows * BLOCKS + 1)
    lengths = [1 + 11 * row % TOKENS for row in range(rows)]
    batch = [
        cache.begin(range(TOKENS * row, TOKENS * row + n), reserve=TOKENS - n)
        for row, n in enumerate(lengths)
    ]
    memory = zeros(rows + 2, width)
    assert cache.block_tables(batch, memory) == rows * width
    ends = [-(-n // 16) for n in lengths]
    for row, end in enumerate(ends):
        assert cache.block_tables(batch[row])[0].tolist() == memory[row, :end].tolist()
        assert not memory[row, end:].any()
    assert np.unique(memory[:rows]).tolist() == list(range(sum(ends) + 1))
    assert (memory[rows:] == -1).all()
    # What has been added since, and nothing else.
    memory[:rows] = -1
    cache.grow(batch, [TOKENS - n for n in lengths])
    added = rows * BLOCKS - sum(ends)
    assert cache.block_tables(batch, memory, cells="changed") == added
    assert (memory != -1).sum() == added
    assert all((memory[row, end:BLOCKS] > 0).all() for row, end in enumerate(ends))
    assert cache.audit() is None


@pytest.mark.parametrize("shape", [(1, BLOCKS), (4, BLOCKS)])
def test_strides_of_an_axis_of_one_or_of_nothing_do_not_matter(
    cache: by.KVCache, shape: tuple[int, int]
) -> None:
    lease = cache.begin(range(TOKENS))
    memory = zeros(2 * shape[0], BLOCKS)[:: 2 * shape[0] if shape[0] == 1 else 1][: shape[0]]
    cache.block_tables(lease, Bare(memory))
    assert np.array_equal(memory[:1], cache.block_tables(lease))
    assert cache.block_tables([], Bare(zeros(0, 3)[:, ::2])) == 0


def test_no_order_between_streams_is_asked_for(cache: by.KVCache) -> None:
    lease = cache.begin(range(TOKENS))
    new, old = Bare(zeros(1, BLOCKS), version=(1, 0)), Bare(zeros(1, BLOCKS))
    for out in (new, old):
        cache.block_tables(lease, out)
    assert new.asked == [{"stream": None, "max_version": (1, 2)}]
    assert old.asked == [*new.asked, {"stream": None}]


class Refusing:
    """A tensor that exports nothing."""

    def __init__(self, error: BaseException, device: Any = (1, 0)) -> None:
        self.error = error
        self.device = device

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, BaseException):
            raise self.device
        return self.device

    def __dlpack__(self, **_: object) -> object:
        raise self.error


class Odd(Refusing):
    """A tensor that gives no capsule."""

    @override
    def __dlpack__(self, **_: object) -> object:
        return "a capsule"


def misaligned() -> Array:
    return np.zeros(4 * BLOCKS + 1, np.uint8)[1:].view(np.int32).reshape(1, BLOCKS)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "nothing of an array": (lambda: [[0]], "out is <class 'list'>, which has no buffer and no"),
    "another dtype": (lambda: Bare(zeros(1, BLOCKS, dtype=np.int64)), "out is int64"),
    "floats": (lambda: Bare(zeros(1, BLOCKS, dtype=np.float32)), "out is float32"),
    "unsigned": (lambda: Bare(zeros(1, BLOCKS, dtype=np.int32).view("u4")), "out is uint32"),
    "odd bits": (lambda: Bare(zeros(1, BLOCKS), bits=4), "out is int4"),
    "bytes of something": (
        lambda: Bare(zeros(1, BLOCKS).view("V4")),
        "out is bfloat32",
    ),
    "one dimension": (lambda: Bare(zeros(BLOCKS)), r"out has shape \[7\]"),
    "three dimensions": (lambda: Bare(zeros(1, 1, BLOCKS)), r"out has shape \[1, 1, 7\]"),
    "too few rows": (lambda: Bare(zeros(0, BLOCKS)), "out has 0 rows: pass 1 or more"),
    "too few columns": (lambda: Bare(zeros(1, BLOCKS - 1)), "blocks = 7: out is too narrow"),
    "every second column": (
        lambda: Bare(zeros(2, 2 * BLOCKS)[:, ::2]),
        r"out has strides \[14, 2\], in items: pass a writable, C-contiguous int32 array of 2",
    ),
    "columns first": (lambda: Bare(zeros(BLOCKS, 2).T), r"out has strides \[1, 2\]"),
    "rows of a wider array": (lambda: Bare(zeros(2, 9)[:, :BLOCKS]), r"out has strides \[9, 1\]"),
    "rows backwards": (lambda: Bare(zeros(2, BLOCKS)[::-1]), r"out has strides \[-7, 1\]"),
    "misaligned": (lambda: Bare(misaligned()), "out is not aligned, at 0x[0-9a-f]+"),
    "read-only": (
        lambda: Bare(zeros(1, BLOCKS), version=(1, 0), flags=1),
        "out is read-only: pass a writable",
    ),
    "a copy": (
        lambda: Bare(zeros(1, BLOCKS), version=(1, 0), flags=2),
        "out hands out a copy of itself",
    ),
    "a version to come": (
        lambda: Bare(zeros(1, BLOCKS), version=(2, 1)),
        r"out speaks DLPack 2\.1, not 1\.x",
    ),
    "a used capsule": (
        lambda: Bare(zeros(1, BLOCKS), name=b"used_dltensor"),
        "out gives a DLPack capsule that is used",
    ),
    "no capsule": (lambda: Odd(ValueError()), "out gives <class 'str'> for DLPack"),
    "a producer that refuses": (
        lambda: Refusing(BufferError("requires grad")),
        r"out refuses DLPack \(BufferError: requires grad\)",
    ),
    "a TypeError of its own": (
        lambda: Refusing(TypeError("no such dtype")),
        r"out refuses DLPack \(TypeError: no such dtype\)",
    ),
    "a device that is none": (
        lambda: Refusing(ValueError(), ValueError("unknown device meta")),
        r"out refuses DLPack \(ValueError: unknown device meta\)",
    ),
    "a device of words": (lambda: Refusing(ValueError(), "cpu"), r"out refuses DLPack \(\w+Error"),
    **{
        f"device {kind}": (
            # What a GPU has is never asked for.
            lambda kind=kind: Refusing(AssertionError(), (kind, 0)),  # type: ignore[misc]
            (
                rf"out is in memory of a GPU \(DLPack's device type {kind}\), and the CPU writes "
                "it: pass a writable, C-contiguous int32 array of 2 .*, of the CPU or pinned"
            ),
        )
        for kind in (2, 10, 13, 14)
    },
    "another device": (
        lambda: Refusing(AssertionError(), (8, 0)),
        "out is in memory that the CPU may not write .DLPack's device type 8.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_and_nothing_is_written(cache: by.KVCache, name: str) -> None:
    make, message = BAD[name]
    lease = cache.begin(range(TOKENS))
    first = cache.block_tables(lease)[0, :1].tobytes()
    out = make()
    held = len(HELD)
    with pytest.raises(by.Misuse, match=message):
        cache.block_tables(lease, out)  # type: ignore[call-overload]
    gc.collect()
    assert len(HELD) == held
    if isinstance(out, Bare):
        assert first not in out.array.tobytes()


def test_a_capsule_of_another_device_than_its_tensor_is_refused(cache: by.KVCache) -> None:
    class Lying(Bare):
        @override
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    lease = cache.begin(range(TOKENS))
    with pytest.raises(by.Misuse, match=re.escape("memory of a GPU (DLPack's device type 2)")):
        cache.block_tables(lease, Lying(zeros(1, BLOCKS), kind=2))


def test_a_slot_mapping_takes_int64_of_one_dimension(cache: by.KVCache) -> None:
    lease = cache.begin(range(TOKENS))
    for out, message in (
        (zeros(TOKENS), "out is int32: pass a writable, C-contiguous int64 array of 1 dimension"),
        (zeros(1, TOKENS, dtype=np.int64), r"out has shape \[1, 100\]"),
        (zeros(TOKENS - 1, dtype=np.int64), "out has 99 elements: pass 100 or more"),
    ):
        with pytest.raises(by.Misuse, match=message):
            cache.slot_mapping(lease, 0, TOKENS, Bare(out))


def test_what_ends_the_program_is_passed_on(cache: by.KVCache) -> None:
    lease = cache.begin(range(TOKENS))
    for out in (Refusing(KeyboardInterrupt()), Refusing(ValueError(), KeyboardInterrupt())):
        with pytest.raises(KeyboardInterrupt):
            cache.block_tables(lease, out)
