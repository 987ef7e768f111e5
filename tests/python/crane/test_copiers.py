"""`ThreadCopier`: bytes from tier to tier by a few threads."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard._core import Misuse
from blockyard.crane.copiers import Landed, threads
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.shared.layout import KVLayout, Order
from blockyard.shared.log import Limited
from blockyard.shared.models import MODELS, Heads
from blockyard.shared.plan import Cause
from cranes import LAYOUTS, SMALL, after, gated, held, landed, pair, same, slots, until
from yard import at_last, profile

SLOTS = np.uint32


@pytest.fixture(params=[0, 1, 3])
def copier(request: pytest.FixtureRequest) -> Iterator[ThreadCopier]:
    copier = ThreadCopier(workers=request.param)
    yield copier
    copier.close()


def scaled(name: str) -> KVLayout:
    """A preset with its layers and heads, but a few values in each."""
    if isinstance(MODELS[name], Heads):
        return KVLayout.preset(name, head_dim=2, block_size=2, order="layer-first")
    return KVLayout.preset(name, latent=6, rope=2, block_size=2, order="layer-first")


ALL = LAYOUTS | {name: scaled(name) for name in MODELS}


@pytest.mark.parametrize("name", ALL)
def test_copies_are_exact_both_ways_and_neighbours_stay(name: str, copier: ThreadCopier) -> None:
    device, host = pair(ALL[name])
    for source, destination, sources, to in (
        (device, host, (3, 4, 5, 11, 0, 7), (8, 0, 1, 2, 5, 4)),
        (host, device, (0, 1, 2, 3, 8), (4, 5, 6, 7, 1)),
        (device, device, (0, 9), (10, 2)),
        (device, host, (6,), (6,)),
        (host, device, (), ()),
    ):
        expected = after(held(destination), held(source), sources, to)
        untouched = held(source)
        receipt = copier.start(source, destination, slots(*sources), slots(*to))
        assert landed(receipt) == Landed(len(sources))
        assert same(destination, expected)
        assert source is destination or same(source, untouched)


@given(st.data())
@profile(60)
def test_runs_of_any_shape_are_copied_in_chunks_of_any_size(data: st.DataObject) -> None:
    device, host = pair(SMALL, 40, 40)
    spread = st.lists(st.integers(0, 39), unique=True, max_size=40)
    to = data.draw(spread)
    sources = data.draw(st.lists(st.integers(0, 39), min_size=len(to), max_size=len(to)))
    if data.draw(st.booleans()):
        sources, to = sorted(sources), sorted(to)
    expected = after(held(host), held(device), sources, to)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "_CHUNK", data.draw(st.integers(1, 64)) * SMALL.block_bytes)
        patch.setattr(threads, "_LONG", data.draw(st.sampled_from([1, 1000, 1 << 20])))
        copier = ThreadCopier(workers=data.draw(st.integers(0, 2)))
        receipt = copier.start(device, host, slots(*sources), slots(*to))
        assert landed(receipt) == Landed(len(to))
        copier.close()
    assert same(host, expected)


@pytest.mark.parametrize("name", ["page-first", "layer-first", "fp8 with scales"])
def test_thousands_of_scattered_runs_are_exact(name: str, copier: ThreadCopier) -> None:
    device, host = pair(LAYOUTS[name], 9_000, 9_000)
    mixed = np.random.default_rng(3)
    sources, to = (mixed.permutation(9_000)[:8_000].astype(SLOTS) for _ in range(2))
    expected = held(host)
    for mine, theirs in zip(expected, held(device), strict=True):
        mine[to] = theirs[sources]
    assert landed(copier.start(device, host, sources, to)) == Landed(8_000)
    assert same(host, expected)


def test_the_queue_is_bounded_and_asks_again_when_one_has_landed() -> None:
    device, host = pair(SMALL)
    gate = gated(device)
    copier = ThreadCopier(workers=1, depth=2)
    first, second = (copier.start(device, host, slots(n), slots(n)) for n in range(2))
    assert first is not None
    assert second is not None
    assert [copier.start(device, host, slots(2), slots(2)) for _ in range(9)] == [None] * 9
    assert first.poll() is None
    gate.opened.set()
    assert landed(second) == Landed(1)
    assert landed(copier.start(device, host, slots(2), slots(2))) == Landed(1)
    copier.close()


def test_a_thread_that_only_polls_lets_the_workers_have_the_interpreters_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, every = [100.0], sys.getswitchinterval()
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr(threads, "time", clock)
    device, host = pair(SMALL)
    gate = gated(device)
    copier = ThreadCopier(workers=1)
    receipts = [copier.start(device, host, slots(n), slots(n)) for n in range(3)]
    for waited, pauses in ((0.5, 0), (0.6, 1), (0.1, 1), (1.0, 2), (5.0, 3)):
        now[0] += waited * every
        assert [receipt.poll() for receipt in receipts if receipt] == [None] * 3
        assert slept == [0] * pauses, "one for all copies, in such an interval"
    gate.opened.set()
    assert [landed(receipt) for receipt in receipts] == [Landed(1)] * 3
    slept.clear()
    now[0] += 5 * every
    copies = copier.start(device, host, slots(3), slots(3)), receipts[0]
    assert all(receipt and landed(receipt) == Landed(1) for receipt in copies)
    assert slept == [], "none for what has just begun, or has landed"
    copier.close()


def test_a_failing_copy_says_how_much_is_good_and_logs_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_CHUNK", 2 * SMALL.block_bytes)
    monkeypatch.setattr(threads, "_log", Limited("blockyard"))
    device, host = pair(SMALL)
    before = held(host)
    gated(device, bad=9, opened=True)
    copier = ThreadCopier(workers=2)
    with caplog.at_level(logging.WARNING, "blockyard"):
        sources = slots(0, 1, 2, 3, 4, 9, 6, 7)
        answer = landed(copier.start(device, host, sources, slots(*range(8))))
    assert answer == Landed(4, Cause.FAILED)
    assert [record.getMessage() for record in caplog.records] == [
        "a copy of 8 blocks failed: OSError('slot 9 is not to be read')"
    ]
    (now,) = held(host)
    assert np.array_equal(now[:4], np.asarray(device.planes[0])[:4])
    assert np.array_equal(now[8:], before[0][8:])
    assert landed(copier.start(device, host, slots(1), slots(8))) == Landed(1), "it goes on"
    copier.close()


def test_behind_what_failed_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_CHUNK", 2 * SMALL.block_bytes)
    device, host = pair(SMALL)
    gated(device, bad=9, opened=True)
    copier = ThreadCopier(workers=1)
    expected = after(held(host), held(device), [0, 1], [0, 1])
    receipt = copier.start(device, host, slots(0, 1, 9, 2, 3, 4), slots(0, 1, 2, 3, 4, 5))
    assert landed(receipt) == Landed(2, Cause.FAILED)
    assert same(host, expected)
    copier.close()


def test_two_workers_that_fail_at_once_log_one_line_and_the_first_bad_block_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_CHUNK", 2 * SMALL.block_bytes)
    monkeypatch.setattr(threads, "_log", Limited("blockyard", seconds=0))
    device, host = pair(SMALL)
    gate = gated(device, bad=9)
    copier = ThreadCopier(workers=2)
    with caplog.at_level(logging.WARNING, "blockyard"):
        receipt = copier.start(device, host, slots(9, 0, 9, 1, 2, 3), slots(0, 1, 2, 3, 4, 5))
        until(lambda: gate.entered == 2)
        gate.opened.set()
        assert landed(receipt) == Landed(0, Cause.FAILED)
    assert len(caplog.records) == 1
    copier.close()


def test_close_waits_for_what_is_being_copied_and_fails_the_rest() -> None:
    device, host = pair(SMALL)
    gate = gated(device)
    copier = ThreadCopier(workers=1)
    receipts = [copier.start(device, host, slots(n), slots(n)) for n in range(3)]
    assert gate.reached.wait(30)
    closing = threading.Thread(target=copier.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive(), "a worker still writes"
    before = held(host)
    gate.opened.set()
    closing.join(30)
    assert not closing.is_alive()
    failed = Landed(0, Cause.FAILED)
    assert [landed(receipt) for receipt in receipts] == [Landed(1), failed, failed]
    assert same(host, after(before, held(device), [0], [0]))
    with pytest.raises(Misuse, match="closed"):
        copier.start(device, host, slots(1), slots(1))
    copier.close()


def test_after_a_reset_nothing_is_written_and_it_works_again() -> None:
    device, host = pair(SMALL)
    gate = gated(device)
    copier = ThreadCopier(workers=2, depth=4)
    receipts = [copier.start(device, host, slots(n), slots(n)) for n in range(4)]
    assert gate.reached.wait(30)
    threading.Timer(0.02, gate.opened.set).start()
    copier.reset()
    for receipt in receipts:
        assert receipt is not None
        assert receipt.poll() is not None
    before = held(host)
    time.sleep(0.02)
    assert same(host, before)
    assert landed(copier.start(device, host, slots(5), slots(5))) == Landed(1)
    copier.close()


def test_threads_start_with_the_first_copy_and_end_with_the_close() -> None:
    def workers() -> int:
        return sum(thread.name == "blockyard-copier" for thread in threading.enumerate())

    before = workers()
    device, host = pair(SMALL)
    copier = ThreadCopier(workers=3)
    assert workers() == before
    landed(copier.start(device, host, slots(1), slots(1)))
    assert workers() == before + 3
    copier.close()
    assert workers() == before


@pytest.mark.parametrize("kind", ["one long run", "scattered small blocks", "layer-first"])
def test_the_interpreter_runs_on_while_bytes_move(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In one call of NumPy: if it held the interpreter's lock, no other thread could run."""
    monkeypatch.setattr(threads, "_CHUNK", 1 << 40)
    small = kind == "scattered small blocks"
    order: Order = "layer-first" if kind == "layer-first" else "page-first"
    layout = KVLayout.llama(16, 1, 64 if small else 2048, block_size=8, order=order)
    blocks = (192 << 20) // layout.block_bytes
    device, host = pair(layout, blocks, blocks)
    sources = np.arange(blocks, dtype=SLOTS)
    to = np.random.default_rng(1).permutation(blocks).astype(SLOTS) if small else sources
    copier = ThreadCopier(workers=1)

    def share() -> float:
        """The longest time without this thread, as a part of the whole."""
        receipt = copier.start(device, host, sources, to)
        assert receipt is not None
        begun = last = time.perf_counter()
        longest = 0.0
        while receipt.poll() is None:
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return longest / (time.perf_counter() - begun)

    at_last(share, lambda longest: longest < 0.3)
    copier.close()


