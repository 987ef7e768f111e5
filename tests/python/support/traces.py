"""Traces for the tests: the real ones, where they are, and small ones made up."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blockyard.tools.traces.trace import Trace
from needs import without

CONVERSATION = "mooncake_conversation.jsonl"
AGENTIC = "lmcache_agentic_blk16.jsonl"
CLAUDE_CODE = "claude_code_blk512.jsonl.gz"

_PLACE = Path(__file__).parents[4] / "shared" / "traces"


def real(name: str) -> Path:
    """The file; without it the test is skipped, or fails where BLOCKYARD_REQUIRE has "traces"."""
    path = _PLACE / name
    if not path.exists():
        without("traces", f"no {name} in ../shared/traces")
    return path


def made(prompts: Sequence[tuple[int, Sequence[int]]], block: int, answer: int = 1) -> Trace:
    """A trace of prompts (tokens, ids), a second apart."""
    each = np.arange(len(prompts), dtype=np.int64)
    counts = [len(ids) for _, ids in prompts]
    return Trace(
        name="made up",
        trace_block=block,
        arrival=each * 1000,
        input_length=np.array([tokens for tokens, _ in prompts], np.int64),
        output_length=np.full(len(prompts), answer, np.int64),
        ids=np.array([i for _, ids in prompts for i in ids], np.int64),
        offsets=np.cumsum([0, *counts], dtype=np.int64),
        session=np.zeros(0, np.int64),
    )
