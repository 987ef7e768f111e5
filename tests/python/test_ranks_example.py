"""The example of ranks and a scheduler in processes of their own, two of which are killed."""

import subprocess
import sys
from pathlib import Path

PATH = Path(__file__).parents[2] / "examples/ranks.py"


def test_whichever_is_killed_no_byte_is_wrong_and_all_is_found_again() -> None:
    command = [sys.executable, "-W", "error", str(PATH)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # The first turn, and those in which a process was killed, find nothing: what it had is lost.
    found = [0, 35, 0, 35, 0, 35]
    assert done.stdout.splitlines() == [
        f"turn {turn}: {blocks} of 40 blocks were found, 0 wrong"
        for turn, blocks in enumerate(found)
    ]


def test_it_stays_short() -> None:
    assert len(PATH.read_text().splitlines()) <= 120
