"""The GPUs: their driver, CuPy, the link, and a copy each way."""

import ctypes
import json
import re
import subprocess
import sys
from importlib import metadata
from typing import Any, Final

from blockyard.crane.gpu.driver import install
from blockyard.shared.extras import missing
from blockyard.tools.doctor.finding import Check, Finding, Level, Site, judged, unknown
from blockyard.tools.units import size

__all__ = ["CHECKS", "judged_copies", "judged_cupy"]

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = ("0x0300", "0x0302")
"""Classes of PCI devices that compute."""
_NODE: Final = "proc/driver/nvidia/version"
_NEEDS: Final = {"cupy-cuda12x": 12, "cupy-cuda13x": 13}
"""The CUDA of each package, of which the driver must have at least as late a one."""
_PATIENCE: Final = 40
"""Seconds that a copy is given, with CUDA's start."""
_SLOW: Final = 0.5
"""Of what the link's width and speed say: less is named."""
_LANE: Final = {"2.5": 0.25, "5.0": 0.5, "8.0": 0.985, "16.0": 1.969, "32.0": 3.938, "64.0": 7.56}
"""GB/s of a lane, by its transfers in 10⁹ a second."""


def _devices(site: Site) -> list[str]:
    """Paths of the GPUs on the PCI bus."""
    found = []
    for device in site.found("sys/bus/pci/devices/*"):
        where = str(device.relative_to(site.root))
        kind = site.text(f"{where}/class") or ""
        if site.text(f"{where}/vendor") == _NVIDIA and kind.startswith(_DISPLAY):
            found.append(where)
    return found


def driver(site: Site) -> Finding:
    """The driver in the kernel, and its library here."""
    # The open modules name the processor, "x86_64", before the version.
    version = re.search(r"Kernel Module.{0,80}?\s(\d+\.[\d.]{1,20})", site.text(_NODE) or "")
    devices, cuda = len(_devices(site)), _cuda()
    if version is None and cuda is None:
        if devices:
            there = f"{devices} on the bus, and no driver"
            return Finding("driver", "fail", there, "no GPU can be used", "install NVIDIA's driver")
        return unknown("driver", "no GPU of NVIDIA")
    # A sandbox may hide the kernel's file, and the driver works.
    fact = version[1] if version else f"of CUDA {_dotted(cuda or 0)}, its version is hidden"
    fact += f", {devices} GPU" + ("s" if devices != 1 else "")
    if cuda is None:
        lacks = f"{fact}, and libcuda.so.1 is not here"
        into = "start the container with --gpus all, or with NVIDIA_DRIVER_CAPABILITIES=compute"
        return Finding("driver", "fail", lacks, "this process reaches no GPU", into)
    return Finding("driver", "ok", fact)


def enough(site: Site) -> Finding:
    """Whether there is a GPU for each process that computes."""
    ranks, visible = site.asked.ranks, site.environ.get("CUDA_VISIBLE_DEVICES")
    devices = len(_devices(site))
    fact = f"{devices} on the bus"
    if visible is not None:
        named = [one for one in visible.split(",") if one.strip() not in {"", "-1"}]
        devices, fact = len(named), f"CUDA_VISIBLE_DEVICES={visible} shows {len(named)}"
    if visible is None and not devices:
        return unknown("GPUs", "no GPU of NVIDIA")
    # None at all is what one writes for an engine on the CPU.
    level: Level = "fail" if devices else "warn"
    do = f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(ranks)))}, or fewer ranks"
    short = devices < ranks
    fact += f", and {ranks} processes compute" if short else ""
    return judged("GPUs", fact, (short, level, "not all start", do))


