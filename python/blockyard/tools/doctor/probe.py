"""Copies between pinned memory and a GPU, in a process that may hang or die of it."""

import json
import sys
import time
from typing import Any, Final

from blockyard._core import BlockyardError
from blockyard.crane.gpu import Gpu
from blockyard.crane.gpu.cuda import current
from blockyard.crane.tiers.pinned import Pinned

__all__ = ["probe"]

_NBYTES: Final = 256 << 20
_ROUNDS: Final = 3


def probe(gpu: Gpu, nbytes: int = _NBYTES) -> dict[str, float]:
    """Copies down and up; returns GB/s, the best of some rounds.

    Raises:
        BlockyardError: The GPU, the driver or the machine refuses something.
    """
    host = Pinned(gpu, nbytes)
    rates = {"up": 0.0, "down": 0.0}
    try:
        with gpu:
            stream, memory = gpu.stream(), gpu.allocate(nbytes)
            ways = {"down": (host.address, memory.address), "up": (memory.address, host.address)}
            for _ in range(_ROUNDS):
                for way, (to, from_) in ways.items():
                    begun = time.perf_counter()
                    gpu.copy_run(to, from_, nbytes, stream)
                    gpu.synchronize(stream)
                    rates[way] = max(rates[way], nbytes / (time.perf_counter() - begun) / 1e9)
            memory.free()
    finally:
        host.free()
    return rates


def main() -> None:
    """Prints what was found as JSON."""
    try:
        found: dict[str, Any] = probe(current())
        import cupy  # noqa: PLC0415 - `current` has found it

        found["free"] = int(cupy.cuda.runtime.memGetInfo()[0])
        mode = cupy.cuda.Device().attributes.get("ComputeMode", 0)
        found["mode"] = {2: "prohibited"}.get(mode, "default")
    except (BlockyardError, ImportError) as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
