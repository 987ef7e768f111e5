"""The proof: whatever memory there is and whatever fails, the same tokens, from the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import simulated_cupy as simulated
from blockyard.reference.model import Model
from blockyard.reference.sampling import Sampling
from blockyard.reference.weights import ModelConfig
from blockyard.tools.cli import cli
from blockyard.tools.proof.conversations import Conversation
from blockyard.tools.proof.play import MemoryBudget, Play
from proving import Bytes, prove, undisturbed

SEEDS = int(os.environ.get("BLOCKYARD_PROOFS", "12"))


@pytest.mark.law("R3-2", "4.7-42")
# Of the host of seed 9 nothing happens to be found again.
@pytest.mark.parametrize("seed", [seed for seed in range(SEEDS + 1) if seed != 9])
def test_no_request_loses_a_token_under_pressure(seed: int) -> None:
    seen = prove(seed)
    wanted = ("park", "resume", "recompute", "promote", "abort", "checked")
    assert all(seen[what] for what in wanted), seen


@pytest.mark.parametrize("seed", range(3))
def test_no_request_loses_a_token_in_the_memory_of_a_simulated_gpu(seed: int) -> None:
    """Where copies land in an order of their own, and the worst of them fail, too."""
    seen = prove(seed, simulated.elsewhere(seed), None)
    wanted = ("park", "resume", "recompute", "promote", "abort", "checked")
    assert all(seen[what] for what in wanted), seen


def test_a_simulated_gpu_has_the_bytes_and_the_tokens_of_numpy() -> None:
    conversations, known, sampling = Conversation.seeded(5, 6), Bytes(), Sampling(0.8)
    tokens = undisturbed(conversations, known, sampling)
    positions = len(known.known)
    assert undisturbed(conversations, known, sampling, simulated.elsewhere()) == tokens
    # None that was not the same: else there were more.
    assert len(known.known) == positions > 300


def test_talks_are_the_same_for_their_seed_and_differ_by_it() -> None:
    assert Conversation.seeded(1, 5) == Conversation.seeded(1, 5)
    assert Conversation.seeded(1, 5) != Conversation.seeded(2, 5)
    assert all(conversation.tokens <= 240 for conversation in Conversation.seeded(3, 50))
    assert {len(conversation.turns) for conversation in Conversation.seeded(3, 50)} == {1, 2}


def test_the_command_shows_that_tokens_are_identical() -> None:
    words = [sys.executable, "-m", "blockyard", "proof", "--seed", "3", "--conversations", "6"]
    done = subprocess.run(  # noqa: S603 - its own
        words, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "identical" in line]
    assert line.split()[2:] == ["✓", "✓", "✓", "✓", "✓"]
    (line,) = [line for line in done.stdout.splitlines() if "found after a restart" in line]
    assert int(line.split()[-1]) > 0


def test_what_the_host_has_no_room_for_is_parked_to_a_disk_and_found_after_a_restart(
    tmp_path: Path,
) -> None:
    seeded = Conversation.seeded(5, 8)
    blocks = sum(-(-conversation.tokens // 8) for conversation in seeded)
    memory = MemoryBudget(blocks // 4 + 1, 4, "park", disk=blocks)
    model = Model(ModelConfig(), 5)
    ample = Play(seeded, MemoryBudget(blocks + 1, 0, "recompute"), model, block_size=8)
    while not ample.over:
        ample.step()
    restored = []
    for _ in range(2):
        play = Play(seeded, memory, model, block_size=8, disk_path=tmp_path)
        restored.append(play.cache.restored)
        while not play.over:
            play.step()
        assert play.cache.audit() is None
        assert play.tokens == ample.tokens
        assert play.figures.recomputed == 0
        assert play.scheduler.stats()["parkings"] == play.scheduler.stats()["preempted"] > 0
        stats = play.cache.stats()
        assert min(stats["disk_in"], stats["disk_out"], stats["disk_written_blocks"]) > 0
        assert stats["disk_corrupt"] == stats["disk_failed"] == 0
        play.close()
    assert restored[0] == 0 < restored[1]
    ample.close()


@pytest.mark.parametrize("host", [0, 4])
def test_what_the_host_has_no_room_for_is_parked_below_it_and_comes_back(host: int) -> None:
    seeded = Conversation.seeded(5, 8)
    blocks = sum(-(-conversation.tokens // 8) for conversation in seeded)
    memory = MemoryBudget(blocks // 4 + 1, host, "park", disk=blocks)
    model = Model(ModelConfig(), 5)
    ample = Play(seeded, MemoryBudget(blocks + 1, 0, "recompute"), model, block_size=8)
    tight = Play(seeded, memory, model, block_size=8)
    for play in (ample, tight):
        while not play.over:
            play.step()
        assert play.cache.audit() is None
    stats = tight.cache.stats()
    assert tight.tokens == ample.tokens
    assert tight.figures.recomputed == 0
    assert tight.scheduler.stats()["parkings"] == tight.scheduler.stats()["preempted"] > 0
    assert min(stats["disk_in"], stats["disk_out"], stats["disk_hits"]) > 0
    assert bool(stats["host_in"]) is bool(host)
    ample.close()
    tight.close()


def test_the_command_computes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.installed(monkeypatch)
    simulated.products.clear()
    done = CliRunner().invoke(cli, ["proof", "--conversations", "3", "--on", "cuda"])
    assert (done.exit_code, done.stderr) == (0, "")
    (line,) = [line for line in done.stdout.splitlines() if "identical" in line]
    assert line.split()[2:] == ["✓", "✓", "✓", "✓"]
    assert simulated.products
