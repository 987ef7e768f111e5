"""CuPy simulated, for machines without a GPU: what of it the project uses, over NumPy.

As strict as CuPy, or stricter: its arrays become NumPy's by `get` alone, meet none of NumPy's, and
are given to none of its functions. A function, or an argument, that is not here is not used so far;
before it comes here, look whether CuPy has it, and whether the order of its sums is its own affair.
`test_simulated_cupy` compares the names with CuPy's.
"""

import operator
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from blockyard._typing import override
from blockyard.crane.devices import Device
from blockyard.crane.gpu import Memory
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.testing.gpu import SimulatedGpu

__all__ = [
    "arange",
    "asarray",
    "concatenate",
    "cuda",
    "empty",
    "exp",
    "log",
    "matmul",
    "ndarray",
    "split",
    "sqrt",
    "where",
]

STREAM = 7
"""The stream that is current."""

waits: Counter[str] = Counter()
"""What has waited for the GPU, by name."""

products: Counter[tuple[int, int]] = Counter()
"""How often `matmul` was called, by the shape of what came out."""


class ndarray:  # noqa: N801 - as CuPy calls it
    """An array that only pretends to be elsewhere."""

    __slots__ = ("_held",)

    def __init__(self, held: Any) -> None:
        self._held: NDArray[Any] = np.asarray(held)

    # -- what is known without the GPU

    shape = property(lambda self: self._held.shape)
    ndim = property(lambda self: self._held.ndim)
    dtype = property(lambda self: self._held.dtype)
    size = property(lambda self: self._held.size)
    nbytes = property(lambda self: self._held.nbytes)
    strides = property(lambda self: self._held.strides)

    def __len__(self) -> int:
        return len(self._held)

    # -- from there to here

    def _waited(self, name: str) -> NDArray[Any]:
        waits[name] += 1
        return self._held

    def get(self) -> NDArray[Any]:
        return self._waited("get").copy()

    def item(self) -> Any:
        return self._waited("item").item()

    def tolist(self) -> Any:
        return self._waited("tolist").tolist()

    def tobytes(self) -> bytes:
        return self._waited("tobytes").tobytes()

    def __bool__(self) -> bool:
        return bool(self._waited("bool"))

    def __int__(self) -> int:
        return int(self._waited("int"))

    def __float__(self) -> float:
        return float(self._waited("float"))

    def __array__(self, *_what: Any, **_named: Any) -> NoReturn:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    def __array_function__(self, function: Any, *_what: Any) -> NoReturn:
        raise TypeError(f"numpy.{function.__name__} of an array of CuPy: call CuPy's")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> "ndarray":
        # A number of NumPy on the left is the one way in which this comes to pass by itself.
        if method != "__call__" or named or not isinstance(inputs[0], np.generic):
            held = next((one for one in inputs if isinstance(one, np.ndarray)), None)
            if held is not None:
                _held(held)
            raise TypeError(f"numpy.{ufunc.__name__} of an array of CuPy: call CuPy's")
        return ndarray(ufunc(*map(_held, inputs)))

    # -- parts

    def __iter__(self) -> Iterator["ndarray"]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, where: Any) -> "ndarray":
        return ndarray(self._held[_places(where)])

    def __setitem__(self, where: Any, values: Any) -> None:
        places = _places(where)
        parts = places if isinstance(places, tuple) else (places,)
        arrays = [one for one in parts if isinstance(one, np.ndarray)]
        if arrays:
            spots = np.stack([one.ravel() for one in np.broadcast_arrays(*arrays)])
            # Which of two writers is last is not said.
            assert np.unique(spots, axis=1).shape == spots.shape, "a place is written twice"
        self._held[places] = _held(values)

    def reshape(self, *shape: Any) -> "ndarray":
        return ndarray(self._held.reshape(*shape))

    def transpose(self, *axes: int) -> "ndarray":
        return ndarray(self._held.transpose(*axes))

    def view(self, dtype: Any) -> "ndarray":
        return ndarray(self._held.view(dtype))

    def copy(self) -> "ndarray":
        return ndarray(self._held.copy())

    def astype(self, dtype: Any) -> "ndarray":
        return ndarray(self._held.astype(dtype))

    # -- reductions in which no order shows

    def max(self, axis: int | None = None, *, keepdims: bool = False) -> "ndarray":
        return ndarray(self._held.max(axis=axis, keepdims=keepdims))

    def argmax(self, axis: int | None = None) -> "ndarray":
        return ndarray(self._held.argmax(axis=axis))

    def __neg__(self) -> "ndarray":
        return ndarray(-self._held)

    def __abs__(self) -> "ndarray":
        return ndarray(abs(self._held))

    def __invert__(self) -> "ndarray":
        return ndarray(~self._held)


