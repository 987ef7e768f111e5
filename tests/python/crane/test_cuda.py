"""The driver's library as it is called: by prototypes of cuda.h, without a device."""

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blockyard.crane.gpu.cuda
from blockyard import Unavailable
from blockyard.crane.gpu import GpuError, Move, PitchedCopy
from blockyard.crane.gpu.cuda import Cuda, current
from blockyard.crane.gpu.driver import BLOCK, Attributes, Driver, Rows
from blockyard.shared.extras import install
from blockyard.testing.simulated_gpu import SimulatedGpu
from needs import need

SOURCE = Path(__file__).parent / "kernels" / "driver.c"


class Stub:
    """A driver that writes down what it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.PyDLL(str(path))

    @property
    def called(self) -> str:
        return (ctypes.c_char * 64).in_dll(self._library, "called").value.decode()

    @property
    def words(self) -> list[int]:
        return list((ctypes.c_uint64 * 32).in_dll(self._library, "words"))

    def number(self, name: str) -> Any:
        return ctypes.c_int.in_dll(self._library, name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Stub]:
    """A driver with no call for many runs, with CUDA 12.8's, or with CUDA 13's."""
    gcc = need("gcc")
    include = need("cuda.h")
    made: dict[int, Stub] = {}

    def build(batch: int) -> Stub:
        if batch not in made:
            path = tmp_path_factory.mktemp("driver") / f"libcuda{batch}.so"
            flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-DBATCH={batch}", f"-I{include}"]
            subprocess.run([gcc, "-std=c11", *flags, "-o", path, SOURCE], check=True)  # noqa: S603
            made[batch] = Stub(path)
        return made[batch]

    return build


@pytest.fixture
def stub(built: Callable[[int], Stub], monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = built(2)
    driver = Driver(str(made.path))
    monkeypatch.setattr(blockyard.crane.gpu.cuda, "Driver", lambda: driver)
    monkeypatch.setattr(blockyard.crane.gpu.cuda, "_cupy", simulated_cupy)
    return made


def simulated_cupy() -> Any:
    """As much of CuPy as is asked for, each name of which the real one has."""
    runtime = SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=type("CUDA", (Exception,), {}))
    memory = SimpleNamespace(OutOfMemoryError=type("Out", (MemoryError,), {}))
    kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=4711))
    cuda = SimpleNamespace(
        runtime=runtime,
        memory=memory,
        Memory=lambda nbytes: np.ones(nbytes, np.uint8),
        MemoryPointer=lambda memory, _offset: SimpleNamespace(ptr=memory.ctypes.data, mem=memory),
        Device=lambda _device: contextlib.nullcontext(),
        Stream=lambda **_: SimpleNamespace(ptr=7),
        Event=lambda **_: SimpleNamespace(ptr=8),
    )
    return SimpleNamespace(cuda=cuda, RawKernel=lambda *_a, **_k: kernel)


def runs(*lengths: int) -> tuple[list[Any], list[Any]]:
    chance = np.random.default_rng(0)
    sources = [chance.integers(0, 256, length, np.uint8) for length in lengths]
    return sources, [np.zeros(length, np.uint8) for length in lengths]


def addresses(arrays: list[Any]) -> Any:
    return np.array([array.ctypes.data for array in arrays], np.uint64)


@pytest.mark.parametrize(
    ("batch", "name"), [(1, "cuMemcpyBatchAsync"), (2, "cuMemcpyBatchAsync_v2")]
)
def test_many_runs_are_one_call_in_the_form_that_the_driver_has(
    built: Callable[[int], Stub], batch: int, name: str
) -> None:
    stub = built(batch)
    driver = Driver(str(stub.path))
    sources, destinations = runs(5, 70_000, 1)
    to, from_ = addresses(destinations), addresses(sources)
    sizes = np.array([5, 70_000, 1], np.uint64)
    assert driver.batches
    driver.batch(to.ctypes.data, from_.ctypes.data, sizes.ctypes.data, 3, 77)
    assert stub.called == name
    # Stream, runs, one set of attributes from the first run on, in stream order, beside compute.
    assert stub.words[:6] == [77, 3, 1, 0, 1, 1]
    assert stub.words[6:8] == [ctypes.sizeof(Attributes), Attributes.flags.offset]
    assert all(map(np.array_equal, sources, destinations))


def test_a_driver_without_that_call_says_since_when_it_is_there(
    built: Callable[[int], Stub],
) -> None:
    driver = Driver(str(built(0).path))
    assert not driver.batches
    with pytest.raises(Unavailable, match="it came with CUDA"):
        driver.batch(0, 0, 0, 0, 0)


def test_rows_are_copied_by_their_pitches(stub: Stub) -> None:
    source = np.random.default_rng(0).integers(0, 256, (4, 10), np.uint8)
    target = np.zeros((4, 16), np.uint8)
    with Cuda() as gpu:
        gpu.copy_rows(PitchedCopy(target.ctypes.data, 16, source.ctypes.data, 10, 7, 4), 99)
    assert stub.words[:11] == [99, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert np.array_equal(target[:, :7], source[:, :7])
    assert not target[:, 7:].any()
    assert ctypes.sizeof(Rows) == 128


def test_blocks_of_rows_are_one_call_in_the_form_that_cuda_13_has(
    stub: Stub, built: Callable[[int], Stub]
) -> None:
    source = np.random.default_rng(0).integers(0, 256, (3, 4, 10), np.uint8)
    target = np.zeros((5, 3, 16), np.uint8)
    from_ = np.array([source[0].ctypes.data, source[2].ctypes.data], np.uint64)
    to = np.array([target[4].ctypes.data, target[1].ctypes.data], np.uint64)
    with Cuda() as gpu:
        assert gpu.batches_blocks
        gpu.copy_blocks(PitchedCopy(to, 16, from_, 10, 7, 3), 99)
        assert stub.called == "cuMemcpy3DBatchAsync_v2"
        # Pointers without a hint, one layer of three rows; in stream order, beside compute.
        assert stub.words[:12] == [99, 2, 0, BLOCK.itemsize, 1, 1, 0, 1, 3, 3, 1, 1]
        gpu.copy_run(target[0].ctypes.data, source[1].ctypes.data, 30, 98)
        assert (stub.called, stub.words[2:4]) == ("cuMemcpyAsync", [30, 98])
    wanted = np.zeros_like(target)
    wanted[4, :, :7], wanted[1, :, :7] = source[0, :3, :7], source[2, :3, :7]
    wanted[0].ravel()[:30] = source[1].ravel()[:30]
    assert np.array_equal(target, wanted)
    older = Driver(str(built(1).path))
    assert not older.batches_blocks
    with pytest.raises(Unavailable, match="it came with CUDA 13"):
        older.blocks(0, 0, 0)


def test_a_move_is_launched_with_its_words_in_the_kernels_order(stub: Stub) -> None:
    gpu = Cuda()
    move = Move(2**63, 2, 3, 4, 5, 6, blocks=70, pieces=3, piece_bytes=4096, width=16, groups=32)
    with gpu:
        gpu.prepare(16)
        gpu.move(move, 55)
    assert stub.called == "cuLaunchKernel"
    # The function, the grid, the threads of a block, no shared memory, the stream, nothing more.
    assert stub.words[:10] == [4711, 32, 1, 1, 256, 1, 1, 0, 55, 0]
    assert stub.words[10:19] == [2**63, 2, 3, 4, 5, 6, 70, 3, 4096]


def test_nothing_to_move_is_no_launch(stub: Stub) -> None:
    gpu = Cuda()
    with gpu:
        gpu.prepare(16)
        gpu.wait(1, 2)
        gpu.move(Move(1, 1, 0, 1, 1, 0, 0, 1, 16, 16, 4), 5)
    assert stub.called != "cuLaunchKernel"


def test_events_and_streams_are_called_with_what_was_given(stub: Stub) -> None:
    with Cuda() as gpu:
        gpu.record(2**40, 2**41)
        assert (stub.called, stub.words[:2]) == ("cuEventRecord", [2**40, 2**41])
        gpu.wait(2**41, 2**40)
        assert (stub.called, stub.words[:3]) == ("cuStreamWaitEvent", [2**41, 2**40, 0])
        assert gpu.ended(2**42)
        assert (stub.called, stub.words[0]) == ("cuEventQuery", 2**42)
        stub.number("answer").value = 600
        assert not gpu.ended(1)
        gpu.register(2**43, 2**44)
        assert stub.words[:2] == [2**43, 2**44]
        assert stub.words[2] == stub.words[3]
        gpu.synchronize(2**45)
        assert (stub.called, stub.words[0]) == ("cuStreamSynchronize", 2**45)
        gpu.unregister(2**43)
        assert (stub.called, stub.words[0]) == ("cuMemHostUnregister", 2**43)


def test_memory_of_this_device_is_told_from_others_and_from_none(stub: Stub) -> None:
    assert stub.path.exists()
    with Cuda() as gpu:
        owned = [gpu.owns(address) for address in (8192, 8193, 2**40 + 8192, 16)]
    assert owned == [True, False, False, False]


def test_memory_is_zero_and_no_other_stream_is_waited_for(stub: Stub) -> None:
    """To wait for the whole device is forbidden beside a capture, and would wait for the engine."""
    with Cuda() as gpu:
        memory = gpu.allocate(300)
        assert (stub.called, stub.words[0]) == ("cuStreamSynchronize", 7)
        assert ctypes.string_at(memory.address, 300) == bytes(300)
        stub.number("answer").value = 1
        with pytest.raises(Unavailable, match=r"5 bytes of device memory: .*INVALID_VALUE"):
            gpu.allocate(5)
        gpu.settle()
    assert stub.called == "cuCtxSynchronize"


def test_a_stream_that_is_captured_is_told_from_others(stub: Stub) -> None:
    with Cuda() as gpu:
        assert gpu.capturing(9)
        assert not gpu.capturing(8)
        stub.number("answer").value = 906
        assert gpu.capturing(0)


def test_inside_with_the_context_is_current_and_captures_are_not_disturbed(stub: Stub) -> None:
    gpu = Cuda()
    relaxed, global_ = 2, 0
    assert (stub.number("depth").value, stub.number("mode").value) == (0, global_)
    with gpu:
        assert stub.called == "cuCtxPushCurrent_v2"
        assert stub.words[0] == 0x1234500000000 + 40
        with gpu:
            assert (stub.number("depth").value, stub.number("mode").value) == (1, relaxed)
            other = Cuda()
            with other, gpu:
                assert stub.number("depth").value == 3
        assert stub.number("mode").value == relaxed
    assert (stub.number("depth").value, stub.number("mode").value) == (0, global_)


def test_errors_have_cudas_name_and_say_whether_the_device_is_lost(stub: Stub) -> None:
    with Cuda() as gpu:
        stub.number("answer").value = 1
        with pytest.raises(GpuError, match="cuEventRecord: CUDA_ERROR_INVALID_VALUE") as refused:
            gpu.record(1, 2)
        assert not refused.value.lost
        stub.number("answer").value = 700
        with pytest.raises(GpuError, match="cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS") as lost:
            gpu.ended(1)
        assert lost.value.lost
        stub.number("answer").value = 12345
        with pytest.raises(GpuError, match="CUDA_ERROR_12345"):
            gpu.ended(1)


def test_without_a_device_it_says_what_to_install_and_what_needs_none(stub: Stub) -> None:
    stub.number("answer").value = 100
    with pytest.raises(Unavailable, match=r"no CUDA device 3 .*NO_DEVICE.*MemoryTier") as error:
        Cuda(3)
    assert install("cuda12", "cuda13") in str(error.value)


def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(Unavailable, match=r"no CUDA driver .*pip install '.*\[cuda12\]'"):
        Driver("libcuda_of_nobody.so.1")


def test_without_cupy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for make in (Cuda, current):
        with pytest.raises(Unavailable, match=r"no CuPy .*pip install '.*\[cuda12\]'"):
            make()


def test_the_current_device_is_made_once_and_a_given_gpu_is_taken(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stub.path.exists()
    monkeypatch.setattr(blockyard.crane.gpu.cuda, "_made", {})
    assert current() is current()
    simulated = SimulatedGpu()
    assert current(simulated) is simulated


def test_every_name_of_cupys_that_is_used_is_there() -> None:
    need("cupy")
    import cupy  # noqa: PLC0415

    for name in ("Device", "Event", "Memory", "MemoryPointer", "Stream", "runtime", "memory"):
        assert hasattr(cupy.cuda, name)
    for name in ("CUDARuntimeError", "deviceGetPCIBusId", "getDevice"):
        assert hasattr(cupy.cuda.runtime, name)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)


def test_importing_blockyard_imports_no_cupy_and_finds_no_driver() -> None:
    code = (
        "import sys, blockyard, blockyard.crane.tiers.device, blockyard.crane.tiers.pinned, "
        "blockyard.crane.copiers.cuda_copier; "
        "assert not {'cupy', 'cupy_backends'} & set(sys.modules); "
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603
