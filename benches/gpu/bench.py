"""`make bench-gpu`: what copies between a GPU and its host reach, in one run under eight minutes.

    python benches/gpu/bench.py [--json PATH] [--only link --only flights …] [--simulated]

It needs NumPy, CuPy and a CUDA device, and no network. Every byte is checked first: where one is
wrong, nothing is timed. Each section is a process of its own, bounded in time, the riskiest last:
one that fails, crashes or hangs is told of in the JSON and at the end, and the rest goes on. The
JSON is written after each. The figures to reach are judged, never asserted.
"""

import argparse
import faulthandler
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from beside import compute, connections, others
from blockyard.crane.gpu.cuda import current
from blockyard.testing.simulated_gpu import SimulatedGpu
from children import ended, missing
from figures import figures, markdown
from flights import Result, checked, flights, latency, link, submit
from sizes import TINY, Sizes
from sweep import sweep
from yardstick import Rig, Skipped, Wrong, say


class Section(NamedTuple):
    """A part of the bench."""

    most: float
    """Seconds."""
    work: Callable[[Rig, float, Result], None]
    host: int = 1 << 30
    """Bytes of pinned memory that it needs on a GPU."""
    environment: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    module: str | None = None
    """Imported before its time begins, if it is there: a first import takes half a minute."""


#: In the order of a run.
SECTIONS: dict[str, Section] = {
    "checked": Section(45, checked),
    "link": Section(12, link, 2 << 30),
    "latency": Section(12, latency),
    "submit": Section(30, submit, 3 << 30),
    "flights": Section(120, flights, 33 << 30),
    "compute": Section(60, compute, 9 << 30, module="torch"),
    "connections": Section(
        20, connections, 5 << 30, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, module="torch"
    ),
    "others": Section(30, others, 5 << 30),
    "sweep": Section(55, sweep, 2 << 30),
}
#: Of which the check may not be left out.
FIRST = "checked"
#: What needs the peak of the link.
PEAK = "link"
#: Seconds after which no section begins, and those before are cut short.
BUDGET = 440.0
#: Seconds after that, when the last of them is ended: eight minutes are over.
AFTER = 35.0
#: Seconds that a section's process may take beside its own time: imports, pinning, the end.
BESIDE = 75.0


Play = Callable[[str, float, float, dict[str, float]], Result]
"""Plays a section within its own seconds, of those that are left, knowing the link's peak."""


def measure(
    play: Play,
    wanted: set[str],
    budget: float = BUDGET,
    keep: Callable[[Result], object] = lambda _: None,
    sure: int = Sizes.sure,
) -> Result:
    """Plays sections one after another, and puts together what they say, and the figures.

    Args:
        play: In this process, as by `here`, or each in its own, as by `apart`.
        wanted: Sections; the check is always played.
        budget: Seconds after which none begins.
        keep: Is given all that was said, after each.
        sure: Blocks of a flight from which on the shares of the peak are promised.

    Raises:
        Wrong: Bytes were not copied exactly, before or after they were timed.
    """
    said: Result = {"machine": {}, "sections": {}, "facts": {}}
    end = time.monotonic() + budget
    for name, section in SECTIONS.items():
        if name not in wanted | {FIRST}:
            continue
        left = end - time.monotonic()
        if left <= 0:
            found = {"error": f"no time was left of {budget:.0f} s"}
        elif said["sections"].get(FIRST, {}).get("error"):
            found = {"error": "not timed: the bytes could not be checked before"}
        else:
            say(f"{name}: at most {min(section.most, left):.0f} of {left:.0f} s left")
            peak = said["sections"].get(PEAK, {}).get("peak", {})
            part = play(name, min(section.most, left), left, peak)
            said["machine"] = said["machine"] or part.get("machine", {})
            said["facts"][name] = part.get("facts", {})
            found = part.get("sections", {}).get(name, {})
        said["sections"][name] = found
        said["figures"] = [
            {**figure._asdict(), "verdict": figure.verdict} for figure in figures(said, sure)
        ]
        keep(said)
        if found.get("error", "").startswith("wrong: "):
            raise Wrong(found["error"].removeprefix("wrong: "))
    return said


def here(rig: Rig) -> Play:
    """Plays sections in this process."""

    def play(name: str, most: float, _left: float, peak: dict[str, float]) -> Result:
        rig.peak, begun = dict(peak), rig.clock()
        found: Result = {}
        try:
            SECTIONS[name].work(rig, begun + most, found)
        except Wrong as error:
            found["error"] = f"wrong: {error}"
        except Skipped as why:
            found["skipped"] = str(why)
        except Exception:  # noqa: BLE001 - the others are worth having without it
            found["error"] = traceback.format_exc()
            say(found["error"])
        found["took"] = rig.clock() - begun
        return {"machine": machine(rig), "facts": rig.facts, "sections": {name: found}}

    return play


