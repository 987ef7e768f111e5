"""What parking gains: modelled throughput against recompute, on 20 seeds of generated traffic.

    python benches/python/preempt.py [--seeds 20] [--requests 400]

Chats with long answers run on a device that holds a few dozen of them, without headroom, so many
are preempted. Recompute runs twice: with the same host, where a preempted request finds again what
the cache has kept, and without a host. The bench fails where parking is over 1 % slower than the
first in any seed, or moves more than half of the blocks of the parked sequences.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

import numpy as np

DEVICE, HOST, LEAST = 3_000, 24_000, 0.99


def replayed(seed: int, requests: int, host: int, ways: list[str]) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "blockyard", "replay", "--workload", "decode-heavy", "--quiet"]
    words += ["--seed", str(seed), "--requests", str(requests), "--headroom", "none"]
    words += ["--device-blocks", str(DEVICE), "--host-blocks", str(host), "--json", "-"]
    for way in ways:
        words += ["--preempt-mode", way]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=20)
    asked.add_argument("--requests", type=int, default=400)
    options = asked.parse_args()
    ratios, plain, moved = [], [], []
    print("seed  parked  preempted  to recompute  to recompute without a host  moved of whole")
    for seed in range(options.seeds):
        park, again = replayed(seed, options.requests, HOST, ["park", "recompute"])
        (bare,) = replayed(seed, options.requests, 0, ["recompute"])
        speed = park["tokens_per_second"]
        ratios.append(speed / again["tokens_per_second"])
        plain.append(speed / bare["tokens_per_second"])
        gone = park["preempted"]
        moved.append(gone["relieved"] / max(gone["kept"], 1))
        print(
            f"{seed:4}  {gone['parked']:6}  {again['preempted']['count']:9}  {ratios[-1]:12.3f}  "
            f"{plain[-1]:27.3f}  {moved[-1]:14.2f}",
            flush=True,
        )
    for what, values in (("recompute", ratios), ("recompute without a host", plain)):
        print(f"to {what}: median {np.median(values):.3f}, least {min(values):.3f}")
    print(f"moved of whole sequences: median {np.median(moved):.2f}, most {max(moved):.2f}")
    return int(min(ratios) < LEAST or max(moved) > 1 / 2)


if __name__ == "__main__":
    sys.exit(main())
