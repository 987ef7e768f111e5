"""CuPy simulated: it refuses what CuPy refuses, and has nothing that CuPy has not."""

import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import simulated_cupy as simulated
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.reference.model import Model
from blockyard.reference.weights import ModelConfig
from blockyard.shared.layout import Order

HERE: Any = np.arange(6, dtype=np.float32).reshape(2, 3)


def there() -> Any:
    return simulated.asarray(HERE)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda: np.asarray(there()),
        lambda: np.array(there()),
        lambda: np.concatenate([there(), there()]),
        lambda: np.exp(there()),
        lambda: np.add(there(), there()),
        lambda: np.add.reduce(there()),
        lambda: np.matmul(HERE.T, there()),
        lambda: np.array_equal(HERE, there()),
        lambda: there() + HERE,
        lambda: HERE + there(),
        lambda: operator.eq(HERE, there()),
        lambda: there() != HERE,
        lambda: operator.add(there(), [1, 2, 3]),
        lambda: HERE.copy().__iadd__(there()),
        lambda: there().__iadd__(HERE),
        lambda: there()[np.array([0, 1])],
        lambda: there()[[0, 1]],
        lambda: operator.setitem(there(), 0, HERE[0]),
        lambda: operator.setitem(HERE.copy(), 0, there()[0]),
        lambda: simulated.exp(HERE),
        lambda: simulated.where(HERE > 2, there(), there()),
        lambda: simulated.where(there() > 2, there(), HERE),
        lambda: simulated.concatenate([there(), HERE]),
        lambda: simulated.matmul(HERE, there(), out=there()),
    ],
)
def test_arrays_of_here_and_of_there_do_not_meet(mixed: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Unsupported type|Implicit|call CuPy's"):
        mixed()


def test_numbers_meet_them_on_either_side() -> None:
    for made in (there() * np.float32(2), np.float32(2) * there(), 2 * there(), there() / 0.5):
        assert made.dtype == np.float32
        assert np.array_equal(made.get(), HERE * 2)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("get", lambda one: one.get()),
        ("item", lambda one: one[0, 0].item()),
        ("tolist", lambda one: one.tolist()),
        ("tobytes", lambda one: one.tobytes()),
        ("bool", lambda one: bool(one[0, 1])),
        ("int", lambda one: int(one[0, 1])),
        ("float", lambda one: float(one[0, 1])),
    ],
)
def test_what_waits_for_the_gpu_is_counted(name: str, ask: Callable[[Any], object]) -> None:
    one = there()
    simulated.waits.clear()
    assert np.array_equal((one[:, 1] + 1).max(axis=0).shape, ())
    assert not simulated.waits
    ask(one)
    assert simulated.waits == {name: 1}


def test_what_is_not_said_on_a_gpu_is_refused_by_the_simulated_one() -> None:
    one = there()
    twice = simulated.asarray(np.array([1, 1]))
    with pytest.raises(AssertionError, match="written twice"):
        one[twice] = 0.0
    with pytest.raises(AssertionError, match="known to the GPU alone"):
        one[one > 2]
    with pytest.raises(AttributeError):
        one.sum()
    assert not hasattr(simulated, "sum")


def parameters(function: Any) -> Iterable[str]:
    """Names, as a signature or the first line of a docstring has them."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        head = function.__doc__.partition("\n")[0]
        inner = head.partition("(")[2].partition(")")[0]
        return [part.partition("=")[0].strip(" *\\") for part in inner.split(",")]


def test_cupy_has_every_name_and_takes_every_argument_that_is_used() -> None:
    cupy = pytest.importorskip("cupy")
    for name in simulated.__all__:
        theirs, ours = getattr(cupy, name), getattr(simulated, name)
        if inspect.isfunction(ours):
            positional = {"x", "x1", "x2"}
            assert set(parameters(ours)) - positional <= set(parameters(theirs)), name
    own = {"_held", "_waited", "__slots__", "__module__", "__firstlineno__"}
    for name, ours in vars(simulated.ndarray).items():
        if name not in own | {"__static_attributes__"}:
            assert hasattr(cupy.ndarray, name), name
        if inspect.isfunction(ours) and not name.startswith("_") and name != "reshape":
            theirs = parameters(getattr(cupy.ndarray, name))
            assert set(parameters(ours)) <= {"self", *theirs}, name
    assert cupy.cuda.get_current_stream


@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("order", ["page-first", "layer-first"])
def test_the_view_of_a_models_kv_is_no_copy_in_cupy_either(order: Order, size: int) -> None:
    """Real arrays of CuPy over memory of here, of which nothing is read."""
    cupy = pytest.importorskip("cupy")
    config = ModelConfig()
    tier = MemoryTier(config.layout(block_size=size, order=order), 9, name="device")
    expected = Model(config).view(tier)
    planes = []
    for plane in tier.planes:
        base = plane.base
        assert base is not None
        memory = cupy.cuda.UnownedMemory(base.ctypes.data, base.nbytes, base, 0)
        start = cupy.cuda.MemoryPointer(memory, plane.ctypes.data - base.ctypes.data)
        planes.append(cupy.ndarray(plane.shape, np.uint8, start, plane.strides))
    tier.planes = tuple(planes)
    view = Model(config).view(tier)
    assert isinstance(view, cupy.ndarray)
    # The keys of a layer, too, which it reads and writes.
    for theirs, ours in ((view, expected), (view[:, 6], expected[:, 6])):
        assert theirs.data.ptr == ours.ctypes.data
        assert (theirs.shape, theirs.dtype) == (ours.shape, ours.dtype)
        # The stride of an axis of length one does not matter.
        steps = [
            step
            for strides in (theirs.strides, ours.strides)
            for step, count in zip(strides, ours.shape, strict=True)
            if count > 1
        ]
        assert steps[: len(steps) // 2] == steps[len(steps) // 2 :]
