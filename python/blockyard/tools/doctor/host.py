"""Cores, clock, memory, NUMA nodes and pages of the machine."""

import os
import re
import time
from itertools import pairwise
from typing import Final

from blockyard.shared.machine import control_groups, free_memory, whole
from blockyard.tools.doctor.finding import Check, Finding, Problem, Site, judged, unknown
from blockyard.tools.units import size

__all__ = ["CHECKS", "count_of"]

_SLOW: Final = 1000
"""Nanoseconds of a clock call above which the clock is no register of the processor."""
_CALLS: Final = 2000
_PART: Final = 0.8
"""Of the free memory: what an engine, its workers and the page cache take beside the host tier."""


def count_of(text: str | None) -> int | None:
    """Returns how many numbers a list such as "0-3,8" has; None for no such list."""
    total = 0
    for part in (text or "").split(","):
        ends = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip(), re.ASCII)
        if ends is None:
            return None
        first = int(ends[1])
        total += max(int(ends[2] or first) - first + 1, 0)
    return total


def _quota(site: Site) -> float | None:
    """Cores that the control groups give, the least of them."""
    least = None
    for group, version in control_groups(site.root, "cpu"):
        where = str(group.relative_to(site.root))
        if version == 1:
            words = [site.text(f"{where}/cpu.cfs_{what}_us") or "" for what in ("quota", "period")]
        else:
            words = [*(site.text(f"{where}/cpu.max") or "").split(), "", ""][:2]
        given, period = (whole(word) for word in words)
        if given is not None and period:
            least = min(given / period, least or given / period)
    return least


def cores(site: Site) -> Finding:
    """Enough cores for the processes that compute, and one for the scheduler."""
    usable = count_of(site.lines("proc/self/status").get("Cpus_allowed_list"))
    if usable is None:
        return unknown("cores", "the system does not say which cores may be used")
    quota = _quota(site)
    fact = f"{usable} may be used" + ("" if quota is None else f", {quota:g} by the container")
    least, ranks = min(usable, quota or usable), site.asked.ranks
    shared = f"{ranks} ranks and a scheduler share them: steps wait for each other"
    give = f"give the container {ranks + 1} or more, as --cpus {ranks + 1}"
    return judged("cores", fact, (ranks and least < ranks + 1, "warn", shared, give))


def clock(site: Site) -> Finding:
    """A clock that costs little: it is read at each step."""
    source = site.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    # The least of many: what runs beside it takes no part in it.
    reads = [time.perf_counter_ns() for _ in range(_CALLS)]
    return judged_clock(source, min(after - before for before, after in pairwise(reads)))


def judged_clock(source: str | None, nanoseconds: float) -> Finding:
    """Judges a source and what a call takes."""
    fact = f"{source or 'an unknown source'}, {nanoseconds:.0f} ns a call"
    have = "boot with clocksource=tsc, or ask the host of this virtual machine for it"
    slow: Problem = (nanoseconds > _SLOW, "warn", "each step reads it several times", have)
    return judged("clock", fact, slow)


def _meminfo(site: Site) -> dict[str, int]:
    """Bytes, by the names in /proc/meminfo."""
    found = {
        name: whole(value.partition(" ")[0]) for name, value in site.lines("proc/meminfo").items()
    }
    return {name: kib * 1024 for name, kib in found.items() if kib is not None}


def memory(site: Site) -> Finding:
    """Room for the host tier, in the machine and in the container."""
    free = free_memory(site.root)
    if free is None:
        return unknown("memory", "the system does not say how much is free")
    available = _meminfo(site).get("MemAvailable")
    limited = available is None or free < available
    fact = f"{size(free)} are free" + (" in the container" if limited else "")
    asked = site.asked.host
    fact += f", the host tier asks for {size(asked)}" if asked else ""
    fits = f'give a smaller one, as "host": "{_fitting(int(free * _PART))}"'
    more = "raise the container's limit (docker run --memory)" if limited else "stop what takes it"
    dies = "the start fails, or the system kills the engine while it fills"
    left = "little is left for the engine's own processes and for files"
    return judged(
        "memory",
        fact,
        (asked > free, "fail", dies, f"{fits}, or {more}"),
        (asked > free * _PART, "warn", left, f"{fits}, or {more}"),
    )


def _fitting(nbytes: int) -> str:
    """A size that fits, as it is written: of whole GiB, or of MiB where there is none."""
    return f"{nbytes >> 30} GiB" if nbytes >> 30 else f"{nbytes >> 20} MiB"


def shared_memory(site: Site) -> Finding:
    """Room in /dev/shm, where ranks share what all of them have alike."""
    asked = site.asked.shared
    try:
        found = os.statvfs(site.root / "dev/shm")
    except OSError as error:
        return unknown("shared memory", f"it cannot be looked at: {error.strerror or error}")
    free = found.f_bavail * found.f_frsize
    fact = f"{size(free)} are free" + (f", ranks share {size(asked)}" if asked > free else "")
    alike = "KV that all ranks have alike (MLA) lies there once, and does not fit"
    give = f"give the container docker run --shm-size={-(-asked >> 30)}g, or a smaller host"
    return judged("shared memory", fact, (asked > free, "fail", alike, give))


def swap(site: Site) -> Finding:
    """Swap: memory that is not pinned may go there."""
    total, free = (_meminfo(site).get(name) for name in ("SwapTotal", "SwapFree"))
    if total is None or free is None:
        return unknown("swap", "the system does not say how much there is")
    if not total:
        return Finding("swap", "ok", "none")
    used = max(total - free, 0)
    fact = f"{size(used)} of {size(total)} are used"
    slow = "the machine is short of memory, and what pages it took waits for the disk"
    free_it = "free memory before the engine starts; swapoff -a"
    return judged("swap", fact, (used * 10 > total, "warn", slow, free_it))


def numa(site: Site) -> Finding:
    """Room for the host tier on the node that is nearest the GPU."""
    online = count_of(site.text("sys/devices/system/node/online"))
    if online is None:
        return unknown("numa", "the system shows no nodes")
    near = {
        node
        for device in site.found("sys/bus/pci/drivers/nvidia/[0-9a-f]*:*")
        if (node := site.number(f"{device.relative_to(site.root)}/numa_node")) is not None
    }
    fact = f"{online} node" + ("s" if online > 1 else "")
    if online == 1 or not near:
        return Finding("numa", "ok", fact)
    free = sum(_free_of(site, node) for node in near)
    far = free and site.asked.host > free
    fact += f", the GPUs are at {', '.join(map(str, sorted(near)))}"
    fact += f", where {size(free)} are free" if far else ""
    crosses = "some of the host tier will lie on another node, and copies cross to it"
    start = "start under numactl --preferred, or give a smaller host"
    return judged("numa", fact, (far, "warn", crosses, start))


def _free_of(site: Site, node: int) -> int:
    text = site.text(f"sys/devices/system/node/node{node}/meminfo") or ""
    found = re.search(r"MemFree:\s*(\d{1,18}) kB", text, re.ASCII)
    return 0 if found is None else int(found[1]) * 1024


def pages(site: Site) -> Finding:
    """Huge pages: the host tier asks for them, and pinning many small ones takes long."""
    modes = site.text("sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", modes or "")
    if chosen is None:
        return unknown("pages", "the system does not say whether it has huge pages")
    fact = f"transparent huge pages: {chosen[1]}"
    do = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    slow = "taking and pinning a large host tier takes several times as long"
    return judged("pages", fact, (chosen[1] == "never", "warn", slow, do))


CHECKS: Final[tuple[Check, ...]] = (cores, clock, memory, shared_memory, swap, numa, pages)
