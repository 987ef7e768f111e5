"""`make test-engines`: vLLM's real scheduler over Blockyard.

    python run.py [--seeds 500] [--first 0]

It runs in an environment that has vLLM and this project's wheel, prints what has happened, and ends
with status 1 at a broken promise.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from cases import CASES
from disk_cases import CASES as DISK
from mistakes import MISTAKES
from runner import run
from seeds import Game, StoreGame
from store_cases import CASES as STORES

WANTED = {"parked": 1500, "loads cut short": 300, "aborted with a copy in the air": 100}
"""What 500 seeds must have met at least."""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        StoreGame.folder = Path(folder)
        cases = [*CASES, *DISK, *STORES, *MISTAKES]
        sys.exit(run(__doc__, cases, Game, WANTED, 500, StoreGame))
