"""The carrier `nixl` over NIXL itself, by TCP on the loopback, with processes that really die."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from needs import need

LIVES = Path(__file__).parents[1] / "support" / "nixl_lives.py"


@pytest.mark.law("INV-36c", "INV-36f")
def test_race_22_processes_are_killed_stopped_and_forked_and_nothing_is_printed() -> None:
    need("nixl")
    over_tcp = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
    command = [sys.executable, str(LIVES)]
    done = subprocess.run(command, capture_output=True, check=False, env=over_tcp)  # noqa: S603 - ours
    assert (done.returncode, done.stdout) == (0, b""), done.stderr.decode()