def _cuda() -> int | None:
    """The CUDA of the driver as 1000 * major + 10 * minor; None where there is none."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return number.value


def _dotted(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def cupy(_: Site) -> Finding:
    """CuPy, by which a GPU tier has its device."""
    packages = {}
    for package in _NEEDS:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if not packages and not missing("cupy"):
        packages["cupy"] = "of an unknown package"
    return judged_cupy(packages, _cuda())


def judged_cupy(packages: dict[str, str], cuda: int | None) -> Finding:
    """Judges which packages of CuPy are there, beside the driver's CUDA."""
    said = ", ".join(f"{name} {version}" for name, version in packages.items()) or "not installed"
    if cuda is None:
        return unknown("cupy", f"{said}, and there is no driver")
    has = f"{said}; the driver has CUDA {_dotted(cuda)}"
    late = [name for name in packages if _NEEDS.get(name, 0) > cuda // 1000]
    again = f"pip uninstall {' '.join(late[:1] or packages)}; {install()}"
    return judged(
        "cupy",
        has,
        (not packages, "fail", "a GPU tier is refused", install()),
        (len(packages) > 1, "fail", "they lie over each other", again),
        (late, "fail", "the driver is too old for it", again),
    )


def link(site: Site) -> Finding:
    """The link's width, now and at most."""
    devices = _devices(site)
    if not devices:
        return unknown("link", "no GPU of NVIDIA")
    said, narrow = [], []
    for where in devices:
        now, most = (site.number(f"{where}/{one}_link_width") for one in ("current", "max"))
        name = where.rpartition("/")[2]
        if now and most:
            said.append(f"{name} x{now} of x{most}")
            narrow += [name] if now < most else []
    if not said:
        return unknown("link", "the bus does not say how wide it is")
    slow = f"copies of {', '.join(narrow)} take as many times as long"
    moved = "put the card into a slot of full width, or ask the machine's provider"
    return judged("link", ", ".join(said), (narrow, "warn", slow, moved))


def copies(site: Site) -> Finding:
    """Pins memory, and copies it up and down, in a process of its own."""
    if _cuda() is None or missing("cupy"):
        return unknown("copies", "no driver, or no CuPy")
    command = [sys.executable, "-m", "blockyard.tools.doctor.probe"]
    try:
        done = subprocess.run(  # noqa: S603 - this package
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        hangs = f"no copy has ended in {_PATIENCE} s"
        return Finding("copies", "fail", hangs, "the GPU or its driver hangs", "nvidia-smi; dmesg")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        found = {"error": last}
    return judged_copies(found, _most(site), site.asked.device)


def _most(site: Site) -> float | None:
    """GB/s of the slowest link, as the bus has it."""
    rates = []
    for where in _devices(site):
        width = site.number(f"{where}/current_link_width")
        lane = _LANE.get((site.text(f"{where}/max_link_speed") or "").partition(" ")[0])
        if width and lane:
            rates.append(width * lane)
    return min(rates, default=None)


def judged_copies(found: dict[str, Any], most: float | None, asked: int) -> Finding:
    """Judges what the probe has said, the link's GB/s and the bytes of a device tier."""
    if "error" in found:
        what = "a GPU tier fails likewise"
        return Finding("copies", "fail", str(found["error"])[:300], what, "nvidia-smi; dmesg")
    up, down = float(found["up"]), float(found["down"])
    fact = f"{up:.1f} GB/s up, {down:.1f} GB/s down, {size(found['free'])} of its memory free"
    never = found.get("mode") == "prohibited"
    smaller = "give a smaller device tier, or end who has it: nvidia-smi"
    slow = f"the link has {most or 0:.0f} GB/s: others use it, or memory lies on a far node"
    alone = "look at numa and link, and try it alone"
    return judged(
        "copies",
        fact,
        (never, "fail", "its compute mode lets nobody use it", "nvidia-smi -c DEFAULT"),
        (asked > found["free"], "fail", f"the device tier asks for {size(asked)}", smaller),
        (min(up, down) < (most or 0) * _SLOW, "warn", slow, alone),
    )


CHECKS: Final[tuple[Check, ...]] = (driver, enough, cupy, link, copies)
