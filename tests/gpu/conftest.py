"""Every test of this folder runs on NumPy, on a simulated GPU, and on a GPU where there is one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "support"))

from needs import without
from rigs import CudaRig, Rig, SimulatedRig, ThreadRig

GPUS = ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)]


def _rig(kind: str) -> Rig:
    if kind == "threads":
        return ThreadRig()
    if kind == "simulated":
        return SimulatedRig()
    missing = CudaRig.missing()
    if missing:
        without("cuda", missing)
    return CudaRig()


@pytest.fixture(params=["threads", *GPUS])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Memory and a copier of every kind."""
    made = _rig(request.param)
    yield made
    made.close()


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Those whose copies are queued behind an engine's work."""
    made = _rig(request.param)
    yield made
    made.close()
