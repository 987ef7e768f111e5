"""Replays of a trace, and what of their results differs from run to run."""

import dataclasses
from typing import Any

from blockyard.tools.replay import hardware
from blockyard.tools.replay.result import Run
from blockyard.tools.replay.spec import Progress, RunSpec
from blockyard.tools.traces.trace import Trace

MEASURED = {"wall_seconds", "bookkeeping", "verified"}


def spec_of(trace: Trace, **changes: Any) -> RunSpec:
    ranks = changes.pop("ranks", 1)
    roofline = dataclasses.replace(hardware.preset("llama-3-8b/h100"), ranks=ranks)
    settled: dict[str, Any] = {
        "preset": "llama-3-8b/h100",
        "roofline": roofline,
        "trace_block": trace.trace_block,
        "block_size": 16,
        "device_blocks": 2_600,
        "host_blocks": 4_000,
    }
    return RunSpec(**settled | changes)


def quiet(_progress: Progress) -> None:
    pass


def modelled(result: Run) -> dict[str, Any]:
    return {
        name: getattr(result, name) for name in result.__struct_fields__ if name not in MEASURED
    }
