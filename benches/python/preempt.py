"""What parking gains: modelled throughput against recompute, on 20 seeds of generated traffic.

    python benches/python/preempt.py [--seeds 20] [--requests 400]

Chats with long answers run on a device that holds a few dozen of them, without headroom, so many
are preempted. Recompute runs twice: with the same host, where a preempted request finds again what
the cache has kept, and without a host. The bench fails where parking is over 1 % slower than the
first in any seed, or moves more than half of the blocks of the parked sequences.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from report import Figure, asked, report

DEVICE, HOST, LEAST = 3_000, 24_000, 0.99


def replayed(seed: int, requests: int, host: int, ways: list[str]) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "blockyard", "replay", "--workload", "decode-heavy", "--quiet"]
    words += ["--seed", str(seed), "--requests", str(requests), "--headroom", "none"]
    words += ["--device", str(DEVICE), "--host", str(host), "--json", "-"]
    for way in ways:
        words += ["--preempt-mode", way]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs


def figures(seeds: int, requests: int) -> Iterator[Figure]:
    ratios, plain, moved = [], [], []
    for seed in range(seeds):
        park, again = replayed(seed, requests, HOST, ["park", "recompute"])
        (bare,) = replayed(seed, requests, 0, ["recompute"])
        speed, gone = park["tokens_per_second"], park["preempted"]
        ratios.append(speed / again["tokens_per_second"])
        plain.append(speed / bare["tokens_per_second"])
        moved.append(gone["relieved"] / max(gone["kept"], 1))
        count = f"{gone['parked']} parked, {again['preempted']['count']} preempted"
        print(f"seed {seed}: {count}", file=sys.stderr, flush=True)
    for what, values, least in (
        ("recompute", ratios, LEAST),
        ("recompute without a host", plain, None),
    ):
        about = f"median {np.median(values):.3f}"
        yield Figure(
            f"throughput over that of {what}, least", min(values), least=least, about=about
        )
    about = f"median {np.median(moved):.2f}"
    yield Figure("moved of whole sequences, most", max(moved), 1 / 2, about=about)


if __name__ == "__main__":
    given = asked(__doc__, seeds=20, requests=400)
    sys.exit(report(figures(given.seeds, given.requests), given.json))