def test_large_blocks_are_not_much_slower_than_one_plain_copy() -> None:
    """`benches/python/copies.py` has the target; this finds what is out of all proportion."""
    layout = KVLayout.preset("llama-3-8b")
    device, host = pair(layout, 48, 48)
    mixed = np.random.default_rng(1)
    sources, to = (mixed.permutation(48).astype(SLOTS) for _ in range(2))
    copier = ThreadCopier(workers=1)

    def plain() -> float:
        begun = time.perf_counter()
        np.copyto(host.planes[0], device.planes[0])
        return time.perf_counter() - begun

    def scattered() -> float:
        begun = time.perf_counter()
        landed(copier.start(device, host, sources, to))
        return time.perf_counter() - begun

    best = ours = float("inf")

    def both() -> tuple[float, float]:
        nonlocal best, ours
        best, ours = min(best, plain()), min(ours, scattered())
        return best, ours

    at_last(both, lambda times: times[0] > 0.3 * times[1])
    copier.close()


def test_starting_costs_its_caller_the_same_beside_a_busy_thread() -> None:
    device, host = pair(SMALL, 5_000, 5_000)
    every = np.arange(5_000, dtype=SLOTS)
    copier = ThreadCopier(workers=2)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    busy = threading.Thread(target=spin)
    busy.start()
    costs = []
    for _ in range(20):
        begun = time.thread_time()
        receipt = copier.start(device, host, every, every)
        costs.append(time.thread_time() - begun)
        landed(receipt)
    stop.set()
    busy.join()
    copier.close()
    assert sorted(costs)[10] < 0.001


