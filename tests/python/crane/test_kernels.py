"""The kernels without a device: compiled for it, and run on a processor, thread after thread."""

import ctypes
import functools
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import copying
import moves
from blockyard.crane.gpu import Move, kernels
from needs import without

HERE = Path(__file__).parent
SERIAL = HERE / "kernels" / "serial.cpp"
# As data centres have them: A100, H100 and H200.
CAPABILITIES = (80, 90)

MISTAKES = {
    "piece and block are swapped": (
        "place(from_pieces, from_stride, from_slots, piece, block)",
        "place(from_pieces, from_stride, from_slots, block, piece)",
    ),
    "the stride is the other side's": ("(to_pieces, to_stride,", "(to_pieces, from_stride,"),
    "a chunk ends a word late": ("if (word < words) __stcs(", "if (word <= words) __stcs("),
    "the last chunk is dropped": (
        "(words + lanes * UNROLL - 1) / (lanes * UNROLL)",
        "words < lanes * UNROLL ? 1 : words / (lanes * UNROLL)",
    ),
    "the target's slots are ignored": ("to_stride, to_slots, piece,", "to_stride, 0, piece,"),
    "a carry comes a turn late": ("if (chunk >= chunks)", "if (chunk > chunks)"),
    "an offset is cut to 32 bits": ("slot * stride;", "(unsigned int)(slot * stride);"),
    "the teams of a thread block are one": (" + (threadIdx.x >> shift)", ""),
    "the teams of the grid are counted too low": (
        "(u64)gridDim.x * (THREADS >> shift)",
        "(u64)gridDim.x",
    ),
}


