"""The proof: whatever memory there is and whatever fails, the same tokens, from the same bytes."""

import os
import subprocess
import sys

import pytest

from blockyard.proof.talks import Talk
from proving import prove

SEEDS = int(os.environ.get("BLOCKYARD_PROOFS", "20"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_request_loses_a_token_under_pressure(seed: int) -> None:
    seen = prove(seed)
    wanted = ("park", "resume", "recompute", "promote", "abort", "checked")
    assert all(seen[what] for what in wanted), seen


def test_talks_are_the_same_for_their_seed_and_differ_by_it() -> None:
    assert Talk.seeded(1, 5) == Talk.seeded(1, 5)
    assert Talk.seeded(1, 5) != Talk.seeded(2, 5)
    assert all(talk.tokens <= 240 for talk in Talk.seeded(3, 50))
    assert {len(talk.turns) for talk in Talk.seeded(3, 50)} == {1, 2}


def test_the_command_shows_that_tokens_are_identical() -> None:
    words = [sys.executable, "-m", "blockyard", "proof", "--seed", "3", "--talks", "6"]
    done = subprocess.run(  # noqa: S603 - its own
        words, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "identical" in line]
    assert line.split()[2:] == ["✓", "✓", "✓"]
