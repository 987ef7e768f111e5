"""Sections about Blockyard's own copies: the link's peak, shares of it, latency, and submitting."""

import time
from statistics import median
from typing import Any

from blockyard.shared.copy_tuning import CopyTuning
from pairs import Pair, check, landed
from sizes import ORDERS, WAYS
from yardstick import Rig, busy_thread, repeated, say, shares, summary

Result = dict[str, Any]
WAYS_OF = {"down": ("device", "host"), "up": ("host", "device")}
HOST_CLOCK = "host clock, from the call until the end is seen by polling"


def checked(rig: Rig, until: float, said: Result) -> None:
    """Before anything is timed: every byte of every layout, both ways."""
    done = said.setdefault("layouts", [])
    for case in rig.sizes.cases:
        for order in ORDERS:
            pair = Pair(rig, case.make(order), rig.sizes.checked)
            try:
                for count in (1, 7, rig.sizes.checked):
                    check(pair, count)
            finally:
                pair.close()
            done.append(f"{case.name}, {order}")
            if rig.clock() > until:
                say("  checking is late, and goes on: nothing is timed unchecked")


def link(rig: Rig, until: float, said: Result) -> None:
    """The peak of the link: large contiguous pinned copies, each way and both ways at once."""
    rows = said.setdefault("rows", [])
    largest = min(max(rig.sizes.link), rig.memory.nbytes // 2)
    sizes = sorted({min(size, largest) for size in rig.sizes.link})
    ends = shares(until, rig.clock(), 3 * len(sizes))
    with rig.gpu:
        memory = rig.gpu.allocate(2 * largest)
        device, host = memory.address, rig.memory.address
        try:
            for size in sizes:
                # Down from the one half of the device into the one of the host; up in the others.
                copies = {
                    "down": [(host, device, size, rig.streams[0])],
                    "up": [(device + largest, host + largest, size, rig.streams[1])],
                }
                copies["both"] = copies["down"] + copies["up"]
                for way, what in copies.items():

                    def work(what: list[tuple[int, int, int, int]] = what) -> float:
                        begun = rig.clock()
                        for copy in what:
                            rig.bulk(*copy)
                        for copy in what:
                            rig.gpu.synchronize(copy[3])
                        return rig.clock() - begun

                    times = repeated(rig, work, most=15, until=next(ends))
                    rows.append(
                        {
                            "way": way,
                            "bytes": size * len(what),
                            "rate": size * len(what) / median(times),
                            "repeats": len(times),
                        }
                    )
        finally:
            rig.gpu.synchronize(rig.streams[0])
            rig.gpu.synchronize(rig.streams[1])
            memory.free()
    for way in (*WAYS, "both"):
        rig.peak[way] = max(row["rate"] for row in rows if row["way"] == way)
    said["peak"] = rig.peak
    said["method"] = "memcpyAsync on non-blocking streams, host clock around it and a synchronize"


def flights(rig: Rig, until: float, said: Result) -> None:
    """Bytes per second of flights of many sizes, as shares of the peak of the same run."""
    need_peak(rig)
    said["method"] = HOST_CLOCK
    rows, cut = said.setdefault("rows", []), said.setdefault("cut", [])
    cases = [(case, order) for case in rig.sizes.cases for order in ORDERS]
    for (case, order), end in zip(cases, shares(until, rig.clock(), len(cases)), strict=True):
        pair = Pair(rig, case.make(order), max(rig.sizes.counts))
        block = pair.layout.block_bytes
        known = {"case": case.name, "order": order, "block_bytes": block}
        try:
            # The largest first: small ones hardly take any time.
            counts = sorted({min(one, pair.host.blocks) for one in rig.sizes.counts}, reverse=True)
            parts = shares(end, rig.clock(), 3 * len(counts))
            for count in counts:
                picks = [pair.pick(count) for _ in range(8 if count <= 256 else 2)]
                for way in (*WAYS, "both"):
                    end_of_part = next(parts)
                    blocks = count // 2 * 2 if way == "both" else count
                    if not blocks:
                        continue
                    work = pair.flight(way, picks)
                    times = repeated(rig, work, most=rig.sizes.repeats, until=end_of_part)
                    rate = blocks * block / median(times)
                    rows.append(
                        {
                            **known,
                            "way": way,
                            "blocks": blocks,
                            "rate": rate,
                            "share": rate / rig.peak[way],
                            "repeats": len(times),
                            "seconds": summary(times),
                        }
                    )
                if rig.clock() > end + 10:
                    cut.append(f"{case.name}, {order}: nothing below {count} blocks")
                    break
            if order == "layer-first" and case is rig.sizes.cases[0]:
                said["behind"] = _behind(pair)
            check(pair, 256)
        finally:
            pair.close()
        say(f"  {case.name}, {order}: done")


def _behind(pair: Pair) -> Result:
    """Seconds of a flight down, alone and behind all that comes up: it waits for none of that."""
    few, many = min(256, pair.host.blocks // 4), pair.host.blocks // 2
    alone, behind = [], []
    for _ in range(5):
        device, host = pair.pick(few + many)
        down, up = (device[:few], host[:few]), (device[few:], host[few:])
        alone.append(pair.seconds(("down", down)))
        above = pair.start("up", up)
        behind.append(pair.seconds(("down", down)))
        landed(above)
    return {"blocks": few, "above": many, "alone": median(alone), "behind": median(behind)}


def latency(rig: Rig, until: float, said: Result) -> None:
    """Flights of one block, beside the time of their bytes at the peak."""
    need_peak(rig)
    said["method"] = HOST_CLOCK
    rows = said.setdefault("rows", [])
    cases = [(case, order) for case in rig.sizes.cases for order in ORDERS]
    ends = shares(until, rig.clock(), 3 * len(cases))
    for case, order in cases:
        pair = Pair(rig, case.make(order), 64)
        try:
            most = rig.sizes.latency_repeats
            work = pair.flight("down", [pair.pick(0)])
            nothing = repeated(rig, work, most=most, until=next(ends))
            for way in WAYS:
                work = pair.flight(way, [pair.pick(1) for _ in range(16)])
                times = repeated(rig, work, most=most, until=next(ends))
                spent = _starts(pair, way, 1, busy=False, until=rig.clock())[0]
                floor = pair.layout.block_bytes / rig.peak[way]
                rows.append(
                    {
                        "case": case.name,
                        "order": order,
                        "way": way,
                        "bytes": pair.layout.block_bytes,
                        "seconds": summary(times),
                        "floor": floor,
                        "above": median(times) - floor,
                        # Of that: polling included, and what the start costs its caller.
                        "of_nothing": median(nothing),
                        "start": median(spent),
                    }
                )
        finally:
            pair.close()


def submit(rig: Rig, until: float, said: Result) -> None:
    """What one `start` of many scattered blocks costs its caller."""
    said["method"] = "thread CPU time, and host clock, of one start"
    rows, deep = said.setdefault("rows", []), said.setdefault("queued", [])
    case, count = rig.sizes.cases[0], rig.sizes.submit
    turns = [(order, way, busy) for order in ORDERS for way in WAYS for busy in (False, True)]
    ends = shares(until, rig.clock(), len(turns) + len(ORDERS))
    for order in ORDERS:
        pair = Pair(rig, case.make(order), count)
        try:
            for _, way, busy in (turn for turn in turns if turn[0] == order):
                cpu, elapsed = _starts(pair, way, count, busy=busy, until=next(ends))
                rows.append(
                    {
                        "order": order,
                        "way": way,
                        "busy": busy,
                        "blocks": count,
                        "cpu": summary(cpu),
                        "elapsed": summary(elapsed),
                    }
                )
            if rig.gpu.batches and order == "page-first":
                said["driver"] = {way: summary(_driver(pair, way, count)) for way in WAYS}
        finally:
            pair.close()
        # Where tables of slots are needed, there is room for four tiers' worth of them.
        blocks = count if order == "page-first" else count // 8
        pair = Pair(rig, case.make(order), count, copy_tuning=CopyTuning(queued_runs=1 << 20))
        try:
            deep.append({"order": order, "blocks": blocks, "elapsed": _queue(pair, blocks)})
            next(ends)
        finally:
            pair.close()


def _starts(
    pair: Pair, way: str, count: int, *, busy: bool, until: float
) -> tuple[list[float], list[float]]:
    rig, cpu, elapsed = pair.rig, [], []
    with busy_thread(busy=busy):
        for turn in range(rig.sizes.repeats + 1):
            picked = pair.pick(count)
            spent, begun = rig.cpu(), rig.clock()
            receipt = pair.start(way, picked)
            took, used = rig.clock() - begun, rig.cpu() - spent
            if turn:
                cpu.append(used / 1e9)
                elapsed.append(took)
            if busy:
                # Long enough for the copy, so that the poll is no contest for the interpreter.
                time.sleep(count * pair.layout.block_bytes / 30e9)
            landed(receipt)
            if turn >= 3 and rig.clock() > until:
                break
    return cpu, elapsed


def _driver(pair: Pair, way: str, count: int) -> list[float]:
    """Returns seconds of CPU of the driver's call alone, with tables that are there already."""
    rig, spent = pair.rig, []
    transfer = pair.copier._transfers[*(WAYS_OF[way]), pair.layout.planes[0].name]
    stream = rig.streams[0]
    for _ in range(rig.sizes.repeats):
        device, host = pair.pick(count)
        ends = (device, host) if way == "down" else (host, device)
        tables = transfer.addressing.runs(*ends)
        with rig.gpu:
            begun = rig.cpu()
            rig.gpu.copy(tables.to, tables.from_, tables.sizes, stream)
            spent.append((rig.cpu() - begun) / 1e9)
            rig.gpu.synchronize(stream)
    return spent


def _queue(pair: Pair, count: int) -> list[float]:
    """Returns seconds of each of many starts, while those before are still in flight.

    A driver whose queue is full makes its caller wait: the first long start shows when.
    """
    taken, receipts = [], []
    for _ in range(16):
        device, host = pair.pick(count)
        begun = pair.rig.clock()
        receipt = pair.copier.start(pair.device, pair.host, device, host)
        taken.append(pair.rig.clock() - begun)
        if receipt is None:
            break
        receipts.append(receipt)
    for receipt in receipts:
        landed(receipt)
    return taken


def need_peak(rig: Rig) -> None:
    """Raises unless the link's peak was measured in this run."""
    if not rig.peak:
        raise RuntimeError("the link's peak was not measured in this run")