def test_bad_figures_are_named() -> None:
    with pytest.raises(Misuse, match="workers = -1: must be an integer >= 0"):
        ThreadCopier(workers=-1)
    with pytest.raises(Misuse, match="depth = 0: must be an integer >= 1"):
        ThreadCopier(depth=0)


def test_a_lost_copier_does_not_keep_the_process() -> None:
    script = (
        "import numpy as np; from cranes import *;"
        "device, host = pair(SMALL); copier = ThreadCopier();"
        "copier.start(device, host, np.zeros(1, np.uint32), np.zeros(1, np.uint32))"
    )
    here = Path(__file__).parents[1] / "support"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30, cwd=here)  # noqa: S603


def test_copies_from_one_thread_overlap_in_flight() -> None:
    device, host = pair(SMALL)
    gate = gated(device)
    copier = ThreadCopier(workers=2)
    down = copier.start(device, host, slots(0), slots(0))
    assert gate.reached.wait(30)
    assert down is not None
    gate.reached.clear()
    other = copier.start(device, host, slots(1), slots(1))
    assert gate.reached.wait(30), "the second worker is free"
    assert down.poll() is None
    gate.opened.set()
    assert landed(down) == landed(other) == Landed(1)
    until(lambda: down.poll() is not None)
    copier.close()
