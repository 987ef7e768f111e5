"""Which way bytes go on a GPU: by addresses and sizes alone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.crane.copiers.copy_method import Addressing, Runs
from blockyard.crane.gpu import Places
from blockyard.shared.copy_tuning import CopyTuning

LIMITS = CopyTuning(
    kernel_below=1000, whole_below=900, piece_bytes=64, most_runs=20, ring_bytes=1 << 20
)


def places(*pieces: int, stride: int) -> Places:
    return Places(np.array(pieces, np.uint64), stride)


def slots(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(numbers, np.uint32)


def runs_of(way: Addressing, sources: list[int], destinations: list[int]) -> Runs:
    return way.runs(slots(*sources), slots(*destinations))


PAGES = Addressing.between(places(0, stride=128), places(4096, stride=128), 128, ("device", "host"))
WIDE = Addressing.between(places(0, stride=128), places(4096, stride=160), 128, ("device", "host"))
LAYERS = Addressing.between(
    places(0, 1000, 2000, stride=64), places(9000, 9064, 9128, stride=192), 64, ("device", "host")
)


@pytest.mark.parametrize(
    ("way", "runs", "blocks", "batches", "method"),
    [
        (PAGES, 3, 7, True, "kernel"),
        (PAGES, 3, 8, True, "runs"),
        (PAGES, 1, 8, True, "run"),
        (PAGES, 1, 8, False, "run"),
        (PAGES, 3, 8, False, "kernel"),
        (WIDE, 1, 8, True, "rows"),
        (WIDE, 30, 80, True, "runs"),
        (LAYERS, 6, 6, True, "runs"),
        (LAYERS, 7, 7, True, "ring"),
        (LAYERS, 7, 7, False, "kernel"),
        (LAYERS, 1, 5, True, "kernel"),
        (replace(WIDE, piece_bytes=1000), 1, 1, True, "run"),
    ],
)
def test_small_flights_go_by_kernel_large_pieces_alone_and_small_ones_through_the_ring(
    way: Addressing, runs: int, blocks: int, batches: bool, method: str
) -> None:
    assert way.method(runs, blocks, LIMITS, batches=batches) == method


def test_blocks_whose_pieces_are_evenly_apart_may_go_as_rows() -> None:
    assert (LAYERS.pitch, PAGES.pitch) == (1000, None)
    limits = replace(LIMITS, piece_bytes=65, rows_bytes=64)
    assert LAYERS.method(6, 6, limits, batches=True) == "blocks"
    assert LAYERS.method(6, 6, limits, batches=False) == "kernel"
    assert LAYERS.method(6, 6, replace(limits, rows_bytes=65), batches=True) == "ring"
    # A piece to itself is preferred; and what is not evenly apart, or lies above itself, is no row.
    assert LAYERS.method(6, 6, replace(limits, piece_bytes=64), batches=True) == "runs"
    for pieces in ((0, 1000, 2001), (2000, 1000, 0), (0, 1 << 32, 2 << 32)):
        odd = replace(LAYERS, source=places(*pieces, stride=64))
        assert (odd.pitch, odd.method(6, 6, limits, batches=True)) == (None, "ring")
    to, from_ = LAYERS.starts(slots(5, 6), slots(2, 3))
    assert (to.tolist(), from_.tolist()) == ([9384, 9576], [320, 384])


def test_pieces_too_small_for_copies_of_their_own_take_the_ring() -> None:
    limits = replace(LIMITS, piece_bytes=65)
    assert LAYERS.method(6, 6, limits, batches=True) == "ring"
    # A page that small has no other way than the kernel's.
    assert PAGES.method(6, 8, replace(LIMITS, piece_bytes=129), batches=True) == "kernel"


def test_within_the_device_there_is_only_the_kernel() -> None:
    way = Addressing.between(
        places(0, stride=128), places(0, stride=128), 128, ("device", "device")
    )
    assert way.method(1, 4096, LIMITS, batches=True) == "kernel"


def test_pieces_side_by_side_on_both_sides_are_one() -> None:
    way = Addressing.between(
        places(0, 64, 1000, 1064, stride=500),
        places(9000, 9064, 9128, 9192, stride=256),
        64,
        ("host", "device"),
    )
    assert (way.piece_bytes, way.pieces, way.block_bytes) == (128, 2, 256)
    assert way.source.pieces.tolist() == [0, 1000]
    assert way.destination.pieces.tolist() == [9000, 9128]


def test_pieces_of_which_only_some_are_side_by_side_stay_as_they_are() -> None:
    way = Addressing.between(
        places(0, 64, 1000, stride=500),
        places(9000, 9064, 9128, stride=192),
        64,
        ("host", "device"),
    )
    assert (way.piece_bytes, way.pieces) == (64, 3)


def test_no_ring_where_the_host_has_a_block_in_scattered_pieces() -> None:
    way = Addressing.between(
        places(0, 1000, stride=64), places(9000, 9999, stride=64), 64, ("device", "host")
    )
    assert way.below is None
    assert way.method(5, 100, LIMITS, batches=True) == "kernel"


def test_runs_that_touch_on_both_sides_are_one_run() -> None:
    runs = runs_of(PAGES, [1, 2, 3, 7], [5, 6, 7, 8])
    assert runs.from_.tolist() == [128, 7 * 128]
    assert runs.to.tolist() == [4096 + 5 * 128, 4096 + 8 * 128]
    assert runs.sizes.tolist() == [3 * 128, 128]


def test_slots_that_touch_on_one_side_only_are_runs_of_their_own() -> None:
    runs = runs_of(PAGES, [1, 2, 3], [5, 4, 3])
    assert runs.sizes.tolist() == [128] * 3


def test_addresses_of_far_slots_are_not_cut_to_32_bits() -> None:
    page = 2 << 20
    ends = places(0, stride=page), places(1 << 40, stride=page)
    way = Addressing.between(*ends, page, ("device", "host"))
    runs = runs_of(way, [5000], [6000])
    assert (int(runs.from_[0]), int(runs.to[0])) == (5000 * page, (1 << 40) + 6000 * page)
    assert LAYERS.through(0, 5, slots(2**31))[0].to.tolist() == [9000 + 2**31 * 192]


@pytest.mark.parametrize(
    ("first", "stride", "piece", "width"),
    [(0, 128, 128, 16), (8, 128, 128, 8), (4, 128, 128, 4), (2, 128, 128, 1), (0, 20, 16, 4)],
)
def test_the_load_is_as_wide_as_every_address_allows(
    first: int, stride: int, piece: int, width: int
) -> None:
    way = Addressing.between(
        places(first, stride=stride), places(0, stride=128), piece, ("device", "host")
    )
    assert way.width == width


@given(
    st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=40),
    st.randoms(use_true_random=False),
    st.sampled_from([PAGES, WIDE, LAYERS]),
)
def test_runs_are_every_byte_of_every_block_and_no_other(
    sources: list[int], chance: object, way: Addressing
) -> None:
    destinations = chance.sample(range(60), len(sources))  # type: ignore[attr-defined]
    wanted = {
        (
            int(to) + there * way.destination.stride + byte,
            int(from_) + here * way.source.stride + byte,
        )
        for here, there in zip(sources, destinations, strict=True)
        for from_, to in zip(way.source.pieces, way.destination.pieces, strict=True)
        for byte in range(way.piece_bytes)
    }

    def pairs(runs: Runs) -> list[tuple[int, int]]:
        return [
            (int(to) + byte, int(from_) + byte)
            for to, from_, size in zip(*runs, strict=True)
            for byte in range(int(size))
        ]

    found = pairs(runs_of(way, sources, destinations))
    assert len(found) == len(wanted)
    assert set(found) == wanted


def test_through_the_ring_blocks_come_whole_and_those_that_touch_below_together() -> None:
    runs, fillings = LAYERS.through(100_000, 2, slots(4, 5, 9, 10, 11))
    block = 192
    assert runs.to.tolist() == [9000 + block * slot for slot in (4, 9, 11)]
    assert runs.from_.tolist() == [100_000] * 3
    assert runs.sizes.tolist() == [2 * block, 2 * block, block]
    assert fillings == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=40), st.integers(1, 45))
def test_every_block_passes_through_the_ring_once_in_its_filling(
    below: list[int], held: int
) -> None:
    runs, fillings = LAYERS.through(10**6, held, slots(*below))
    assert len(fillings) == -(-len(below) // held) + 1
    found = []
    for first, end in itertools.pairwise(fillings):
        filled = set()
        for run in range(first, end):
            for at in range(0, int(runs.sizes[run]), 192):
                inside = (int(runs.from_[run]) + at - 10**6) // 192
                assert 0 <= inside < held
                filled.add(inside)
                found.append((int(runs.to[run]) + at - 9000) // 192)
        assert filled == set(range(len(filled)))
    assert found == below