def apart(
    command: Callable[[str, Path, dict[str, float], float], list[str]], beside: float = BESIDE
) -> Play:
    """Plays each section in a process of its own.

    Args:
        command: What plays a section, writes its JSON to a path, knows the link's peak, and ends in
            so many seconds.
        beside: Seconds that a process may take beside its section's own.
    """

    def play(name: str, most: float, left: float, peak: dict[str, float]) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "said.json")
            seconds = min(most + beside, left + AFTER)
            environment = SECTIONS[name].environment
            how, _ = ended(command(name, path, peak, most), seconds, environment)
            part: Result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if how:
            part.setdefault("sections", {}).setdefault(name, {}).setdefault("error", how)
        return part

    return play


def write(path: Path, said: Result) -> None:
    """All of it or nothing: whoever is ended meanwhile leaves what was there before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(said, indent=1), encoding="utf-8")
    new.replace(path)


def machine(rig: Rig) -> dict[str, Any]:
    """Which it is, as far as it says so."""
    facts: dict[str, Any] = {"Python": platform.python_version(), "batches": rig.gpu.batches}
    if rig.cupy is not None:
        runtime = rig.cupy.cuda.runtime
        facts["GPU"] = runtime.getDeviceProperties(0)["name"].decode()
        facts["CuPy"] = rig.cupy.__version__
        facts["CUDA driver"] = runtime.driverGetVersion()
        facts["CUDA runtime"] = runtime.runtimeGetVersion()
        query = "driver_version,pcie.link.gen.current,pcie.link.width.current"
        try:
            asked = subprocess.run(
                ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
                check=True,
                capture_output=True,
                text=True,
                timeout=20,
            )
        except (OSError, subprocess.SubprocessError) as error:
            facts[query] = f"not told ({type(error).__name__})"
        else:
            facts["driver, PCIe generation, lanes"] = asked.stdout.strip().splitlines()[0]
    return facts


def main() -> int:
    """Measures, and prints the tables last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    out = os.environ.get("OUT")
    parser.add_argument("--json", type=Path, default=Path(out, "bench-gpu.json") if out else None)
    parser.add_argument("--only", action="append", choices=list(SECTIONS), default=None)
    parser.add_argument("--seconds", type=float, default=BUDGET)
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="tiny sizes without a GPU: shows that it runs, no more",
    )
    parser.add_argument("--section", choices=list(SECTIONS), help=argparse.SUPPRESS)
    parser.add_argument("--peak", type=json.loads, default={}, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.section:
        return _alone(
            given.section, given.json, given.peak, given.seconds, simulated=given.simulated
        )
    if not given.simulated:
        why = missing()
        if why:
            parser.exit(1, f"{why}\n")
    begun = time.monotonic()

    def keep(said: Result) -> None:
        if given.json is not None:
            write(given.json, said)

    def command(name: str, path: Path, peak: dict[str, float], most: float) -> list[str]:
        words = ["--section", name, "--json", str(path), "--peak", json.dumps(peak)]
        words += ["--seconds", str(most)]
        return [sys.executable, __file__, *words, *(["--simulated"] if given.simulated else [])]

    sure = (TINY if given.simulated else Sizes()).sure
    wanted = set(given.only or SECTIONS)
    try:
        said = measure(apart(command), wanted, given.seconds, keep, sure)
    except Wrong as error:
        print(f"wrong: {error}; nothing that was timed counts")
        return 1
    print(markdown(said, sure))
    failed = [name for name, part in said["sections"].items() if "error" in part]
    say(f"{time.monotonic() - begun:.0f} s in all; failed: {', '.join(failed) or 'nothing'}")
    return 2 if failed else 0


def _alone(name: str, path: Path, peak: dict[str, float], most: float, *, simulated: bool) -> int:
    """One section, in this process."""
    section = SECTIONS[name]
    # What a driver does not come back from says here where it was called.
    faulthandler.dump_traceback_later(most + BESIDE - 10, exit=True)
    if section.module is not None and not simulated:
        with suppress(ImportError):
            import_module(section.module)
    if simulated:
        rig = Rig(SimulatedGpu(eager=64), TINY)
    else:
        rig = Rig(current(), replace(Sizes(), host=section.host), cupy=import_module("cupy"))
    pinned = rig.facts["pinned"]
    say(f"{name}: pinned {pinned['bytes'] / 2**30:.2f} GiB in {pinned['seconds']:.1f} s")
    try:
        write(path, here(rig)(name, most, most, peak))
    finally:
        rig.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