def _operator(name: str) -> None:
    bare = {"and": "and_", "or": "or_"}.get(name, name)
    plain: Callable[[Any, Any], Any] = getattr(operator, bare)
    inplace: Callable[[Any, Any], Any] | None = getattr(operator, f"i{name}", None)

    def forward(self: ndarray, other: Any) -> ndarray:
        return ndarray(plain(self._held, _held(other)))

    def backward(self: ndarray, other: Any) -> ndarray:
        return ndarray(plain(_held(other), self._held))

    def into(self: ndarray, other: Any) -> ndarray:
        assert inplace is not None
        self._held = inplace(self._held, _held(other))
        return self

    setattr(ndarray, f"__{name}__", forward)
    if inplace is not None:
        setattr(ndarray, f"__r{name}__", backward)
        setattr(ndarray, f"__i{name}__", into)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "rshift", "xor", "and", "or"):
    _operator(_name)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _operator(_name)


def _held(value: Any) -> Any:
    """What an operator may meet: arrays from there, and numbers."""
    if isinstance(value, ndarray):
        return value._held
    if isinstance(value, (int, float, np.generic)):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def _array(value: Any) -> NDArray[Any]:
    if not isinstance(value, ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value._held


def _places(where: Any) -> Any:
    """An index. CuPy would send one of NumPy on its own, and wait for one of truth values."""
    if isinstance(where, tuple):
        return tuple(map(_places, where))
    if where is None or where is Ellipsis or isinstance(where, (int, slice)):
        return where
    held = _array(where)
    assert held.dtype.kind in "iu", "how much is chosen is known to the GPU alone"
    return held


# -- functions: no argument but those that CuPy has


def asarray(a: Any) -> ndarray:
    """The one way from here to there."""
    return ndarray(np.array(a)) if not isinstance(a, ndarray) else a


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Full of what was there before."""
    noise: NDArray[Any] = np.empty(shape, dtype)
    noise.view(np.uint8)[...] = 0xFF
    return ndarray(noise)


def arange(start: int, stop: int | None = None, dtype: Any = None) -> ndarray:
    return ndarray(np.arange(start, stop, dtype=dtype) if stop else np.arange(start, dtype=dtype))


def concatenate(tup: Any, axis: int = 0) -> ndarray:
    return ndarray(np.concatenate([_array(one) for one in tup], axis=axis))


def split(ary: ndarray, indices_or_sections: int, axis: int = 0) -> list[ndarray]:
    return [ndarray(one) for one in np.split(_array(ary), indices_or_sections, axis=axis)]


def where(condition: ndarray, x: Any, y: Any) -> ndarray:
    return ndarray(np.where(_array(condition), _held(x), _held(y)))


def exp(x: ndarray) -> ndarray:
    return ndarray(np.exp(_array(x)))


def log(x: ndarray) -> ndarray:
    return ndarray(np.log(_array(x)))


def sqrt(x: ndarray) -> ndarray:
    return ndarray(np.sqrt(_array(x)))


def matmul(x1: ndarray, x2: ndarray, out: ndarray) -> ndarray:
    """Of two dimensions and float64, in memory that lies in order: else CuPy makes copies."""
    arrays = [_array(one) for one in (x1, x2, out)]
    for one in arrays:
        assert one.ndim == 2
        assert one.dtype == np.float64
        assert one.flags.c_contiguous
    products[out.shape] += 1
    np.matmul(arrays[0], arrays[1], out=arrays[2])
    return out


cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=STREAM))


# -- memory with such arrays


class Gpu(SimulatedGpu):
    """One whose memory is seen by CuPy alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._streams[STREAM] = deque()

    @override
    def synchronize(self, stream: int) -> None:
        """The engine's stream, too: NumPy has computed all of it, whether or not it has said so."""
        super().synchronize(stream)
        super().synchronize(STREAM)

    @override
    def view(self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return ndarray(super().view(memory, shape, strides))


def elsewhere(seed: int = 0) -> Device:
    """A GPU simulated, and memory that it pins; copies land in an order drawn by seed."""
    gpu = Gpu(seed)
    return Device(
        sys.modules[__name__],
        lambda layout, blocks: DeviceTier(layout, blocks, gpu=gpu, stream=STREAM),
        lambda layout, blocks, name, shared: PinnedTier(
            layout, blocks, name=name, gpu=gpu, shared=shared
        ),
    )


def installed(monkeypatch: pytest.MonkeyPatch, current: Callable[[], object] = Gpu) -> None:
    """From now on `--on cuda` and `--verify cuda` are this, or what is said of it."""
    monkeypatch.setattr("blockyard.crane.gpu.cuda.current", current)
    monkeypatch.setitem(sys.modules, "cupy", sys.modules[__name__])
