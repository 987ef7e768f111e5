"""The connector's half beside vLLM's model runner, over PyTorch's tensors on a GPU."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from blockyard._typing import override
from blockyard.crane.tiers.device import DeviceTier
from gpus import gpu

pytest.importorskip("msgspec", reason="vLLM's messages need msgspec")
import_module("vllm_stub")  # before anything that imports vLLM

from vllm_disk import Engine  # noqa: E402
from vllm_front import BLOCKS, PAGE, SIZE  # noqa: E402

PROMPT = list(range(4 * SIZE))
IDS = [3, 4, 5, 6]
TIERS: dict[str, dict[str, Any]] = {
    "host": {"disk": None, "disk_path": None},
    "host and disk": {},
}


class GpuEngine(Engine):
    """Both halves, over tensors on the current GPU."""

    @staticmethod
    @override
    def tensor() -> Any:
        torch = pytest.importorskip("torch")
        return torch.zeros((BLOCKS, PAGE), dtype=torch.uint8, device="cuda")

    def overwrite(self) -> None:
        """Overwrites all of the engine's blocks."""
        for tensor in self.kv.values():
            tensor[:] = 0xEE


@pytest.fixture(params=["default stream", "own stream"])
def stream(request: pytest.FixtureRequest) -> Iterator[None]:
    """The stream on which the model runs: PyTorch's default, or another one as vLLM's is."""
    gpu()
    torch = pytest.importorskip("torch")
    if request.param == "default stream":
        yield
        return
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


def engine(path: Path, tiers: str) -> GpuEngine:
    return GpuEngine(path, **TIERS[tiers])


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
@pytest.mark.law("INV-5")
@pytest.mark.parametrize("tiers", TIERS)
def test_what_a_request_computed_comes_back_to_other_blocks(tmp_path: Path, tiers: str) -> None:
    made = engine(tmp_path, tiers)
    worker = made.worker.back.worker
    assert worker is not None
    assert isinstance(worker.crane.device, DeviceTier)
    made.stow("one", [*PROMPT, 1], [*IDS, 7], 100)
    made.overwrite()
    made.load("two", [*PROMPT, 1], [8, 9, 10, 11], IDS, 100)
    assert int(made.kv["layer 0"][3, 0]) == 0xEE, "blocks beside them keep their bytes"
    made.close()


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
def test_blocks_that_are_written_at_once_are_saved_before(tmp_path: Path) -> None:
    made = engine(tmp_path, "host")
    one = made.request("one", [*PROMPT, 1])
    assert made.begin(one, [*IDS, 7]) == 0
    made.step({one: ([*IDS, 7], len(PROMPT) + 1)}, write={at: 100 + at for at in [*IDS, 7]})
    one.num_tokens, one.num_preemptions = len(PROMPT) + 2, 1
    # The step that preempts it gives its blocks to another request, which writes them.
    made.step(preempted={"one"}, write=dict.fromkeys([*IDS, 7], 7))
    made.settle()
    assert made.begin(one, [8, 9, 10, 11, 12]) == len(PROMPT) + 1
    assert made.until("one") == set()
    for tensor in made.kv.values():
        assert tensor[8:13, 0].tolist() == [103, 104, 105, 106, 107]
    made.close()


@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
def test_a_restarted_engine_loads_what_is_on_the_disk(tmp_path: Path) -> None:
    first = engine(tmp_path, "host and disk")
    first.stow("one", [*PROMPT, 1], [*IDS, 7], 100)
    first.close()
    second = engine(tmp_path, "host and disk")
    assert second.restored == len(IDS)
    second.load("two", [*PROMPT, 1], [8, 9, 10, 11], IDS, 100)
    second.close()
