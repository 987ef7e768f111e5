"""The example of an engine: it answers all, parks, and no token is another than undisturbed."""

import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockyard.crane.tiers.memory import MemoryTier
from blockyard.reference.model import Model, ModelInput
from blockyard.reference.weights import ModelConfig
from blockyard.scheduling.request import RequestState, Result

ROOT = Path(__file__).parents[3]
PATH = ROOT / "examples/engine.py"
EXAMPLE: dict[str, Any] = runpy.run_path(str(PATH))
EXCERPT = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)


def undisturbed(prompt: list[int], most: int) -> list[int]:
    """Returns the tokens of a request that is alone, in its own memory."""
    model, size = Model(ModelConfig()), 16
    blocks = 1 + -(-(len(prompt) + most) // size)
    kv = model.view(MemoryTier(model.config.layout(block_size=size), blocks, name="device"))
    tables = np.arange(1, blocks, dtype=np.int32)[None]
    tokens, first = list(prompt), 0
    while len(tokens) < len(prompt) + most and EXAMPLE["END"] not in tokens[len(prompt) :]:
        positions = np.arange(first, len(tokens))
        first = len(tokens)
        new = np.array(tokens)[positions]
        batch = ModelInput(new, positions, size + positions, tables, np.array([len(new)]))
        logits = model.forward(batch, kv, np.array([len(new) - 1]))
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


ALONE = {ask.name: undisturbed(ask.prompt, ask.max_tokens) for ask in EXAMPLE["ASKS"]}


def served(device: int) -> tuple[dict[Any, Result], dict[str, int]]:
    """How each request ended, and the scheduler's numbers."""
    results, stats = EXAMPLE["serve"](EXAMPLE["ASKS"], EXAMPLE["ABORTS"], device=device, host=48)
    assert len(results) == len(EXAMPLE["ASKS"])
    return {result.request: result for result in results}, stats


def test_it_runs_as_it_stands_and_says_how_each_request_ended() -> None:
    command = [sys.executable, "-W", "error", str(PATH)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    answered = dict(line.split(": ", 1) for line in lines)
    assert answered.keys() == ALONE.keys()
    assert len(lines) == len(ALONE)
    for name, said in answered.items():
        how = re.fullmatch(r"(\w+) \(\w+\), (\d+) tokens", said)
        assert how is not None, said
        if name in EXAMPLE["ABORTS"].values():
            assert how[1] == "aborted"
        else:
            assert (how[1], int(how[2])) == ("finished", len(ALONE[name]))
    counts = re.fullmatch(r"\d+ steps, (\d+) preempted, (\d+) parked", last)
    assert counts is not None, last
    assert int(counts[1]) >= int(counts[2]) > 0


@pytest.mark.parametrize("device", [12, 18, 24, 64])
def test_its_tokens_are_those_of_the_model_undisturbed(device: int) -> None:
    results, stats = served(device)
    for name, result in results.items():
        tokens = result.tokens.tolist()
        if name in EXAMPLE["ABORTS"].values():
            assert result.state is RequestState.ABORTED
            assert tokens == ALONE[name][: len(tokens)]
        else:
            assert result.state is RequestState.FINISHED
            assert tokens == ALONE[name]
    assert stats["lost"] == 0
    assert (stats["parkings"] > 0) == (device < 64)


def test_it_is_the_same_every_time() -> None:
    (one, stats), (other, again) = served(18), served(18)
    assert list(one) == list(other)
    assert stats == again


def test_what_the_page_shows_of_it_stands_in_it() -> None:
    code = PATH.read_text()
    excerpts = EXCERPT.findall((ROOT / "docs/engine.md").read_text())
    assert excerpts
    for excerpt in excerpts:
        # A page shows what stands deeper from its margin on.
        depths = [textwrap.indent(excerpt, " " * depth) for depth in range(0, 17, 4)]
        assert any(shown in code for shown in depths), excerpt
