"""CopyTuning are found where the speeds cross."""

from dataclasses import replace

import numpy as np
import pytest

from blockyard._core import Misuse, Unavailable
from blockyard.crane.copiers.calibrate import Sample, calibrate, crossover
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.layout import KVLayout
from blockyard.testing.gpu import SimulatedGpu
from timed import Link, TimedGpu

KNOWN = CopyTuning(ring_bytes=32 << 20, groups=7, link_groups=3)


def tiers(gpu: SimulatedGpu, order: str = "page-first") -> tuple[DeviceTier, PinnedTier]:
    layout = KVLayout.llama(2, 1, 512, order=order)  # type: ignore[arg-type]
    return DeviceTier(layout, 4, gpu=gpu), PinnedTier(layout, 4, gpu=gpu)


@pytest.mark.parametrize(
    ("kernel", "whole_below"),
    # 20.1 us more to begin, against what the link does in less time per byte.
    [(10e9, 256 << 10), (25e9, 1 << 20), (1e9, 64 << 10), (60e9, 16 << 20)],
)
def test_the_size_from_which_the_kernel_loses_is_found(kernel: float, whole_below: int) -> None:
    gpu = TimedGpu(Link(rate=50e9, copy=25e-6, run=0.1e-6, launch=5e-6, kernel=kernel))
    found = calibrate(*tiers(gpu), copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3, busy=False)
    assert (found.whole_below, found.kernel_below) == (whole_below, KNOWN.kernel_below)


@pytest.mark.parametrize(
    ("run", "piece_bytes"),
    # The ring costs its kernels, and pieces cost the caller what the link does not hide.
    [(0.1e-6, 16 << 10), (0.3e-6, 64 << 10), (0.65e-6, 128 << 10), (10e-6, 1 << 20)],
)
def test_the_piece_from_which_a_copy_of_its_own_wins_is_found(run: float, piece_bytes: int) -> None:
    gpu = TimedGpu(Link(copy=5e-6, run=run, launch=5e-6, within=1e12))
    found = calibrate(*tiers(gpu), copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3, busy=False)
    assert found.piece_bytes == piece_bytes


def test_pieces_of_the_layout_are_what_the_kernel_is_tried_with() -> None:
    gpu = TimedGpu(Link(kernel=1e9))
    device, host = tiers(gpu, "layer-first")
    found = calibrate(device, host, copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3)
    assert found.kernel_below == 64 << 10


def test_what_is_not_measured_stays_as_it_was_and_so_does_every_byte() -> None:
    gpu = TimedGpu()
    device, host = tiers(gpu)
    for tier in (device, host):
        tier.planes[0][...] = np.random.default_rng(1).integers(0, 256, tier.planes[0].shape)
    before = [tier.planes[0].copy() for tier in (device, host)]
    held = gpu.held
    found = calibrate(device, host, copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3)
    assert replace(found, whole_below=0, piece_bytes=0) == replace(
        KNOWN, whole_below=0, piece_bytes=0
    )
    assert all(map(np.array_equal, before, (device.planes[0], host.planes[0])))
    assert gpu.held == held


def test_without_batches_pieces_stay_as_they_were() -> None:
    gpu = TimedGpu(batches=False)
    found = calibrate(*tiers(gpu), copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3, busy=False)
    assert found.piece_bytes == KNOWN.piece_bytes
    assert found.whole_below > 64 << 10


def test_noise_in_one_sample_moves_the_threshold_no_further_than_that_sample() -> None:
    samples = [Sample(1, 1.0, 2.0), Sample(2, 2.1, 2.0), Sample(4, 4.0, 5.0), Sample(8, 8.0, 6.0)]
    assert crossover(samples) == 8


def test_a_copy_that_fails_is_said() -> None:
    gpu = TimedGpu()
    device, host = tiers(gpu)
    gpu.fail("record")
    with pytest.raises(Unavailable, match="a copy failed"):
        calibrate(device, host, copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3)


def test_tiers_of_two_gpus_are_refused() -> None:
    with pytest.raises(Misuse, match="two GPUs"):
        calibrate(tiers(TimedGpu())[0], tiers(TimedGpu())[1])


def test_beside_compute_a_kernel_waits_for_its_end_and_a_copy_engine_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blockyard.crane.copiers.calibrate._SIZES", (64 << 10, 256 << 10))
    monkeypatch.setattr("blockyard.crane.copiers.calibrate._PIECES", (64 << 10,))
    gpu = TimedGpu(Link(rate=50e9, copy=25e-6, run=0.1e-6, launch=5e-6, kernel=60e9))
    idle, busy = (
        calibrate(*tiers(gpu), copy_tuning=KNOWN, clock=gpu.clock, budget=1e-3, busy=one)
        for one in (False, True)
    )
    assert (idle.whole_below, busy.whole_below) == (512 << 10, 64 << 10)


def test_compute_that_outlasts_the_copies_has_ended_when_memory_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blockyard.crane.copiers.calibrate._SIZES", (64 << 10,))
    monkeypatch.setattr("blockyard.crane.copiers.calibrate._PIECES", (64 << 10,))
    gpu = SimulatedGpu(eager=64)
    device, host = tiers(gpu)
    held = gpu.held
    found = calibrate(device, host, copy_tuning=KNOWN, budget=1e-3)
    assert gpu.held == held
    assert found.whole_below >= 64 << 10
