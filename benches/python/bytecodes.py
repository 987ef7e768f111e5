"""The rows of a step: the bytecode that Python executes for it, as `sys.settrace` counts it.

The loop around the core is Python, and callgrind takes half a minute to start that. What one
version of Python executes is the same on every machine. The code of NumPy is not counted, as it is
another one in each version; its calls are.
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

import blockyard as by
from blockyard.crane.copiers.threads import ThreadCopier
from steps import answer, decoding

#: Steps that are counted; `Stalls` looks at every 16th.
STEPS: Final = 64
LAYOUT: Final = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8, block_size=16)
_NUMPY: Final = str(Path(np.__file__).parent)


def idle() -> Callable[[int], object]:
    """A step of a `LocalCache` that has nothing to do."""
    cache = by.local(LAYOUT, device=600, host=600, copier=ThreadCopier(workers=0))
    return lambda _: cache.step()


def copies() -> Callable[[int], object]:
    """A life of 20 blocks that are copied down, and five steps of a `LocalCache` meanwhile."""
    copier = ThreadCopier(workers=0)
    cache = by.local(LAYOUT, device=600, host=600, write="through", ahead=16, copier=copier)

    def act(at: int) -> None:
        lease = cache.begin(range(1000 * at, 1000 * at + 320))
        assert isinstance(lease, by.Lease)
        cache.step()
        cache.step()
        cache.seal(lease, 320)
        cache.finish(lease)
        for _ in range(3):
            cache.step()

    return act


def decodes() -> Callable[[int], object]:
    """A step of a `Scheduler` with 64 rows: scheduled, dispatched, answered, and its results."""
    cache = by.KVCache(block_size=16, device=8_000)
    scheduler = decoding(cache, 64, 0)

    def act(_: int) -> None:
        step = scheduler.schedule()
        cache.dispatch()
        answer(scheduler, step)
        scheduler.results()

    return act


ROWS: Final = {"step-idle": idle, "step-copies": copies, "step-64-decodes": decodes}


def count(row: str, times: int = 1) -> float:
    """Counts a row; with `times` above 1, as if it took as many times longer."""
    act = ROWS[row]()
    for at in range(STEPS):
        act(at)
    executed = 0

    def look(frame: FrameType, event: str, _what: object) -> Any:
        nonlocal executed
        if event == "call":
            if frame.f_code.co_filename.startswith(_NUMPY):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == "opcode"
        return look

    collects = gc.isenabled()
    gc.disable()
    sys.settrace(look)
    try:
        for at in range(STEPS, STEPS + STEPS * times):
            act(at)
    finally:
        sys.settrace(None)
        if collects:
            gc.enable()
    return executed / STEPS
