"""The arithmetic of the crane, against NumPy and plain loops."""

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockyard import Misuse
from blockyard._core import Marks, consecutive, runs, through

Slots = NDArray[np.uint32]
# Short steps, so that many slots follow one another.
STEPS = st.lists(st.tuples(*[st.sampled_from([1, 1, 1, 2, 5])] * 2), max_size=60)
SIZES = st.sampled_from([1, 4, 48, 4096])


def u64(*numbers: int) -> NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


def u32(*numbers: int) -> Slots:
    return np.array(numbers, np.uint32)


def walked(steps: list[tuple[int, int]]) -> tuple[Slots, Slots]:
    walk = np.cumsum(np.array(steps, np.int64).reshape(-1, 2), axis=0)
    return walk[:, 0].astype(np.uint32), walk[:, 1].astype(np.uint32)


def starts(*sides: NDArray[Any], step: int) -> NDArray[np.intp]:
    """Where something begins that does not follow what is before it on both sides."""
    breaks = np.ones(len(sides[0]), np.bool_)
    if len(breaks):
        breaks[1:] = np.any([np.diff(side.astype(np.int64)) != step for side in sides], axis=0)
    return np.flatnonzero(breaks)


def addresses(places: tuple[NDArray[np.uint64], int], slots: Slots) -> NDArray[np.uint64]:
    pieces, stride = places
    wide = slots.astype(np.uint64) * np.uint64(stride)
    return (wide[:, None] + pieces).reshape(-1)


@given(STEPS)
def test_runs_are_counted_where_both_sides_go_on_by_one(steps: list[tuple[int, int]]) -> None:
    sources, destinations = walked(steps)
    assert consecutive(sources, destinations) == len(starts(sources, destinations, step=1))
    assert consecutive(sources, destinations[::-1]) == len(
        starts(sources, destinations[::-1], step=1)
    )


@given(
    STEPS,
    SIZES,
    st.lists(st.integers(0, 1 << 50), min_size=1, max_size=4),
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
)
def test_every_piece_of_every_block_is_a_run(
    steps: list[tuple[int, int]], size: int, pieces: list[int], gaps: tuple[int, int]
) -> None:
    sources, destinations = walked(steps)
    source = u64(*pieces), size + gaps[0]
    destination = u64(*pieces[::-1]), size + gaps[1]
    if len(pieces) == 1 and gaps == (0, 0):
        return
    to, from_, sizes = runs(sources, destinations, source, destination, size)
    assert to.tolist() == addresses(destination, destinations).tolist()
    assert from_.tolist() == addresses(source, sources).tolist()
    assert sizes.tolist() == [size] * len(to)


@given(STEPS, SIZES, st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_flat_slots_that_follow_one_another_are_one_run(
    steps: list[tuple[int, int]], size: int, here: int, there: int
) -> None:
    sources, destinations = walked(steps)
    source, destination = (u64(here), size), (u64(there), size)
    to, from_, sizes = runs(sources, destinations, source, destination, size)
    first = starts(sources, destinations, step=1)
    assert to.tolist() == addresses(destination, destinations)[first].tolist()
    assert from_.tolist() == addresses(source, sources)[first].tolist()
    assert sizes.tolist() == (np.diff(first, append=len(sources)) * size).tolist()
    assert len(to) == consecutive(sources, destinations)


@given(
    STEPS,
    st.integers(1, 70),
    SIZES,
    st.sampled_from([0, 0, 16]),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 50),
)
def test_through_a_ring_runs_end_with_its_fillings(
    steps: list[tuple[int, int]], held: int, size: int, gap: int, first: int, ring: int
) -> None:
    slots = walked(steps)[0]
    side = u64(first, first + size // 2), size + gap
    (outside, inside, sizes), fillings = through(slots, side, ring, held, size)
    below = addresses((side[0][:1], side[1]), slots)
    breaks = np.union1d(starts(below, step=size), np.arange(0, len(slots), held)).astype(np.intp)
    assert outside.tolist() == below[breaks].tolist()
    assert inside.tolist() == [ring + int(at) % held * size for at in breaks]
    assert sizes.tolist() == (np.diff(breaks, append=len(slots)) * size).tolist()
    ends = np.arange(0, len(slots) + held, held)[: -(-len(slots) // held) + 1]
    assert fillings == np.searchsorted(breaks, ends).tolist()


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 2**64 - 1))),
    st.lists(st.integers(0, 40), max_size=20),
)
def test_marks_say_the_highest_number_of_some_slots(
    touches: list[tuple[list[int], int]], asked: list[int]
) -> None:
    marks, plain = Marks(41), np.zeros(41, np.uint64)
    for slots, number in touches:
        marks.touch(u32(*slots), number)
        plain[slots] = number
    assert marks.latest(u32(*asked)) == max((int(plain[slot]) for slot in asked), default=0)


