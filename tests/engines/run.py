"""`make test-engines`: vLLM's real scheduler over Blockyard.

    python run.py [--seeds 500] [--first 0]

It runs in an environment that has vLLM and this project's wheel, prints what has happened, and ends
with status 1 at a broken promise.
"""

import argparse
import logging
import os
import sys
import traceback
from collections import Counter

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from cases import CASES
from disk_cases import CASES as DISK
from mistakes import MISTAKES
from seeds import Game
from simulated_model import Wrong

WANTED = {"parked": 1500, "loads cut short": 300, "aborted with a copy in the air": 100}
"""What 500 seeds must have met at least."""


def cases() -> int:
    """Runs the cases; returns how many are broken."""
    broken = 0
    for one in [*CASES, *DISK, *MISTAKES]:
        try:
            one()
            print(f"ok      {one.__name__.replace('_', ' ')}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the case shows it
            broken += 1
            print(f"BROKEN  {one.__name__.replace('_', ' ')}: {error}")
            if not isinstance(error, Wrong):
                traceback.print_exc()
    return broken


def seeds(first: int, count: int) -> int:
    """Plays seeds; returns how many are broken, or met too little."""
    seen: Counter[str] = Counter()
    broken = 0
    for seed in range(first, first + count):
        try:
            seen += Game(seed).play()
        except Exception as error:  # noqa: BLE001 - as above
            broken += 1
            print(f"BROKEN  seed {seed}: {type(error).__name__}: {error}")
            if not isinstance(error, Wrong):
                traceback.print_exc()
    for name, number in sorted(seen.items()):
        print(f"{number:10,}  {name}")
    few = [name for name, least in WANTED.items() if seen[name] * 500 < least * count]
    if count >= 500 and few:
        print(f"BROKEN  too few of {few}: the seeds show too little")
        broken += 1
    print(f"{count} seeds from {first}: {broken} broken; 0 wrong bytes and 0 leaks in the others")
    return broken


def main() -> int:
    """Runs all."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=500)
    asked.add_argument("--first", type=int, default=0)
    options = asked.parse_args()
    for name in ("vllm", "blockyard"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return int(cases() + seeds(options.first, options.seeds) > 0)


if __name__ == "__main__":
    sys.exit(main())
