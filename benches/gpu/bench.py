"""`make bench-gpu`: what copies between a GPU and its host reach, in one run under eight minutes.

    python benches/gpu/bench.py [--json PATH] [--only link --only flights …] [--paper]

It needs NumPy, CuPy and a CUDA device, and no network. Every byte is checked first: where one is
wrong, nothing is timed. Sections are independent and bounded in time; one that fails is told of in
the JSON and at the end, and the rest goes on. The figures to reach are judged, never asserted.
"""

import argparse
import faulthandler
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from beside import compute, others
from blockyard import Unavailable
from blockyard.cuda import current
from blockyard.testing.gpu import PaperGpu
from figures import figures, markdown
from flights import Result, checked, flights, latency, link, submit
from sizes import TINY, Sizes
from sweep import sweep
from yardstick import Rig, Skipped, Wrong, say

#: Name, most seconds, and what it is; in the order of a run.
SECTIONS: dict[str, tuple[float, Callable[[Rig, float, Result], None]]] = {
    "checked": (60, checked),
    "link": (12, link),
    "latency": (12, latency),
    "submit": (25, submit),
    "flights": (140, flights),
    "compute": (65, compute),
    "others": (45, others),
    "sweep": (60, sweep),
}
#: Of which the check may not be left out.
FIRST = "checked"
#: Seconds after which no section begins, and those before are cut short.
BUDGET = 440.0


def measure(
    rig: Rig,
    wanted: set[str],
    budget: float = BUDGET,
    keep: Callable[[Result], object] = lambda _: None,
) -> Result:
    """Runs the sections, and says what each found.

    Raises:
        Wrong: Bytes were not copied exactly, before or after they were timed.
    """
    said: Result = {"machine": machine(rig), "sections": {}, "facts": rig.facts}
    end = rig.clock() + budget
    for name, (most, section) in SECTIONS.items():
        if name != FIRST and name not in wanted:
            continue
        begun = rig.clock()
        if begun >= end:
            said["sections"][name] = {"error": f"no time was left of {budget:.0f} s"}
            continue
        say(f"{name}: at most {min(most, end - begun):.0f} of {end - begun:.0f} s left")
        part: Result = {}
        said["sections"][name] = part
        try:
            section(rig, min(begun + most, end), part)
        except Wrong as error:
            part["error"] = f"wrong: {error}"
            keep(said)
            raise
        except Skipped as why:
            part["skipped"] = str(why)
        except Exception:  # noqa: BLE001 - the others are worth having without it
            part["error"] = traceback.format_exc()
            say(part["error"])
        part["took"] = rig.clock() - begun
        keep(said)
    said["figures"] = [
        {**figure._asdict(), "verdict": figure.verdict} for figure in figures(said, rig.sizes.sure)
    ]
    keep(said)
    return said


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
        "--paper", action="store_true", help="tiny sizes without a GPU: shows that it runs, no more"
    )
    given = parser.parse_args()
    begun = time.perf_counter()

    def keep(said: Result) -> None:
        if given.json is not None:
            given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")

    try:
        if given.paper:
            rig = Rig(PaperGpu(eager=64), TINY)
        else:
            rig = Rig(current(), Sizes(), cupy=import_module("cupy"))
    except Unavailable as error:
        parser.exit(1, f"{error}\n")
    pinned = rig.facts["pinned"]
    rig.facts["ready"] = time.perf_counter() - begun
    say(f"pinned {pinned['bytes'] / 2**30:.2f} GiB in {pinned['seconds']:.1f} s")
    try:
        left = given.seconds - (time.perf_counter() - begun)
        said = measure(rig, set(given.only or SECTIONS), left, keep)
    except Wrong as error:
        print(f"wrong: {error}; nothing that was timed counts")
        return 1
    finally:
        rig.close()
    print(markdown(said, rig.sizes.sure))
    failed = [name for name, part in said["sections"].items() if "error" in part]
    say(f"{time.perf_counter() - begun:.0f} s in all; failed: {', '.join(failed) or 'nothing'}")
    return 2 if failed else 0


if __name__ == "__main__":
    # What a driver does not come back from is ended here; the JSON has the sections before it.
    faulthandler.dump_traceback_later(BUDGET + 100, exit=True)
    sys.exit(main())
