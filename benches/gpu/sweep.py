"""The section to choose defaults of `CopyTuning` by."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from blockyard.crane.copiers.calibrate import Sample, calibrate, crossover, pieces, sizes
from blockyard.shared.copy_tuning import CopyTuning
from flights import Result, need_peak
from pairs import Pair
from sizes import ORDERS, WAYS
from yardstick import Rig, repeated, say, shares

_ALWAYS = 1 << 62


def sweep(rig: Rig, until: float, said: Result) -> None:
    """Ring, thread blocks and the two crossovers; each part by itself."""
    need_peak(rig)
    known = CopyTuning()
    known = replace(known, whole_below=0)
    ring = replace(known, kernel_below=0, piece_bytes=_ALWAYS)
    kernel = replace(known, kernel_below=_ALWAYS)
    runs = replace(known, kernel_below=0, piece_bytes=0, most_runs=_ALWAYS)
    rows = replace(ring, rows_bytes=0)
    many, few = rig.sizes.swept, rig.sizes.linked
    ends = shares(until, rig.clock(), 10)
    said["defaults"] = asdict(CopyTuning())
    tried: dict[str, tuple[int, list[tuple[Any, CopyTuning]]]] = {
        "ring_bytes": (
            many,
            [(size, replace(ring, ring_bytes=size)) for size in rig.sizes.rings],
        ),
        "groups": (many, [(groups, replace(ring, groups=groups)) for groups in rig.sizes.groups]),
        "link_groups": (
            few,
            [(groups, replace(kernel, link_groups=groups)) for groups in rig.sizes.link_groups],
        ),
        "ring_parts": (many, [(parts, replace(ring, ring_parts=parts)) for parts in (1, 2, 4)]),
        # Of which the driver may know nothing yet, or too much: what is riskiest comes last.
        "rows": (many, [("a 2-D copy a block", rows)]),
        "piece by piece": (many, [("no ring", runs)]),
    }
    for name, (blocks, variants) in tried.items():
        said[name] = _rates(rig, blocks, variants, next(ends))
        say(f"  {name}: done")
    said["flags"] = _flags(rig, next(ends))
    said["pieces"] = _samples(pieces(rig.gpu, known, clock=rig.clock, end=next(ends), busy=False))
    layer_first = rig.sizes.cases[0].make("layer-first").planes[0]
    end = next(ends)
    half = rig.clock() + (end - rig.clock()) / 2
    whole = sizes(rig.gpu, known, clock=rig.clock, end=half, busy=False)
    said["sizes, in one piece"] = _samples(whole)
    piece = layer_first.piece_bytes
    apart = sizes(rig.gpu, known, piece, clock=rig.clock, end=end, busy=False)
    said["sizes, in pieces"] = _samples(apart)
    said["best"] = {
        "ring_bytes": _least(said["ring_bytes"]),
        "groups": _least(said["groups"]),
        "link_groups": _least(said["link_groups"]),
        "ring_parts": _least(said["ring_parts"]),
        "piece_bytes": _crossing(said["pieces"]),
        "whole_below": _crossing(said["sizes, in one piece"]),
        "kernel_below": _crossing(said["sizes, in pieces"]),
    }
    said["calibrate"] = _calibrated(rig)


def _rates(
    rig: Rig, blocks: int, variants: list[tuple[Any, CopyTuning]], until: float
) -> list[Result]:
    """Bytes per second of layer-first flights by each variant."""
    layout = rig.sizes.cases[0].make("layer-first")
    rows = []
    for (value, limits), end in zip(
        variants, shares(until, rig.clock(), len(variants)), strict=True
    ):
        pair = Pair(rig, layout, blocks, copy_tuning=limits)
        try:
            row: Result = {"value": value}
            for way in WAYS:
                work = pair.flight(way, [pair.pick(blocks) for _ in range(2)])
                times = repeated(rig, work, most=rig.sizes.repeats, until=end)
                row[way] = blocks * layout.block_bytes / median(times) / rig.peak[way]
            rows.append(row)
        finally:
            pair.close()
    return rows


def _flags(rig: Rig, until: float) -> list[Result]:
    """The flag of a batch that asks for overlap with compute, set and not set, page-first."""
    driver = getattr(rig.gpu, "_driver", None)
    if driver is None:
        return []
    attributes, rows = driver._attributes, []
    kept = attributes.flags
    pair = Pair(rig, rig.sizes.cases[0].make("page-first"), rig.sizes.swept)
    try:
        for flags in (kept, 0):
            attributes.flags = flags
            row: Result = {"value": flags}
            for way in WAYS:
                work = pair.flight(way, [pair.pick(rig.sizes.swept) for _ in range(2)])
                times = repeated(rig, work, most=rig.sizes.repeats, until=until)
                row[way] = rig.sizes.swept * pair.layout.block_bytes / median(times) / rig.peak[way]
            rows.append(row)
    finally:
        attributes.flags = kept
        pair.close()
    return rows


def _calibrated(rig: Rig) -> Result:
    """What `calibrate` finds in its own two seconds, and how long they were."""
    found: Result = {}
    for order in ORDERS:
        pair = Pair(rig, rig.sizes.cases[0].make(order), 4)
        try:
            for busy in (False, True):
                begun = rig.clock()
                copy_tuning = calibrate(pair.device, pair.host, clock=rig.clock, busy=busy)
                name = f"{order}, {'beside compute' if busy else 'idle'}"
                found[name] = {**asdict(copy_tuning), "seconds": rig.clock() - begun}
        finally:
            pair.close()
    return found


def _samples(samples: Iterator[Sample]) -> list[Result]:
    return [sample._asdict() for sample in samples]


def _crossing(rows: list[Result]) -> int:
    return crossover([Sample(**row) for row in rows])


def _least(rows: list[Result]) -> Any:
    """The least value that comes within a hundredth of the best, by its worse way."""
    worse = {row["value"]: min(row[way] for way in WAYS) for row in rows}
    return next(value for value, rate in worse.items() if rate >= 0.99 * max(worse.values()))