def test_a_slot_that_is_not_there_is_refused_and_none_is_marked() -> None:
    marks = Marks(8)
    with pytest.raises(Misuse, match="slot 8: there are 8"):
        marks.touch(u32(1, 8), 5)
    assert marks.latest(u32(*range(8))) == 0
    with pytest.raises(Misuse, match="slot 9"):
        marks.latest(u32(9))


def test_slots_of_any_stride_and_width_are_read() -> None:
    slots = np.arange(20, dtype=np.uint32)
    assert consecutive(slots[::2], slots[::2]) == 10
    assert consecutive(slots[::-1], slots) == 20
    assert consecutive(slots.astype(np.int64), slots) == 1
    page = u64(0), 64
    plain, reverse = (
        runs(one, one, page, page, 64)[0] for one in (slots[::-1].copy(), slots[::-1])
    )
    assert plain.tolist() == reverse.tolist()


def test_what_it_answers_is_memory_of_its_own() -> None:
    slots = u32(3, 1)
    to, from_, sizes = runs(slots, slots, (u64(0), 64), (u64(7), 64), 64)
    slots[:] = 0
    to[0] += np.uint64(1)
    assert (to.tolist(), from_.tolist(), sizes.tolist()) == ([200, 71], [192, 64], [64, 64])


@pytest.mark.parametrize("flags", [(2**64 - 64, 64, 0), (0, 2**63, 2), (2**64 - 1, 0, 1)])
def test_an_address_beyond_64_bits_is_refused(flags: tuple[int, int, int]) -> None:
    first, stride, slot = flags
    far, near = (u64(first), stride), (u64(0), 64)
    slots = u32(slot)
    for sides in ((far, near), (near, far)):
        with pytest.raises(Misuse, match=f"slot {slot} has no address of 64 bits"):
            runs(slots, slots, *sides, 64)
    with pytest.raises(Misuse, match="no address"):
        through(slots, far, 0, 1, 64)
    with pytest.raises(Misuse, match="no address"):
        through(u32(0, 1), near, 2**64 - 64, 2, 64)


def test_the_highest_address_of_all_is_taken() -> None:
    last = u64(2**64 - 1 - 64), 64
    to, from_, sizes = runs(u32(0), u32(0), last, last, 64)
    assert to.tolist() == from_.tolist() == [2**64 - 65]
    assert sizes.tolist() == [64]
    # A slot as high as slots can be has an address, and nothing comes behind it.
    top = u32(2**32 - 1, 0)
    assert consecutive(top, top) == 2


def test_sides_that_do_not_match_are_refused() -> None:
    page = u64(0), 64
    with pytest.raises(Misuse, match="2 sources and 1 destinations"):
        runs(u32(1, 2), u32(1), page, page, 64)
    with pytest.raises(Misuse, match="2 sources and 1 destinations"):
        consecutive(u32(1, 2), u32(1))
    with pytest.raises(Misuse, match="a source of 1 pieces and a destination of 2"):
        runs(u32(1), u32(1), page, (u64(0, 64), 128), 64)
    with pytest.raises(Misuse, match="a ring of a block or more"):
        through(u32(1), page, 0, 0, 64)
    with pytest.raises(Misuse, match=r"sources\[0\] = -1"):
        consecutive([-1], u32(1))


def test_nothing_comes_to_nothing() -> None:
    none, page = u32(), (u64(0), 64)
    assert consecutive(none, none) == 0
    assert [len(one) for one in runs(none, none, page, page, 64)] == [0, 0, 0]
    (outside, _inside, _sizes), fillings = through(none, page, 0, 4, 64)
    assert (len(outside), fillings) == (0, [0])


def test_a_flight_of_very_many_runs_lets_others_run() -> None:
    slots = np.arange(1 << 19, dtype=np.uint32)[::-1]
    page = u64(0, 1 << 40, 1 << 41, 1 << 42), 64
    ran, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ran[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ran[0]
        to, _from, _sizes = runs(slots, slots, page, page, 64)
        # One turn it would have between the call and here.
        assert ran[0] > before + 20
    finally:
        stop.set()
        thread.join()
    assert to[:4].tolist() == [int(piece) + 64 * (len(slots) - 1) for piece in page[0]]
