"""An engine with several groups of layers over a cache for each, by seed."""

import os
from collections import Counter

import pytest

import grouped

# More: BLOCKYARD_GROUPS=2000, as `make soak-groups`.
SEEDS = int(os.environ.get("BLOCKYARD_GROUPS", "100"))
MET = (
    *("hit", "loaded", "resumed", "undone", "soon", "disagreed", "kept", "broken", "slid"),
    *("late", "flips", "clears", "restarts", "withdrawn", "aborted loading", "refused"),
    *("restored0", "restored1", "restored without its spine", "offloaded1", "lower1"),
)


def play(seed: int, steps: int) -> Counter[str]:
    mixes = list(grouped.model().MIXES)
    mix = mixes[seed % len(mixes)]
    world = grouped.world(seed, mix)
    try:
        for at in range(steps):
            world.step()
            if at % 4 == 0:
                world.audit()
        world.finish()
    except Exception as error:
        error.add_note(f"seed {seed} of {mix}")
        raise
    counts: Counter[str] = world.stat
    return counts


@pytest.mark.law("G4", "G8", "G12")
def test_no_group_reads_a_wrong_block_and_all_comes_to_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("ERROR", "blockyard")
    met = Counter[str]()
    for seed in range(SEEDS):
        met += play(seed, 250)
    assert not [name for name in MET if not met[name]]


def test_the_same_seed_does_the_same() -> None:
    assert play(6, 150) == play(6, 150)