@functools.cache
def nvrtc() -> Any:
    """CuPy's NVRTC, which needs no device."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = importlib.import_module("cupy.cuda").nvrtc
            found.getVersion()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        without("nvrtc", f"no CuPy with NVRTC to compile kernels with: {error}")
    return found


@functools.cache
def compiled(architecture: str) -> tuple[str, bytes, str]:
    """PTX, machine code for a real architecture, and what the compiler said."""
    compiler = nvrtc()
    program = compiler.createProgram(kernels.source(), "kernels.cu", [], [])
    try:
        options = (*kernels.options(), f"--gpu-architecture={architecture}", "--ptxas-options=-v")
        compiler.compileProgram(program, options)
        ptx = compiler.getPTX(program)
        code = compiler.getCUBIN(program) if architecture.startswith("sm_") else b""
        return ptx if isinstance(ptx, str) else ptx.decode(), code, compiler.getProgramLog(program)
    finally:
        compiler.destroyProgram(program)


def entries(capability: int) -> dict[str, str]:
    """The PTX of each kernel."""
    ptx = compiled(f"compute_{capability}")[0]
    return dict(re.findall(r"\.entry (\w+)\((.*?)^}", ptx, re.DOTALL | re.MULTILINE))


def build(out: Path, source: str, *options: str) -> Path:
    """The kernels for a processor, as a library or as what the options say."""
    compiler = shutil.which("g++")
    if compiler is None:
        without("g++", "no g++ to run kernels on the processor with")
    text = out.with_suffix(".cu")
    text.write_text(source, "utf-8")
    warned = ("-O1", "-g", "-Wall", "-Wextra", "-Wno-unknown-pragmas", f'-DKERNELS="{text}"')
    kind = options or ("-shared", "-fPIC")
    command = [compiler, *kernels.options(), *warned, *kind, str(SERIAL), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    if source == kernels.source():
        assert not done.stderr
    return out


def sanitized(out: Path, source: str) -> subprocess.CompletedProcess[str]:
    """How the kernels fare under the sanitizers, between allocations of the exact size."""
    program = build(out, source, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    quiet = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(  # noqa: S603
        [program], env=quiet, capture_output=True, text=True, check=False, timeout=50
    )


def mistaken(before: str, after: str) -> str:
    """The source with one mistake in it."""
    source = kernels.source()
    assert source.count(before) == 1, f"not there exactly once: {before}"
    return source.replace(before, after)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return moves.load(build(tmp_path_factory.mktemp("kernels") / "kernels.so", kernels.source()))


def test_kernels_include_no_header() -> None:
    assert not re.search(r"#\s*include", kernels.source())


def test_the_arguments_come_in_the_order_of_a_move() -> None:
    listed = re.search(r"NAME\((.*?)\)", kernels.source(), re.DOTALL)
    assert listed is not None
    names = re.findall(r"u64 (\w+)", listed[1])
    assert names == [field for field in Move._fields if field not in {"width", "groups"}]
    move = Move(*range(len(Move._fields)))
    assert kernels.arguments(move) == tuple(range(len(names)))


def test_the_grid_has_a_thread_for_each_word_held_and_no_more_blocks_than_it_may() -> None:
    page = Move(0, 0, 0, 0, 0, 0, blocks=1, pieces=1, piece_bytes=2 << 20, width=16, groups=10_000)
    assert kernels.items(page) == 1024
    assert kernels.grid(page) == 1024 * 32 // kernels.THREADS
    assert kernels.grid(page._replace(groups=24)) == 24
    # Eight warps of a thread block, two for each piece of 4 KiB.
    assert kernels.grid(page._replace(blocks=6, pieces=2, piece_bytes=4096)) == 3
    # Four threads for a piece of 64 bytes, 64 pieces for a thread block.
    assert kernels.grid(page._replace(blocks=65, piece_bytes=64)) == 2
    assert kernels.grid(page._replace(blocks=1, piece_bytes=16)) == 1
    assert kernels.grid(page._replace(blocks=0)) == 0
    assert kernels.grid(page._replace(piece_bytes=0)) == 0


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_compile_to_machine_code_that_keeps_all_in_registers(capability: int) -> None:
    _, code, log = compiled(f"sm_{capability}")
    names = [*map(kernels.name, kernels.WIDTHS), kernels.OCCUPY]
    for name in names:
        assert name.encode() in code
    spills = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", log
    )
    assert spills == [("0", "0", "0")] * len(names), log
    # At least half of a multiprocessor's 2,048 threads find room in its 65,536 registers.
    used = [int(registers) for registers in re.findall(r"Used (\d+) registers", log)]
    assert len(used) == len(names)
    assert max(used) <= 64


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_words_are_loaded_and_stored_whole_and_every_load_comes_before_a_store(
    capability: int,
) -> None:
    kinds = {16: r"v4\.[bu]32", 8: r"v2\.[bu]32", 4: r"[bu]32", 1: r"[bu]8"}
    found = entries(capability)
    assert set(found) == {kernels.OCCUPY, *map(kernels.name, kernels.WIDTHS)}
    for width, kind in kinds.items():
        # Those of the bytes are the streaming ones; tables are read otherwise.
        accesses = re.findall(r"\b(ld|st)\.global\.cs\.(\S+) ", found[kernels.name(width)])
        assert [access for access, _ in accesses] == ["ld"] * 4 + ["st"] * 4
        for _, accessed in accesses:
            assert re.fullmatch(kind, accessed)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_threads_have_nothing_to_do_with_each_other(capability: int) -> None:
    shared = (
        r"\b(bar|barrier|mbarrier|membar|fence|atom|red|redux|shfl|vote|match|activemask|elect"
        r"|cp|ldmatrix|stmatrix|mma|wgmma|wmma|griddepcontrol|nanosleep)\."
    )
    for entry in entries(capability).values():
        assert not re.search(shared, entry)
        # Neither shared memory, nor an array that found no registers.
        assert not re.search(r"\.(shared|local)\b", entry)
    assert ".shared" not in compiled(f"compute_{capability}")[0]


@pytest.mark.parametrize("width", kernels.WIDTHS)
def test_each_word_lands_once_in_any_order_on_any_grid_and_nothing_else_changes(
    library: Any, width: int
) -> None:
    tried = [case for case in moves.cases() if case.width == width]
    assert {case.source for case in tried} == {case.target for case in tried} == set(moves.KINDS)
    assert not [case for case in tried if not moves.moved(library, case)]


def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    done = sanitized(tmp_path / "kernels", kernels.source())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_sanitizers_notice_a_read_past_the_end(tmp_path: Path) -> None:
    # No byte that lands is wrong for it, so that nothing else here can see it.
    read = mistaken("if (word < words) held[i] = ", "held[i] = ")
    done = sanitized(tmp_path / "kernels", read)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.parametrize("mistake", [None, *MISTAKES])
def test_a_planted_mistake_is_noticed(tmp_path: Path, mistake: str | None) -> None:
    source = kernels.source() if mistake is None else mistaken(*MISTAKES[mistake])
    built = build(tmp_path / "kernels.so", source)
    # In a process of its own, as it may write anywhere.
    program = [sys.executable, str(HERE.parent / "support" / "moves.py"), str(built)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=50)  # noqa: S603
    if mistake is None:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    else:
        crashes = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
        assert done.returncode in (moves.WRONG, *crashes), done.stderr


def test_flights_of_the_copier_are_moved_by_the_kernels_themselves(library: Any) -> None:
    def launch(move: Move) -> None:
        words = (ctypes.c_uint64 * 9)(*kernels.arguments(move))
        grid = kernels.grid(move)
        if grid:
            assert library.launch(move.width, grid, 0, words) * move.width == (
                move.blocks * move.pieces * move.piece_bytes
            )

    for seed in range(40):
        copying.work(seed, kernel=launch)
